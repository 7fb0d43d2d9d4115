"""Pairs of forward mode and reverse mode: tangents and gradients of the same function at the same places."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from gradviz.events.kinds import Kind, OpRan, Received, TangentPushed
from gradviz.query.lookups import Lookups
from gradviz.query.moment import Moment

_MOST = 20_000  # the most events of a sweep or a pass that are compared

# Where an op ran (file, line and column), its name, and how many ops of that name ran there before it.
Place = tuple[str, int, int, str, int]


@dataclass(slots=True)
class Sweep:
    """One forward-mode sweep: tangents pushed from one set of inputs. `first` and `last` are its events."""

    number: int
    first: int
    last: int
    seeds: dict[int, int] = field(default_factory=dict)  # the tangent of each input
    tangents: dict[int, int] = field(default_factory=dict)  # the tangent of each tensor


@dataclass(frozen=True, slots=True)
class Pair:
    """A tensor of a sweep and its twin, the tensor of the same place in a backward pass; with the tangent of the tensor
    and the gradient of the twin."""

    tensor: int
    tangent: int
    twin: int
    gradient: int
    event: int  # the event at which the node of the twin received its gradient


class Modes:
    """Forward and reverse mode in one trace."""

    def __init__(self, query: Lookups) -> None:
        self.query, self.trace = query, query.trace
        self._pairs: dict[tuple[int, int], list[Pair]] = {}

    @cached_property
    def sweeps(self) -> list[Sweep]:
        """The sweeps in order. A sweep begins where inputs become dual numbers."""
        sweeps: list[Sweep] = []
        previous = ""
        for index in self.trace.indices(Kind.TANGENT).tolist():
            event = self.trace.event(index)
            assert isinstance(event, TangentPushed)
            if not sweeps or (event.how == "make_dual" != previous):
                sweeps.append(Sweep(len(sweeps) + 1, index, index))
            sweep, previous = sweeps[-1], event.how
            sweep.last = index
            sweep.tangents[event.tensor] = event.tangent
            if event.how == "make_dual":
                sweep.seeds[event.tensor] = event.tangent
        return sweeps

    def sweep_near(self, k: int) -> Sweep | None:
        """The sweep at event k, else the last one before it, else the first; None if there is none."""
        before = [sweep for sweep in self.sweeps if sweep.first <= k]
        return before[-1] if before else next(iter(self.sweeps), None)

    def pass_of(self, sweep: Sweep, k: int) -> int | None:
        """The pass through the same places that is nearest to event k, as a position in `trace.passes`; None
        if there is none."""
        passes = self.trace.passes
        for position in sorted(range(len(passes)), key=lambda i: abs(passes[i].first - k)):
            if self.pairs(sweep, position):
                return position
        return None

    def pairs(self, sweep: Sweep, position: int) -> list[Pair]:
        """The tensors that a sweep and a pass have in common: inputs first, then in the order in which they were
        made."""
        key = sweep.number, position
        if key not in self._pairs:
            self._pairs[key] = self._paired(sweep, position)
        return self._pairs[key]

    def _paired(self, sweep: Sweep, position: int) -> list[Pair]:
        backward_pass = self.trace.passes[position]
        last = self.trace.count - 1 if backward_pass.last is None else backward_pass.last
        if last - backward_pass.first > _MOST or len(sweep.tangents) > _MOST:
            return []
        received = self._received(backward_pass.first, last)
        twins = self._placed([tensor for tensor in received if self._op(tensor) is not None])
        twin_of: dict[int, int] = {}
        for place, tensor in self._placed([t for t in sweep.tangents if t not in sweep.seeds]).items():
            if place not in twins:
                continue
            twin = twins[place]
            op, other = self._op(tensor), self._op(twin)
            assert op is not None
            assert other is not None
            twin_of[tensor] = twin
            for mine, theirs in zip(op.inputs, other.inputs, strict=False):
                if mine in sweep.seeds and theirs in received:
                    twin_of.setdefault(mine, theirs)
        order = sorted(twin_of, key=lambda tensor: (tensor not in sweep.seeds, tensor))
        return [Pair(t, sweep.tangents[t], twin_of[t], *received[twin_of[t]]) for t in order]

    def _received(self, first: int, last: int) -> dict[int, tuple[int, int]]:
        """The gradient of each tensor whose node received it from `first` to `last`, and the event."""
        gradients: dict[int, tuple[int, int]] = {}
        receipts = self.trace.indices(Kind.RECEIVED)
        for index in receipts[
            np.searchsorted(receipts, first) : np.searchsorted(receipts, last, side="right")
        ].tolist():
            event = self.trace.event(index)
            assert isinstance(event, Received)
            tensors = self.query.nodes.tensors(event.node)
            for tensor, gradient in zip(tensors, event.gradients, strict=False):
                if tensor and gradient:
                    gradients[tensor] = gradient, index
        return gradients

    def _placed(self, tensors: list[int]) -> dict[Place, int]:
        """Tensors by the places of the ops that made them. Several at one place are counted."""
        turns: Counter[tuple[str, int, int, str]] = Counter()
        by_place: dict[Place, int] = {}
        for tensor in sorted(tensors):
            op = self._op(tensor)
            site = self.trace.sites.get(op.site) if op is not None else None
            if op is None or site is None:
                continue
            where = site.place.file, site.place.line, site.place.col, op.op
            by_place[*where, turns[where]] = tensor
            turns[where] += 1
        return by_place

    def _op(self, tensor: int) -> OpRan | None:
        maker = self.query.tensors.made(tensor)
        return maker if isinstance(maker, OpRan) else None

    def product(self, sweep: Sweep, pairs: list[Pair]) -> float | None:
        """The sum of tangent × gradient over some tensors. If all paths lead through these tensors, the sum
        is always output gradient × Jacobian × input tangent. None if a value was not kept."""
        total = 0.0
        for pair in pairs:
            tangent = Moment(self.query, sweep.last).value(pair.tangent)
            gradient = Moment(self.query, pair.event).value(pair.gradient)
            if tangent is None or gradient is None or tangent.array is None or gradient.array is None:
                return None
            if tangent.shape != gradient.shape or {tangent.array.dtype.kind, gradient.array.dtype.kind} != {
                "f"
            }:
                return None
            total += float(np.sum(tangent.array.astype(np.float64) * gradient.array.astype(np.float64)))
        return total
