"""What stands in the place of a stop: what a verb has to tell, and the help."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from gradviz.step.lines import beside, fitted
from gradviz.step.verbs import help_rows
from gradviz.words.stop import Stop

WIDE = 110  # from so many columns on, two things stand side by side


def page_lines(lines: list[str], width: int, height: int, scrolled: int = 0) -> list[Text]:
    """What a verb has to tell, in the place of the stop; where it is long, one of its parts."""
    told = wrapped(lines, width)
    told[0].stylize("bold")
    room = max(height - _AROUND, 1)
    count = parts(lines, width, height)
    scrolled = min(scrolled, count - 1)
    end = "  Any key goes on."
    if count > 1:
        more = "Space reads on" if scrolled < count - 1 else "b goes back"
        end = f"  Part {scrolled + 1} of {count}: {more}, any other key leaves."
    return [Text(), *told[scrolled * room : (scrolled + 1) * room], Text(), Text(end, style="dim")][:height]


def parts(lines: list[str], width: int, height: int) -> int:
    """How many parts a page has in so many lines of the screen."""
    return -(-len(wrapped(lines, width)) // max(height - _AROUND, 1))


_AROUND = 3  # lines of a page that are not what it tells


def wrapped(lines: list[str], width: int) -> list[Text]:
    """Lines in a width, each by its own indent."""
    shown = []
    for line in lines:
        indent = len(line) - len(line.lstrip())
        for part in Text(line.strip()).wrap(Console(width=width), max(width - indent - 2, 20)):
            shown.append(Text(" " * (indent + 1)).append_text(part))
    return shown


_SIGNS = Text("  Time: ● here  ✗ error  ! NaN or inf  ◆ breakpoint  * bookmark  ~ in place")


def first_lines(stop: Stop, width: int) -> list[Text]:
    """How to begin, for who has just come."""
    trace = stop.trace
    passes, errors = len(trace.passes), len(trace.errors)
    told = f"{trace.count} events, {passes} backward pass{'es' * (passes != 1)}"
    if errors:
        told += f", {errors} error{'s' * (errors != 1)}, the last at event {trace.errors[-1].event + 1}"
    lines = [Text(f" {told}", style="bold")]
    for command, words in _BEGINNINGS:
        lines.append(Text(no_wrap=True).append(f"   {command:<13}", style="bold cyan").append(words))
    return [fitted(line, width) for line in lines]


_BEGINNINGS = (
    ("n  b", "the next event, the one before; B the next backward pass"),
    ("why y.grad", "why a gradient is None, or what made it (type : first)"),
    ("!", "where the first NaN or inf was born, or the first error; then y"),
    ("who w", "which line last wrote over w; again: the one before"),
    ("?", "everything else"),
)


def help_lines(width: int, height: int) -> list[Text]:
    """The verbs: in two columns where there is room, else by name and key as far as they go."""
    rows = help_rows()
    lines = [_help_row(*row, width=width if width < WIDE else width // 2) for row in rows]
    room = height - 2
    if width >= WIDE:
        half = (len(lines) + 1) // 2
        left, right = lines[:half], lines[half:]
        lines = [beside(left, right, row, width // 2 - 3) for row in range(half)]
    elif len(lines) > room:
        return _compact_help(rows, width, height)
    return [*lines[: room - 2], Text(), _SIGNS, Text("  Any key goes on.", style="dim")]


def _help_row(usage: str, keys: str, words: str, width: int) -> Text:
    if not keys:
        return Text(f" {usage}", style="bold")
    line = Text().append(f"  {usage:<21}", style="bold").append(f"{_few(keys):<11}", style="cyan")
    return fitted(line.append(words), width - 3)


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
        _SIGNS,
    ]
    return [*lines[: height - 1], Text("  Any key goes on.", style="dim")]
