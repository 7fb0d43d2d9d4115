"""The gradient of a tensor in one pass, as a sum over the paths that lead to it from the roots.

Where several gradients meet at a node, their sum goes on. In everything that is computed from the sum s, the gradient
g_j has the share ⟨s, g_j⟩ / ⟨s, s⟩; the shares at a meeting add up to 1. A path contributes the gradient on its last
edge times the shares at the meetings above, so that the contributions of all paths add up to the gradient.

For scalars the contribution is the product of the local derivatives along the path. One element of a tensor is
followed through elementwise ops: there the share is that of the element. Where ops mix elements (a matrix product), a
trace does not show how much of an element came from which gradient; there the share is that of the whole tensor, the
projection of g_j on s. `exact` says which of the two it is.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import count
from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import Kind, Produced
from gradviz.query.passes import Delivery
from gradviz.query.query import Query
from gradviz.tracefile import Snapshot
from gradviz.tracefile.sound import dtype_of

Number = float | complex
_PIECES = 100_000  # the most pieces of paths that are kept; pieces that are not followed are part of the rest
MOST_PATHS = 10**18  # the most paths that are counted: longer numbers at each node would take long


class Arrival(NamedTuple):
    """A gradient that came to output `nr` of a node at `event`: along edge `position` of the node `source`, or from
    outside if `source` is 0."""

    source: int
    position: int
    nr: int
    gradient: int
    event: int


class _Place(NamedTuple):
    """A node, and the part of its gradient that is followed. `nr` is the only output that counts, −1 for all."""

    node: int
    nr: int
    region: Region


class _Meeting(NamedTuple):
    """The gradients that meet at a place, with their shares, and the places that they come from (None: from outside).
    `paths` paths lead to the place (MOST_PATHS: that many or more). `mass` is the sum of their products of shares,
    `bound` the sum of the absolute values, and `best` the logarithm of the largest. `exact` and `hooked` are as in
    `Step`."""

    arrivals: tuple[Arrival, ...]
    shares: tuple[Number, ...]
    above: tuple[_Place | None, ...]
    exact: bool
    hooked: bool
    mass: Number
    bound: float
    best: float
    paths: int


class Step(NamedTuple):
    """An edge of a path. At the node that it leads to, its gradient meets `others` more gradients. `exact` is whether
    its share there is the true one, `hooked` whether a hook changed the sum."""

    arrival: Arrival
    node: int
    others: int
    exact: bool
    hooked: bool


class Path(NamedTuple):
    """A path from the root down to the tensor, and its contribution. With `cut` it begins below a meeting of gradients
    whose elements were not recorded."""

    steps: tuple[Step, ...]
    contribution: np.ndarray
    share: float
    cut: bool

    @property
    def exact(self) -> bool:
        """Whether the contribution is the product of the local derivatives."""
        return all(step.exact for step in self.steps)


class Decomposition(NamedTuple):
    """A gradient as a sum: the paths that contribute most, and the `rest` of all other paths together. `hooks` is what
    hooks on the tensor itself added. `paths` counts all paths up to MOST_PATHS."""

    gradient: np.ndarray
    shown: tuple[Path, ...]
    rest: np.ndarray
    rest_share: float
    hooks: np.ndarray
    paths: int
    tolerance: float

    @property
    def error(self) -> float:
        """The largest difference between the sum and the recorded gradient; NaN if it is not finite."""
        total = sum((path.contribution for path in self.shown), self.rest + self.hooks)
        return float(np.max(np.abs(total - self.gradient), initial=0.0))

    @property
    def adds_up(self) -> bool:
        """Whether the sum is the recorded gradient, but for rounding."""
        return self.error <= self.tolerance


def with_contributions(sum_over_paths: Decomposition, alone: Sequence[np.ndarray], region: Region) -> Decomposition:
    """A sum in which each shown path contributes what it would bring if no other gradient met it: the product of the
    local derivatives. `alone` are these gradients of the tensor, of which the sum has a `region`."""
    came = sum_over_paths.gradient - sum_over_paths.hooks
    parts = [part_of(gradient, region) for gradient in alone]
    paths = [
        path._replace(
            steps=tuple(step._replace(exact=True) for step in path.steps), contribution=part, share=_share(came, part)
        )
        for path, part in zip(sum_over_paths.shown, parts, strict=True)
    ]
    paths.sort(key=lambda path: float(np.linalg.norm(path.contribution)), reverse=True)
    nothing = np.zeros_like(came)
    rest = came - sum(parts, nothing) if len(paths) < sum_over_paths.paths else nothing
    return sum_over_paths._replace(shown=tuple(paths), rest=rest, rest_share=_share(came, rest))


class Missing(Exception):
    """The elements of the gradient itself were not recorded."""


class Paths:
    """The paths of one pass to output `nr` of a node, or to one element (`region`) of its gradient."""

    def __init__(self, query: Query, number: int, node: int, nr: int, region: Region = None) -> None:
        self.query, self.flow = query, query.deliveries(number)
        self.target = _Place(node, nr, region)
        self._above: dict[_Place, list[_Place | None]] = {}
        self.meetings: dict[_Place, _Meeting] = {}
        for place in self._inner_last(self.target):
            self.meetings[place] = self._meeting(place)

    def decomposed(self, recorded: int, event: int, most: int) -> Decomposition:
        """The `most` paths that contribute most to the gradient `recorded` at an event. Raises Missing if its elements
        were not recorded."""
        target = self.meetings[self.target]
        if not target.arrivals:
            raise Missing
        parts = _all([self._elements(arrival, self.target.region) for arrival in target.arrivals])
        gradient = elements(self.query, recorded, event, self.target.region)
        if gradient is None or parts is None or any(part.shape != gradient.shape for part in parts):
            raise Missing
        came = sum(parts, np.zeros_like(gradient))
        paths, weights = self._search(parts, most)
        rest = sum((weight * part for weight, part in zip(weights, parts, strict=True)), np.zeros_like(came))
        highest = [1.0 if above is None else self.meetings[above].bound for above in target.above]
        bounds = [bound * np.abs(part) for bound, part in zip(highest, parts, strict=True)]
        size = float(np.max(sum(bounds, np.zeros(came.shape)), initial=0.0))
        hooks = gradient - came if target.hooked else np.zeros_like(came)
        return Decomposition(
            gradient,
            tuple(Path(steps, part, _share(came, part), cut) for steps, part, cut in paths),
            rest,
            _share(came, rest),
            hooks,
            target.paths,
            size * len(self.meetings) * rounding(self.query, recorded, event),
        )

    # --- the graph above the tensor

    @cached_property
    def _arrivals(self) -> dict[int, list[Arrival]]:
        """The gradients that came to each node."""
        flow, nodes = self.flow, self.query.nodes
        produced = self.query.trace.table(Kind.PRODUCED)
        givers = dict(zip(produced.events.tolist(), produced["node"].tolist(), strict=True))
        roots = self.query.passes.began(flow.backward_pass.number).roots
        arrivals: dict[int, list[Arrival]] = {}
        ran = dict(zip(*(column.tolist() for column in flow.received), strict=True))
        last = self.query.trace.count
        rows = np.flatnonzero(flow.real)
        columns = (flow.targets, flow.positions, flow.gradients, flow.events)
        for target, position, gradient, event in zip(*(column[rows].tolist() for column in columns), strict=True):
            source = givers.get(event, 0)
            if source and (event > ran.get(target, event) or ran.get(source, last) >= ran.get(target, last)):
                continue  # a damaged trace: a node gets no gradients after it ran, and gives none before it ran
            edges = nodes.edges(source) if source else roots
            nr = edges[position].nr if position < len(edges) else 0
            arrivals.setdefault(target, []).append(Arrival(source, position, nr, gradient, event))
        return arrivals

    def _inner_last(self, target: _Place) -> Iterator[_Place]:
        """All places above a place, and itself, in the order in which their nodes ran: each after those above it."""
        waiting = [target]
        while waiting:
            place = waiting.pop()
            if place not in self._above:
                self._above[place] = self._behind(place)
                waiting += [above for above in self._above[place] if above is not None]
        ran = dict(zip(*(column.tolist() for column in self.flow.received), strict=True))
        last = self.query.trace.count
        return iter(sorted(self._above, key=lambda place: ran.get(place.node, last) if place != target else last))

    def _at(self, place: _Place) -> list[Arrival]:
        return [arrival for arrival in self._arrivals.get(place.node, ()) if place.nr in (-1, arrival.nr)]

    def _behind(self, place: _Place) -> list[_Place | None]:
        """The place that each gradient at a place comes from; empty where the path is cut."""
        if self._is_cut(place):
            return []
        return [self._source(arrival, place.region) for arrival in self._at(place)]

    def _source(self, arrival: Arrival, region: Region) -> _Place | None:
        if not arrival.source:
            return None
        made = self.query.nodes.event(arrival.source)
        if region is None or made is None or not made.rule.elementwise or len(made.outputs) != 1:
            return _Place(arrival.source, -1, None)
        below = self._shape(arrival)
        above = [self._shape(came) for came in self._arrivals.get(arrival.source, ())]
        return _Place(arrival.source, -1, broadcast(region, below, above[0] if above else None))

    def _is_cut(self, place: _Place) -> bool:
        """Whether gradients meet at a place whose elements were not recorded, or that cannot be added (in a damaged
        trace)."""
        arrivals = self._at(place)
        if len(arrivals) < 2:
            return False
        shapes: dict[int, tuple[int, ...]] = {}
        for arrival in arrivals:
            part = self._elements(arrival, None)
            if part is None or shapes.setdefault(arrival.nr, part.shape) != part.shape:
                return True
        return False

    # --- shares

    def _meeting(self, place: _Place) -> _Meeting:
        arrivals = self._at(place)
        above = self._above[place]
        if not above:
            return _Meeting((), (), (), True, False, 1.0, 1.0, 0.0, 1)
        shares, exact = self._shares(arrivals, place)
        behind = [self.meetings[one] if one is not None else None for one in above]
        masses = [share * (one.mass if one else 1.0) for share, one in zip(shares, behind, strict=True)]
        bounds = [abs(share) * (one.bound if one else 1.0) for share, one in zip(shares, behind, strict=True)]
        best = [_log(share) + (one.best if one else 0.0) for share, one in zip(shares, behind, strict=True)]
        return _Meeting(
            tuple(arrivals),
            tuple(shares),
            tuple(above),
            exact,
            self._is_hooked(arrivals, place),
            sum(masses),
            sum(bounds),
            max(best),
            min(sum(one.paths if one else 1 for one in behind), MOST_PATHS),
        )

    def _shares(self, arrivals: list[Arrival], place: _Place) -> tuple[list[Number], bool]:
        """The share of each gradient in their sum, and whether it is the true share in the result."""
        if len(arrivals) == 1:
            return [1.0], True
        parts = [np.asarray(self._elements(arrival, place.region)) for arrival in arrivals]
        bad = [not np.isfinite(part).all() for part in parts]
        if any(bad):
            return [one / sum(bad) for one in bad], False
        largest = max(float(np.max(np.abs(part), initial=0.0)) for part in parts)
        sums: dict[int, np.ndarray] = {}
        parts = [part / largest if largest else part for part in parts]
        for arrival, part in zip(arrivals, parts, strict=True):
            sums[arrival.nr] = sums.get(arrival.nr, 0.0) + part
        total = sum(np.vdot(one, one).real for one in sums.values())
        error = len(parts) * rounding(self.query, arrivals[0].gradient, arrivals[0].event)
        if total <= error**2:  # they cancel, but for rounding: nothing goes on
            return [1 / len(parts)] * len(parts), not largest
        shares = [np.vdot(sums[arrival.nr], part)[()] / total for arrival, part in zip(arrivals, parts, strict=True)]
        expected = np.multiply.outer(np.asarray(shares), sums[arrivals[0].nr])
        is_share = len(sums) == 1 and np.allclose(np.stack(parts), expected, rtol=1e-5, atol=1e-7)
        return shares, is_share or (len(sums) == 1 and place == self.target)

    def _is_hooked(self, arrivals: list[Arrival], place: _Place) -> bool:
        """Whether a hook changed the sum of the gradients before the node got it."""
        events = self.flow.received[1]
        at = self._received.get(place.node)
        if at is None:
            return False
        event = self.query.trace.table(Kind.RECEIVED).object(int(events[at]))
        nr = arrivals[0].nr
        gradient = event.gradients[nr] if nr < len(event.gradients) else 0
        if len(arrivals) == 1 and arrivals[0].gradient == gradient:
            return False
        now = elements(self.query, gradient, int(events[at]), place.region)
        parts = _all([self._elements(one, place.region) for one in arrivals if one.nr == nr])
        if now is None or parts is None or any(part.shape != now.shape for part in parts):
            return False
        came = sum(parts, np.zeros_like(now))
        size = sum((np.abs(part) for part in parts), np.zeros(now.shape))
        allowed = 4 * len(parts) * rounding(self.query, gradient, int(events[at]))
        return bool(np.any(np.abs(now - came) > allowed * size))

    @cached_property
    def _received(self) -> dict[int, int]:
        return {node: at for at, node in enumerate(self.flow.received[0].tolist())}

    # --- the largest contributions

    @np.errstate(all="ignore")  # a gradient may have infinities, and their sum is NaN
    def _search(
        self, parts: list[np.ndarray], most: int
    ) -> tuple[list[tuple[tuple[Step, ...], np.ndarray, bool]], list[Number]]:
        """The `most` paths whose contributions are largest, and for each last edge the weight of all other paths.

        The search is best first. The best contribution that a piece of a path can reach is known, so that only pieces
        of the wanted paths are followed."""
        target = self.meetings[self.target]
        order = count(0, -1)  # of equally good pieces the newest is followed: it is the nearest to the root
        waiting: list[tuple[float, int, Number, int, _Place | None, _Link]] = []
        for i, (arrival, above) in enumerate(zip(target.arrivals, target.above, strict=True)):
            step = Step(arrival, self.target.node, len(parts) - 1, True, target.hooked)
            size = float(np.linalg.norm(parts[i]))
            best = _log(size) + (self.meetings[above].best if above is not None else 0.0)
            heapq.heappush(waiting, (-best, next(order), 1.0, i, above, (step, None)))
        paths: list[tuple[tuple[Step, ...], np.ndarray, bool]] = []
        while waiting and len(paths) < most and len(waiting) < _PIECES:
            best, _, weight, i, place, link = heapq.heappop(waiting)
            meeting = self.meetings[place] if place is not None else None
            if meeting is None or not meeting.arrivals:
                paths.append((_steps(link), weight * parts[i], meeting is not None))
                continue
            assert place is not None
            for arrival, share, above in zip(meeting.arrivals, meeting.shares, meeting.above, strict=True):
                step = Step(arrival, place.node, len(meeting.arrivals) - 1, meeting.exact, meeting.hooked)
                behind = self.meetings[above].best if above is not None else 0.0
                following = _log(share) + behind
                rest = best + meeting.best - following if following > -math.inf else math.inf
                heapq.heappush(waiting, (rest, next(order), weight * share, i, above, (step, link)))
        weights: list[Number] = [0.0] * len(parts)
        for _, _, weight, i, place, _ in waiting:
            weights[i] += weight * (self.meetings[place].mass if place is not None else 1.0)
        return paths, weights

    def _elements(self, arrival: Arrival, region: Region) -> np.ndarray | None:
        """The elements of an arrived gradient; None if they were not recorded."""
        return elements(self.query, arrival.gradient, arrival.event, region)

    def _shape(self, arrival: Arrival) -> tuple[int, ...] | None:
        return shape(self.query, arrival.gradient, arrival.event)


_Link = tuple[Step, "_Link | None"]


def _steps(link: _Link | None) -> tuple[Step, ...]:
    steps = []
    while link is not None:
        step, link = link
        steps.append(step)
    return tuple(steps)


def _log(number: Number) -> float:
    return math.log(abs(number)) if number else -math.inf


def _all(parts: list[np.ndarray | None]) -> list[np.ndarray] | None:
    """The parts, if all are known; else None."""
    known = [part for part in parts if part is not None]
    return known if len(known) == len(parts) else None


def _share(whole: np.ndarray, part: np.ndarray) -> float:
    """The share of a part in a gradient: its projection."""
    total = float(np.vdot(whole, whole).real)
    return float(np.vdot(whole, part).real) / total if total else math.nan


# an element, with None for the whole of a dimension; None for the whole tensor
Region = tuple[int | None, ...] | None
_COARSE = {"bfloat16": 2.0**-7}


def elements(query: Query, tensor: int, event: int, region: Region) -> np.ndarray | None:
    """The elements of a region of a tensor just after an event, in double precision; None if they were not kept."""
    snapshot = query.memory.value(tensor, event)
    if snapshot is None or snapshot.array is None:
        return None
    return part_of(snapshot.array, region)


def part_of(array: np.ndarray, region: Region) -> np.ndarray:
    """A region of an array, in double precision."""
    wide = np.complex128 if array.dtype.kind == "c" else np.float64
    at = () if region is None else tuple(slice(None) if at is None else at for at in region)
    return np.asarray(array[at].astype(wide))


def shape(query: Query, tensor: int, event: int) -> tuple[int, ...] | None:
    """The shape of a tensor just after an event; None if it is not known."""
    snapshot = query.memory.value(tensor, event)
    return None if snapshot is None else snapshot.shape


def rounding(query: Query, tensor: int, event: int) -> float:
    """The relative rounding error of a tensor's dtype; 0 for a dtype of whole numbers."""
    snapshot = query.memory.value(tensor, event)
    name = "float32" if snapshot is None else snapshot.dtype
    dtype = dtype_of(name)
    is_rounded = dtype is not None and dtype.kind in "fc"
    return _COARSE.get(name) or (float(np.finfo(dtype).eps) if is_rounded else 0.0)


