"""Translations of the texts on screens: one file for each language (`ko.toml`), by the English texts, with the same
`{parts}`."""

from collections.abc import Mapping
from functools import cache

LANGUAGES = ("en", "ko")


@cache
def texts(language: str) -> Mapping[str, str]:
    """The texts of a language, by the English texts; empty for English."""
    if language == "en":
        return {}
    import tomllib  # here, since commands in English need neither this nor the file
    from importlib.resources import files

    return tomllib.loads(files("gradviz.words").joinpath(f"{language}.toml").read_text(encoding="utf-8"))


def said(language: str, text: str, /, **parts: object) -> str:
    """A text in a language, with its `{parts}` filled in."""
    known = texts(language).get(text, text)
    return known.format(**parts) if parts else known
