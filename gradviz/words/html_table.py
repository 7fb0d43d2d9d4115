"""Tables for notebooks and terminals: HTML that needs no style sheet, and text; both are safe for any texts."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from html import escape

from gradviz.words.escape import clean, visible

_CELL = "text-align: left; vertical-align: top; padding: 2px 12px 2px 0; white-space: normal"
_IN_CELL = re.compile(r"(In\[\d+\]):(\d+)")


def html_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    above: str = "",
    below: str = "",
    links: Mapping[str, str] | None = None,
) -> str:
    """A table as HTML, with a line of text above and a line below. A cell may have several lines. `links` are what
    places such as `In[2]:7` lead to, by the names of their files, to be formatted with `line`."""
    text_of = partial(_as_html, links=links or {})
    head = "".join(f'<th style="{_CELL}">{text_of(text)}</th>' for text in heads)
    body = "".join(
        f"<tr>{''.join(f'<td style={chr(34)}{_CELL}{chr(34)}>{text_of(text)}</td>' for text in row)}</tr>"
        for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if body else ""
    lines = [f"<p>{text_of(text)}</p>" if text else "" for text in (above, below)]
    return f"<div>{lines[0]}{table}{lines[1]}</div>"


def text_table(heads: Sequence[str], rows: Iterable[Sequence[str]], above: str = "", below: str = "") -> str:
    """A table as text, with a line above and a line below. A cell has one line."""
    lines = [[clean(cell) for cell in line] for line in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join(filter(None, [clean(above), *shown, clean(below)]))


def _as_html(text: str, links: Mapping[str, str]) -> str:
    lines = (_linked(escape(visible(line)), links) for line in text.split("\n"))
    return "<br>".join(lines)


def _linked(text: str, links: Mapping[str, str]) -> str:
    """A text of HTML whose places in cells are links."""

    def link(found: re.Match[str]) -> str:
        place, cell, line = found.group(0, 1, 2)
        return f'<a href="{escape(links[cell].format(line=line))}">{place}</a>' if cell in links else place

    return _IN_CELL.sub(link, text) if links else text
