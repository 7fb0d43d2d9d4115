"""The data of a page: the graphs of some passes, the events of each, and all that is shown about them."""

from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from gradviz.events import kinds as e
from gradviz.events.kinds import Kind
from gradviz.events.site import Place
from gradviz.graph import model as m
from gradviz.graph.fold import boxes, closed_by_default, closed_places, is_clearer_rolled
from gradviz.graph.function_scopes import with_equal_blocks, with_function_scopes
from gradviz.graph.groups import Group, ancestors, groups
from gradviz.graph.model import GRAD_FN, GROUP, OP, Graph, Node
from gradviz.graph.roll import places
from gradviz.page.other_values import other_values
from gradviz.page.pass_curves import States, spans
from gradviz.page.reasons import reasons
from gradviz.pictures import node_text
from gradviz.query import Query
from gradviz.query.passes import Wait
from gradviz.query.writes import writes_by_any_name
from gradviz.sets import distinct
from gradviz.tracefile import PassInfo, Trace
from gradviz.words import Stop, Words
from gradviz.words.chain_rule import why
from gradviz.words.escape import plain, plain_name, visible
from gradviz.words.rows import rows_of_event, waiting_told
from gradviz.words.sentences import sentence
from gradviz.words.stop import phase

_SMALL = 40  # operations of a graph whose boxes and edges show all that a picture can show
MOST_STEPS = 10_000  # steps of one view; if there are more events, some are left out

# Events that are always steps.
_ALWAYS = (Kind.PASS_BEGAN, Kind.PASS_ENDED, Kind.ACCUMULATED, Kind.RETAINED, Kind.STEPPED, Kind.ERROR)


@dataclass
class Sources:
    """The sites and files that a page shows; they are added on demand."""

    trace: Trace
    sites: dict[int, list[Any]] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)

    def site(self, number: int) -> int:
        """Add a site to the page. Returns its number."""
        if number and number not in self.sites:
            self.sites[number] = self.place(self.trace.sites[number].place)
        return number

    def place(self, place: Place) -> list[Any]:
        """A place as the page's scripts take it."""
        at = [place.line, place.end_line, place.col, place.end_col, plain(place.function)]
        return [self.file(place.file), *at]

    def file(self, name: str) -> int:
        """A file's number on the page."""
        return self.files.setdefault(name, len(self.files))

    def data(self) -> list[dict[str, Any]]:
        """The files, each with its lines at the time of the recording."""
        return [
            {"name": plain(Path(name).name, 80), "lines": [visible(line) for line in self.trace.source(name)]}
            for name in self.files
        ]


class Shared:
    """The parts that the views of one page share. The `explained` events get the text of `why`."""

    def __init__(self, words: Words, explained: Collection[int] = ()) -> None:
        self.words, self.explained = words, explained
        self.sources, self.states, self.trees = Sources(words.trace), States(words.query), Trees()
        self.step = cache(self._step)  # an event of a nested pass is a step of both passes
        self.waits = cache(partial(waits, words))

    def _step(self, k: int) -> dict[str, Any]:
        """An event, as plain data."""
        stop = Stop(self.words, k)
        site, place = stop.place
        step: dict[str, Any] = {
            "k": k,
            "kind": Kind(stop.event_kind).name.lower(),
            "text": sentence(stop),
            "phase": phase(stop),
            "site": self.sources.site(0 if site is None else site.number),
            "why": place,
            "lit": list(_LIT.get(type(stop.event), lambda event: ())(stop.event)),
        }
        if stop.moment.pass_info is not None:
            step["pass"] = stop.moment.pass_info.number
        if told := [(stop.say(row.label), row.text) for row in rows_of_event(stop)]:
            step["rows"] = told
        if k in self.explained:
            step["told"] = [plain(line, 400) for line in why(stop)[1:]]
        return step


