"""Pictures of graphs, for notebooks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from gradviz.graph.fold import folded
from gradviz.graph.model import Graph
from gradviz.pictures import render
from gradviz.pictures.scene import Scene
from gradviz.words.escape import clean
from gradviz.words.numbers import plural

_WORDS = {
    "leaf": ("leaf", "leaves"),
    "tensor": ("tensor", ""),
    "op": ("operation", ""),
    "grad_fn": ("grad_fn", ""),
    "group": ("group", ""),
}


class Page(str):
    """An HTML page as text. A notebook shows it in its own frame."""

    def __repr__(self) -> str:
        # a notebook stores this text beside the frame
        return f"<gradviz page: {len(self) / 1000:,.0f} kB of HTML>"

    def _repr_html_(self) -> str:
        text = self.replace("&", "&amp;").replace('"', "&quot;")
        look = "width: 100%; height: 640px; border: 1px solid #8884; border-radius: 8px"
        # What shows where a notebook takes the frame out:
        unseen = "The page is hidden until you trust this notebook."
        return f'<iframe sandbox="allow-scripts" style="{look}" srcdoc="{text}">{unseen}</iframe>'


class Picture:
    """A graph that displays itself in a notebook. `save(FILE)` writes it in the format of the ending;
    `html()` is a page to search, fold and replay it.

    `page` makes the text of the page; `theme` is light or dark; `scene` draws the graph in another style; `fold` are
    the arguments of gradviz.graph.fold.folded."""

    def __init__(
        self,
        graph: Graph,
        page: Callable[[], str] | None = None,
        theme: str = "light",
        scene: Callable[[Graph], Scene] | None = None,
        **fold: Any,
    ) -> None:
        self.graph = graph
        self._page, self._theme, self._scene, self._fold = page, theme, scene, fold

    @cached_property
    def shown(self) -> Graph:
        """The graph of the picture; a large one is folded. Raises FoldError for an unknown scope."""
        return folded(self.graph, **self._fold)

    @cached_property
    def _drawn(self) -> Graph | Scene:
        return self.shown if self._scene is None else self._scene(self.graph)

    @cached_property
    def svg(self) -> str:
        """The picture as an SVG document. Raises render.DrawError if it cannot be drawn."""
        return render.svg(self._drawn, self._theme)

    def save(self, path: Path | str) -> None:
        """Write the picture to a file. JSON contains the graph without folding. Raises render.DrawError."""
        ending = Path(path).suffix.lower()
        if ending == render.PAGE:
            render.check_path(Path(path))
            render.write(Path(path), self.html().encode())
        else:
            render.save(self.graph if ending == ".json" else self._drawn, path, self._theme)

    def html(self) -> Page:
        """The page as a string, the complete file; a notebook shows it in a frame. Raises render.DrawError if
        the graph does not come from a trace."""
        if self._page is None:
            raise render.DrawError("a page needs a trace: `gradviz graph TRACE -o FILE.html` writes it")
        return Page(self._page())

    def _repr_svg_(self) -> str:
        """The SVG without its XML declaration, which notebooks do not accept; it is as wide as the cell at most, and
        says in words what it shows."""
        look = 'style="max-width: 100%; height: auto" role="img"'
        told = f"the graph of {clean(self.graph.script) or 'a computation'}, {self.graph.run()}: {counted(self.graph)}"
        return f"<svg {look} aria-label={quoteattr(told)} {self.svg.partition('<svg ')[2]}"

    def __repr__(self) -> str:
        return f'<gradviz picture: {counted(self.graph)}; .save("picture.svg") writes it>'


def counted(graph: Graph) -> str:
    """The number of nodes of each kind: `1 leaf, 2 tensors, 2 operations, 3 grad_fns`."""
    return ", ".join(plural(count, *_WORDS[kind]) for kind, count in graph.counts().items())
