"""Lines of a screen: cut, padded, ruled, side by side."""

from __future__ import annotations

from collections.abc import Iterable

from rich.cells import cell_len, set_cell_size
from rich.console import RenderResult
from rich.segment import Segment
from rich.text import Text


def drawn_lines(lines: Iterable[Text]) -> RenderResult:
    """The segments that print lines below one another."""
    for row, line in enumerate(lines):
        if row:
            # After a resize the screen is drawn while the terminal is in raw mode, where \n alone does not return.
            yield Segment("\n\r")
        line.end = ""
        yield line


def rule(words: str, width: int, right: str = "") -> Text:
    """A horizontal rule with a title, and with `right` at its end if there is room."""
    line = Text().append("── ", style="dim").append(words, style="bold").append(" ")
    ending = f" {right} ──" if right and cell_len(line.plain) + cell_len(right) + 6 < width else ""
    rest = max(width - cell_len(line.plain) - cell_len(ending), 0)
    return line.append("─" * rest + ending, style="dim")


def beside(left: list[Text], right: list[Text], row: int, width: int) -> Text:
    line = Text(no_wrap=True).append_text(filled(left[row] if row < len(left) else Text(), width))
    line.append(" │ ", style="dim")
    return line.append_text(right[row]) if row < len(right) else line


def filled(line: Text, width: int) -> Text:
    """The line padded or cut to exactly `width` cells, so that it covers older text on the screen."""
    line = fitted(line, width).copy()
    line.append(" " * (width - cell_len(line.plain)))
    return line


def fitted(line: Text, width: int) -> Text:
    """The line, cut to `width` cells if it is wider."""
    if cell_len(line.plain) <= width:
        return line
    keep = len(set_cell_size(line.plain, width - 1).rstrip())
    cut = line[:keep]
    cut.append("…")
    return cut
