"""The contents of a picture before its layout: things with lines of text, and links between them.

Every layout shows the same things and links, with these ids, classes and texts."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gradviz.graph.groups import PLACE
from gradviz.graph.model import DATA, GRAD, GRAD_FN, GROUP, LEAF, OP, SAVED, TENSOR, VIEW, Edge, Graph, Node
from gradviz.pictures import style
from gradviz.pictures.node_text import BRIEF, FULL, OVERVIEW, Line, called_cut, facts, lines_of
from gradviz.system.paths import file_name
from gradviz.words.escape import plain, plain_name
from gradviz.words.numbers import SHOWN, value_label

CROWD = 60  # in a graph with more nodes, unnamed nodes have less text


@dataclass(slots=True)
class Thing:
    """A node of the graph, or a reference to one, as it is drawn. `pair` is the thing beside it."""

    id: str
    classes: list[str]
    lines: list[Line]
    tooltip: str
    scope: str
    pair: str = ""


@dataclass(slots=True)
class Link:
    """A line from one thing to another. A `backward` link has its arrow at `target`, but the layout treats it as if
    it began there, so that the backward graph goes up."""

    id: str
    source: str
    target: str
    classes: list[str]
    label: list[str]
    tooltip: str
    backward: bool = False


@dataclass(slots=True)
class Scene:
    """A whole picture. `caption` is the text above it; `types` are the classes of the modules that have frames, by
    path; with `rankdir` LR it is drawn from left to right. `times` are the events since which a thing or a link of a
    textbook's picture is there, and since which its gradient is."""

    caption: list[str]
    types: dict[str, str] = field(default_factory=dict)
    things: dict[str, Thing] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    rankdir: str = "TB"
    times: dict[str, tuple[int, int]] = field(default_factory=dict)


def scene_of(graph: Graph) -> Scene:
    """The scene of a graph."""
    edges, references = shortened(graph)
    marks = _Marks(graph)
    scene = Scene(caption(graph), _types(graph))
    places = frames(graph)
    detail = _detail(graph)
    for node in graph.nodes.values():
        scene.things[node.id] = Thing(
            node.id,
            style.node_classes(node, *marks.of(node)),
            lines_of(node, graph.show, detail, 0 if graph.rolled else marks.uses[node.id]),  # a box may use it often
            _tooltip(node, detail),
            places[node.id],
            node.pair if node.pair in graph.nodes else "",
        )
    for reference in references:
        scene.things[reference.id] = _reference(reference, places[reference.user])
    scale = style.Scale(edge.value for edge in edges if edge.kind == GRAD)
    made_by_ops = {edge.target for edge in edges if edge.kind == DATA}
    for number, edge in enumerate(edges):
        if edge.kind != VIEW or edge.target not in made_by_ops:  # otherwise its op shows the connection
            classes = [*style.edge_classes(edge), *scale.classes(edge)]
            if edge.kind == DATA and edge.target in marks.nodes["view"]:
                classes.append("aliases")
            link = Link(f"e{number}", edge.source, edge.target, classes, _label(edge), _edge_tooltip(edge))
            link.backward = edge.kind == GRAD
            scene.links.append(link)
    if graph.show != "forward":
        _add_collectives(scene, graph)
    return scene


def _add_collectives(scene: Scene, graph: Graph) -> None:
    """Add a gate behind each leaf, and each module, whose gradients went through a collective."""
    for node in graph.nodes.values():
        if label := _collectives(node):
            gate = Thing(
                f"{node.id}c", ["gate"], [("value", label)], f"{node.id}  {label}", scene.things[node.id].scope
            )
            source = node.pair if node.pair in graph.nodes else node.id
            classes = ["grad", "flowed"]
            link = Link(f"e{node.id}c", source, gate.id, classes, [], f"{node.label}.grad → {label}", backward=True)
            scene.things[gate.id] = gate
            scene.links.append(link)


def _collectives(node: Node) -> str:
    """The collectives that the gradients of a leaf, or of a module's parameters, went through; if not all gradients
    did, also how many."""
    leaves = [*node.box.parameters.values()] if node.box is not None else []
    collectives = dict.fromkeys(one.collectives for one in leaves if one.collectives)
    if not collectives:
        return plain(node.collectives, 60)
    due = sum(one.has_grad for one in leaves)
    through = sum(bool(one.collectives) for one in leaves)
    few = f", {through} of {due} gradients" if through < due else ""
    return plain("; ".join(collectives), 60) + few


def _types(graph: Graph) -> dict[str, str]:
    """The class of each module, with the number of its calls if they share one frame."""
    return {
        path: f"{scope.type} ×{scope.calls:,}".strip()
        if graph.rolled and scope.calls > 1 and (scope.type or scope.plain)
        else scope.type
        for path, scope in graph.scopes.items()
    }


def _detail(graph: Graph) -> str:
    """The level of detail of a picture: less text in a large graph, and less beside modules."""
    if len(graph.nodes) > CROWD:
        return BRIEF
    return OVERVIEW if any(node.box is not None for node in graph.nodes.values()) else FULL


