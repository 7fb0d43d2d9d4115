"""Draws a session as a full screen, in exactly the terminal's size."""

from collections.abc import Iterable

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

from gradviz.query.ranks import label_of
from gradviz.step.group import Group, clock_text
from gradviz.step.leaves import WITH_TREND, View, leaves
from gradviz.step.neighbourhood import drawn
from gradviz.step.state import Session
from gradviz.step.timeline import legend, pass_line, timeline
from gradviz.words.chain_rule import why_if_any
from gradviz.words.escape import clean
from gradviz.words.forward_mode import both_modes
from gradviz.words.languages import said
from gradviz.words.rows import Row, rows
from gradviz.words.sentences import sentence
from gradviz.words.source import source, title
from gradviz.words.stop import Stop

WIDE = 140  # from this many columns on, source and graph are on the left and the rest on the right
TALL = 30  # from this many lines on, there are two timelines and a legend
_LOW = 20  # below this many lines, there is one timeline
# Keys in the last line, as many as fit; there is always room for `q`.
_KEYS = (
    ("n", "next"), ("b", "back"), ("B", "backward"), ("y", "why"), ("w", "who"), ("!", "NaN"), (":", "command"),
    ("?", "help"), ("F", "forward op"), ("o", "over"), ("c", "continue"), ("K", "break"), ("/", "search"),
    ("i", "info"), ("u", "undo"),
)  # fmt: skip
_QUIT = ("q", "quit")
_LIVE_FIRST, _LIVE_QUIT = ("n", "b", "c", "K"), ("q", "end the script")  # while a script is paused
_LEAST_SOURCE = 5  # the source keeps at least this many lines
_LEAST_GRAPH = 3  # the fewest lines that a graph needs
_MESSAGE = 4  # lines of a message
_INDENT = 13  # columns of the label of a row


