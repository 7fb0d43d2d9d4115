"""`gradviz.draw` and `gradviz.show`: pictures and pages of live tensors and of traces, in Python and in notebooks."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from gradviz.diagnose.finding import Report
from gradviz.diagnose.marked import faults_of, mark, pass_of_first
from gradviz.events.holders import outermost_modules, parameters_below
from gradviz.events.listener import Listener
from gradviz.graph.build import build
from gradviz.graph.model import LEAF, TENSOR, Graph
from gradviz.page import html
from gradviz.pictures.picture import Page, Picture
from gradviz.pictures.scene import Scene
from gradviz.pictures.textbook import textbook
from gradviz.query import Query
from gradviz.replaying import quick_report, with_cures
from gradviz.sources import pytorch
from gradviz.sources.record import run_meta, where_recorded
from gradviz.tracefile import Recorder, Sites, Trace, open_trace
from gradviz.words.words import Words

if TYPE_CHECKING:
    from gradviz.trace_widget import TraceWidget


class Part(TypedDict, total=False):
    """The part of a run that is drawn: see `gradviz.graph.build.build`."""

    passes: int | None
    show: Literal["both", "forward", "backward"]
    whole: bool
    values: bool


def draw(
    thing: Any,
    inputs: Any = None,
    *,
    params: Mapping[str, Any] | None = None,
    depth: int | None = None,
    unfold: Iterable[str] = (),
    rolled: bool | None = None,
    theme: str = "light",
    gradients: bool = False,
    style: Literal["graph", "textbook"] = "graph",
    **settings: Unpack[Part],
) -> Picture:
    """Draw the graph that leads to a tensor, or to several in a tuple, a list or a dict; that a module makes of
    `inputs`; or of a trace: an open one, or the name of its file, with its findings marked, and by default the pass of
    the first. The result displays itself in a notebook and has `.save(FILE)` and `.html()`.

    A large graph opens as its modules: `depth` unfolds that many levels, and `unfold` the named ones. `rolled` says
    whether each place of the program is one box, or each step of a loop; by default what is clearer.

    A tensor that `gradviz.record` has recorded is drawn from the trace: with modules, values, places, and the gradients
    of the last pass that began there. Of one that was not recorded, the graph's nodes are known, their order, and what
    they saved; a node that took a parameter of a layer is drawn in this layer.

    With `gradients` the gradients of tensors of one element are on the edges, also if no pass began there yet: its
    backward pass runs once, as `torch.autograd.grad` with `retain_graph=True`. No `.grad` changes, the graph is not
    freed, and nothing stays of the pass but what the program's own code does in it: hooks, custom Functions, and what a
    checkpoint runs again.

    The `style` "textbook" is for small graphs: gates and wires, the value above and the gradient below each wire, and
    the local derivative at the gate.

    Tensors and modules are those of gradviz's engine or of PyTorch. A module is called once, with a tensor, a tuple of
    arguments or a dict. Tensors get the names that they have in the caller, or those of `params`:
    `dict(model.named_parameters())`. The `theme` is light or dark; `settings` are those of `gradviz.graph.build.build`.
    Raises TypeError for anything else, and for a module without `inputs`; NoGradientsError if `gradients` cannot be
    had: the tensor does not require grad, has more than one element, or backward() has freed its graph."""
    from gradviz.sources import graph_at_hand  # here, since it loads the engine

    if gradients and (graph_at_hand.is_module(thing) or isinstance(thing, (str, Path, Trace))):
        raise TypeError("draw(..., gradients=True) takes a tensor: a trace has the gradients that were recorded")
    fold: dict[str, Any] = {"depth": depth, "unfold": unfold, "rolled": rolled}
    if isinstance(thing, (str, Path, Trace)):
        with _opened(thing) as recorded:
            graph = checked_graph(recorded, quick_report(recorded, None, _say), settings)
        scene = partial(_textbook, thing) if style == "textbook" else None
        return Picture(graph, lambda: show(thing, settings.get("passes")), theme, scene, **fold)
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("gradviz"):
        frame = frame.f_back
    modules = outermost_modules(frame)
    # of several names the last one counts
    names = {**dict(parameters_below(modules)), **frame.f_globals, **frame.f_locals, **(params or {})}
    tensors = [] if graph_at_hand.is_module(thing) else _tensors_of(thing)
    if tensors and (found := _recorded(tensors, names, gradients, settings)) is not None:
        path, graph = found
        scene = partial(_textbook, path) if style == "textbook" else None
        return Picture(graph, partial(show, path, graph.pass_number), theme, scene, **fold)
    if graph_at_hand.is_module(thing) and inputs is None:
        raise TypeError("draw() of a module calls it: give its inputs, draw(model, inputs)")

    def tell(listener: Listener) -> list[int]:
        if graph_at_hand.is_module(thing):
            graph_at_hand.tell_call(thing, inputs, listener)
            return []
        return graph_at_hand.tell_graph(tensors, listener, names, modules, gradients)

    graph, content = _at_hand(tell, settings)
    if gradients and graph.pass_number is not None:
        graph.notes.append(RUN_FOR_THIS)
    scene = partial(_textbook, content) if style == "textbook" else None
    return Picture(graph, partial(_page, content, settings), theme, scene, **fold)


def _tensors_of(thing: Any) -> list[Any]:
    """A tensor, or those in a collection. Raises TypeError where there is none."""
    from gradviz.sources.graph_at_hand import is_tensor

    found: list[Any] = []
    waiting = [thing]
    while waiting:
        one = waiting.pop(0)
        if is_tensor(one):
            found.append(one)
        elif isinstance(one, (tuple, list, Mapping)):
            waiting = [*(one.values() if isinstance(one, Mapping) else one), *waiting]
    if not found:
        raise TypeError(f"draw() takes a Tensor of gradviz or PyTorch, not {type(thing).__name__}")
    return list({id(tensor): tensor for tensor in found}.values())


def _at_hand(tell: Callable[[Listener], list[int]], settings: Part) -> tuple[Graph, bytes]:
    """The graph of what `tell` tells a listener, and the trace of it. It returns the numbers of the tensors of which
    the graph shows what leads to them; none for all."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "live.gradviz"
        sites = Sites([draw.__code__], pytorch.own_directories())  # the name of the picture is no tensor's
        recorder = Recorder(path, sites=sites, meta={**run_meta(), "script": ""})
        try:
            numbers = tell(recorder)
        finally:
            recorder.close(ended="ok")
        content = path.read_bytes()
        with open_trace(path) as trace:
            graph = build(trace, of=numbers, **settings)
    if numbers and any(node.parameter for node in graph.nodes.values()):
        graph.notes.append(BY_PARAMETERS if graph.scopes else NOT_RECORDED)
    return graph, content


