"""The data model of a graph: nodes, edges, and their sources in the program."""

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from gradviz.query import State
from gradviz.query.function_calls import FunctionCall
from gradviz.query.optimizer_steps import Update
from gradviz.tracefile import Snapshot

LEAF, TENSOR, OP, GRAD_FN, GROUP = "leaf", "tensor", "op", "grad_fn", "group"
OUTSIDE = "outside"  # stands for a finding about something that the graph does not have
DATA, GRAD, SAVED, MUTATION, VIEW = "data", "grad", "saved", "mutation", "view"
SEND, RECEIVE = "send", "recv"  # the exchanges of two ranks
_NOTHING: Mapping[str, int] = MappingProxyType({})  # shared, because most nodes are not groups
_SAME: Mapping[str, Snapshot] = MappingProxyType({})


@dataclass(slots=True)
class Box:
    """The inside of a closed group, as far as it is shown. `type` is the class of a module; `parameters` are leaves by
    their numbers; `takes` and `gives` are the shapes that come in and go out, with the names of results; `cuts` are the
    reasons why a gradient stops inside, and `due` says that a finding names one of them."""

    type: str = ""
    parameters: dict[int, "Node"] = field(default_factory=dict)
    takes: dict[str, None] = field(default_factory=dict)
    gives: dict[str, None] = field(default_factory=dict)
    cuts: set[str] = field(default_factory=set)
    due: bool = False
    reads: dict[str, None] = field(default_factory=dict)  # the parameters of other modules, by name


class Apart(NamedTuple):
    """A difference between ranks at a node: `what` differs (`value`, `.grad`, `shape`, `collectives`, or `node` if some
    ranks lack it), and `held` has each value, None for nothing, with its ranks."""

    what: str
    held: tuple[tuple[Snapshot | str | None, tuple[int, ...]], ...]


class Exchange(NamedTuple):
    """Something that ranks exchanged at a node: `how` is a collective that ran inside an op or a grad_fn, or `send` or
    `recv`. Of the last two, `whose` is what was sent or received: the tensor (empty), its `.grad`, or the `gradient`
    that a root was given; `rank` is the other rank, None if it is not known, and `tensor` the tensor."""

    how: str
    whose: str = ""
    rank: int | None = None
    tensor: int = 0


@dataclass(slots=True)
class Node:
    """A leaf or other tensor (at one version), an op, a grad_fn, or a group that is drawn as one node.

    A leaf is one leaf: its kind is `leaf` at the first version that the graph has, and `tensor` at later versions. An
    op's result that does not require grad has the kind `tensor` too. `is_leaf` is PyTorch's answer for each version.

    Ids are `t12` (`t12v1` after a write in place that it shows), `op7` (an event's number), `n5` and `g3`, and `f1` for
    a finding that is outside of the graph; the same run always gives the same ids. Attributes that do not apply to a
    kind are None or empty. A group's `count` is the number of its repetitions."""

    id: str
    kind: str
    number: int
    name: str | None = None
    tied: tuple[str, ...] = ()  # the further names of a parameter
    called: str = ""  # a tensor's name in every view, also if the source gives it none
    op: str | None = None
    grad_fn: str | None = None
    is_leaf: bool | None = None
    requires_grad: bool | None = None
    parameter: bool = False  # whether it is a parameter of a module or an optimizer
    buffer: bool = False  # whether it is a buffer of a module
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    file: str | None = None
    line: int | None = None
    col: int | None = None
    end_col: int | None = None
    scope: str = ""
    block: str = ""  # the path of its own block, if several equal blocks have one scope
    visit: int = 0  # the visit to a library's module, for an op that has the place of the module's call
    calls: tuple[FunctionCall, ...] = ()  # the calls of the program's functions around an op, outermost first
    runs_once: bool = False  # whether each call of the function around an op surely runs it once
    astray: bool = False  # an op with a node that no root was computed from
    in_pass: int = 0  # the pass in which an op ran, as under create_graph
    count: int = 1
    since: int = -1  # the event of a tensor's last write in place; -1 before the first
    version: int = 0
    overwritten: bool = False  # a later version of the tensor is in the graph, too
    written_by: str = ""  # the op or function that wrote this version: `add_`, `SGD`
    update: Update | None = None  # how an optimizer computed this version
    args: str = ""  # an op's non-tensor arguments
    text: str = ""  # the source line
    base: str | None = None  # the name of the tensor whose memory it shares
    pair: str = ""  # the grad_fn of an op, the AccumulateGrad of a leaf, the tensor that has a `.grad`
    maker: str = ""  # the op that made a grad_fn; it may have made several
    root: bool = False  # a root of the pass
    retained: bool = False  # a non-leaf whose gradient was retained
    has_grad: bool = False
    grad_of: str = ""  # the name of the tensor whose `.grad` it is
    spared: bool = False  # a leaf whose gradient the shown pass was not asked for
    ran: bool = False  # a grad_fn that received a gradient in the shown pass
    accumulated: bool = False  # an AccumulateGrad that set its leaf's .grad in the shown pass
    error: str = ""  # the error that was raised at this grad_fn
    finding: str = ""  # what `gradviz check` found here
    apart: tuple[Apart, ...] = ()  # the differences between ranks, in a graph of several ranks
    value: Snapshot | None = None
    used: Snapshot | None = None  # the value that backward computed with, if it differs
    grad: Snapshot | None = None
    # a leaf's .grad before the shown pass, and the gradient that was added
    added: tuple[Snapshot, Snapshot] | None = None
    cleared: tuple[Snapshot, str] | None = None  # a leaf's .grad before it was cleared for the shown pass, and by what
    collectives: str = ""  # the collectives that a leaf's gradient went through: `all_reduce · 2 ranks`
    exchanges: tuple[Exchange, ...] = ()  # between ranks
    tangent: Snapshot | None = None
    pushed: tuple[tuple[np.ndarray, Snapshot], ...] = ()  # the local derivatives and tangents that add up to it
    upstream: Snapshot | None = None  # the gradient given to a root
    # The gradient that came to a leaf in a pass that does not accumulate, or after which it is no longer there:
    reached: Snapshot | None = None
    becomes: Mapping[str, Snapshot] = field(  # what `value` and `grad` would be if something were different
        default_factory=lambda: _SAME
    )
    held_apart: int = 0  # the number of nodes in a group that differ between ranks
    # the number of nodes of each kind in a group
    held: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    box: Box | None = None  # the inside of a module or a place, as far as it is shown

    @property
    def label(self) -> str:
        """The name of the node in a view; never empty."""
        return self.called or self.name or self.id


