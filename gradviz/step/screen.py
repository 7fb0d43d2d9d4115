"""The screen: everything there is to see at one stop, in exactly the terminal's size."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

from gradviz.step.gradients import Row, rows
from gradviz.step.leaves import leaves
from gradviz.step.numbers import clean
from gradviz.step.sentences import sentence
from gradviz.step.source import source, title
from gradviz.step.state import Session
from gradviz.step.stop import Stop
from gradviz.step.timeline import timeline
from gradviz.step.verbs import help_rows

WIDE = 110  # from so many columns on, source left and gradients right
_KEYS = (
    ("n", "next"),
    ("b", "back"),
    ("B", "next backward"),
    ("F", "next forward"),
    (":", "command"),
    ("?", "help"),
    ("q", "quit"),
)
_LEAST_SOURCE = 5  # lines of source that the gradients leave


class Screen:
    """A session as it is shown. `prompt` is what is being typed after `:`, None while nothing is."""

    def __init__(self, session: Session, prompt: str | None = None) -> None:
        self.session = session
        self.prompt = prompt

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.size
        for row, line in enumerate(self.lines(width, height)):
            if row:
                yield Segment(
                    "\n\r"
                )  # a resize is drawn while a key is awaited, when \n alone does not return
            line.end = ""
            yield line

    def lines(self, width: int, height: int) -> list[Text]:
        """The screen as `height` lines, none wider than `width`."""
        stop = self.session.stop
        body = self._body(stop, width, height - 3)
        body = body[: max(height - 3, 0)]
        body += [Text()] * (height - 3 - len(body))
        shown = [
            _rule(title(stop), width, clean(stop.facts.trace.path.name)),
            *body,
            timeline(stop, width),
            self._foot(width),
        ]
        return [_filled(line, width) for line in shown[:height]]

    def _body(self, stop: Stop, width: int, height: int) -> list[Text]:
        if self.session.help:
            return help_lines(width, height)
        if self.session.page:
            return _page(self.session.page, width, height)
        return _body(stop, width, height)

    def _foot(self, width: int) -> Text:
        """What is being typed, else what there is to say, else the keys."""
        if self.prompt is not None:
            return Text(f":{clean(self.prompt)}▏", style="bold")
        if self.session.message:
            return Text(f" {self.session.message}", style="bold yellow")
        line = Text()
        for key, word in _KEYS:
            if cell_len(line.plain) + len(key) + len(word) + 4 > width:
                break
            line.append(f" {key}", style="bold").append(f" {word} ", style="dim")
        return line


def _body(stop: Stop, width: int, height: int) -> list[Text]:
    return _wide(stop, width, height) if width >= WIDE else _narrow(stop, width, height)


def _narrow(stop: Stop, width: int, height: int) -> list[Text]:
    """Source, sentence and gradients, one below the other, and the leaves at the foot. Each stays in its place from
    stop to stop as far as it can; where room is short, the source gives way first."""
    said = _sentence(stop, width)
    below = leaves(stop, width, max(height // 4, 1))
    spare = height - len(said) - len(below) - 2
    told = gradient_lines(stop, width, max(spare - _LEAST_SOURCE, 2))
    above = source(stop, width, max(min(spare - len(told), height // 2 - 1), 0))
    gap = max(spare - len(told) - len(above), 0)
    return [*above, Text(), *said, *told, *[Text()] * gap, _rule("leaves", width), *below]


def _wide(stop: Stop, width: int, height: int) -> list[Text]:
    """Source on the left; sentence, gradients and leaves on the right."""
    left_width = min(width // 2, 90)
    right_width = width - left_width - 3
    said = _sentence(stop, right_width)
    told = gradient_lines(stop, right_width, max(height - len(said) - 8, 3))
    below = leaves(stop, right_width, max(height - len(said) - len(told) - 3, 1))
    right = [*said, Text(), *told, Text(), _rule("leaves", right_width), *below]
    left = source(stop, left_width, height)
    return [_beside(left, right, row, left_width) for row in range(height)]


def _beside(left: list[Text], right: list[Text], row: int, width: int) -> Text:
    line = Text(no_wrap=True).append_text(_filled(left[row] if row < len(left) else Text(), width))
    line.append(" │ ", style="dim")
    return line.append_text(right[row]) if row < len(right) else line


def _sentence(stop: Stop, width: int) -> list[Text]:
    """What happens, over as many lines as it needs, three at most."""
    words = Text(sentence(stop), style="bold").wrap(Console(width=width), width - 2)
    return [Text(" ").append_text(line) for line in list(words)[:3]]


def gradient_lines(stop: Stop, width: int, height: int) -> list[Text]:
    """The rows of a stop in at most `height` lines."""
    told = rows(stop)
    shown = told if len(told) <= height else told[: max(height - 1, 0)]
    lines = [_row(row) for row in shown]
    if len(told) > len(shown):
        lines.append(Text(f"  … and {len(told) - len(shown)} more", style="dim"))
    return lines


def _row(row: Row) -> Text:
    return Text(no_wrap=True).append(f" {row.label:>10}  ", style="dim").append(row.text, style=row.style)


def _rule(words: str, width: int, right: str = "") -> Text:
    """A line with a title, and one at the right where there is room."""
    line = Text().append("── ", style="dim").append(words, style="bold").append(" ")
    ending = f" {right} ──" if right and cell_len(line.plain) + cell_len(right) + 6 < width else ""
    rest = max(width - cell_len(line.plain) - cell_len(ending), 0)
    return line.append("─" * rest + ending, style="dim")


def _page(lines: list[str], width: int, height: int) -> list[Text]:
    """What a verb has to tell, in the place of the stop."""
    shown = [Text()]
    for position, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        text = Text(line.strip(), style="" if position else "bold")
        for wrapped in text.wrap(Console(width=width), max(width - indent - 2, 20)):
            shown.append(Text(" " * (indent + 1)).append_text(wrapped))
    end = Text("  Any key goes on.", style="dim")
    if len(shown) > height - 2:
        shown = [*shown[: height - 2], Text("  …", style="dim")]
    return [*shown, Text(), end][:height]


def help_lines(width: int, height: int) -> list[Text]:
    """The verbs: in two columns where there is room, else by name and key as far as they go."""
    rows = help_rows()
    lines = [_help_row(*row, width=width if width < WIDE else width // 2) for row in rows]
    room = height - 2
    if width >= WIDE:
        half = (len(lines) + 1) // 2
        left, right = lines[:half], lines[half:]
        lines = [_beside(left, right, row, width // 2 - 3) for row in range(half)]
    elif len(lines) > room:
        return _compact_help(rows, width, height)
    return [*lines[:room], Text(), Text("  Any key goes on.", style="dim")]


def _help_row(usage: str, keys: str, words: str, width: int) -> Text:
    if not keys:
        return Text(f" {usage}", style="bold")
    line = Text().append(f"  {usage:<21}", style="bold").append(f"{_few(keys):<8}", style="cyan")
    return _fitted(line.append(words), width - 3)


def _few(keys: str) -> str:
    return " ".join(keys.split()[:3])


def _compact_help(rows: list[tuple[str, str, str]], width: int, height: int) -> list[Text]:
    """Keys and names only, in as many columns as fit."""
    verbs = [(usage.split()[0], keys.split()[0]) for usage, keys, _ in rows if keys]
    columns = max(width // 26, 1)
    per = -(-len(verbs) // columns)
    lines = [Text(" Keys and commands", style="bold"), Text()]
    for row in range(per):
        line = Text()
        for name, key in verbs[row::per]:
            line.append(f"  {key:>5} ", style="bold cyan").append(f"{name:<18}")
        lines.append(line)
    lines += [
        Text(),
        Text("  Type : and a command with what it takes, such as :until grad.rms < 1e-7"),
        Text("  :help VERB tells of one, :help fields what a predicate can ask"),
    ]
    return [*lines[: height - 1], Text("  Any key goes on.", style="dim")]


def _filled(line: Text, width: int) -> Text:
    """The line in exactly the screen's width, so that it covers what stood there."""
    line = _fitted(line, width).copy()
    line.append(" " * (width - cell_len(line.plain)))
    return line


def _fitted(line: Text, width: int) -> Text:
    """The line, cut where it is wider than the screen."""
    if cell_len(line.plain) <= width:
        return line
    keep = len(set_cell_size(line.plain, width - 1).rstrip())
    cut = line[:keep]
    cut.append("…")
    return cut