def broadcast(region: Region, below: tuple[int, ...] | None, above: tuple[int, ...] | None) -> Region:
    """The part of an elementwise op's result (of shape `above`) that a region of an input (of shape `below`) goes to;
    None, the whole result, if that part is not known."""
    if region is None or below is None or above is None or len(below) > len(above):
        return None
    new = len(above) - len(below)
    if any(size not in (1, wide) for size, wide in zip(below, above[new:], strict=True)):
        return None
    spread = [
        None if size == 1 and wide != 1 else at for at, size, wide in zip(region, below, above[new:], strict=True)
    ]
    return (*[None] * new, *spread)


class WayStep(NamedTuple):
    """A gradient on its way. `source` is the node that produced it (0: it came from outside) at `event`. `norm` is the
    norm of its finite elements, NaN if none is finite; `odd` names the other elements: `NaN`, `inf` or nothing.
    `others` are the norms of the gradients that it met."""

    source: int
    event: int
    gradient: int
    norm: float
    odd: str
    others: tuple[float, ...]


def strongest_way(query: Query, number: int, node: int, nr: int) -> list[WayStep]:
    """The steps of pass `number` that lead to output `nr` of a node, from the root down, along the gradient with the
    largest norm where several meet; empty if a norm on the way was not recorded. The contributions of the other
    gradients are not worked out, since norms do not add up."""
    flow = query.deliveries(number)
    steps: list[WayStep] = []
    end = query.trace.count
    while True:
        arrivals = flow.arrivals_at(node, nr, end) if nr >= 0 else flow.arrivals(node, end)
        known = [step for one in arrivals if (step := _step(query, one)) is not None]
        if not known or len(known) < len(arrivals):
            return []
        largest = max(known, key=lambda step: math.inf if step.odd or math.isnan(step.norm) else step.norm)
        others = tuple(one.norm for one in known if one is not largest)
        steps.append(WayStep(largest.source, largest.event, largest.gradient, largest.norm, largest.odd, others))
        if not largest.source or largest.event >= end:  # the latter only in a damaged trace
            return steps[::-1]
        node, nr, end = largest.source, -1, largest.event


def _step(query: Query, delivery: Delivery) -> WayStep | None:
    value = query.memory.value(delivery.gradient, delivery.event)
    if value is None or value.stats is None:
        return None
    event = query.trace.event(delivery.event)
    source = event.node if isinstance(event, Produced) else 0
    norm = norm_of(value)
    return WayStep(source, delivery.event, delivery.gradient, norm, odd_of(value), ())


def norm_of(value: Snapshot) -> float:
    """The Euclidean norm of the finite elements of a value; NaN if none is finite."""
    assert value.stats is not None
    finite = math.prod(value.shape) - value.stats.nan - value.stats.inf
    return value.stats.rms * math.sqrt(finite)


def odd_of(value: Snapshot) -> str:
    """`NaN` if a value has one, else `inf` if it has one, else nothing."""
    assert value.stats is not None
    return "NaN" if value.stats.nan else "inf" if value.stats.inf else ""
