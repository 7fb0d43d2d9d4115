"""The part of the graph near a stop: in a backward pass the nodes that gradients came from and go to, in the
forward pass the ops that led to a value."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

from gradviz.events import kinds
from gradviz.events.kinds import REQUIRES_GRAD
from gradviz.query.flow import op_of
from gradviz.query.ops import function_name
from gradviz.words.chain import so_far
from gradviz.words.escape import clean, shortened
from gradviz.words.stop import Stop
from gradviz.words.words import MOST_LISTED

DONE, HERE, AHEAD = "done", "here", "ahead"
_BEFORE, _AFTER = 3, 3  # number of edges to follow


class Spot(NamedTuple):
    """A node, an op or a leaf. `state` says whether it ran before this stop, runs here, or is still to come.
    `text` is its value or gradient."""

    key: int
    state: str
    name: str
    text: str


Edge = tuple[int, int]  # the keys of its source and of its target


class Neighbourhood(NamedTuple):
    """Spots and the edges between them. `current` has the words for each edge along which a value or a gradient moves
    at this stop."""

    spots: list[Spot]
    edges: list[Edge]
    current: dict[Edge, str]


def neighbourhood(stop: Stop, most: int) -> Neighbourhood | None:
    """The surroundings of the event of a stop, in up to `most` spots; None if the event has no place in a graph."""
    if most < 2:
        return None
    made = isinstance(stop.event, kinds.NodeMade)
    failed = isinstance(stop.event, kinds.ErrorRaised) and stop.moment.pass_info is not None and stop.event.node
    if node := (0 if made else stop.node) or _running(stop) or failed:
        return _Backward(stop, node).drawn(most)
    if isinstance(stop.event, kinds.PassBegan):
        roots = [root.node for root in stop.event.roots if root.node]
        return _Backward(stop, roots[0]).drawn(most) if roots else None
    maker = _maker(stop)
    return _Forward(stop, maker).drawn(most) if maker is not None else None


def _running(stop: Stop) -> int:
    """The node whose backward the event is part of; 0 if there is none."""
    if not isinstance(stop.event, (kinds.OpRan, kinds.ScopeEntered, kinds.ScopeLeft)) or stop.moment.pass_info is None:
        return 0
    return stop.words.running(stop.moment)


def _maker(stop: Stop) -> kinds.OpRan | None:
    """The op that the event records, or the op that made the tensor of the event."""
    if isinstance(stop.event, kinds.OpRan):
        return stop.event
    if isinstance(stop.event, kinds.NodeMade) and stop.event.op >= 0:
        return stop.query.tensors.op(stop.event.op)
    if isinstance(stop.event, kinds.TangentPushed):
        return op_of(stop.query, stop.event.tensor)
    return None


def _near(start: int, next_of: Callable[[int], Iterable[int]], hops: int, most: int) -> list[int]:
    """The keys within `hops` edges of the start, nearest first, without the start itself; about `most` of them."""
    found, ring = [start], [start]
    for _ in range(hops):
        ring = list(dict.fromkeys(n for key in ring for n in next_of(key) if n not in found))
        found += ring
        if len(found) > most:
            break
    return found[1 : most + 1]


def _in_order(keys: list[int], edges: list[Edge]) -> list[int]:
    """The keys in topological order, so that every edge points down. A chain stays together if possible."""
    above = {key: sum(target == key for _, target in edges) for key in keys}
    ready = [key for key in reversed(keys) if not above[key]]
    order = []
    while ready:
        key = ready.pop()
        order.append(key)
        targets = [target for source, target in edges if source == key]
        for target in targets:
            above[target] -= 1
        ready += [target for target in reversed(targets) if not above[target]]
    return order


class _Backward:
    """The surroundings of a node of the present pass: the nodes that gave it gradients, and the nodes that
    its gradients go to."""

    def __init__(self, stop: Stop, node: int) -> None:
        self.stop, self.node = stop, node

    def drawn(self, most: int) -> Neighbourhood | None:
        below = _near(self.node, self._targets, _AFTER, most - 2)
        above = _near(self.node, self._givers, _BEFORE, max(most - 1 - len(below), 1))
        keys = [*above, self.node, *below][:most]
        edges = [(key, target) for key in keys for target in self._targets(key) if target in keys]
        order = _in_order(keys, edges)
        return Neighbourhood([self._spot(key) for key in order], edges, self._current(edges))

    def _targets(self, node: int) -> list[int]:
        return list(dict.fromkeys(edge.node for edge in self.stop.query.nodes.edges(node) if edge.node))

    def _givers(self, node: int) -> dict[int, int]:
        """The nodes that gave a node gradients, and the last gradient of each."""
        givers = {}
        for delivery in self.stop.moment.arrivals(node)[:MOST_LISTED]:
            event = self.stop.trace.event(delivery.event)
            if isinstance(event, kinds.Produced):
                givers[event.node] = delivery.gradient
        return givers

    def _spot(self, node: int) -> Spot:
        tensors = self.stop.query.nodes.tensors(node)
        tensor = tensors[0] if len(tensors) == 1 else 0
        name = self.stop.words.node_name(node)
        return Spot(node, self._state(node), name, self._gradient(node, tensor))

    def _state(self, node: int) -> str:
        if node == self.node:
            return HERE
        return DONE if self.stop.moment.received(node) is not None else AHEAD

    def _gradient(self, node: int, tensor: int) -> str:
        """The gradient that the node received, or the gradients that wait for it."""
        stop = self.stop
        name = stop.words.derivative(tensor, stop.moment)
        received = stop.moment.received(node)
        if received is not None:
            gradients = [gradient for gradient in received.gradients if gradient]
            return f"{name} = {stop.compact(gradients[0])}" if len(gradients) == 1 else ""
        came = stop.moment.arrivals(node)
        if not came:
            is_leaf = bool(stop.query.nodes.leaf(node))
            return stop.words.called(tensor) if tensor and not is_leaf else ""
        if len(stop.query.nodes.tensors(node)) > 1:
            return stop.say("{count} gradients wait", count=len(came))
        return stop.say("waiting: {name} = {value}", name=name, value=so_far(stop.words, stop.moment, node))

    def _current(self, edges: list[Edge]) -> dict[Edge, str]:
        event = self.stop.event
        gradients: dict[Edge, int] = {}
        if isinstance(event, kinds.Produced):
            gradients = {(event.node, flow.node): flow.gradient for flow in event.flows if flow.gradient}
        elif isinstance(event, (kinds.Received, kinds.Accumulated)):
            gradients = {(giver, event.node): gradient for giver, gradient in self._givers(event.node).items()}
        return {edge: self.stop.brief(gradient) for edge, gradient in gradients.items() if edge in edges}


class _Forward:
    """An op with the ops and leaves that led to it; each is identified by the event that made it."""

    def __init__(self, stop: Stop, op: kinds.OpRan) -> None:
        self.stop, self.op = stop, op
        self.tensors = {op.index: op.outputs[0] if len(op.outputs) == 1 else 0}

    def drawn(self, most: int) -> Neighbourhood | None:
        above = _near(self.op.index, self._makers, _BEFORE, most - 1)
        keys = [self.op.index, *above]
        edges = [(maker, key) for key in keys for maker in self._makers(key) if maker in keys]
        order = _in_order(keys[::-1], [(above, below) for below, above in edges[::-1]])[::-1]
        current = {edge: "" for edge in edges if edge[1] == self.op.index}
        return Neighbourhood([self._spot(key) for key in order], edges, current) if above else None

    def _makers(self, event: int) -> list[int]:
        made = self.stop.trace.event(event)
        makers = []
        for tensor in dict.fromkeys(made.inputs) if isinstance(made, kinds.OpRan) else ():
            maker = self.stop.query.tensors.made(tensor) if tensor else None
            if maker is not None:
                makers.append(maker.index)
                self.tensors.setdefault(maker.index, tensor)
        return list(dict.fromkeys(makers))

    def _spot(self, event: int) -> Spot:
        stop, tensor = self.stop, self.tensors[event]
        made = stop.trace.event(event)
        value = f"{stop.called(tensor)} = {stop.compact(tensor)}" if tensor else ""
        tangent = stop.moment.tangent(tensor) if tensor else 0
        if tangent:
            value += f", tangent {stop.compact(tangent)}"
        return Spot(event, HERE if event == self.op.index else DONE, self._kind(made, tensor), value)

    def _kind(self, made: object, tensor: int) -> str:
        if isinstance(made, kinds.OpRan):
            if node := self.stop.query.nodes.main_of_op(made.index):
                return self.stop.words.node_name(node)
            return self.stop.say("{op}, no node", op=clean(function_name(made.op)))
        return self.stop.say("leaf" if self.stop.moment.flags(tensor) & REQUIRES_GRAD else "no grad")


_SIGNS = {DONE: "●", HERE: "◉", AHEAD: "○"}
_STYLES = {DONE: "", HERE: "bold", AHEAD: "dim"}
_CURRENT = "bold green"
_LIGHT = {"down": "│", "across": "─", "open": "╮", "close": "╯", "both": "┤", "cross": "┼"}
_HEAVY = {"down": "┃", "across": "━", "open": "┓", "close": "┛", "both": "┫", "cross": "┿"}
_NAME = 28  # cells for a spot's name; the spot's text follows


class _Drawing:
    """The rows of a drawing from top to bottom: lanes, spot, and words for a row without a spot. A lane is a column
    for an edge that has started and not yet ended."""

    def __init__(self, graph: Neighbourhood) -> None:
        self.graph = graph
        self.lanes: list[Edge | None] = []
        self.fresh: set[int] = set()  # lanes that ended in the row above
        self.rows: list[tuple[Text, Spot | None, str]] = []
        for spot in graph.spots:
            if spot.state == HERE:
                self._edge_row([lane for lane in self.lanes if lane and lane[1] == spot.key], " + ")
            self._spot_row(spot)
            if spot.state == HERE:
                self._edge_row([lane for lane in self.lanes if lane and lane[0] == spot.key], ",  ")

    def _edge_row(self, lanes: list[Edge], between: str) -> None:
        """A row for the gradients on the current edges, above or below the present spot."""
        if words := between.join(filter(None, map(self.graph.current.get, lanes))):
            self.rows.append((self._down(), None, words))

    def _down(self) -> Text:
        line = Text()
        for lane in self.lanes:
            heavy = lane in self.graph.current
            sign = " " if lane is None else (_HEAVY if heavy else _LIGHT)["down"]
            line.append(f"{sign} ", style=_CURRENT if heavy else "dim")
        return line

    def _spot_row(self, spot: Spot) -> None:
        closing = [i for i, lane in enumerate(self.lanes) if lane is not None and lane[1] == spot.key]
        home = closing[0] if closing else self._free(0, taken=self.fresh)
        ended = {i: self.lanes[i] for i in closing[1:]}
        for i in closing:
            self.lanes[i] = None
        opened: dict[int, Edge | None] = {}
        for position, lane in enumerate([edge for edge in self.graph.edges if edge[0] == spot.key]):
            at = home if not position else self._free(home + 1)
            self.lanes[at] = lane
            if position:
                opened[at] = lane
        self.fresh = {i for i in (home, *closing) if self.lanes[i] is None}
        self.rows.append((self._row(spot, home, ended, opened), spot, ""))

    def _free(self, first: int, taken: set[int] = frozenset()) -> int:  # type: ignore[assignment]
        """The leftmost free lane from `first` on that is not in `taken`."""
        at = first
        while at < len(self.lanes) and (self.lanes[at] is not None or at in taken):
            at += 1
        self.lanes += [None] * (at + 1 - len(self.lanes))
        return at

    def _row(self, spot: Spot, home: int, ended: dict[int, Edge | None], opened: dict[int, Edge | None]) -> Text:
        """The lanes beside a spot. Edges that end in it enter from the right; edges that start in it leave to
        the right."""
        joined = {**ended, **opened}
        last = max(joined, default=home)
        heavies = [i for i, lane in joined.items() if lane in self.graph.current]
        line = Text()
        for i in range(max(len(self.lanes), last + 1)):
            lane = self.lanes[i] if i < len(self.lanes) else None
            heavy_across = bool(heavies) and i < max(heavies)
            if i == home:
                sign, style = _SIGNS[spot.state], _CURRENT if spot.state == HERE else _STYLES[spot.state]
            elif i in joined:
                how = "both" if i in ended and i in opened else "open" if i in opened else "close"
                heavy = i in heavies
                sign, style = (_HEAVY if heavy else _LIGHT)[how], _CURRENT if heavy else "dim"
            elif lane is not None:
                crossed = home < i < last
                signs = _HEAVY if heavy_across and crossed else _LIGHT
                sign = signs["cross"] if crossed else (_HEAVY if lane in self.graph.current else _LIGHT)["down"]
                style = _CURRENT if lane in self.graph.current and not crossed else "dim"
            else:
                sign = (_HEAVY if heavy_across else _LIGHT)["across"] if home < i < last else " "
                style = _CURRENT if heavy_across else "dim"
            line.append(sign, style=style)
            across = (_HEAVY if heavy_across else _LIGHT)["across"] if home <= i < last else " "
            line.append(across, style=_CURRENT if heavy_across and home <= i < last else "dim")
        return line


def drawn(stop: Stop, width: int, height: int) -> list[Text]:
    """The neighbourhood of a stop in at most `height` lines; empty if there is nothing to draw, or not enough room."""
    for most in range(min(height, 16), 1, -1):
        graph = neighbourhood(stop, most)
        if graph is None:
            return []
        rows = _Drawing(graph).rows
        if len(rows) <= height:
            lanes = max(cell_len(line.plain) for line, _, _ in rows)
            names = min(max((cell_len(spot.name) for _, spot, _ in rows if spot is not None), default=0), _NAME)
            return [_text(line, spot, words, lanes, names, width) for line, spot, words in rows]
    return []


def _text(line: Text, spot: Spot | None, words: str, lanes: int, names: int, width: int) -> Text:
    text = Text("  ", no_wrap=True).append_text(line)
    text.append(" " * (lanes - cell_len(line.plain) + 1))
    room = max(width - cell_len(text.plain), 4)
    if spot is None:
        return text.append(shortened(f"↓ {words}", room), style=_CURRENT)
    style = _STYLES[spot.state]
    wide = cell_len(spot.name)
    text.append(shortened(spot.name + " " * max(names - wide, 0), room), style=style)
    known = f"  {spot.text}" if spot.text else ""
    return text.append(shortened(known, max(room - max(names, wide), 0)), style=style)
