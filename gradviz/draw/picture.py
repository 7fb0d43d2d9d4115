"""A picture of a graph, for notebooks."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from gradviz.draw import render
from gradviz.graph.model import Graph


class Picture:
    """A graph that shows itself in a notebook. `save(FILE)` writes it, in the format of its ending."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    @cached_property
    def svg(self) -> str:
        """The picture as an SVG document. Raises render.DrawError where it cannot be drawn."""
        return render.svg(self.graph)

    def save(self, path: Path | str) -> None:
        """Write the picture into a file. Raises render.DrawError."""
        render.save(self.graph, path)

    def _repr_svg_(self) -> str:
        return self.svg[max(0, self.svg.find("<svg")) :]  # a notebook wants no XML declaration

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in self.graph.counts().items())
        return f"<gradviz picture: {counts}>"
