"""`gradviz.draw(tensor)`: draws the graph of a live tensor, in Python and in notebooks."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gradviz.draw.page import html
from gradviz.draw.picture import Picture
from gradviz.graph.build import build
from gradviz.sources.live import tell_graph
from gradviz.sources.record import run_meta
from gradviz.tracefile import Recorder, open_trace


def draw(
    tensor: Any,
    *,
    depth: int | None = None,
    unfold: Iterable[str] = (),
    theme: str = "light",
    **settings: Any,
) -> Picture:
    """Draw the graph that leads to `tensor`. The result displays itself in a notebook and has `.save(FILE)`
    and `.html()`. Large graphs are folded: `depth` unfolds that many levels, and `unfold` the named groups.

    Tensors get the names that they have in the caller. The `theme` is light or dark; `settings` are those of
    `gradviz.graph.build.build`. Raises TypeError if `tensor` is not a Tensor."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("gradviz"):
        frame = frame.f_back
    names = {**frame.f_globals, **frame.f_locals}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "live.gradviz"
        recorder = Recorder(path, meta={**run_meta(), "script": ""})
        tell_graph(tensor, recorder, names)
        recorder.close(ended="ok")
        content = path.read_bytes()
        with open_trace(path) as trace:
            graph = build(trace, **settings)
        return Picture(graph, lambda: _page(content, settings), theme, depth=depth, unfold=unfold)


def _page(content: bytes, settings: dict[str, Any]) -> str:
    """The page of a trace, given the bytes of its file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "live.gradviz"
        path.write_bytes(content)
        with open_trace(path) as trace:
            return html(trace, lambda number: build(trace, **{**settings, "passes": number}))
