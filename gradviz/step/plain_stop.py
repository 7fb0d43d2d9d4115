"""One stop as plain text, for `--do`, for dumb terminals and for exported files."""

from collections.abc import Iterator

from rich.cells import set_cell_size
from rich.text import Text

from gradviz.step.leaves import PLAIN, View, leaves
from gradviz.step.timeline import position
from gradviz.words.escape import shortened
from gradviz.words.rows import rows
from gradviz.words.sentences import sentence
from gradviz.words.source import source, title
from gradviz.words.stop import Stop

WIDTH = 100
_SOURCE, _LEAVES = 4, 20  # lines


def describe(stop: Stop, view: View = PLAIN) -> str:
    """A stop in a few lines of at most WIDTH characters; only the sentence may be longer."""
    return "\n".join(line.rstrip() for line in _lines(stop, view))


def _lines(stop: Stop, view: View) -> Iterator[str]:
    yield position(stop)
    yield sentence(stop)
    site, _ = stop.place
    if site is not None:
        yield f"  {title(stop)}"
        yield from _texts(source(stop, WIDTH - 2, _SOURCE))
    for row in rows(stop):
        yield shortened(f"  {set_cell_size(stop.say(row.label), 11)}{row.text}", WIDTH)
    yield f"  {stop.say('variables' if view.variables else 'leaves')}"
    yield from _texts(leaves(stop, WIDTH - 2, _LEAVES, View(variables=view.variables)))


def _texts(lines: list[Text]) -> Iterator[str]:
    return (f"  {line.plain}" for line in lines)
