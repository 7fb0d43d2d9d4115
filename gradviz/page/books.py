"""The picture of a textbook for the pages of small graphs."""

from __future__ import annotations

from dataclasses import replace

from gradviz.errors import GradvizError
from gradviz.graph.model import GRAD_FN, OP, Graph
from gradviz.pictures.render import svg
from gradviz.pictures.textbook import MOST, textbook
from gradviz.tracefile import Trace
from gradviz.words import Words

MOST_BOOKS = 6  # of one page: each is laid out by Graphviz
_DOZEN = 12  # operations of a picture that a lesson opens with


def book(trace: Trace, graph: Graph, language: str) -> str:
    """The picture of a graph as an SVG document, in a language; empty if it is too large for one, or cannot be laid out
    here."""
    if not 0 < graph.counts().get(GRAD_FN, 0) <= 2 * MOST:
        return ""
    words = Words(trace)
    words.speak(language)
    try:
        scene = textbook(words, graph)
        run = words.say("pass {number} of {count}", number=graph.pass_number, count=graph.passes)
        caption = [line.replace(f"pass {graph.pass_number} of {graph.passes}", run) for line in scene.caption]
        return svg(replace(scene, caption=caption, rankdir="TB"))  # the stage is no wide strip
    except GradvizError:
        return ""


def is_small(graph: Graph) -> bool:
    """Whether a lesson draws a graph as in a textbook: it has some operations, and a dozen at most."""
    return graph.counts().get(GRAD_FN, 0) > 0 and graph.counts().get(OP, 0) <= _DOZEN
