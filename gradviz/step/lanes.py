"""Draws the neighbourhood of a stop as text: one row for each spot, edges in lanes on the left."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from gradviz.step.neighbourhood import AHEAD, DONE, HERE, Neighbourhood, Spot, neighbourhood
from gradviz.words.escape import shortened
from gradviz.words.stop import Stop

_SIGNS = {DONE: "●", HERE: "◉", AHEAD: "○"}
_STYLES = {DONE: "", HERE: "bold", AHEAD: "dim"}
_CURRENT = "bold green"
_LIGHT = {"down": "│", "across": "─", "open": "╮", "close": "╯", "both": "┤", "cross": "┼"}
_HEAVY = {"down": "┃", "across": "━", "open": "┓", "close": "┛", "both": "┫", "cross": "┿"}
_NAME = 28  # cells for a spot's name; the spot's text follows


@dataclass(slots=True)
class _Lane:
    """An edge that has started and not yet ended, in one column of the drawing."""

    source: int
    target: int


class _Drawing:
    """The rows of a drawing from top to bottom: lanes, spot, and words for a row without a spot."""

    def __init__(self, graph: Neighbourhood) -> None:
        self.graph = graph
        self.lanes: list[_Lane | None] = []
        self.fresh: set[int] = set()  # lanes that ended in the row above
        self.rows: list[tuple[Text, Spot | None, str]] = []
        for spot in graph.spots:
            if spot.state == HERE:
                self._edge_row([lane for lane in self.lanes if lane and lane.target == spot.key], " + ")
            self._spot_row(spot)
            if spot.state == HERE:
                self._edge_row([lane for lane in self.lanes if lane and lane.source == spot.key], ",  ")

    def _edge_row(self, lanes: list[_Lane], between: str) -> None:
        """A row for the gradients on the current edges, above or below the present spot."""
        words = [self.graph.current.get((lane.source, lane.target)) for lane in lanes]
        if any(words):
            self.rows.append((self._down(), None, between.join(word for word in words if word)))

    def _down(self) -> Text:
        line = Text()
        for lane in self.lanes:
            heavy = lane is not None and self._heavy(lane)
            sign = " " if lane is None else (_HEAVY if heavy else _LIGHT)["down"]
            line.append(f"{sign} ", style=_CURRENT if heavy else "dim")
        return line

    def _heavy(self, lane: _Lane) -> bool:
        return (lane.source, lane.target) in self.graph.current

    def _spot_row(self, spot: Spot) -> None:
        closing = [i for i, lane in enumerate(self.lanes) if lane is not None and lane.target == spot.key]
        home = closing[0] if closing else self._free(0, taken=self.fresh)
        ended = {i: self.lanes[i] for i in closing[1:]}
        for i in closing:
            self.lanes[i] = None
        targets = [target for source, target in self.graph.edges if source == spot.key]
        opened: dict[int, _Lane] = {}
        for position, target in enumerate(targets):
            lane = _Lane(spot.key, target)
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

    def _row(self, spot: Spot, home: int, ended: dict[int, _Lane | None], opened: dict[int, _Lane]) -> Text:
        """The lanes beside a spot. Edges that end in it enter from the right; edges that start in it leave to
        the right."""
        joined = {i: lane for i, lane in (*ended.items(), *opened.items()) if lane is not None}
        last = max(joined, default=home)
        heavies = [i for i, lane in joined.items() if self._heavy(lane)]
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
                sign = signs["cross"] if crossed else (_HEAVY if self._heavy(lane) else _LIGHT)["down"]
                style = _CURRENT if self._heavy(lane) and not crossed else "dim"
            else:
                sign = (_HEAVY if heavy_across else _LIGHT)["across"] if home < i < last else " "
                style = _CURRENT if heavy_across else "dim"
            line.append(sign, style=style)
            across = (_HEAVY if heavy_across else _LIGHT)["across"] if home <= i < last else " "
            line.append(across, style=_CURRENT if heavy_across and home <= i < last else "dim")
        return line


def drawn(stop: Stop, width: int, height: int) -> list[Text]:
    """The neighbourhood of a stop in at most `height` lines; empty if there is nothing to draw, or not enough
    room."""
    for most in range(min(height, 16), 1, -1):
        graph = neighbourhood(stop, most)
        if graph is None:
            return []
        rows = _Drawing(graph).rows
        if len(rows) <= height:
            return _texts(rows, width)
    return []


def _texts(rows: list[tuple[Text, Spot | None, str]], width: int) -> list[Text]:
    lanes = max(cell_len(line.plain) for line, _, _ in rows)
    names = min(max((cell_len(spot.name) for _, spot, _ in rows if spot is not None), default=0), _NAME)
    return [_text(line, spot, words, lanes, names, width) for line, spot, words in rows]


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
