"""Writes a scene as DOT text.

The forward graph goes down, and the backward graph goes up beside it: a `grad` edge is written in the reverse
direction with `dir=back`, so that it does not stretch the layout. An op and its grad_fn are in one row, the grad_fn
on the right: the backward graph is the mirror image of the forward graph."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import graphviz

from gradviz.graph.model import DATA, LEAF, Graph
from gradviz.pictures import style
from gradviz.pictures.scene import Link, Scene, Thing, scene_of
from gradviz.words.escape import plain, quoted

_FAST = {"nslimit": "0.1", "nslimit1": "1", "mclimit": "0.1", "splines": "line"}
_LONG = 30  # characters
_LOOP_ROOM = "\u00a0" * 2  # separates the label of a loop at one box from the next loop
_CALL = re.compile(r" \(\d+\)")  # the number of a second or later call of a module


def to_dot(graph: Graph) -> str:
    """The graph as DOT text."""
    return dot_of(scene_of(graph))


def dot_of(scene: Scene, fast: bool = False) -> str:
    """The scene as DOT text. With `fast`, the layout is faster and less careful."""
    return _Writer(scene, fast).source()


class _Writer:
    """Writes one scene."""

    def __init__(self, scene: Scene, fast: bool) -> None:
        self.scene = scene
        self.dot = graphviz.Digraph(
            "gradviz", graph_attr={**style.GRAPH, "rankdir": scene.rankdir, **(_FAST if fast else {})}
        )

    def source(self) -> str:
        """The complete DOT text."""
        self.dot.attr(label=quoted([*self.scene.caption, " "], end="\\l"))
        self.dot.attr("node", **style.NODE)
        self.dot.attr("edge", **style.EDGE)
        for scope, members in self._scopes().items():
            if scope:
                self._add_cluster(self.dot, scope, scope.partition("/")[0], members)
            else:
                self._add_things(self.dot, members)
        for link in self.scene.links:
            self._add_link(link)
        for above, below in self._guides():
            self.dot.edge(_name(above), _name(below), **style.GUIDE)
        return self.dot.source

    def _guides(self) -> Iterator[tuple[str, str]]:
        """For each frame, an input from outside with each leaf that is used only in the frame.

        Invisible edges between them keep frames below one another. Without these edges, a layer's weights could be
        placed beside the previous layer, and the network would run diagonally."""
        things = self.scene.things
        order = {name: number for number, name in enumerate(things)}
        entries: dict[str, str] = {}
        inside: dict[str, str] = {}
        elsewhere: set[str] = set()
        for link in self.scene.links:
            if link.classes[0] != DATA:
                continue
            frame, source = things[link.target].scope, things[link.source]
            if frame and f"{source.scope}/".startswith(f"{frame}/"):
                if {LEAF, "version"} & {*source.classes} and source.scope == frame:
                    inside[source.id] = frame
                continue
            elsewhere.add(source.id)
            if frame:
                entries[frame] = max(entries.get(frame, source.id), source.id, key=order.__getitem__)
        for leaf, frame in inside.items():
            if frame in entries and leaf not in elsewhere:
                yield entries[frame], leaf

    # --- things, scope by scope

    def _scopes(self) -> dict[str, list[Thing]]:
        scopes: dict[str, list[Thing]] = {"": []}
        for thing in self.scene.things.values():
            scopes.setdefault(thing.scope, []).append(thing)
        return scopes

    def _add_cluster(self, outer: Any, scope: str, path: str, members: list[Thing]) -> None:
        """Add things inside the nested clusters of their scope. DOT joins clusters of the same name."""
        # outer.subgraph() would copy its lines
        cluster = graphviz.Digraph(graphviz.escape(f"cluster {path}"))
        name, kind = path.rpartition("/")[2], self.scene.types.get(_CALL.sub("", path), "")
        mark = " " if kind.startswith("×") else " · "
        title = f"{plain(name, 40)}{mark}{plain(kind, 30)}" if kind and kind != name else plain(name, 40)
        cluster.attr(label=quoted([title]), **{"class": "scope"}, **style.CLUSTER)
        if path == scope:
            self._add_things(cluster, members)
        else:
            step = scope[len(path) + 1 :].partition("/")[0]
            self._add_cluster(cluster, scope, f"{path}/{step}", members)
        outer.subgraph(cluster)

    def _add_things(self, dot: Any, members: list[Thing]) -> None:
        """Add things. An op is next to its grad_fn, and a leaf next to its AccumulateGrad."""
        here = {thing.id for thing in members}
        paired: set[str] = set()
        for thing in members:
            if thing.id in paired:
                continue
            if thing.pair in here and thing.pair not in paired:
                paired.add(thing.pair)
                pair = graphviz.Digraph()
                pair.attr(rank="same")
                self._add_thing(pair, thing)
                self._add_thing(pair, self.scene.things[thing.pair])
                self._add_tie(pair, thing)
                dot.subgraph(pair)
            else:
                self._add_thing(dot, thing)
                if thing.pair:
                    self._add_tie(self.dot, thing)

    def _add_thing(self, dot: Any, thing: Thing) -> None:
        lines = [
            _roomy(text) if role in style.BOLD or len(text) > _LONG else text for role, text in thing.lines
        ]
        names = {"id": thing.id, "class": " ".join(thing.classes), "tooltip": quoted([thing.tooltip])}
        dot.node(_name(thing.id), label=quoted(lines), **names, **style.look(style.NODES, thing.classes))

    def _add_tie(self, dot: Any, thing: Thing) -> None:
        """Connect an op with its grad_fn, or a leaf with the AccumulateGrad that sets its .grad."""
        fills = "filled" in self.scene.things[thing.pair].classes
        look = _reversed_arrow(style.FILLS) if fills else style.TIE
        dot.edge(_name(thing.id), _name(thing.pair), **{"class": "tie", "weight": "5"}, **look)

    # --- links

    def _add_link(self, link: Link) -> None:
        look = style.look(style.EDGES, link.classes)
        names = {"id": link.id, "class": " ".join(link.classes), "tooltip": quoted([link.tooltip])}
        if link.label:
            room = _LOOP_ROOM if link.source == link.target else ""
            names["label"] = quoted([f" {text} {room}" for text in link.label])
        if link.backward:
            self.dot.edge(_name(link.target), _name(link.source), **names, **_reversed_arrow(look))
        else:
            self.dot.edge(_name(link.source), _name(link.target), **names, **look)


def _name(node: str) -> str:
    """The name of a node in DOT, where text after a colon would be the port of another node."""
    return node.replace(":", "_")


def _roomy(text: str) -> str:
    """Text with spaces on both sides: Graphviz measures the text as not bold, and underestimates digits."""
    room = "\u00a0" * (1 + len(text) // 16 + len(text) // 32)
    return f"{room}{text}{room}"


def _reversed_arrow(look: dict[str, str]) -> dict[str, str]:
    """The attributes of an edge that is written in the reverse direction."""
    return {"dir": "back", **{"arrowtail" if key == "arrowhead" else key: text for key, text in look.items()}}