def caption(graph: Graph) -> list[str]:
    """The text above a picture: what it shows, the error of the run, and the meaning of the lines."""
    kinds = {name for edge in graph.edges for name in style.edge_classes(edge)}
    if any(edge.kind == GRAD and not edge.gradient for edge in graph.edges):
        kinds.add("idle")
    if any(node.astray for node in graph.nodes.values()):
        kinds.add("astray")
    legend = [text for kind, text in style.LEGEND.items() if kind in kinds]
    lines = about(graph)
    if len(legend) < 2:
        return lines
    meaning = "   ".join(legend)
    last = f"{lines[-1]}   {meaning}"
    return [*lines[:-1], last] if graph.notes and len(last) <= _LONGEST_LINE else [*lines, meaning]


def about(graph: Graph) -> list[str]:
    """The description of a picture: the run, the pass, the error of the run, and the notes about folding."""
    parts = plain(graph.script), graph.run(), plain(graph.title, 60)
    lines = [" · ".join(part for part in parts if part)]
    if len(lines[0]) > _LONGEST_LINE:
        lines = [" · ".join(part for part in parts[:2] if part), parts[2]]
    if graph.error and not any(node.error for node in graph.nodes.values()):
        lines.append(plain(graph.error, 90))
    return lines + [plain(note, 110) for note in graph.notes]


class _Marks:
    """Marks of nodes that depend on the edges."""

    def __init__(self, graph: Graph) -> None:
        nodes = graph.nodes
        ops = {name for name, node in nodes.items() if node.kind == OP or node.op == PLACE}
        cut = {edge.target for edge in graph.edges if edge.due and edge.target in ops}
        views = {name for name, node in nodes.items() if node.base and node.kind not in (OP, GRAD_FN)}
        reads = {(edge.source, edge.target): edge.count for edge in graph.edges if edge.kind == DATA}
        self.uses: Counter[str] = Counter()
        for (source, _), count in reads.items():
            self.uses[source] += count
        shared = {
            name for name, count in self.uses.items() if count > 1 and nodes[name].is_leaf and nodes[name].requires_grad
        }
        in_place = {e.source for e in graph.edges if e.kind == DATA and nodes[e.target].version} & ops
        self.nodes = {"view": views, "shared": shared, "in-place": in_place, "cut": cut, "unreached": _unreached(graph)}

    def of(self, node: Node) -> list[str]:
        """The marks of a node, as classes."""
        return [name for name, members in self.nodes.items() if node.id in members]


def _unreached(graph: Graph) -> set[str]:
    """Leaves that require grad and got no gradient, in the picture of a pass."""
    nodes = graph.nodes
    if not graph.passes or not any(node.ran for node in nodes.values()):
        return set()
    waiting = {
        node.id: node.pair
        for node in nodes.values()
        if node.kind == LEAF
        and node.requires_grad
        and not (node.has_grad or node.overwritten or node.root or node.spared)
    }
    return {name for name, pair in waiting.items() if pair not in nodes or not nodes[pair].ran}


def _reference(reference: "Reference", frame: str) -> Thing:
    node = reference.node
    name = plain_name((node.base or node.id) if node.kind == GRAD_FN else node.label, 40)
    line = ("reference", f"{name}.grad" if node.kind == GRAD_FN else name)
    classes = [*style.node_classes(node), "reference"]
    return Thing(reference.id, classes, [line], _tooltip(node), frame)


def _tooltip(node: Node, detail: str = FULL) -> str:
    place = f"{plain(file_name(node.file), 40)}:{node.line}" if node.file else ""
    what = facts(node) if detail != FULL and node.kind in (LEAF, TENSOR) else ""
    return "  ".join(part for part in (node.id, what, place, plain(node.text, 100)) if part)


_LONGEST_LABEL, _LONGEST_LINE = 22, 44
_DUE = {"detach": "gradient stops here", "no_grad": "gradient stops here\n(no_grad)"}


def _label(edge: Edge) -> list[str]:
    if edge.count > 1 and not edge.cut:
        return [f"×{edge.count:,}"]
    if edge.due:
        return _DUE.get(edge.cut, f"gradient stops here\n({plain(edge.cut, 30)})").split("\n")
    if edge.cut:
        return [called_cut(edge.cut)]
    if edge.label:
        return [plain(edge.label, 30)]
    if edge.value is not None and edge.value.array is not None and edge.value.array.size <= SHOWN:
        text = value_label(edge.value)
        if edge.becomes is not None:
            text += f" → {value_label(edge.becomes)}"
        return [text] if len(text) <= _LONGEST_LABEL else []
    return []


def _edge_tooltip(edge: Edge) -> str:
    words = {"grad": "gradient", "saved": "saved for backward", "data": "data", "view": "shares memory"}
    what = words.get(edge.kind, edge.kind)
    if edge.value is not None:
        what += f" {list(edge.value.shape)} {value_label(edge.value)}"
    return f"{edge.source} → {edge.target}: {what}"


