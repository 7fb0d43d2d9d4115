"""Makes text of a program or a trace safe to display: one function for each output format."""

import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # control, invisible, direction-changing characters
_PATH = re.compile(r"[\w\[\]]+(\.[\w\[\]]+)+")
_MOST = 10_000  # characters of one text that is shown to a person


class _Escapes(dict[int, str]):
    """The replacement of each character for `str.translate`: the character itself, or its escape."""

    def __init__(self, escape: Callable[[str], str]) -> None:
        self.escape = escape

    def __missing__(self, code: int) -> str:
        character = chr(code)
        shown = self[code] = character if character.isprintable() else self.escape(character)
        return shown


_for_terminal = _Escapes(lambda character: character.encode("unicode_escape", "backslashreplace").decode())
_for_json = _Escapes(lambda character: json.dumps(character)[1:-1])


def clean(text: str) -> str:
    """Text as one line for a terminal; control and invisible characters are escaped. Very long text is cut to 10,000
    characters."""
    return _escaped(shortened(text, _MOST))


def _escaped(text: str) -> str:
    return text if text.isprintable() else text.translate(_for_terminal)


def json_text(data: Any, indent: int = 2) -> str:
    """Data as JSON for people and programs, with control and invisible characters escaped. Raises ValueError for NaN
    and infinity."""
    text = json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False)
    return "\n".join(line if line.isprintable() else line.translate(_for_json) for line in text.split("\n"))


def json_number(value: Any) -> Any:
    """A value, or nested lists of values, as JSON; NaN and infinity become texts: `"nan"`, `"inf"`."""
    if isinstance(value, list):
        return [json_number(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def finite_number(value: float | None) -> float | None:
    """A number as JSON; None where it is not finite or not known."""
    return None if value is None or not math.isfinite(value) else float(value)


def clean_character(character: str) -> str:
    """One character of a source line for a terminal: a tab becomes four spaces, the rest is as in `clean`."""
    return "    " if character == "\t" else _for_terminal[ord(character)]


def shortened(text: str, width: int) -> str:
    """Text of at most `width` characters; if it was cut, it ends with an ellipsis."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def shortened_left(text: str, width: int) -> str:
    """Text of at most `width` characters; if it was cut, it begins with an ellipsis: the end of a long name
    distinguishes it."""
    return text if len(text) <= width else "…" + text[len(text) - max(width - 1, 0) :]


def plain_name(name: str, limit: int) -> str:
    """A name as a short line, as `plain`. A long path, such as `encoder.layers.0.weight`, is cut at its beginning,
    since its end distinguishes it; any other name is cut at its end."""
    return _escaped(shortened_left(name, limit)) if _PATH.fullmatch(name) else plain(name, limit)


def plain(text: str, limit: int = 60) -> str:
    """Text as a short line for a picture or the page: like `clean`, but only the first `limit` characters."""
    return _escaped(shortened(text, limit))


def visible(line: str) -> str:
    """A line of source for the page. Each control or invisible character except tab becomes `�`, so that
    columns keep their positions."""
    if line.isascii() and line.isprintable():
        return line
    return "".join("\ufffd" if unicodedata.category(c) in _HIDDEN and c != "\t" else c for c in line)


def quoted(lines: Iterable[str], end: str = "") -> str:
    """Lines as a DOT string that is taken literally: no escapes (`\\N`), entities or HTML-like labels. `end`
    is the DOT line ending, such as `\\l` for left-aligned lines; without it they are centred."""
    import graphviz  # imported here because the stepper does not need it

    escaped = [graphviz.escape(line.replace("&", "&amp;")) for line in lines]
    return graphviz.nohtml("".join(line + end for line in escaped) if end else "\\n".join(escaped))


def as_mermaid(text: str) -> str:
    """Text that Mermaid takes literally: every character except letters, digits and a few others as a
    character code."""
    return "".join(c if c.isalnum() or c in " ._-·×=," else f"#{ord(c)};" for c in text)