_fields_of_node = attrgetter(*(part.name for part in fields(Node)))


def moved(node: Node, scope: str, block: str) -> Node:
    """A copy of a node, in a scope and a block. `dataclasses.replace` takes four times as long, and a network of 48
    blocks has 13,000 nodes to move."""
    twin = Node(*_fields_of_node(node))
    twin.scope, twin.block = scope, block
    return twin


@dataclass(slots=True)
class Edge:
    """An edge between two nodes, given by their ids. A `grad` edge has the direction of `next_functions`.

    `cut` is the reason why no gradient flows back along a `data` or `view` edge where one might be expected; `due` says
    that a finding of `gradviz check` names this cut as the reason why a gradient is missing. `gradient` is the number
    of the tensor that moved along a `grad` edge in the shown pass; 0 if there is none. `count` is the number of edges
    that were merged into it; in a rolled graph, the number of tensors or gradients that moved along them. `again` says
    that it closes a loop, and `tangent` that a tangent moved along it. `becomes` is the gradient that would be there if
    something were different."""

    source: str
    target: str
    kind: str
    label: str = ""
    cut: str = ""
    gradient: int = 0
    value: Snapshot | None = None
    count: int = 1
    again: bool = False
    tangent: bool = False
    due: bool = False
    becomes: Snapshot | None = None


class Scope(NamedTuple):
    """A module or a custom Function: its class, and the number of its calls in the shown part. A `plain` scope is a
    function of the program that is called as such."""

    type: str
    calls: int
    plain: bool = False


