"""Writes the graph of a run at one event into a file."""

from __future__ import annotations

from pathlib import Path

from gradviz.step.state import CommandError
from gradviz.tracefile import Trace


def export_moment(trace: Trace, position: int, file: Path) -> None:
    """Draw the graph up to an event (counted from 0), in the format of the file's ending. Raises GradvizError
    if that is impossible."""
    from gradviz.graph.build import build
    from gradviz.graph.fold import folded
    from gradviz.graph.many import no_collection
    from gradviz.pictures.render import PAGE, check_path, save
    from gradviz.tracefile.prefix import Prefix

    if file.suffix.lower() == PAGE:
        raise CommandError("a page replays the whole run: gradviz graph TRACE -o FILE.html writes it")
    check_path(file)
    with no_collection():
        save(folded(build(Prefix(trace, position))), file)