# The frames of a picture: one for each call of a module or function.
#
# A module that is called repeatedly, such as the cell of a recurrent network, gets one frame for each call. One frame
# for all calls would pull distant parts of the picture together.

_DEEPEST = 8  # nested scopes


def frames(graph: Graph) -> dict[str, str]:
    """The frame of each node: the path of its scope, with a number for second and later calls; empty without a scope.
    In a rolled graph, all calls are one frame."""
    if graph.rolled:
        return {node.id: _path(node.scope) for node in graph.nodes.values()}
    found, first = _of_rows(_rows(graph))
    for edge in graph.edges:  # a result is in the frame of its op, a parameter in the frame of its first use
        if edge.kind == DATA:
            for name, user in ((edge.source, edge.target), (edge.target, edge.source)):
                if user in found and graph.nodes[name].scope == graph.nodes[user].scope:
                    found.setdefault(name, found[user])
    for node in graph.nodes.values():
        found.setdefault(node.id, first.get(node.scope, _path(node.scope)))
    return found | {node.pair: found[node.id] for node in graph.nodes.values() if node.pair in graph.nodes}


def _rows(graph: Graph) -> list[Node]:
    """The ops and groups in execution order; the grad_fns if there are no ops."""
    rows = [node for node in graph.nodes.values() if node.kind in (OP, GROUP)]
    if any(node.kind == OP for node in rows):
        return rows
    return sorted(
        (node for node in graph.nodes.values() if node.kind in (GROUP, GRAD_FN)), key=lambda node: node.number
    )


def _of_rows(rows: list[Node]) -> tuple[dict[str, str], dict[str, str]]:
    """The frame of each op, and the first frame of each scope."""
    frame_of: dict[str, str] = {}
    first: dict[str, str] = {}
    calls: Counter[str] = Counter()
    inside: list[str] = []  # the path of the previous node, and the frame of each of its parts
    around: list[str] = []
    for node in rows:
        parts = _path(node.scope).split("/") if node.scope else []
        same = 0
        while same < min(len(inside), len(parts)) and inside[same] == parts[same]:
            same += 1
        del around[same:]
        for depth in range(same, len(parts)):
            path = f"{around[-1]}/{parts[depth]}" if around else parts[depth]
            calls[path] += 1
            around.append(path if calls[path] == 1 else f"{path} ({calls[path]})")
            first.setdefault("/".join(parts[: depth + 1]), around[-1])
        inside = parts
        frame_of[node.id] = around[-1] if around else ""
    return frame_of, first


def _path(scope: str) -> str:
    return "/".join(scope.split("/")[:_DEEPEST])


# Shortens long edges, which make the layout slow and the picture hard to read.
#
# A leaf that is used again far below, such as the weights of a recurrent network, is drawn there a second time,
# smaller. The same is done for its AccumulateGrad.

FAR = 2  # the number of ops between two uses
_SMALL = 60  # smaller graphs are not changed


class Reference(NamedTuple):
    """A second place where a node is drawn, near the op that uses it there."""

    id: str
    node: Node
    user: str


def shortened(graph: Graph) -> tuple[list[Edge], list[Reference]]:
    """The edges of the picture, and the references that replace the ends of some of them."""
    if len(graph.nodes) < _SMALL:
        return graph.edges, []
    places = _places(graph)
    homes: dict[str, int] = {}
    for edge in graph.edges:
        hub, user = _hub_and_user(edge, graph)
        if hub and user in places:
            homes[hub] = min(places[user], homes.get(hub, places[user]))
    references: dict[str, Reference] = {}
    drawn = []
    for edge in graph.edges:
        hub, user = _hub_and_user(edge, graph)
        if not hub or user not in places or places[user] - homes[hub] <= FAR:
            drawn.append(edge)
            continue
        name = f"{hub}at{places[user]}"
        references[name] = Reference(name, graph.nodes[hub], user)
        drawn.append(replace(edge, source=name) if edge.source == hub else replace(edge, target=name))
    return drawn, list(references.values())


def _places(graph: Graph) -> dict[str, int]:
    """The position of each op and each grad_fn in the order of execution."""
    rows = [node for node in graph.nodes.values() if node.kind == OP]
    if not rows:
        rows = sorted((node for node in graph.nodes.values() if node.kind == GRAD_FN), key=lambda node: node.number)
    places = {node.id: place for place, node in enumerate(rows)}
    return places | {node.pair: places[node.id] for node in rows if node.pair}


def _hub_and_user(edge: Edge, graph: Graph) -> tuple[str, str]:
    """The leaf or AccumulateGrad at one end of an edge, and its user at the other end; empty texts for other edges."""
    if edge.kind in (DATA, SAVED) and graph.nodes[edge.source].is_leaf:
        return edge.source, edge.target
    if edge.kind == GRAD and graph.nodes[edge.target].name == "AccumulateGrad":
        return edge.target, edge.source
    return "", ""
