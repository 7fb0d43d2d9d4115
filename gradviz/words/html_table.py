"""Tables for notebooks: HTML that needs no style sheet and is safe for any texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from gradviz.words.escape import visible

_CELL = "text-align: left; vertical-align: top; padding: 2px 12px 2px 0; white-space: normal"


def html_table(heads: Sequence[str], rows: Iterable[Sequence[str]], above: str = "", below: str = "") -> str:
    """A table as HTML, with a line of text above and a line below. A cell may have several lines."""
    head = "".join(f'<th style="{_CELL}">{_text(text)}</th>' for text in heads)
    body = "".join(
        f"<tr>{''.join(f'<td style={chr(34)}{_CELL}{chr(34)}>{_text(text)}</td>' for text in row)}</tr>"
        for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if body else ""
    lines = [f"<p>{_text(text)}</p>" if text else "" for text in (above, below)]
    return f"<div>{lines[0]}{table}{lines[1]}</div>"


def _text(text: str) -> str:
    return "<br>".join(escape(visible(line)) for line in text.split("\n"))