@dataclass(slots=True)
class Graph:
    """A run, or the part of it that belongs to one pass. `nodes` are by id, in the order in which they were made.

    `why` is the reason why it shows this pass, and `title` the place where the pass began. Without a pass, `of` is the
    tensor whose making it shows; it is empty for the whole run. `at` is the event after which the run is shown.
    `left_out` is the number of ops of the run that are not shown. `rolled` says that each place in the program is one
    box, however often it ran. `scopes` are by path. `notes` describe what was folded or left out."""

    script: str = ""
    pass_number: int | None = None
    passes: int = 0
    of: str = ""
    why: str = ""
    show: str = "both"
    at: int = 0
    title: str = ""
    error: str = ""
    left_out: int = 0
    rolled: bool = False
    scopes: dict[str, Scope] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    nodes: dict[str, Node] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    side_by_side: tuple[int, ...] = ()  # the passes, if there are several

    def run(self) -> str:
        """The part of the run that it shows: `pass 2 of 20, with the first NaN`."""
        if self.pass_number is None:
            return f"what leads to {self.of}" if self.of else "the whole run"
        if self.side_by_side:
            *head, last = map(str, self.side_by_side)
            return f"passes {', '.join(head)} and {last} of {self.passes}"
        return f"pass {self.pass_number} of {self.passes}" + (f", {self.why}" if self.why else "")

    def is_plain(self, path: str) -> bool:
        """Whether a scope is a plain function of the program."""
        scope = self.scopes.get(path)
        return scope is not None and scope.plain

    def counts(self) -> dict[str, int]:
        """The number of nodes of each kind."""
        counts = Counter(node.kind for node in self.nodes.values())
        return {kind: counts[kind] for kind in (LEAF, TENSOR, OP, GRAD_FN, GROUP) if counts[kind]}


def to_json(graph: Graph) -> dict[str, Any]:
    """The graph as plain data; `gradviz graph -o FILE.json` writes it."""
    return {
        "nodes": [
            {
                "id": node.id,
                "kind": node.kind,
                "name": node.name,
                "op": node.op,
                "grad_fn": node.grad_fn,
                "is_leaf": node.is_leaf,
                "requires_grad": node.requires_grad,
                "shape": None if node.shape is None else list(node.shape),
                "dtype": node.dtype,
                "file": node.file,
                "line": node.line,
                "col": node.col,
                "end_col": node.end_col,
                "scope": node.scope,
                "count": node.count,
                **({"ranks": [one.what for one in node.apart]} if node.apart else {}),
            }
            for node in graph.nodes.values()
            if node.kind != OUTSIDE
        ],
        "edges": [{"source": e.source, "target": e.target, "kind": e.kind} for e in graph.edges],
    }


def learns(node: Node) -> bool:
    """Whether a node is a parameter, or a leaf that requires grad."""
    return node.parameter or bool(node.kind == LEAF and node.is_leaf and node.requires_grad)


def ends_with(scope: str, name: str) -> bool:
    """Whether a scope's path (`model/blocks.0/attn`) ends with a name, written with dots or slashes."""
    path, end = (f".{text.replace('/', '.')}" for text in (scope, name))
    return path.endswith(end)


def scopes_around(path: str) -> Iterator[str]:
    """The paths of the scopes around a place, from the outermost to its own."""
    parts = path.split("/") if path else []
    return ("/".join(parts[:count]) for count in range(1, len(parts) + 1))


# The ids of a graph's nodes. The same run always gives the same ids.


class _Made(dict[int, str]):
    """Ids for things of one kind, by number. Each string is made once, because many tables use it as a key."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def __missing__(self, number: int) -> str:
        name = self[number] = f"{self._prefix}{number}"
        return name


class Ids:
    """The ids of the nodes of one graph. `op7` is the op or write of event 7, `n5` a node, `t12` a tensor as the graph
    shows it first, and `t12v1` the same tensor after the first write that the graph shows. `states` are the states of
    tensors in the graph."""

    def __init__(self, states: Iterable[State] = ()) -> None:
        self.op, self.node = _Made("op"), _Made("n")
        self._tensors: dict[State, str] = {}
        tensor = version = 0
        for state in sorted(states):
            version = version + 1 if state.tensor == tensor else 0
            tensor = state.tensor
            self._tensors[state] = f"t{tensor}v{version}" if version else f"t{tensor}"

    def tensor(self, state: State) -> str:
        """The id of a tensor in a given state; for a state that is not in the graph, an id that no node has."""
        return self._tensors.get(state) or f"t{state.tensor}@{state.since}"


# Speeds up the creation of very many objects.


def lines_text(first: int, last: int) -> str:
    """A stretch of lines in words: `line 7`, `lines 4–11`."""
    return f"line {first}" if first == last else f"lines {first}–{last}"


@contextmanager
def no_collection() -> Iterator[None]:
    """Turn off Python's garbage collector, as a context manager or decorator. While a graph is built there are no
    cycles to collect, and the repeated scans would take as long as the building. The new objects then count as old:
    otherwise the first scan afterwards would go through all of them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not gc.get_freeze_count():  # else this would thaw what the program has frozen
                gc.freeze()
                gc.unfreeze()
            gc.enable()
