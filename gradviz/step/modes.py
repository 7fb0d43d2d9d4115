"""Forward and reverse accumulation of the same function, side by side: tangents and gradients at the same places."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from gradviz.events.kinds import Kind, OpRan, Received, TangentPushed
from gradviz.graph.moment import Moments
from gradviz.step.numbers import elements

_MOST = 20_000  # events of a sweep or a pass that are looked at

# Where an op ran, as the source has it, which op it was, and the how-manieth of these.
Place = tuple[str, int, int, str, int]


@dataclass(slots=True)
class Sweep:
    """Tangents pushed forward from one set of inputs. `first` and `last` are its events."""

    number: int
    first: int
    last: int
    seeds: dict[int, int] = field(default_factory=dict)  # the tangent of each input
    tangents: dict[int, int] = field(default_factory=dict)  # the tangent of each tensor


@dataclass(frozen=True, slots=True)
class Pair:
    """A tensor of a sweep and the one of the same place that a backward pass went through, with the tangent of the
    one and the gradient of the other."""

    tensor: int
    tangent: int
    twin: int
    gradient: int
    event: int  # where the node of the twin received its gradient


class Modes:
    """What a trace has of both modes."""

    def __init__(self, moments: Moments) -> None:
        self.moments, self.trace, self.names = moments, moments.trace, moments.names
        self._pairs: dict[tuple[int, int], list[Pair]] = {}

    @cached_property
    def sweeps(self) -> list[Sweep]:
        """The sweeps, in order: one begins where inputs are made dual."""
        found: list[Sweep] = []
        previous = ""
        for index in self.trace.indices(Kind.TANGENT).tolist():
            event = self.trace.event(index)
            assert isinstance(event, TangentPushed)
            if not found or (event.how == "make_dual" != previous):
                found.append(Sweep(len(found) + 1, index, index))
            sweep, previous = found[-1], event.how
            sweep.last = index
            sweep.tangents[event.tensor] = event.tangent
            if event.how == "make_dual":
                sweep.seeds[event.tensor] = event.tangent
        return found

    def sweep_near(self, k: int) -> Sweep | None:
        """The sweep at event k, else the last before it, else the first."""
        before = [sweep for sweep in self.sweeps if sweep.first <= k]
        return before[-1] if before else next(iter(self.sweeps), None)

    def pass_of(self, sweep: Sweep, k: int) -> int | None:
        """The pass that went through the same places, as a position in `trace.passes`: the nearest to event k."""
        runs = self.trace.passes
        for position in sorted(range(len(runs)), key=lambda i: abs(runs[i].first - k)):
            if self.pairs(sweep, position):
                return position
        return None

    def pairs(self, sweep: Sweep, position: int) -> list[Pair]:
        """The tensors that a sweep and a pass have in common: inputs first, then in the order they were made."""
        key = sweep.number, position
        if key not in self._pairs:
            self._pairs[key] = self._paired(sweep, position)
        return self._pairs[key]

    def _paired(self, sweep: Sweep, position: int) -> list[Pair]:
        run = self.trace.passes[position]
        last = self.trace.count - 1 if run.last is None else run.last
        if last - run.first > _MOST or len(sweep.tangents) > _MOST:
            return []
        received = self._received(run.first, last)
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
        """For each tensor whose node took a gradient in a pass: that gradient, and the event."""
        found: dict[int, tuple[int, int]] = {}
        told = self.trace.indices(Kind.RECEIVED)
        for index in told[np.searchsorted(told, first) : np.searchsorted(told, last, side="right")].tolist():
            event = self.trace.event(index)
            assert isinstance(event, Received)
            for tensor, gradient in zip(self._tensors(event), event.gradients, strict=False):
                if tensor and gradient:
                    found[tensor] = gradient, index
        return found

    def _tensors(self, event: Received) -> tuple[int, ...]:
        """The tensors whose gradients a node takes: an op's outputs, or the leaf."""
        made = self.trace.node_event(event.node)
        op = None if made is None else self.trace.event(made)
        if isinstance(op, OpRan):
            return op.outputs
        for delivery in self.moments.at(event.index).arrivals(event.node):
            giver = self.trace.event(delivery.event)
            source = self.trace.node_event(getattr(giver, "node", 0))
            op = None if source is None else self.trace.event(source)
            if isinstance(op, OpRan) and len(op.inputs) == len(op.edges):
                return (op.inputs[delivery.position],)
        return ()

    def _placed(self, tensors: list[int]) -> dict[Place, int]:
        """Tensors by where the ops that made them ran; of many at one place, each by its turn."""
        turns: Counter[tuple[str, int, int, str]] = Counter()
        found: dict[Place, int] = {}
        for tensor in sorted(tensors):
            op = self._op(tensor)
            site = self.trace.sites.get(op.site) if op is not None else None
            if op is None or site is None:
                continue
            where = site.place.file, site.place.line, site.place.col, op.op
            found[*where, turns[where]] = tensor
            turns[where] += 1
        return found

    def _op(self, tensor: int) -> OpRan | None:
        maker = self.names.maker(tensor)
        return maker if isinstance(maker, OpRan) else None

    def product(self, sweep: Sweep, pairs: list[Pair]) -> float | None:
        """The sum of tangent × gradient over the tensors of one stage. It is the same at every stage that all ways
        lead through: output gradient × Jacobian × input tangent. None where values were not kept."""
        total = 0.0
        for pair in pairs:
            tangent = elements(self.moments.at(sweep.last).value(pair.tangent))
            gradient = elements(self.moments.at(pair.event).value(pair.gradient))
            if tangent is None or gradient is None or tangent.shape != gradient.shape:
                return None
            if tangent.dtype.kind != "f" or gradient.dtype.kind != "f":
                return None
            total += float(np.sum(tangent.astype(np.float64) * gradient.astype(np.float64)))
        return total