def view(graph: Graph, backward_pass: PassInfo | None, shared: Shared) -> dict[str, Any]:
    """One graph with its events, as plain data."""
    words, sources, states = shared.words, shared.sources, shared.states
    trace = words.trace
    events = _events(graph, trace, backward_pass)
    steps = _thinned(events, trace)
    first = int(events[0]) if len(events) else 0
    last = int(events[-1]) if len(events) else max(trace.count - 1, 0)
    there = spans(graph, words.query)
    tensors = {node.number for node in graph.nodes.values() if node.kind in (m.LEAF, m.TENSOR)}
    has_blocks = any(node.kind == m.GROUP for node in graph.nodes.values())
    small = not has_blocks and sum(node.kind == m.OP for node in graph.nodes.values()) <= _SMALL
    notes = list(graph.notes)
    if len(steps) < len(events):
        notes.append(f"replay shows {len(steps):,} of {len(events):,} events")
    return {
        "pass": graph.pass_number,
        "title": plain(graph.title, 80),
        "show": graph.show,
        "error": plain(graph.error, 400),
        "leftOut": graph.left_out,
        "notes": [plain(note, 200) for note in notes],
        "small": small,
        "nodes": [_node(node, there[node.id], sources, words.query, small) for node in graph.nodes.values()],
        "edges": [
            [edge.source, edge.target, edge.kind, plain(edge.label), plain(edge.cut), *[1] * edge.due]
            for edge in graph.edges
        ],
        "rolled": is_clearer_rolled(with_function_scopes(graph)),
        "trees": shared.trees.of(graph),
        "tensors": states.of(tensors, events) if len(events) else {},
        "flows": states.along(graph, first if backward_pass is None else backward_pass.first, last),
        "steps": [shared.step(k) for k in steps],
        "waits": {number: shared.waits(number) for number in _passes(words.query, steps)},
        "why": reasons(graph, words, last) if trace.count else {},
        "ran": _ran(graph, events, trace),
        "again": other_values(words, graph, backward_pass),
    }


def _events(graph: Graph, trace: Trace, backward_pass: PassInfo | None) -> np.ndarray:
    """The events of a graph: those since the end of the previous pass, and earlier ops of the graph."""
    if graph.pass_number is None or backward_pass is None:
        return np.arange(trace.count)
    ended = [other.last for other in trace.passes if other.last is not None and other.last < backward_pass.first]
    begin = max(ended, default=-1) + 1
    is_last = backward_pass.number == max(other.number for other in trace.passes)
    end = trace.count if is_last or backward_pass.last is None else backward_pass.last + 1
    ops = [node.number for node in graph.nodes.values() if node.kind == m.OP and node.number < begin]
    return np.concatenate([np.array(sorted(ops), np.int64), np.arange(begin, end)])


def _passes(query: Query, events: list[int]) -> list[int]:
    """The numbers of the passes that some events belong to."""
    numbers = distinct(query.passes.numbers[events]).tolist()
    return [number for number in numbers if query.trace.find_pass(number) is not None]


