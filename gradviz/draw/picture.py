"""A picture of a graph, for notebooks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from gradviz.draw import render
from gradviz.graph.model import Graph


class Page(str):
    """An HTML page as text, that a notebook shows in a frame of its own."""

    def _repr_html_(self) -> str:
        text = self.replace("&", "&amp;").replace('"', "&quot;")
        look = "width: 100%; height: 640px; border: 1px solid #8884; border-radius: 8px"
        return f'<iframe sandbox="allow-scripts" style="{look}" srcdoc="{text}"></iframe>'


class Picture:
    """A graph that shows itself in a notebook. `save(FILE)` writes it, in the format of its ending; `html()` is a
    page to search, fold and replay it. `page` makes that page's text."""

    def __init__(self, graph: Graph, page: Callable[[], str] | None = None) -> None:
        self.graph = graph
        self._page = page

    @cached_property
    def svg(self) -> str:
        """The picture as an SVG document. Raises render.DrawError where it cannot be drawn."""
        return render.svg(self.graph)

    def save(self, path: Path | str) -> None:
        """Write the picture into a file. Raises render.DrawError."""
        if Path(path).suffix.lower() == render.PAGE:
            render.check_path(Path(path))
            render.write(Path(path), self.html().encode())
        else:
            render.save(self.graph, path)

    def html(self) -> Page:
        """The page, which a notebook shows in a frame; as a string it is the whole file. Raises render.DrawError
        for a graph that no run is known of."""
        if self._page is None:
            raise render.DrawError("a page is made of a trace: `gradviz graph TRACE -o FILE.html` writes it")
        return Page(self._page())

    def _repr_svg_(self) -> str:
        return self.svg[max(0, self.svg.find("<svg")) :]  # a notebook wants no XML declaration

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in self.graph.counts().items())
        return f"<gradviz picture: {counts}>"
