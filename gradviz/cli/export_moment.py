"""Writes the graph of a run at one event into a file."""

from pathlib import Path

from gradviz.step import CommandError
from gradviz.tracefile import Trace


def export_moment(trace: Trace, position: int, file: Path, in_lesson: bool = False) -> None:
    """Draw the graph up to an event (counted from 0), in the format of the file's ending; in a lesson a small graph as
    in a textbook. Raises GradvizError if that is impossible."""
    from gradviz.graph.build import build
    from gradviz.graph.fold import folded
    from gradviz.graph.model import no_collection
    from gradviz.page import is_small
    from gradviz.pictures.render import PAGE, SCENES, check_path, save
    from gradviz.pictures.textbook import textbook
    from gradviz.tracefile.part import Prefix
    from gradviz.words.words import Words

    if file.suffix.lower() == PAGE:
        raise CommandError("a page replays the whole run: gradviz graph TRACE -o FILE.html writes it")
    check_path(file)
    with no_collection():
        so_far = Prefix(trace, position)
        graph = build(so_far)
        as_textbook = in_lesson and is_small(graph) and file.suffix.lower() in SCENES
        save(textbook(Words(so_far), graph) if as_textbook else folded(graph), file)
