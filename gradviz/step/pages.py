"""Pages that replace the stop on the screen: the result of a verb, and the help."""

from __future__ import annotations

from collections.abc import Collection

from rich.console import Console
from rich.text import Text

from gradviz.step.lines import beside, fitted
from gradviz.step.verbs import help_rows
from gradviz.words.languages import said
from gradviz.words.stop import Stop

WIDE = 110  # from this many columns on, the help has two columns


def page_lines(
    lines: list[str],
    width: int,
    height: int,
    scrolled: int = 0,
    goes_on: bool = False,
    language: str = "en",
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
_SIGNS = "  Time: ● here  ✗ error  ! NaN or inf  ◆ breakpoint  * bookmark  ~ in place"


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
        one, several = (
            ", {errors} error, the last at event {last}",
            ", {errors} errors, the last at event {last}",
        )
        text += said(
            language, one if errors == 1 else several, errors=errors, last=trace.errors[-1].event + 1
        )
    return text


_BEGINNINGS = (
    ("n  b", "the next and the previous event; B the next backward pass"),
    ("why y.grad", "why a gradient is None, or how it came about (type : first)"),
    ("!", "the first event with NaN or inf, or the first error; then y"),
    ("who w", "the line that last changed w; again: the change before that"),
    ("?", "everything else"),
)


def help_lines(width: int, height: int, left_out: Collection[str], language: str = "en") -> list[Text]:
    """The list of verbs, in two columns if there is room. If it is too long, only names and keys."""
    rows = help_rows(left_out, language)
    lines = [_help_row(*row, width=width if width < WIDE else width // 2) for row in rows]
    room = height - 2
    if width >= WIDE:
        half = (len(lines) + 1) // 2
        left, right = lines[:half], lines[half:]
        lines = [beside(left, right, row, width // 2 - 3) for row in range(half)]
    elif len(lines) > room:
        return _compact_help(rows, width, height, language)
    signs, any_key = Text(said(language, _SIGNS)), Text(f"  {said(language, _ANY_KEY)}", style="dim")
    return [*lines[: room - 2], Text(), signs, any_key]


def _help_row(usage: str, keys: str, words: str, width: int) -> Text:
    if not keys:
        return Text(f" {usage}", style="bold")
    line = Text().append(f"  {usage:<21}", style="bold").append(f"{_few(keys):<11}", style="cyan")
    return fitted(line.append(words), width - 3)


def _few(keys: str) -> str:
    return " ".join(keys.split()[:3])


def _compact_help(rows: list[tuple[str, str, str]], width: int, height: int, language: str) -> list[Text]:
    """Only keys and names, in as many columns as fit."""
    verbs = [(usage.split()[0], keys.split()[0]) for usage, keys, _ in rows if keys]
    columns = max(width // 26, 1)
    per = -(-len(verbs) // columns)
    lines = [Text(f" {said(language, 'Keys and commands')}", style="bold")]
    for row in range(per):
        line = Text()
        for name, key in verbs[row::per]:
            line.append(f"  {key:>5} ", style="bold cyan").append(f"{name:<18}")
        lines.append(line)
    lines += [Text(), *(Text(said(language, words)) for words in (*_MORE_HELP, _SIGNS))]
    return [*lines[: height - 1], Text(f"  {said(language, _ANY_KEY)}", style="dim")]


_MORE_HELP = (
    "  Type : and a command with its argument, such as :until grad.rms < 1e-7",
    "  :help VERB explains one verb, :help fields lists the fields of predicates",
)
