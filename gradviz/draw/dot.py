"""A graph as DOT text.

Forward goes down, and backward back up beside it: a `grad` edge is written the other way round, with `dir=back`,
so that it does not stretch the picture. An op and its grad_fn stand side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import graphviz

from gradviz.draw import style
from gradviz.draw.lines import lines_of
from gradviz.draw.shorten import Reference, shortened
from gradviz.draw.text import SMALL, plain, quoted, value
from gradviz.graph.model import DATA, GRAD, GRAD_FN, VIEW, Edge, Graph, Node

FAST_ABOVE = 1000  # nodes: beyond, layout is told not to try hard
_FAST = {"nslimit": "0.1", "nslimit1": "1", "mclimit": "0.1", "splines": "line"}
_DEEPEST = 8  # scopes within one another


def to_dot(graph: Graph) -> str:
    """The graph as DOT text."""
    return _Writer(graph).source()


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
    lines += [plain(note, 110) for note in graph.notes]
    legend = [text for kind, text in style.LEGEND.items() if kind in kinds]
    return [*lines, "   ".join(legend)] if len(legend) > 1 else lines


class _Writer:
    """Writes one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.edges, self.references = shortened(graph)
        self.cut = {edge.target for edge in graph.edges if edge.cut}
        fast = _FAST if len(graph.nodes) > FAST_ABOVE else {}
        self.dot = graphviz.Digraph("gradviz", graph_attr={**style.GRAPH, **fast})

    def source(self) -> str:
        """All of it."""
        self.dot.attr(label=quoted([*caption(self.graph), " "], end="\\l"))
        self.dot.attr("node", **style.NODE)
        self.dot.attr("edge", **style.EDGE)
        for scope, members in self._scopes().items():
            if scope:
                self._add_cluster(self.dot, scope, scope.partition("/")[0], members)
            else:
                self._add_nodes(self.dot, members)
        self._add_ties()
        made_by_ops = {edge.target for edge in self.edges if edge.kind == DATA}
        for number, edge in enumerate(self.edges):
            if edge.kind != VIEW or edge.target not in made_by_ops:  # else its op shows the way already
                self._add_edge(number, edge)
        return self.dot.source

    # --- nodes, scope by scope

    def _scopes(self) -> dict[str, list[Node | Reference]]:
        scopes: dict[str, list[Node | Reference]] = {"": []}
        members: list[Node | Reference] = [*self.graph.nodes.values(), *self.references]
        for node in members:
            scopes.setdefault("/".join(node.scope.split("/")[:_DEEPEST]), []).append(node)
        return scopes

    def _add_cluster(self, outer: Any, scope: str, path: str, members: list[Node | Reference]) -> None:
        """Add nodes inside the nested clusters of their scope. DOT joins clusters of the same name."""
        cluster = graphviz.Digraph(
            graphviz.escape(f"cluster {path}")
        )  # outer.subgraph() would copy its lines
        name = path.rpartition("/")[2]
        cluster.attr(label=quoted([plain(name, 40)]), **{"class": "scope"}, **style.CLUSTER)
        if path == scope:
            self._add_nodes(cluster, members)
        else:
            step = scope[len(path) + 1 :].partition("/")[0]
            self._add_cluster(cluster, scope, f"{path}/{step}", members)
        outer.subgraph(cluster)

    def _add_nodes(self, dot: Any, members: list[Node | Reference]) -> None:
        """Add nodes, an op beside its grad_fn, and a leaf beside its AccumulateGrad."""
        here = {node.id for node in members}
        paired: set[str] = set()
        for node in members:
            if isinstance(node, Reference):
                self._add_reference(dot, node)
            elif node.id not in paired:
                self._add_node(dot, node)
                if node.pair in here and node.pair not in paired:
                    paired.add(node.pair)
                    self._add_node(dot, self.graph.nodes[node.pair])
                    dot.body.append(f"\t{{ rank=same; {node.id}; {node.pair} }}\n")

    def _add_node(self, dot: Any, node: Node) -> None:
        classes = style.node_classes(node, node.kind == "op" and node.id in self.cut)
        lines = [
            _roomy(text) if role in style.BOLD else text for role, text in lines_of(node, self.graph.show)
        ]
        names = {"id": node.id, "class": " ".join(classes), "tooltip": quoted([_tooltip(node)])}
        dot.node(node.id, label=quoted(lines), **names, **style.look(style.NODES, classes))

    def _add_reference(self, dot: Any, reference: Reference) -> None:
        node = reference.node
        classes = [*style.node_classes(node, False), "reference"]
        name = plain((node.base if node.kind == GRAD_FN else node.name) or node.id, 40)
        label = quoted([f"{name}.grad" if node.kind == GRAD_FN else name])
        names = {"id": reference.id, "class": " ".join(classes), "tooltip": quoted([_tooltip(node)])}
        dot.node(reference.id, label=label, **names, **style.look(style.NODES, classes))

    def _add_ties(self) -> None:
        """Join each op to its grad_fn, and each leaf to the AccumulateGrad that fills its .grad."""
        nodes = self.graph.nodes
        for node in nodes.values():
            if node.pair in nodes:
                fills = nodes[node.pair].accumulated
                look = (
                    _reversed_arrow({**style.EDGES["grad"], **style.EDGES["flowed"]}) if fills else style.TIE
                )
                self.dot.edge(node.id, node.pair, **{"class": "tie", "weight": "2"}, **look)

    # --- edges

    def _add_edge(self, number: int, edge: Edge) -> None:
        classes = style.edge_classes(edge)
        look = style.look(style.EDGES, classes)
        label = _edge_label(edge)
        names = {"id": f"e{number}", "class": " ".join(classes), "tooltip": quoted([_edge_tooltip(edge)])}
        if label:
            names["label"] = quoted(label)
        if edge.kind == GRAD:
            self.dot.edge(edge.target, edge.source, **names, **_reversed_arrow(look))
        else:
            self.dot.edge(edge.source, edge.target, **names, **look)


def _roomy(text: str) -> str:
    """Text with room at its ends: Graphviz does not know that it will be bold."""
    room = "\u00a0" * (1 + len(text) // 16)
    return f"{room}{text}{room}"


def _tooltip(node: Node) -> str:
    place = f"{plain(Path(node.file).name, 40)}:{node.line}" if node.file else ""
    return "  ".join(part for part in (node.id, place, plain(node.text, 100)) if part)


def _reversed_arrow(look: dict[str, str]) -> dict[str, str]:
    """The attributes of an edge written the other way round."""
    return {"dir": "back", **{"arrowtail" if key == "arrowhead" else key: text for key, text in look.items()}}


_LONGEST_LABEL = 22
_CUTS = {"detach": "gradient stops here", "no_grad": "gradient stops here\n(no_grad)"}


def _edge_label(edge: Edge) -> list[str]:
    if edge.count > 1 and not edge.cut:
        return [f" ×{edge.count:,} "]
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
