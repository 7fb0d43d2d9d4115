"""`gradviz.draw(tensor)`: draws the graph of a live tensor, in Python and in notebooks."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gradviz.draw.page import html
from gradviz.draw.picture import Picture
from gradviz.graph.build import build
from gradviz.sources import pytorch
from gradviz.sources.live import is_module, tell_call, tell_graph
from gradviz.sources.record import run_meta
from gradviz.tracefile import Recorder, Sites, open_trace


def draw(
    thing: Any,
    inputs: Any = None,
    *,
    params: Mapping[str, Any] | None = None,
    depth: int | None = None,
    unfold: Iterable[str] = (),
    rolled: bool | None = None,
    theme: str = "light",
    **settings: Any,
) -> Picture:
    """Draw the graph that leads to a tensor, or that a module makes of `inputs`. The result displays itself in a
    notebook and has `.save(FILE)` and `.html()`. A large graph opens as its modules: `depth` unfolds that many levels,
    and `unfold` the named ones. `rolled` says whether each place of the program is one box, or each step of a loop; by
    default what is clearer.

    Tensors and modules are those of gradviz's engine or of PyTorch. A module is called once, with a tensor, a tuple of
    arguments or a dict. Tensors get the names that they have in the caller, or those of `params`:
    `dict(model.named_parameters())`. The `theme` is light or dark; `settings` are those of `gradviz.graph.build.build`.
    Raises TypeError for anything else, and for a module without `inputs`."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("gradviz"):
        frame = frame.f_back
    names = {**frame.f_globals, **frame.f_locals, **(params or {})}
    if is_module(thing) and inputs is None:
        raise TypeError("draw() of a module calls it: give its inputs, draw(model, inputs)")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "live.gradviz"
        sites = Sites([draw.__code__], pytorch.own_directories())  # the name of the picture is no tensor's
        recorder = Recorder(path, sites=sites, meta={**run_meta(), "script": ""})
        if is_module(thing):
            tell_call(thing, inputs, recorder)
        else:
            tell_graph(thing, recorder, names)
        recorder.close(ended="ok")
        content = path.read_bytes()
        with open_trace(path) as trace:
            graph = build(trace, **settings)
        return Picture(
            graph, lambda: _page(content, settings), theme, depth=depth, unfold=unfold, rolled=rolled
        )


def _page(content: bytes, settings: dict[str, Any]) -> str:
    """The page of a trace, given the bytes of its file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "live.gradviz"
        path.write_bytes(content)
        with open_trace(path) as trace:
            return html(trace, lambda number: build(trace, **{**settings, "passes": number}))
