"""The equal blocks of a network as one block: `h.0 … h.47`, all of one class and with the same operations inside.

A block keeps its own name if its gradient is ten times larger or smaller than those of nearly all others, if there is a
finding in it, if fewer than three other blocks are equal to it, or if it has no modules inside."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from statistics import median

from gradviz.graph.model import DATA, OP, Graph, Node, Scope, learns, moved, scopes_around

_FEWEST = 4
_APART = 10.0
_MOST_APART = 3  # if more blocks are apart, the norms change from block to block, and the range shows it
_NUMBERED = re.compile(r"(.*?)(\d+)")


def with_equal_blocks(graph: Graph, named: Collection[str] = ()) -> Graph:
    """The graph with one scope for the blocks of each family of equal blocks; the ids of nodes stay. Blocks around or
    inside the scopes that are `named` keep their own scope. Takes linear time."""
    families = {path: family for family in _families(graph, named) for path in family}
    if not families:
        return graph
    homes = {
        path: _home(path, families)
        for path in {node.scope for node in graph.nodes.values()} | {*graph.scopes}
    }
    result = replace(graph, nodes=dict(graph.nodes), scopes={})
    for node in graph.nodes.values():
        if homes[node.scope] != node.scope:
            block = next(path for path in scopes_around(node.scope) if path in families)
            result.nodes[node.id] = moved(node, homes[node.scope], block)
    for path, scope in graph.scopes.items():
        known = result.scopes.get(homes[path])
        result.scopes[homes[path]] = Scope(
            scope.type, scope.calls + (known.calls if known is not None else 0)
        )
    return result


def _home(path: str, families: dict[str, list[str]]) -> str:
    """The path with the names of families in place of the names of their blocks."""
    parts = []
    for inner in scopes_around(path):
        family = families.get(inner)
        first, last = (family[0], family[-1]) if family is not None else (inner, "")
        name = first.rpartition("/")[2]
        parts.append(f"{name} … {last.rpartition('/')[2]}" if last else name)
    return "/".join(parts)


def _families(graph: Graph, named: Collection[str]) -> Iterator[list[str]]:
    """The paths of the blocks of each family, in the order in which they ran."""
    inside = _inside(graph)
    alike: dict[tuple[object, ...], list[str]] = {}
    for path, content in inside.items():
        outer, _, name = path.rpartition("/")
        numbered = _NUMBERED.fullmatch(name)
        has_modules = any(scope for scope, *_ in content)
        if numbered is not None and has_modules and not _is_named(path, named):
            type_ = graph.scopes[path].type if path in graph.scopes else ""
            alike.setdefault((outer, numbered[1], type_, tuple(content)), []).append(path)
    norms, with_findings = _norms(graph)
    for paths in alike.values():
        usual = median([norms.get(path, 0.0) for path in paths])
        apart = {path for path in paths if _is_apart(norms.get(path, 0.0), usual)}
        if len(apart) > _MOST_APART:
            apart = set()
        equal = [path for path in paths if path not in with_findings | apart]
        if len(equal) >= _FEWEST:
            yield equal


def _is_named(path: str, names: Collection[str]) -> bool:
    """Whether one of the names is that of a scope or of a scope inside it. Names may leave out the scopes around, and
    have dots or slashes."""
    last = path.rpartition("/")[2]
    return any(f".{last}." in f".{name.replace('/', '.')}." for name in names)


def _is_apart(norm: float, usual: float) -> bool:
    return not math.isfinite(norm) or not usual / _APART <= norm <= usual * _APART


def _inside(graph: Graph) -> dict[str, list[tuple[object, ...]]]:
    """The ops inside each scope, in order: the place in the scope, the op, its node and the shapes of its results."""
    made: dict[str, list[object]] = {}
    for edge in graph.edges:
        if edge.kind == DATA and graph.nodes[edge.source].kind == OP:
            made.setdefault(edge.source, []).append(graph.nodes[edge.target].shape)
    inside: dict[str, list[tuple[object, ...]]] = {}
    for node in graph.nodes.values():
        if node.kind == OP:
            for path in scopes_around(node.scope):
                within = node.scope[len(path) + 1 :]
                inside.setdefault(path, []).append((within, node.op, node.grad_fn, *made.get(node.id, ())))
    return inside


def _norms(graph: Graph) -> tuple[dict[str, float], set[str]]:
    """The norm of the gradients of the parameters in each scope, and the scopes with a finding or an error."""
    squares: dict[str, float] = {}
    with_findings: set[str] = set()
    for node in graph.nodes.values():
        if node.finding or node.error:
            with_findings.update(scopes_around(node.scope))
        for path in scopes_around(node.scope):
            squares[path] = squares.get(path, 0.0) + square_of(node)
    return {
        path: math.sqrt(square) if square >= 0 else math.nan for path, square in squares.items()
    }, with_findings


def square_of(node: Node) -> float:
    """The sum of the squares of the gradient of a parameter or a leaf; 0 for any other node, or without a gradient."""
    grad = (node.grad or node.reached) if learns(node) and not node.overwritten else None
    if grad is None or grad.stats is None:
        return 0.0
    return grad.stats.rms**2 * math.prod(grad.shape) if not grad.stats.nan else math.nan
