"""Several graphs as one, side by side: of the ranks of one training, or of several passes of one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradviz.graph.model import OP, Graph


def beside(graphs: Sequence[Graph], labels: Sequence[str]) -> Graph:
    """One graph with a scope for each of `graphs`, named by its label. Ids get the number of the graph before them:
    `2:t12`."""
    first = graphs[0]
    joined = Graph(first.script, first.pass_number, first.passes, first.show, title=first.title)
    joined.error = next((graph.error for graph in graphs if graph.error), "")
    joined.left_out = sum(graph.left_out for graph in graphs)
    for number, (graph, label) in enumerate(zip(graphs, labels, strict=True), 1):
        joined.notes += [f"{label}: {note}" for note in graph.notes]
        of = f"{number}:".__add__
        for node in graph.nodes.values():
            scope = f"{label}/{node.scope}" if node.scope else label
            pair, maker = (of(name) if name else "" for name in (node.pair, node.maker))
            joined.nodes[of(node.id)] = replace(node, id=of(node.id), scope=scope, pair=pair, maker=maker)
        joined.scopes |= {f"{label}/{path}": known for path, known in graph.scopes.items()}
        joined.edges += [
            replace(edge, source=of(edge.source), target=of(edge.target)) for edge in graph.edges
        ]
    return joined


def passes_beside(graphs: Sequence[Graph]) -> Graph:
    """The graphs of several passes of one run, side by side."""
    first = graphs[0]
    joined = beside(graphs, [f"pass {graph.pass_number}" for graph in graphs])
    joined.side_by_side = tuple(graph.pass_number or 0 for graph in graphs)
    joined.title = first.title if all(graph.title == first.title for graph in graphs) else ""
    ops = [{node.id for node in graph.nodes.values() if node.kind == OP} for graph in graphs]
    joined.left_out = first.left_out + len(ops[0]) - len(set().union(*ops))
    return joined
