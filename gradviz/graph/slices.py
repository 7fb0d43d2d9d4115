"""Requested parts of a graph: around a node, between two nodes, or only what requires grad."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gradviz.errors import GradvizError, nearest
from gradviz.graph import model
from gradviz.sets import grouped
from gradviz.system.paths import file_name

HOPS = 3
_COMPUTES = (model.DATA, model.MUTATION, model.VIEW)  # edges along which values move


class SliceError(GradvizError):
    """There is no such node, or no such path. The message is one line for the user."""


def find_nodes(graph: model.Graph, text: str) -> list[str]:
    """The ids of the nodes that `text` selects: an id, a tensor's name, the name of a `grad_fn` or an op, `FILE:LINE`,
    or a scope with everything in it. Raises SliceError with the nearest name if there is none."""
    if text in graph.nodes:
        return [text]
    nodes = graph.nodes.values()
    places = {node.id: _place_of(text, node) for node in nodes}
    first = min(places.values(), default=_NOWHERE)
    if first < _NOWHERE:
        return [name for name, place in places.items() if place == first]
    names = {name for node in nodes for name in (node.name, node.grad_fn) if name}
    near = nearest(text, sorted(names))
    hint = f"did you mean {near!r}?" if near else "give a name, an id such as t3, or FILE:LINE"
    raise SliceError(f"there is no node {text!r} in this graph: {hint}")


_NOWHERE = 5


def _place_of(text: str, node: model.Node) -> int:
    """Where a text is found at a node, the most exact place first: as the name of a tensor, of a grad_fn, of an op, as
    its line, or as a scope around it; otherwise _NOWHERE."""
    lines = () if node.file is None else (f"{file_name(node.file)}:{node.line}", f"{node.file}:{node.line}")
    parts = node.scope.split("/")
    found = (
        node.kind in (model.LEAF, model.TENSOR) and text in (node.name, node.called, *node.tied),
        node.kind == model.GRAD_FN and node.name == text,
        node.kind == model.OP and text in (node.name, node.op),
        text in lines,
        any(model.ends_with("/".join(parts[:depth]), text) for depth in range(1, len(parts) + 1)),
    )
    return found.index(True) if True in found else _NOWHERE


def around(graph: model.Graph, text: str, hops: int = HOPS) -> model.Graph:
    """The nodes at most `hops` edges away from the nodes that `text` selects, and the grad_fns of their ops.
    Raises SliceError."""
    middle = find_nodes(graph, text)
    pairs = [(edge.source, edge.target) for edge in graph.edges]
    near = _reached(grouped([*pairs, *((target, source) for source, target in pairs)]), middle, hops)
    return _part(graph, _with_pairs(graph, near), f"at most {hops} edge{'s' * (hops != 1)} around {text}")


def between(graph: model.Graph, start: str, end: str) -> model.Graph:
    """The nodes on paths from one node to another, and the grad_fns of their ops. Raises SliceError."""
    starts, ends = find_nodes(graph, start), find_nodes(graph, end)
    pairs = [(edge.source, edge.target) for edge in graph.edges if edge.kind in _COMPUTES]
    pairs += [(edge.target, edge.source) for edge in graph.edges if edge.kind == model.GRAD]
    way = _reached(grouped(pairs), starts) & _reached(grouped((after, before) for before, after in pairs), ends)
    if not way:
        raise SliceError(f"no path leads from {start!r} to {end!r} in this graph")
    return _part(graph, _with_pairs(graph, way), f"from {start} to {end}")


def only_grad(graph: model.Graph) -> model.Graph:
    """Only nodes that gradients can reach: tensors that require grad, the ops that made them, and grad_fns."""
    kept = {
        node.id
        for node in graph.nodes.values()
        if node.requires_grad or node.kind == model.GRAD_FN or (node.kind == model.OP and node.grad_fn)
    }
    return _part(graph, kept, "only what requires grad")


def _reached(neighbours: Mapping[str, list[str]], starts: Iterable[str], steps: int | None = None) -> set[str]:
    """The nodes reachable from `starts`, in at most `steps` steps."""
    reached, front = set(starts), list(starts)
    while front and (steps is None or steps > 0):
        front = list({other for name in front for other in neighbours.get(name, ())} - reached)
        reached.update(front)
        steps = None if steps is None else steps - 1
    return reached


def _with_pairs(graph: model.Graph, kept: set[str]) -> set[str]:
    return kept | {pair for name in kept if (pair := graph.nodes[name].pair) in graph.nodes}


def _part(graph: model.Graph, kept: set[str], what: str) -> model.Graph:
    nodes = {name: node for name, node in graph.nodes.items() if name in kept}
    edges = [edge for edge in graph.edges if edge.source in kept and edge.target in kept]
    left_out = len(graph.nodes) - len(nodes)
    note = f"{what}: {left_out:,} of {len(graph.nodes):,} nodes left out"
    return replace(graph, nodes=nodes, edges=edges, notes=[*graph.notes, note])
