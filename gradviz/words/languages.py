"""What is said in another language than English: by the English texts, with the same `{parts}`, in a file for each
language (`ko.toml`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

LANGUAGES = ("en", "ko")


@cache
def texts(language: str) -> Mapping[str, str]:
    """The texts of a language, by the English ones; of English none."""
    if language == "en":
        return {}
    import tomllib  # here, since commands that speak English need neither
    from importlib.resources import files

    return tomllib.loads(files("gradviz.words").joinpath(f"{language}.toml").read_text(encoding="utf-8"))


def said(language: str, text: str, /, **parts: object) -> str:
    """A text in a language, with its `{parts}` filled in."""
    known = texts(language).get(text, text)
    return known.format(**parts) if parts else known
