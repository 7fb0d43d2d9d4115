"""The graph of a run as a reader wants it: nodes, edges, and where each comes from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gradviz.tracefile import Snapshot

LEAF, TENSOR, OP, GRAD_FN, GROUP = "leaf", "tensor", "op", "grad_fn", "group"
DATA, GRAD, SAVED, MUTATION, VIEW = "data", "grad", "saved", "mutation", "view"
_NOTHING: Mapping[str, int] = MappingProxyType({})  # one for all: most nodes are no groups


@dataclass(slots=True)
class Node:
    """A leaf or other tensor (at one version), an op, a grad_fn, or a group of them that is drawn as one.

    Ids are `t12` (`t12v1` after it was written over), `op7` (an event's number), `n5` and `g3`; the same run has
    the same ids. What does not apply to a kind is None or empty. A group's `count` is how often it repeats."""

    id: str
    kind: str
    number: int
    name: str | None = None
    op: str | None = None
    grad_fn: str | None = None
    is_leaf: bool | None = None
    requires_grad: bool | None = None
    parameter: bool = False  # of a module or an optimizer
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    file: str | None = None
    line: int | None = None
    col: int | None = None
    end_col: int | None = None
    scope: str = ""
    count: int = 1
    since: int = -1  # of a tensor: the event that wrote over it, -1 before the first
    version: int = 0
    written_by: str = ""  # what wrote over it to make this version: `add_`, `SGD`
    args: str = ""  # an op's non-tensor arguments
    text: str = ""  # the source line
    base: str | None = None  # the name of the tensor whose memory it shares
    pair: str = ""  # the grad_fn of an op, the AccumulateGrad of a leaf
    root: bool = False  # a pass begins here
    retained: bool = False  # a non-leaf whose gradient was kept
    has_grad: bool = False
    ran: bool = False  # a grad_fn that was given a gradient in the shown pass
    accumulated: bool = False  # an AccumulateGrad that filled its leaf's .grad in the shown pass
    error: str = ""  # what was raised at this grad_fn
    value: Snapshot | None = None
    grad: Snapshot | None = None
    tangent: Snapshot | None = None
    upstream: Snapshot | None = None  # the gradient that a root was given
    held: Mapping[str, int] = field(default_factory=lambda: _NOTHING)  # how many of each kind a group holds


@dataclass(slots=True)
class Edge:
    """From one node's id to another's. A `grad` edge goes as `next_functions` does.

    `cut` says why no gradient comes back along a `data` or `view` edge, where one might be expected. `gradient`
    is the number of the tensor that went along a `grad` edge in the shown pass, 0 if none did. `count` says for
    how many it stands, where groups are drawn as one."""

    source: str
    target: str
    kind: str
    label: str = ""
    cut: str = ""
    gradient: int = 0
    value: Snapshot | None = None
    count: int = 1


@dataclass(slots=True)
class Graph:
    """A run, or the part of it that belongs to one pass. `nodes` by id, in the order in which they came to be.

    `title` says where the pass began; `at` is the event as of which the run is shown; `left_out` counts the
    run's ops that are no part of it; `notes` say what was folded or left out."""

    script: str = ""
    pass_number: int | None = None
    passes: int = 0
    show: str = "both"
    at: int = 0
    title: str = ""
    error: str = ""
    left_out: int = 0
    notes: list[str] = field(default_factory=list)
    nodes: dict[str, Node] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """How many nodes there are of each kind."""
        found = Counter(node.kind for node in self.nodes.values())
        return {kind: found[kind] for kind in (LEAF, TENSOR, OP, GRAD_FN, GROUP) if found[kind]}


def to_json(graph: Graph) -> dict[str, Any]:
    """The graph as plain data: what `gradviz graph -o FILE.json` writes."""
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
            }
            for node in graph.nodes.values()
        ],
        "edges": [{"source": e.source, "target": e.target, "kind": e.kind} for e in graph.edges],
    }
