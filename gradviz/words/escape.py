"""Text of a program or a trace made harmless: one function for each target that it is written for."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # control, invisible, direction-changing characters


def clean(text: str) -> str:
    """Text as one line, for a terminal: control and invisible characters by their escapes."""
    return text if text.isprintable() else "".join(map(_by_escape, text))


def clean_character(character: str) -> str:
    """One character of a line of source, for a terminal: a tab is four spaces, the rest as `clean`."""
    return "    " if character == "\t" else _by_escape(character)


def _by_escape(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape", "backslashreplace").decode()


def shortened(text: str, width: int) -> str:
    """Text of at most `width` characters, with an ellipsis where it was cut."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def plain(text: str, limit: int = 60) -> str:
    """Text as a short line, for a picture or the page: as `clean`, of the first `limit` characters."""
    return clean(shortened(text, limit))


def visible(line: str) -> str:
    """A line of source, for the page: each control or invisible character but a tab is `�`, so that columns stay."""
    if line.isascii() and line.isprintable():
        return line
    return "".join("\ufffd" if unicodedata.category(c) in _HIDDEN and c != "\t" else c for c in line)


def quoted(lines: Iterable[str], end: str = "") -> str:
    """Lines as a DOT string that means them literally: no escape (`\\N`), no entity, no HTML-like label. `end` is
    what DOT is to end each with (`\\l`: left-aligned), where they are not centred."""
    import graphviz  # here, because the stepper need not load it

    escaped = [graphviz.escape(line.replace("&", "&amp;")) for line in lines]
    return graphviz.nohtml("".join(line + end for line in escaped) if end else "\\n".join(escaped))


def as_mermaid(text: str) -> str:
    """Text that Mermaid takes literally: all but letters, digits and spaces as character codes."""
    return "".join(c if c.isalnum() or c in " ._-·×=," else f"#{ord(c)};" for c in text)
