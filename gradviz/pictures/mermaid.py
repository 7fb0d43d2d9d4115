"""Writes a graph as Mermaid text, which code hosts draw in a README or a comment."""

from __future__ import annotations

from gradviz.graph.model import DATA, GRAD, MUTATION, SAVED, VIEW, Edge, Graph, Node
from gradviz.pictures.node_text import called_cut, lines_of
from gradviz.pictures.scene import about
from gradviz.words.escape import as_mermaid

MOST_EDGES = 500  # Mermaid's own limit (maxEdges)
MOST_TEXT = 50_000  # characters; Mermaid's own limit (maxTextSize)

_SHAPES = {
    "leaf": ('(["', '"])'),
    "tensor": ('("', '")'),
    "op": ('{{"', '"}}'),
    "grad_fn": ('["', '"]'),
    "group": ('[["', '"]]'),
}
_ARROWS = {DATA: "-->", GRAD: "-.->", SAVED: "-.-o", MUTATION: "==>", VIEW: "-.-"}
_CLASSES = (
    "classDef leaf fill:#d0ebff,stroke:#1864ab,color:#212529",
    "classDef tensor fill:#ffffff,stroke:#868e96,color:#212529",
    "classDef op fill:#495057,stroke:#495057,color:#ffffff",
    "classDef grad_fn fill:#fff4e6,stroke:#fd7e14,color:#862e00",
    "classDef group fill:#e6fcf5,stroke:#087f5b,color:#212529",
)


def to_mermaid(graph: Graph) -> str:
    """The graph as a Mermaid flowchart. A graph above Mermaid's limits is cut, and a node mentions it."""
    head = [f"%% {line.replace('%', '')}" for line in about(graph)]
    lines = [*head, "flowchart TB", *(f"  {text}" for text in _CLASSES)]
    room = MOST_TEXT - sum(len(line) + 1 for line in lines) - 200
    said: set[str] = set()
    drawn = 0
    for edge in graph.edges:
        ends = [graph.nodes[name] for name in (edge.source, edge.target) if name not in said]
        new = [*(_node(node, graph.show) for node in ends), _edge(edge)]
        room -= sum(len(text) + 1 for text in new)
        if room < 0 or drawn == MOST_EDGES:
            break
        said.update(node.id for node in ends)
        lines += new
        drawn += 1
    if drawn < len(graph.edges):
        left = len(graph.edges) - drawn
        lines.append(f'  more["{left:,} more edges are left out: code hosts do not draw more"]:::group')
    else:
        lines += [_node(node, graph.show) for node in graph.nodes.values() if node.id not in said]
    return "\n".join(lines) + "\n"


def _node(node: Node, show: str) -> str:
    opens, closes = _SHAPES[node.kind]
    label = "<br/>".join(as_mermaid(text) for _, text in lines_of(node, show))
    return f"  {node.id}{opens}{label}{closes}:::{node.kind}"


def _edge(edge: Edge) -> str:
    label = f"|{as_mermaid(called_cut(edge.cut))}|" if edge.cut else ""
    return f"  {edge.source} {_ARROWS[edge.kind]}{label} {edge.target}"