def _thinned(events: np.ndarray, trace: Trace) -> list[int]:
    """At most about MOST_STEPS of the events: all of the most important kinds, and a regular sample of the others."""
    if len(events) <= MOST_STEPS:
        return events.tolist()
    kinds = trace.kinds[events]
    kept = np.isin(kinds, [int(kind) for kind in _ALWAYS])
    if kept.sum() > MOST_STEPS // 2:
        kept &= np.isin(kinds, [int(Kind.PASS_BEGAN), int(Kind.PASS_ENDED), int(Kind.ERROR)])
    kept[:: -(-len(events) // (MOST_STEPS // 2))] = True
    kept[-1] = True
    return events[kept].tolist()


def _ran(graph: Graph, events: np.ndarray, trace: Trace) -> dict[str, int]:
    """The first of the events at which each node ran."""
    ran: dict[str, int] = {}
    within = np.zeros(trace.count, bool)
    within[events] = True
    for kind in (Kind.RECEIVED, Kind.PRODUCED):
        table = trace.table(kind)
        are_shown = within[table.events]
        for k, node in zip(table.events[are_shown].tolist(), table["node"][are_shown].tolist(), strict=True):
            if f"n{node}" in graph.nodes:
                ran[f"n{node}"] = min(k, ran.get(f"n{node}", k))
    pairs = {node.number: node.pair for node in graph.nodes.values() if node.is_leaf and node.pair}
    filled = trace.table(Kind.ACCUMULATED)
    are_shown = within[filled.events]
    for k, leaf in zip(filled.events[are_shown].tolist(), filled["tensor"][are_shown].tolist(), strict=True):
        if leaf in pairs:
            ran[pairs[leaf]] = min(k, ran.get(pairs[leaf], k))
    return ran


# --- edges, nodes, groups


def _node(node: Node, there: tuple[int, int | None], sources: Sources, query: Query, small: bool) -> dict[str, Any]:
    """A node as plain data; empty attributes are left out. In a small graph a tensor has its role for autograd."""
    is_tensor = node.kind in (m.LEAF, m.TENSOR)
    derivatives = query.nodes.rule(node.number).inputs if node.kind == m.GRAD_FN else ()
    known = {
        "name": plain_name(node.name, 60) if node.name else None,
        "called": "" if node.name or node.called == f"t{node.number}" else plain(node.called),
        "op": plain(node.op, 60) if node.op else None,
        "gradFn": plain(node.grad_fn, 60) if node.grad_fn else None,
        "leaf": node.is_leaf if is_tensor else None,
        "wants": node.requires_grad if is_tensor else None,
        "shape": list(node.shape) if node.shape is not None else None,
        "dtype": node.dtype,
        "scope": plain(node.scope, 200),
        "version": node.version,
        "writtenBy": plain(node.written_by),
        "args": plain(node.args, 200),
        "shownArgs": node_text.shown_arguments(node.op or "", node.args) if small else "",
        "base": plain(node.base) if node.base else None,
        "pair": node.pair,
        "root": node.root,
        "astray": node.astray,
        "retained": node.retained,
        "parameter": node.parameter and not node.buffer,
        "error": plain(node.error, 400),
        "finding": plain(node.finding, 80),
        "text": plain(node.text, 60) if node.kind == m.OUTSIDE else "",
        "gate": plain(node.collectives, 60),
        "exchanges": [node_text.exchange_told(one) for one in node.exchanges[: node_text.MOST_EXCHANGES]] or None,
        "apart": [plain(text, 90) for one in node.apart for text in node_text.apart_told(one)] or None,
        "block": _block(node) if node.kind == m.GROUP else "",
        "formula": plain(", ".join(f"∂/∂{name} = {text}" for name, text in derivatives if text), 300),
        "tangent": {
            "since": int(query.tensors.tangents.of(node.number)[0][-1]),
            "lines": [plain(text, 60) for _, text in node_text.tangent_lines(node)],
        }
        if is_tensor and node.tangent is not None
        else "",
        "until": there[1],
        "at": [sources.file(node.file), node.line, node.col, node.end_col] if node.file and node.line else None,
    }
    shown = {
        name: what
        for name, what in known.items()
        if what not in (None, "", 0) or (what is False and name in ("leaf", "wants"))
    }
    if is_tensor:
        shown["tensor"] = node.number
    described = {"id": node.id, "kind": node.kind, "since": there[0], **shown}
    return {**described, "says": _facts_over_time(node, query)} if is_tensor and small else described


def _block(node: Node) -> list[str]:
    """The lines in the box of a closed block: its name and shapes, or the number of nodes of each kind."""
    lines = [] if node.box is None else node_text.of_inside(node, node.box)
    held = [f"{count:,} {kind}{'s' * (count != 1)}" for kind, count in node.held.items() if count]
    return lines if len(lines) > 1 else [*(lines or [plain(node.label, 60)]), " · ".join(held)]


def _facts_over_time(node: Node, query: Query) -> list[list[Any]]:
    """The role of a tensor for autograd, `leaf · requires_grad`, with each event that changes it."""
    events, flags = query.tensors.leaf_flags.of(node.number)
    if len(events) < 2:
        return [[0, _facts(node)]]
    changed = zip(events.tolist(), flags.tolist(), strict=True)
    states = [(k, bool(flag & e.LEAF), bool(flag & e.REQUIRES_GRAD)) for k, flag in changed]
    return [[k, _facts(replace(node, is_leaf=leaf, requires_grad=wants))] for k, leaf, wants in states]


def _facts(node: Node) -> str:
    """The role of a tensor for autograd, on one line; a `grad_fn` replaces `non-leaf`."""
    if node.is_leaf or not node.grad_fn:
        return node_text.facts(node)
    return f"{node_text.facts(node).removeprefix('non-leaf · ')} · grad_fn={plain(node.grad_fn, 40)}"


# --- steps


def _tensors(*numbers: int) -> list[str]:
    return [f"t{number}" for number in numbers if number]


def _nodes(*numbers: int) -> list[str]:
    return [f"n{number}" for number in numbers if number]


_OF_TENSOR = (
    e.TensorMade, e.RequiresGradChanged, e.GradAssigned, e.NumberRead, e.Named, e.ElementsBinned, e.PassSummed,
    e.StepSummed, e.TangentPushed,
)  # fmt: skip
_OF_NODE = (e.Received, e.Produced, e.FunctionCompared, e.OpMeasured, e.StorageSaved, e.ErrorRaised)
# The nodes that each kind of event is about, as ids; `t5` means the present version of tensor 5.
_LIT: dict[type, Callable[[Any], Iterable[str]]] = {
    **dict.fromkeys(_OF_TENSOR, lambda event: _tensors(event.tensor)),
    **dict.fromkeys(_OF_NODE, lambda event: _nodes(event.node)),
    **dict.fromkeys(
        (e.Accumulated, e.Retained, e.Hooked), lambda event: [*_tensors(event.tensor), *_nodes(event.node)]
    ),
    **dict.fromkeys((e.GradsCleared, e.CollectiveCalled), lambda event: _tensors(*event.tensors)),
    e.OpRan: lambda event: [f"op{event.index}", *_tensors(*event.outputs)],
    e.NodeMade: lambda event: [*_nodes(event.node), *_tensors(*event.outputs)],
    e.Mutated: lambda event: [f"op{event.index}", *_tensors(event.tensor)],
    e.PassBegan: lambda event: [
        *_tensors(*(root.tensor for root in event.roots)),
        *_nodes(*(root.node for root in event.roots)),
    ],
    e.KernelRan: lambda event: [*_nodes(event.node), *_tensors(*event.inputs)],
    e.Stepped: lambda event: _tensors(*event.parameters),
}


# The groups of a page: each step of a loop as a group, or each place of the program as one box.

Tree = dict[str, Group]

# The attributes that differ between passes of one structure: numbers, ids, values.
_OWN = (
    "id", "number", "visit", "since", "version", "called", "base", "pair", "maker",
    "value", "update", "grad", "cleared", "tangent", "pushed", "upstream", "becomes", "held", "box", "apart",
)  # fmt: skip
_shared = attrgetter(*(field.name for field in fields(Node) if field.name not in _OWN))


class Trees:
    """The groups of the graphs of a page. The graphs of a training loop have the same structure, and so the same
    groups with other nodes: they are computed once."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[list[str], dict[str, Any]]] = {}

    def of(self, graph: Graph) -> dict[str, Any]:
        """The groups of steps (`each`), and the groups of places (`rolled`). A graph of closed blocks has none."""
        if any(node.kind == GROUP for node in graph.nodes.values()):
            return {name: {"groups": [], "closed": []} for name in ("each", "rolled")}
        structure = _structure(graph)
        if structure not in self._known:
            grouped = groups(graph)
            of_steps = {"groups": _groups(graph, grouped), "closed": sorted(closed_by_default(graph, grouped))}
            self._known[structure] = [*graph.nodes], {"each": of_steps, "rolled": _of_places(graph)}
        nodes, trees = self._known[structure]
        now = dict(zip(nodes, graph.nodes, strict=True))
        renamed: dict[str, Any] = {}
        for name, tree in trees.items():
            members = [{**group, "members": [now[one] for one in group["members"]]} for group in tree["groups"]]
            renamed[name] = {"groups": members, "closed": tree["closed"]}
        return renamed


def _structure(graph: Graph) -> Hashable:
    """All of a graph that its groups depend on, equal for graphs that differ only in ids and values."""
    place = {name: number for number, name in enumerate(graph.nodes)}
    shown = graph.nodes.values()
    order = _ranks([(node.kind if node.kind in (OP, GRAD_FN) else "tensor", node.number) for node in shown])
    visits = _ranks([node.visit for node in graph.nodes.values()])
    nodes = [
        (_shared(node), place.get(node.pair, -1), place.get(node.maker, -1), rank, visit)
        for node, rank, visit in zip(graph.nodes.values(), order, visits, strict=True)
    ]
    edges = [
        (place[edge.source], place[edge.target], edge.kind, edge.label, edge.cut, edge.count, edge.again)
        for edge in graph.edges
    ]
    return graph.show, tuple(graph.scopes.items()), tuple(nodes), tuple(edges)


def _ranks(values: list[Any]) -> list[int]:
    """The rank of each value among the distinct values."""
    rank = {value: number for number, value in enumerate(sorted(set(values)))}
    return [rank[value] for value in values]


def _of_places(graph: Graph) -> dict[str, Any]:
    """The groups of modules and places, and the groups that are closed at first."""
    graph = with_equal_blocks(with_function_scopes(graph))
    tree = places(graph)
    return {"groups": _groups(graph, tree), "closed": sorted(closed_places(graph, tree))}


def _groups(graph: Graph, tree: Tree) -> list[dict[str, Any]]:
    texts = _texts(graph, tree)
    return [
        {
            "id": group.id,
            "kind": group.kind,
            "label": plain(group.label, 60),
            "parent": group.parent,
            "members": group.members,
            "count": group.count,
            "scope": plain(group.scope, 200),
            "lines": texts.get(group.id, []),
        }
        for group in tree.values()
    ]


def _texts(graph: Graph, tree: Tree) -> dict[str, list[str]]:
    """The text in the box of each group about its inside: its class, the number of its runs, and shapes. All groups
    of a level are closed together."""
    levels: dict[int, set[str]] = {}
    for group in tree:
        levels.setdefault(len(ancestors(tree, group)), set()).add(group)
    lines: dict[str, list[str]] = {}
    for level in levels.values():
        for node in boxes(graph, tree, level):
            if node.box is not None:
                lines[node.id] = node_text.of_inside(node, node.box)
    return lines


# The gradients that wait at nodes during a pass; each text is stored once for all events at which it applies.


def waits(words: Words, pass_number: int) -> list[list[Any]]:
    """The waiting texts of a pass: for each the event at which it begins, the event from which on it is shown, the
    event before which it ends (None: the end), the number of gradients, and the text. A gradient that its node
    receives at once is not shown at the event that produced it."""
    events = np.flatnonzero(words.query.passes.numbers == pass_number)
    return [part for wait in words.query.deliveries(pass_number).waits() for part in _parts(words, wait, events)]


def _parts(words: Words, wait: Wait, own: np.ndarray) -> list[list[Any]]:
    """A wait, in several parts if a gradient is written to meanwhile. `own` are the events of the pass."""
    stop = Stop(words, wait.first)
    shown = wait.first + (stop.moment.meeting(wait.node, wait.nr).of == 1)
    stops = [stop, *map(stop.other, _written(words, wait, own))]
    ends = [*(later.k for later in stops[1:]), wait.end]
    return [
        [at.k, max(at.k, shown), end, len(wait.arrivals), waiting_told(at, wait.node, wait.nr)]
        for at, end in zip(stops, ends, strict=True)
    ]


def _written(words: Words, wait: Wait, own: np.ndarray) -> list[int]:
    """The events of the pass at which waiting gradients were written to."""
    end = words.trace.count if wait.end is None else wait.end
    written = {k for one in wait.arrivals for k in writes_by_any_name(words.query, one.gradient, wait.first + 1, end)}
    if not written:
        return []
    known = own.searchsorted(sorted(written))
    return [k for k in own[known[known < len(own)]].tolist() if wait.first < k < end]