class Screen:
    """A session as a screen. `prompt` is the text typed after `:`, or None if no prompt is open."""

    def __init__(self, session: Session, prompt: str | None = None) -> None:
        self.session = session
        self.prompt = prompt

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.size
        yield from drawn_lines(self.lines(width, height))

    def lines(self, width: int, height: int) -> list[Text]:
        """The screen as `height` lines, none wider than `width`."""
        stop = self.session.stop
        times = self._times(width, height)
        foot = self._foot(width)
        room = self._room(width, height)
        body = self._body(stop, width, room)[:room]
        body += [Text()] * (room - len(body))
        name = ("paused · " if self.session.live else "") + clean(stop.trace.path.name)
        shown = [rule(title(stop), width, name), *body, *times, *foot]
        return [filled(line, width) for line in shown[:height]]

    def _room(self, width: int, height: int) -> int:
        """The number of lines between the title and the timelines."""
        return max(height - 1 - len(self._times(width, height)) - len(self._foot(width)), 0)

    def _times(self, width: int, height: int) -> list[Text]:
        """The timeline of the run. A long run, and any run in a tall terminal, also has the timeline of the present
        pass; a tall terminal also shows a legend."""
        session = self.session
        whole = timeline(session, width)
        if height < _LOW or (height < TALL and session.trace.count <= width // 2):
            return [whole]
        signs = legend(session) if height >= TALL else Text()
        return [*([signs] if signs.plain else []), pass_line(session, width), whole]

    def _body(self, stop: Stop, width: int, height: int) -> list[Text]:
        session, language = self.session, stop.words.language
        if session.page:
            goes_on = "space" in session.page_keys
            return page_lines(session.page, width, height, session.scrolled, goes_on, language)
        drawn_body = _wide if width >= WIDE else _narrow
        return drawn_body(stop, width, height, session.settings.leaves)

    def _foot(self, width: int) -> list[Text]:
        """The prompt, otherwise the message, otherwise the keys."""
        if self.prompt is not None:
            return [Text(f":{clean(self.prompt)}", style="bold")]
        if self.session.message:
            words = Text(self.session.message, style="bold yellow").wrap(Console(width=width), max(width - 2, 1))
            return [Text(" ").append_text(line) for line in list(words)[:_MESSAGE]]
        return [_keys(width, self.session)]


def has_more(session: Session, width: int, height: int) -> bool:
    """Whether the page has another part."""
    return session.scrolled + 1 < parts(session.page, width, Screen(session)._room(width, height))


def _keys(width: int, session: Session) -> Text:
    live = session.live
    key, word = _LIVE_QUIT if live else _QUIT
    line, last = Text(), _key(key, session.say(word))
    for key, word in sorted(_KEYS, key=lambda pair: live and pair[0] not in _LIVE_FIRST):
        shown_key = _key(key, session.say(word))
        if cell_len(line.plain) + cell_len(shown_key.plain) + cell_len(last.plain) > width:
            break
        line.append_text(shown_key)
    return line.append_text(last)


def _key(key: str, word: str) -> Text:
    return Text().append(f" {key}", style="bold").append(f" {word} ", style="dim")


def _narrow(stop: Stop, width: int, height: int, view: View) -> list[Text]:
    """Source, sentence, gradients and graph below one another, and the leaves at the bottom. Each keeps its place
    from stop to stop if possible. If there is little room, the source is shortened first, then the graph."""
    said = _sentence(stop, width)
    below = leaves(stop, width, max(height // (3 if view.variables else 5), 1), view)
    spare = height - len(said) - len(below) - 2
    gradients, graph = _told_and_graph(stop, width, spare - _LEAST_SOURCE)
    room = spare - len(gradients) - len(graph)
    above = source(stop, width, max(min(room, height // 2 - 1), 0))
    gap = [Text()] * max(room - len(above), 0)
    return [*above, Text(), *said, *gradients, *gap, *graph, _leaves_rule(stop, width, below, view), *below]


def _told_and_graph(stop: Stop, width: int, height: int) -> tuple[list[Text], list[Text]]:
    """The rows and the graph in `height` lines. The graph also shows the gradients that wait nearby, so the
    rows omit these if there is not enough room for both."""
    all_rows = rows(stop)
    for shown in (all_rows, [row for row in all_rows if row.label != "waiting"]):
        lines = gradient_lines(stop, shown, width, max(height, 2))
        graph = _graph(stop, width, height - len(lines) - 1)
        if graph:
            return lines, graph
    return gradient_lines(stop, all_rows, width, max(height, 2)), []


def _wide(stop: Stop, width: int, height: int, view: View) -> list[Text]:
    """Source and graph on the left; sentence, gradients, the chain rule and the leaves on the right."""
    left_width = min(width // 2, 90)
    right_width = width - left_width - 3
    graph = _graph(stop, left_width, height // 2 - 2)
    if graph:
        graph = [rule(stop.say("graph" if stop.k else "getting started"), left_width), *graph]
    left = source(stop, left_width, height - len(graph) - 1)
    left += [Text()] * (height - len(graph) - len(left)) + graph
    said = _sentence(stop, right_width)
    gradients = gradient_lines(stop, rows(stop), right_width, max(height - len(said) - 8, 3))
    spare = height - len(said) - len(gradients) - 3
    below = leaves(stop, right_width, max(spare // 2 if spare > 16 else spare, 1), view)
    more = _explained(stop, right_width, spare - len(below) - 1)
    below = leaves(stop, right_width, max(spare - len(more), 1), view)
    right = [*said, Text(), *gradients, Text(), *more, _leaves_rule(stop, right_width, below, view), *below]
    return [beside(left, right, row, left_width) for row in range(height)]


def _leaves_rule(stop: Stop, width: int, below: list[Text], view: View) -> Text:
    """The rule above the leaves, with a heading for the bars if there are any."""
    if view.variables:
        return rule(stop.say("variables"), width)
    has_bars = width >= WITH_TREND and any(map(stop.words.trend, stop.tabled[: len(below)]))
    return rule(stop.say("leaves"), width, stop.say("gradient norm in each pass") if has_bars else "")


def _graph(stop: Stop, width: int, height: int) -> list[Text]:
    """The neighbourhood in the graph; at the first event, the first steps for a user."""
    if not stop.k:
        return first_lines(stop, width)[: max(height, 0)]
    return drawn(stop, width, height) if height >= _LEAST_GRAPH else []


def _explained(stop: Stop, width: int, height: int) -> list[Text]:
    """The chain rule at this stop. If both modes reached this place, also the table of both. Each is shown
    only if it fits."""
    explained: list[Text] = []
    for heading, lines in (("why", why_if_any(stop)), ("forward and reverse", both_modes(stop))):
        shown = wrapped(lines, width)
        if shown and len(explained) + len(shown) + 2 <= height:
            explained += [rule(stop.say(heading), width), *shown, Text()]
    return explained


def _sentence(stop: Stop, width: int) -> list[Text]:
    """The sentence of the stop, in at most three lines."""
    words = Text(sentence(stop), style="bold").wrap(Console(width=width), width - 2)
    return [Text(" ").append_text(line) for line in list(words)[:3]]


def gradient_lines(stop: Stop, told: list[Row], width: int, height: int) -> list[Text]:
    """The rows in at most `height` lines. Long rows take several lines if there is room for all."""
    shown = told if len(told) <= height else told[: max(height - 1, 0)]
    lines = [line for row in shown for line in _broken(stop.say(row.label), row, width)]
    if len(lines) > height:
        lines = [_row(stop.say(row.label), row) for row in shown]
    if len(told) > len(shown):
        lines.append(Text(stop.say("  … and {count} more", count=len(told) - len(shown)), style="dim"))
    return lines


def _broken(label: str, row: Row, width: int) -> list[Text]:
    """A row in as many lines as it needs; only the first line has the label."""
    text = Text(row.text, style=row.style).wrap(Console(width=width), max(width - _INDENT, 1))
    return [
        _row(label if not at else "", Row(row.label, line.plain.rstrip(), row.style)) for at, line in enumerate(text)
    ]


def _row(label: str, row: Row) -> Text:
    room = " " * (_INDENT - 2 - cell_len(label))
    return Text(no_wrap=True).append(f"{room}{label}  ", style="dim").append(row.text, style=row.style)


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


NARROW = 48  # the fewest columns of a session


class Together:
    """The sessions of a group as one screen, one column each. Sessions that do not fit are counted in the last line."""

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
        labels = [filter(None, (clean(label_of(one.trace)), clock_text(one))) for one in shown]  # rank 0 · collective 3
        titles = [filled(Text(f" {' · '.join(parts)}", style="bold reverse"), each) for parts in labels]
        columns = [
            [title, *Screen(session, self.prompt).lines(each, room)]
            for title, session in zip(titles, shown, strict=True)
        ]
        lines = [filled(Text("│", style="dim").join(parts), width) for parts in zip(*columns, strict=True)]
        if hidden:
            wanted = len(self.sessions) * (NARROW + 1) - 1
            more = f" {hidden} more: widen the terminal to {wanted} columns, or look into one, as in :rank 1"
            lines.append(filled(Text(more, style="bold yellow"), width))
        return lines[:height]


def page_lines(
    lines: list[str], width: int, height: int, scrolled: int = 0, goes_on: bool = False, language: str = "en"
) -> list[Text]:
    """The result of a verb, shown instead of the stop. A long page is split into parts; `scrolled` selects a part.
    `goes_on` means that Space after the last part shows another page."""
    text = wrapped(lines, width)
    text[0].stylize("bold")
    room = max(height - _AROUND, 1)
    count = parts(lines, width, height)
    scrolled = min(scrolled, count - 1)
    end = _ANY_KEY
    if count == 1 and goes_on:
        end = "Space goes on, any other key leaves."
    elif count > 1:
        end = _NEXT_PART if goes_on or scrolled < count - 1 else _LAST_PART
    last = "  " + said(language, end, part=scrolled + 1, count=count)
    return [Text(), *text[scrolled * room : (scrolled + 1) * room], Text(), Text(last, style="dim")][:height]


def parts(lines: list[str], width: int, height: int) -> int:
    """The number of parts that a page has on a screen of this size."""
    return -(-len(wrapped(lines, width)) // max(height - _AROUND, 1))


_AROUND = 3  # lines of a page besides the text


def wrapped(lines: list[str], width: int) -> list[Text]:
    """Lines wrapped to a width; each keeps its indent."""
    shown = []
    for line in lines:
        indent = len(line) - len(line.lstrip())
        for part in Text(line.strip()).wrap(Console(width=width), max(width - indent - 2, 20)):
            shown.append(Text(" " * (indent + 1)).append_text(part))
    return shown


_ANY_KEY = "Press any key to continue."
_NEXT_PART = "Part {part} of {count}: Space for the next, any other key to leave."
_LAST_PART = "Part {part} of {count}: b for the previous, any other key to leave."


def first_lines(stop: Stop, width: int) -> list[Text]:
    """The first steps for a user, shown at the first event."""
    lines = [Text(f" {_size(stop)}", style="bold")]
    for command, words in _BEGINNINGS:
        line = Text(no_wrap=True).append(f"   {command:<13}", style="bold cyan")
        lines.append(line.append(said(stop.words.language, words)))
    return [fitted(line, width) for line in lines]


def _size(stop: Stop) -> str:
    """The numbers of events, passes and errors of the run."""
    trace, language = stop.trace, stop.words.language
    passes, errors = len(trace.pass_numbers), len(trace.errors)
    events = said(language, "{count} event" if trace.count == 1 else "{count} events", count=trace.count)
    begun = "{count} backward pass" if passes == 1 else "{count} backward passes"
    text = f"{events}, {said(language, begun, count=passes)}"
    if errors:
        one, several = (", {errors} error, the last at event {last}", ", {errors} errors, the last at event {last}")
        text += said(language, one if errors == 1 else several, errors=errors, last=trace.errors[-1].event + 1)
    return text


_BEGINNINGS = (
    ("n  b", "the next and the previous event; B the next backward pass"),
    ("why y.grad", "why a gradient is None, or how it came about (type : first)"),
    ("!", "the first event with NaN or inf, or the first error; then y"),
    ("who w", "the line that last changed w; again: the change before that"),
    ("?", "everything else"),
)
