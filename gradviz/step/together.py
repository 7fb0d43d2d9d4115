"""Several sessions side by side on one screen: the ranks of a run, or two runs."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from gradviz.query.ranks import label_of
from gradviz.step.group import Group, clock_text
from gradviz.step.lines import drawn_lines, filled
from gradviz.step.screen import Screen
from gradviz.step.state import Session
from gradviz.words.escape import clean

NARROW = 48  # the fewest columns of a session


class Together:
    """The sessions of a group as one screen, one column each. Sessions that do not fit are counted in the last
    line."""

    def __init__(self, group: Group, prompt: str | None = None) -> None:
        self.sessions = group.shown
        self.prompt = prompt

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.size
        yield from drawn_lines(self.lines(width, height))

    def lines(self, width: int, height: int) -> list[Text]:
        """The screen as `height` lines, none wider than `width`."""
        shown = self.sessions[: max((width + 1) // (NARROW + 1), 1)]
        hidden = len(self.sessions) - len(shown)
        each, room = (width + 1) // len(shown) - 1, max(height - 1 - bool(hidden), 1)
        columns = [
            [_label(session, each), *Screen(session, self.prompt).lines(each, room)] for session in shown
        ]
        lines = [filled(Text("│", style="dim").join(parts), width) for parts in zip(*columns, strict=True)]
        if hidden:
            wanted = len(self.sessions) * (NARROW + 1) - 1
            more = f" {hidden} more: widen the terminal to {wanted} columns, or look into one, as in :rank 1"
            lines.append(filled(Text(more, style="bold yellow"), width))
        return lines[:height]


def _label(session: Session, width: int) -> Text:
    """The title of a session's column."""
    return filled(Text(f" {together_label(session)}", style="bold reverse"), width)


def together_label(session: Session) -> str:
    """`rank 0 · collective 3 of 24`."""
    return " · ".join(filter(None, (clean(label_of(session.trace)), clock_text(session))))