RUN_FOR_THIS = "this pass was run for the picture: no .grad has changed"
NOT_RECORDED = "not recorded: draw(net, inputs) shows modules"
BY_PARAMETERS = "not recorded: modules are told by their parameters"


def _recorded(
    tensors: Sequence[Any], names: Mapping[str, Any], gradients: bool, settings: Part
) -> tuple[Path, Graph] | None:
    """The file in which tensors were recorded, and the graph that leads to them; None if that was not recorded, or not
    all of it, with `gradients` if no pass began there. A tensor without a name there gets that of `names`."""
    found = where_recorded(tensors[0])
    if found is None or not all(map(found[1].of, tensors)):
        return None
    path, numbers = found
    with open_trace(path) as trace:
        graph = build(trace, of=[numbers.of(tensor) for tensor in tensors], **settings)
    if gradients and graph.pass_number is None:
        return None
    called = {numbers.of(thing): name for name, thing in names.items() if name[:1] != "_"}
    for node in graph.nodes.values():
        if node.kind in (LEAF, TENSOR) and node.name is None and (name := called.get(node.number)):
            node.name = node.called = name
    if graph.of:
        shown = {node.number: node.called for node in graph.nodes.values() if node.kind in (LEAF, TENSOR)}
        graph.of = ", ".join(shown[numbers.of(tensor)] for tensor in tensors)
    from_before = [
        node for node in graph.nodes.values() if node.kind == TENSOR and not node.is_leaf and node.op == "earlier"
    ]
    return None if from_before else (path, graph)


def show(trace: Trace | Path | str, passes: int | None = None) -> Page:
    """The page of a trace, to search, fold and replay, with its findings: a notebook shows it in a frame. It opens at
    pass number `passes`. The default is the pass of the first finding, else the first pass with a NaN or an error. A
    run without these opens at its last pass if it is small, else at the first pass with a cut, or at the first pass."""
    with _opened(trace) as recorded:
        return checked_page(recorded, quick_report(recorded, None, _say), passes)


def checked_page(trace: Trace, report: Report | None, passes: int | None = None) -> Page:
    """The page of a trace with the findings of its report."""
    query = Query(trace)
    return Page(
        html(
            trace,
            lambda number: checked_graph(query, report, {"passes": number}),
            passes,
            findings=with_cures(list(enumerate(report or (), 1)), trace),
            query=query,
        )
    )


def widget(trace: Trace | Path | str, passes: int | None = None, height: int = 640) -> TraceWidget:
    """The page of a trace as a widget of Jupyter, VS Code, Colab or marimo: `show` with a place that Python knows and
    sets. `w.pass_number`, `w.event` (from 1) and `w.selected` follow the page's slider, and the page goes where they
    are set; `w.sentence` says what happened there. `height` is in pixels. Raises ImportError where anywidget is not
    installed."""
    try:
        from gradviz.trace_widget import TraceWidget
    except ModuleNotFoundError as error:
        if error.name not in ("anywidget", "traitlets"):
            raise
        raise ImportError(
            "gradviz.widget needs anywidget: pip install anywidget (gradviz.show needs nothing)"
        ) from None
    return TraceWidget(str(show(trace, passes)), height=height)


def _textbook(trace: Trace | Path | str | bytes, graph: Graph) -> Scene:
    with _opened(trace) as recorded:
        return textbook(Words(recorded), graph)


def checked_graph(recorded: Trace | Query, report: Report | None, settings: Part) -> Graph:
    """The graph of a trace with the findings of its report marked, by default of the pass of the first."""
    trace = recorded if isinstance(recorded, Trace) else recorded.trace
    found = list(enumerate(report or (), 1))
    graph = build(recorded, found_in=pass_of_first(faults_of(found), trace), **settings)
    mark(graph, trace, found)
    return graph


def _say(line: str) -> None:
    print(line, file=sys.stderr)


@contextmanager
def _opened(trace: Trace | Path | str | bytes) -> Iterator[Trace]:
    """A trace that is open, or named, or given as the bytes of its file; it is closed in the end if it was opened
    here."""
    if isinstance(trace, Trace):
        yield trace
    elif isinstance(trace, bytes):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "live.gradviz")
            path.write_bytes(trace)
            with open_trace(path) as recorded:
                yield recorded
    else:
        with open_trace(trace) as recorded:
            yield recorded


def _page(content: bytes, settings: Part) -> str:
    """The page of a trace, given the bytes of its file."""
    with _opened(content) as trace:
        return html(trace, lambda number: build(trace, **(settings | {"passes": number})))
