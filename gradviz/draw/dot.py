"""A graph as DOT text.

Forward goes down, and backward back up beside it: a `grad` edge is written the other way round, with `dir=back`,
so that it does not stretch the picture. An op and its grad_fn stand side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import graphviz

from gradviz.draw import style
from gradviz.draw.lines import lines_of
from gradviz.draw.text import SMALL, plain, quoted, value
from gradviz.graph.model import Edge, Graph, Node

FAST_ABOVE = 1000  # nodes: beyond, layout is told not to try hard
_FAST = {"nslimit": "0.1", "nslimit1": "1", "mclimit": "0.1", "splines": "line"}
_DEEPEST = 8  # scopes within one another


def to_dot(graph: Graph) -> str:
    """The graph as DOT text."""
    fast = _FAST if len(graph.nodes) > FAST_ABOVE else {}
    dot = graphviz.Digraph("gradviz", graph_attr={**style.GRAPH, **fast})
    dot.attr(label=quoted([*caption(graph), " "], end="\\l"))
    dot.attr("node", **style.NODE)
    dot.attr("edge", **style.EDGE)
    cut = {edge.target for edge in graph.edges if edge.cut}
    groups = _groups(graph)
    for scope, members in groups.items():
        _add_scope(dot, scope, members, graph, cut)
    _add_ties(dot, graph)
    for number, edge in enumerate(graph.edges):
        _add_edge(dot, number, edge, graph)
    return dot.source


def caption(graph: Graph) -> list[str]:
    """What stands above the picture: what it shows, how the run ended, what the lines mean."""
    run = "the whole run" if graph.pass_number is None else f"pass {graph.pass_number} of {graph.passes}"
    parts = (plain(graph.script), run, plain(graph.title, 60))
    lines = [" · ".join(part for part in parts if part)]
    if graph.error and not any(node.error for node in graph.nodes.values()):
        lines.append(plain(graph.error, 90))
    kinds = {name for edge in graph.edges for name in style.edge_classes(edge)}
    if any(edge.kind == "grad" and not edge.gradient for edge in graph.edges):
        kinds.add("idle")
    legend = [text for kind, text in style.LEGEND.items() if kind in kinds]
    return [*lines, "   ".join(legend)] if len(legend) > 1 else lines


# --- nodes, scope by scope


def _groups(graph: Graph) -> dict[str, list[Node]]:
    groups: dict[str, list[Node]] = {"": []}
    for node in graph.nodes.values():
        groups.setdefault("/".join(node.scope.split("/")[:_DEEPEST]), []).append(node)
    return groups


def _add_scope(dot: Any, scope: str, members: list[Node], graph: Graph, cut: set[str]) -> None:
    """Add nodes inside the nested clusters of their scope. DOT joins clusters of the same name."""
    if not scope:
        _add_nodes(dot, members, graph, cut)
        return
    outermost, _, _ = scope.partition("/")
    _nest(dot, scope, outermost, members, graph, cut)


def _nest(dot: Any, scope: str, path: str, members: list[Node], graph: Graph, cut: set[str]) -> None:
    cluster = graphviz.Digraph(
        graphviz.escape(f"cluster {path}")
    )  # not dot.subgraph(): it would copy dot's lines
    name = path.rpartition("/")[2]
    cluster.attr(label=quoted([plain(name, 40)]), **{"class": "scope"}, **style.CLUSTER)
    if path == scope:
        _add_nodes(cluster, members, graph, cut)
    else:
        step = scope[len(path) + 1 :].partition("/")[0]
        _nest(cluster, scope, f"{path}/{step}", members, graph, cut)
    dot.subgraph(cluster)


def _add_nodes(dot: Any, members: list[Node], graph: Graph, cut: set[str]) -> None:
    here = {node.id for node in members}
    paired: set[str] = set()
    for node in members:
        if node.id in paired:
            continue
        _add_node(dot, node, graph, cut)
        if node.pair in here and node.pair not in paired:
            paired.add(node.pair)
            _add_node(dot, graph.nodes[node.pair], graph, cut)
            dot.body.append(f"\t{{ rank=same; {node.id}; {node.pair} }}\n")


def _add_node(dot: Any, node: Node, graph: Graph, cut: set[str]) -> None:
    classes = style.node_classes(node, node.kind == "op" and node.id in cut)
    attributes = style.look(style.NODES, classes)
    lines = [_roomy(text) if role in style.BOLD else text for role, text in lines_of(node, graph.show)]
    dot.node(
        node.id,
        label=quoted(lines),
        id=node.id,
        tooltip=quoted([_tooltip(node)]),
        **{"class": " ".join(classes)},
        **attributes,
    )


def _roomy(text: str) -> str:
    """Text with room at its ends: Graphviz does not know that it will be bold."""
    room = "\u00a0" * (1 + len(text) // 16)
    return f"{room}{text}{room}"


def _tooltip(node: Node) -> str:
    place = f"{plain(Path(node.file).name, 40)}:{node.line}" if node.file else ""
    return "  ".join(part for part in (node.id, place, plain(node.text, 100)) if part)


def _add_ties(dot: Any, graph: Graph) -> None:
    """Join each op to its grad_fn, and each leaf to the AccumulateGrad that fills its .grad."""
    for node in graph.nodes.values():
        if node.pair not in graph.nodes:
            continue
        fills = node.kind == "leaf" and graph.nodes[node.pair].ran
        look = {"dir": "back", **style.EDGES["flowed"], "style": "dashed"} if fills else style.TIE
        dot.edge(node.id, node.pair, **{"class": "tie", "weight": "2"}, **_reversed_arrow(look))


# --- edges


def _add_edge(dot: Any, number: int, edge: Edge, graph: Graph) -> None:
    if edge.kind == "view" and not edge.cut and _made_by_op(edge, graph):
        return  # its op's edges show the way, and its node says so
    if edge.kind == "view" and _made_by_op(edge, graph):
        return
    classes = style.edge_classes(edge)
    look = style.look(style.EDGES, classes)
    label = _edge_label(edge)
    tooltip = {"tooltip": quoted([_edge_tooltip(edge)])}
    names = {"id": f"e{number}", "class": " ".join(classes)}
    text = {"label": quoted(label)} if label else {}
    if edge.kind == "grad":
        dot.edge(
            edge.target, edge.source, **text, **tooltip, **names, **_reversed_arrow({"dir": "back", **look})
        )
    else:
        dot.edge(edge.source, edge.target, **text, **tooltip, **names, **look)


def _reversed_arrow(look: dict[str, str]) -> dict[str, str]:
    """The attributes of an edge written the other way round."""
    return {"arrowtail" if key == "arrowhead" else key: text for key, text in look.items()}


def _made_by_op(edge: Edge, graph: Graph) -> bool:
    return graph.nodes[edge.target].op not in ("data", "Variable")


_LONGEST_LABEL = 22
_CUTS = {"detach": "gradient stops here", "no_grad": "gradient stops here\n(no_grad)"}


def _edge_label(edge: Edge) -> list[str]:
    if edge.cut:
        text = _CUTS.get(edge.cut, f"gradient stops here\n({plain(edge.cut, 30)})")
        return [f" {line} " for line in text.split("\n")]
    if edge.label:
        return [f" {plain(edge.label, 30)} "]
    if edge.value is not None and edge.value.array is not None and edge.value.array.size <= SMALL:
        text = value(edge.value)
        return [f" {text} "] if len(text) <= _LONGEST_LABEL else []
    return []


def _edge_tooltip(edge: Edge) -> str:
    words = {"grad": "gradient", "saved": "saved for backward", "data": "data", "view": "shares memory"}
    what = words.get(edge.kind, edge.kind)
    if edge.value is not None:
        what += f" {list(edge.value.shape)} {value(edge.value)}"
    return f"{edge.source} → {edge.target}: {what}"
