"""The source around a site, with the expression marked."""

from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from gradviz.system.paths import file_name
from gradviz.tracefile import Site, Trace
from gradviz.words.escape import clean, clean_character
from gradviz.words.stop import Stop

_MARK = "bold yellow"


def title(stop: Stop) -> str:
    """The site of an event: file, line, function."""
    site, why = stop.place
    if site is None:
        return stop.say("no source location")
    place = site.place
    is_named = place.function and place.function != "<module>"
    inside = stop.say(" in {function}", function=clean(place.function)) if is_named else ""
    return f"{clean(file_name(place.file))}:{place.line}{inside}" + (f" · {why}" if why else "")


def source(stop: Stop, width: int, height: int) -> list[Text]:
    """`height` lines of source around the site of an event; a line of carets marks the expression."""
    site, _ = stop.place
    return excerpt(stop.trace, site, width, height)


def excerpt(trace: Trace, site: Site | None, width: int, height: int) -> list[Text]:
    """`height` lines of source around a site; a line of carets marks the expression."""
    if site is None or height < 1:
        return []
    lines = trace.source(site.place.file)
    if not lines:
        return [Text(" the source was not kept", style="dim")]
    return _around(_Page(lines, site), width, height)


def _around(page: "_Page", width: int, height: int) -> list[Text]:
    """The marked lines in the middle. Near an end of the file, more lines from the other side."""
    place = page.site.place
    rows = height - 1 if page.markable else height
    marked = min(place.end_line - place.line + 1, rows)
    first = max(1, min(place.line - (rows - marked) // 2, len(page.lines) - rows + 1))
    shown: list[Text] = []
    for number in range(first, min(first + max(rows, 1), len(page.lines) + 1)):
        line, carets = page.line(number, width)
        shown.append(line)
        if carets is not None and number == place.line:
            shown.append(carets)
    return shown[:height]


@dataclass
class _Page:
    lines: list[str]
    site: Site

    @property
    def markable(self) -> bool:
        """Whether the columns of the expression are known."""
        return self.site.place.col >= 0

    def line(self, number: int, width: int) -> tuple[Text, Text | None]:
        """One line of source, and the line of carets below it (None if there is none)."""
        place = self.site.place
        text = self.lines[number - 1]
        inside = place.line <= number <= place.end_line
        start, end = self._span(number, text) if inside else (0, 0)
        gutter = f"{'▶' if inside else ' '}{number:>{len(str(len(self.lines)))}}  "
        shown, start, end = _fit(text, start, end, width - len(gutter))
        line = Text(no_wrap=True).append(gutter, style="bold" if inside else "dim").append(shown)
        if end <= start:
            return line, None
        line.stylize(_MARK, len(gutter) + start, len(gutter) + end)
        below = " " * (len(gutter) + cell_len(shown[:start])) + "^" * cell_len(shown[start:end])
        return line, Text(below, style=_MARK, no_wrap=True)

    def _span(self, number: int, text: str) -> tuple[int, int]:
        """The first and the end column of the expression in one of its lines."""
        place = self.site.place
        if not self.markable:
            return 0, 0
        start = place.col if number == place.line else len(text) - len(text.lstrip())
        return start, place.end_col if number == place.end_line else len(text.rstrip())


def _fit(text: str, start: int, end: int, width: int) -> tuple[str, int, int]:
    """A line cut to `width` cells so that the span remains visible, and the position of the span in it."""
    pieces = [clean_character(character) for character in text]
    cut = 0
    while cut < start and cell_len("".join(pieces[cut : max(end, start)])) > width - 2 and cut < len(pieces):
        cut += 1
    if cut:  # show some of the text before the expression
        while cut > 0 and cell_len("".join(pieces[cut - 1 : end])) <= width - 2:
            cut -= 1
    shown = "…" if cut else ""
    fits = cell_len("".join([shown, *pieces[cut:]])) < width  # as most lines do, which are not measured piece by piece
    offsets = []
    for piece in pieces[cut:]:
        if not fits and cell_len(shown + piece) > width - 1:
            shown += "…"
            break
        offsets.append(len(shown))
        shown += piece
    offsets.append(len(shown))
    start, end = (offsets[min(max(column - cut, 0), len(offsets) - 1)] for column in (start, end))
    return shown, start, end
