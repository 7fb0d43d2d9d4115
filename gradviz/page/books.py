"""The textbook pictures of small graphs on a page."""

from __future__ import annotations

from dataclasses import replace

from gradviz.errors import GradvizError
from gradviz.graph.model import GRAD_FN, OP, Graph
from gradviz.pictures.render import svg
from gradviz.pictures.textbook import MOST, textbook
from gradviz.tracefile import Trace
from gradviz.words import Words

MOST_BOOKS = 6  # the most pictures of one page: each is laid out by Graphviz
_DOZEN = 12  # the most operations of a picture that a lesson opens with


def book(trace: Trace, graph: Graph, language: str) -> str:
    """The textbook picture of a graph as an SVG document, in a language; empty if the graph is too large for it, or
    cannot be laid out here."""
    if not 0 < graph.counts().get(GRAD_FN, 0) <= 2 * MOST:
        return ""
    words = Words(trace)
    words.speak(language)
    try:
        scene = textbook(words, graph)
        which = words.say("pass {number} of {count}", number=graph.pass_number, count=graph.passes)
        caption = [
            line.replace(f"pass {graph.pass_number} of {graph.passes}", which) for line in scene.caption
        ]
        # the page's area for pictures is not a wide strip
        return svg(replace(scene, caption=caption, rankdir="TB"))
    except GradvizError:
        return ""


def is_small(graph: Graph) -> bool:
    """Whether a lesson draws a graph as a textbook picture: it has some operations, at most a dozen."""
    return graph.counts().get(GRAD_FN, 0) > 0 and graph.counts().get(OP, 0) <= _DOZEN
