"""Places the things of a scene in rows, in nearly linear time: for scenes that are too large for Graphviz.

A thing is below everything that leads to it, an op beside its grad_fn, and a leaf directly above its first use. The
order within a row follows the positions of neighbours (Sugiyama, Tagawa and Toda 1981: barycentres, a few sweeps)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gradviz.pictures.scene import Scene, Thing

Size = tuple[float, float]
Place = tuple[float, float]

_GAP, _PAIR_GAP, _ROW_GAP = 22.0, 34.0, 34.0
_WIDEST = 6000.0  # points; a wider row is split
_SWEEPS = 6


@dataclass(slots=True)
class _Unit:
    """A thing, or two things side by side."""

    things: list[Thing]
    width: float = 0.0
    height: float = 0.0
    above: list[int] = field(default_factory=list)
    below: list[int] = field(default_factory=list)
    row: int = 0
    x: float = 0.0


def placed(scene: Scene, sizes: Mapping[str, Size]) -> tuple[dict[str, Place], Size]:
    """The centre of each thing, and the size of the whole, in points; y grows downward. `sizes` are the sizes
    of the things."""
    units, home = _units(scene, sizes)
    _connect(units, scene, home)
    _rank(units)
    rows = _rows(units)
    for sweep in range(_SWEEPS):
        _sweep(units, rows if sweep % 2 == 0 else rows[::-1], down=sweep % 2 == 0)
    left = min((unit.x - unit.width / 2 for unit in units), default=0.0)
    right = max((unit.x + unit.width / 2 for unit in units), default=0.0)
    places: dict[str, Place] = {}
    y = 0.0
    for row in rows:
        height = max(units[number].height for number in row)
        for number in row:
            unit = units[number]
            x = unit.x - unit.width / 2 - left
            for thing in unit.things:
                width = sizes[thing.id][0]
                places[thing.id] = x + width / 2, y + height / 2
                x += width + _PAIR_GAP
        y += height + _ROW_GAP
    return places, (right - left, max(0.0, y - _ROW_GAP))


def _units(scene: Scene, sizes: Mapping[str, Size]) -> tuple[list[_Unit], dict[str, int]]:
    units: list[_Unit] = []
    home: dict[str, int] = {}
    for thing in scene.things.values():
        if thing.id in home:
            continue
        things = [thing]
        if thing.pair and thing.pair not in home and thing.pair != thing.id:
            things.append(scene.things[thing.pair])
        unit = _Unit(things)
        unit.width = sum(sizes[one.id][0] for one in things) + _PAIR_GAP * (len(things) - 1)
        unit.height = max(sizes[one.id][1] for one in things)
        home.update((one.id, len(units)) for one in things)
        units.append(unit)
    return units, home


def _connect(units: list[_Unit], scene: Scene, home: Mapping[str, int]) -> None:
    """Record which units are above which. Links of saved tensors, and links that close a loop, are ignored, as in
    Graphviz's layout."""
    for link in scene.links:
        if link.classes[0] == "saved" or "again" in link.classes:
            continue
        ends = (link.target, link.source) if link.backward else (link.source, link.target)
        above, below = home[ends[0]], home[ends[1]]
        if above != below:
            units[above].below.append(below)
            units[below].above.append(above)


def _rank(units: list[_Unit]) -> None:
    """Put each unit into the first row below everything above it. In a cycle, one link is ignored."""
    order: list[int] = []
    waits = [len(unit.above) for unit in units]
    ready = [number for number, count in enumerate(waits) if not count]
    done = [False] * len(units)
    unbroken = 0
    while True:
        while ready:
            number = ready.pop()
            done[number] = True
            order.append(number)
            for below in units[number].below:
                units[below].row = max(units[below].row, units[number].row + 1)
                waits[below] -= 1
                if not waits[below] and not done[below]:
                    ready.append(below)
        while unbroken < len(units) and done[unbroken]:
            unbroken += 1
        if unbroken == len(units):
            break
        done[unbroken] = True
        ready.append(unbroken)
    _lower(units, order)


def _lower(units: list[_Unit], order: list[int]) -> None:
    """Put leaves, and units computed only from leaves, directly above their first use."""
    loose = [False] * len(units)
    for number in order:
        loose[number] = all(loose[other] for other in units[number].above)
    for number in reversed(order):
        unit = units[number]
        if loose[number] and unit.below:
            unit.row = max(unit.row, min(units[other].row for other in unit.below) - 1)


def _rows(units: list[_Unit]) -> list[list[int]]:
    """The units by row, from the top. A row that is too wide is split."""
    by_rank: dict[int, list[int]] = {}
    for number, unit in enumerate(units):
        by_rank.setdefault(unit.row, []).append(number)
    rows: list[list[int]] = []
    for rank in sorted(by_rank):
        room = 0.0
        for number in by_rank[rank]:
            room -= units[number].width + _GAP
            if room < 0 or not rows:
                rows.append([])
                room = _WIDEST
            rows[-1].append(number)
    return [row for row in rows if row]


def _sweep(units: list[_Unit], rows: Iterable[list[int]], down: bool) -> None:
    """Place each row by the positions of its neighbours in the earlier rows."""
    for row in rows:
        wanted: list[tuple[float, int]] = []
        for number in row:
            unit = units[number]
            near = (unit.above or unit.below) if down else (unit.below or unit.above)
            wanted.append((sum(units[other].x for other in near) / len(near) if near else unit.x, number))
        wanted.sort()
        right, shift = float("-inf"), 0.0
        for x, number in wanted:
            unit = units[number]
            unit.x = max(x, right + _GAP + unit.width / 2)
            right = unit.x + unit.width / 2
            shift += unit.x - x
        shift /= len(wanted)
        for _, number in wanted:
            units[number].x -= shift
