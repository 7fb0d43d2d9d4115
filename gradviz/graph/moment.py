"""Values and gradients as of a moment: what a debugger would show if it had stopped just after event k.

A moment is a function of the trace and of k alone, however one came to it. A `Moments` looks over the events
once and keeps sorted tables; a `Moment` is a few binary searches in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from gradviz.events.kinds import Kind, Received, ScopeEntered
from gradviz.events.listener import LEAF, REQUIRES_GRAD
from gradviz.graph.flow import Delivery, Flow
from gradviz.graph.memory import Memory
from gradviz.graph.names import Names
from gradviz.graph.tables import Log, Nesting
from gradviz.tracefile import PassInfo, Snapshot, Trace

_FLOW = (Kind.RECEIVED, Kind.PRODUCED, Kind.ACCUMULATED, Kind.RETAINED, Kind.HOOKED)


@dataclass(frozen=True, slots=True)
class TensorState:
    """A tensor at a moment. `grad` is the number of its `.grad` (0: None) and `grad_value` what that holds."""

    tensor: int
    name: str | None
    is_leaf: bool
    requires_grad: bool
    version: int
    value: Snapshot | None
    grad: int
    grad_value: Snapshot | None


class Moments:
    """All moments of one trace."""

    def __init__(self, trace: Trace, names: Names | None = None) -> None:
        self.trace = trace
        self.names = names or Names(trace)
        self.memory = Memory(trace)
        self.flow = lru_cache(maxsize=8)(self._flow_of)

    def at(self, k: int) -> Moment:
        """The moment just after event k. Raises IndexError where there is no such event."""
        if not 0 <= k < self.trace.count:
            raise IndexError(f"there is no event {k}: the trace has {self.trace.count}")
        return Moment(self, k)

    @cached_property
    def flags(self) -> Log:
        """The flags of tensors that did not come from an op, and of those whose flags changed."""
        told = self.trace.indices(Kind.TENSOR, Kind.MUTATED, Kind.REQUIRES_GRAD_CHANGED)
        events = self.trace.events[told]
        return Log(events["subject"], told, events["head"] >> 8 & 0xFF).without_repeats()

    @cached_property
    def grads(self) -> Log:
        """Which tensor is the `.grad` of which."""
        told = self.trace.indices(Kind.ACCUMULATED, Kind.RETAINED, Kind.GRAD_ASSIGNED)
        events = self.trace.events[told]
        return Log(events["subject"], told, events["object"])

    @cached_property
    def tangents(self) -> Log:
        """Which tensor is the tangent of which."""
        told = self.trace.indices(Kind.TANGENT)
        events = self.trace.events[told]
        return Log(events["subject"], told, events["object"])

    @cached_property
    def pass_at(self) -> dict[int, PassInfo]:
        """The backward passes by the event that began each."""
        return {run.first: run for run in self.trace.passes}

    @cached_property
    def named_sites(self) -> set[int]:
        """The places whose value is assigned to a name."""
        return {number for number, site in self.trace.sites.items() if site.names}

    def sites_of(self, tensors: np.ndarray) -> np.ndarray:
        """Where each tensor came to be, 0 where that is not known."""
        log, events = self.flags, self.trace.events
        if not len(tensors) or not len(log.tensors):
            return np.zeros(len(tensors), np.int64)
        at = np.minimum(np.searchsorted(log.tensors, tensors), len(log.tensors) - 1)
        first = log.events[at]
        sites = np.where(log.tensors[at] == tensors, events["site"][first], 0)
        changed = (log.tensors[at] != tensors) | (self.trace.kinds[first] != Kind.TENSOR)
        for position in np.flatnonzero(changed).tolist():  # made by ops
            born = self.trace.born(int(tensors[position]))
            sites[position] = 0 if born is None else events["site"][born]
        return sites

    @cached_property
    def makers(self) -> tuple[np.ndarray, np.ndarray]:
        """The events at named places that made a leaf which does not require grad: their indices, sorted by
        place, and the places."""
        made = self.trace.indices(Kind.TENSOR, Kind.OP)
        events = self.trace.events[made]
        named = np.array(sorted(self.named_sites), np.int64)
        frozen = (events["head"] >> 8 & (LEAF | REQUIRES_GRAD)) == LEAF
        made = made[frozen & np.isin(events["site"], named)]
        sites = self.trace.events["site"][made]
        order = np.lexsort((made, sites))
        return made[order], sites[order]

    @cached_property
    def passes(self) -> Nesting:
        """The backward passes, one within another."""
        return Nesting(self.trace, Kind.PASS_BEGAN, Kind.PASS_ENDED)

    @cached_property
    def scopes(self) -> Nesting:
        """The modules and custom Functions, one within another."""
        return Nesting(self.trace, Kind.SCOPE_ENTERED, Kind.SCOPE_LEFT)

    @cached_property
    def depths(self) -> np.ndarray:
        """How many scopes and passes each event lies in, on its thread; the events that begin or end one lie
        outside of it."""
        trace = self.trace
        step = np.zeros(256, np.int8)
        step[[Kind.SCOPE_ENTERED, Kind.PASS_BEGAN]] = 1
        step[[Kind.SCOPE_LEFT, Kind.PASS_ENDED]] = -1
        steps = step[trace.kinds]
        threads = trace.events["head"] >> 16
        depths = np.zeros(trace.count, np.int32)
        for thread in range(int(threads.min(initial=0)), int(threads.max(initial=0)) + 1):
            own = threads == thread
            depths[own] = np.cumsum(steps[own], dtype=np.int32) - (steps[own] > 0)
        return depths

    def _flow_of(self, began: int, last: int) -> Flow:
        return Flow(self, began, last)


class Moment:
    """The state just after event k. Make one with `Moments.at`."""

    def __init__(self, moments: Moments, k: int) -> None:
        self.moments = moments
        self.trace = moments.trace
        self.k = k
        head = int(self.trace.events["head"][k])
        self.thread = head >> 16
        self._kind = head & 0xFF

    # --- tensors

    @cached_property
    def leaves(self) -> list[int]:
        """The leaves that require grad, in the order they came to be."""
        return self._leaves.tolist()

    @cached_property
    def newest_leaves(self) -> list[int]:
        """The same, of those made at one place that gives them a name only the newest."""
        return self._newest(self._leaves)

    @cached_property
    def _leaves(self) -> np.ndarray:
        tensors, flags = self.moments.flags.standing(self.k)
        wanted = LEAF | REQUIRES_GRAD
        return tensors[flags & wanted == wanted]

    @cached_property
    def frozen(self) -> list[int]:
        """The leaves with a name that do not require grad: the newest made at each place, and parameters."""
        made, sites = self.moments.makers
        told = made <= self.k
        later = told[1:] & (sites[1:] == sites[:-1])
        last = told & ~np.concatenate([later, np.zeros(min(1, len(told)), bool)])
        found = {tensor for event in made[last].tolist() for tensor in self._made_by(event)}
        found.update(tensor for tensor in self.trace.parameters if self._exists(tensor))
        names = self.moments.names
        return sorted(t for t in found if self.flags(t) & 3 == LEAF and names.of(t) is not None)

    def _made_by(self, event: int) -> tuple[int, ...]:
        made = self.trace.event(event)
        return getattr(made, "outputs", ()) or (getattr(made, "tensor", 0),)

    def _exists(self, tensor: int) -> bool:
        born = self.trace.born(tensor)
        return born is not None and born <= self.k

    @cached_property
    def retained(self) -> list[int]:
        """The non-leafs that keep a gradient."""
        tensors, grads = self.moments.grads.standing(self.k)
        tensors = tensors[grads > 0]
        told, flags = self.moments.flags.standing(self.k)
        if len(told):  # leaves are told of there; of what an op made, its snapshot tells
            at = np.minimum(np.searchsorted(told, tensors), len(told) - 1)
            tensors = tensors[(told[at] != tensors) | (flags[at] & LEAF == 0)]
        return [tensor for tensor in tensors.tolist() if not self.flags(tensor) & LEAF]

    @cached_property
    def newest_retained(self) -> list[int]:
        """The same, of those made at one place that gives them a name only the newest."""
        return self._newest(np.array(self.retained, np.int64))

    def state(self, tensor: int) -> TensorState:
        """A tensor as it is now."""
        flags, grad, value = self.flags(tensor), self.grad(tensor), self.value(tensor)
        return TensorState(
            tensor=tensor,
            name=self.moments.names.of(tensor),
            is_leaf=bool(flags & LEAF),
            requires_grad=bool(flags & REQUIRES_GRAD),
            version=self.version(tensor),
            value=value,
            grad=grad,
            grad_value=self.value(grad),
        )

    def flags(self, tensor: int) -> int:
        """A tensor's flags, as `gradviz.events.listener` has them."""
        known = self.moments.flags.last(tensor, self.k)
        if known is not None:
            return known
        snapshot = self.trace.snapshot(tensor, at=-1)
        return 0 if snapshot is None else snapshot.flags

    def grad(self, tensor: int) -> int:
        """The tensor that is a tensor's `.grad`, 0 for None."""
        return self.moments.grads.last(tensor, self.k) or 0

    def tangent(self, tensor: int) -> int:
        """The tensor that is a tensor's tangent, 0 for none."""
        return self.moments.tangents.last(tensor, self.k) or 0

    def value(self, tensor: int) -> Snapshot | None:
        """What a tensor holds; None where nothing is known of it."""
        return self.moments.memory.value(tensor, self.k)

    def version(self, tensor: int) -> int:
        """How often a tensor has been written over in place."""
        snapshot = self.trace.snapshot(tensor, at=self.k)
        return 0 if snapshot is None else snapshot.version

    def owner(self, grad: int) -> int:
        """The tensor whose `.grad` is `grad`, or shares its memory; 0 for none."""
        tensors, grads = self.moments.grads.standing(self.k)
        memory = self.moments.memory
        sharing = grads == grad
        if grad in memory.shared:
            sharing |= np.isin(grads, list(memory.shared))
        pairs = zip(tensors[sharing].tolist(), grads[sharing].tolist(), strict=True)
        return next((t for t, g in pairs if g and memory.share(g, grad, self.k)), 0)

    def _newest(self, tensors: np.ndarray) -> list[int]:
        """Of tensors (sorted) made at one place that gives them a name only the newest, as the program can mean no
        other; all others, parameters too, stay."""
        if not len(tensors):
            return []
        sites = self.moments.sites_of(tensors)
        single = np.isin(sites, list(self.moments.named_sites))
        if self.trace.parameters:
            single &= ~np.isin(tensors, list(self.trace.parameters))
        newest = np.zeros(int(sites.max()) + 1, np.int64)
        newest[sites[single]] = tensors[single]  # of one site the last
        return tensors[~single | (newest[sites] == tensors)].tolist()

    # --- where it lies

    @cached_property
    def pass_info(self) -> PassInfo | None:
        """The innermost backward pass that event k is part of, None in forward."""
        began = self._pass_began
        return None if began is None else self.moments.pass_at.get(began)

    @cached_property
    def _pass_began(self) -> int | None:
        passes = self.moments.passes
        around = passes.around(self.k, self.thread)
        if not around and self._kind in _FLOW:  # a worker thread, which runs nodes of another's pass
            around = sorted(event for thread in passes.depths for event in passes.around(self.k, thread))
        return around[-1] if around else None

    @property
    def scopes(self) -> list[ScopeEntered]:
        """The modules and custom Functions that event k lies in, outermost first."""
        events = [self.trace.event(event) for event in self.moments.scopes.around(self.k, self.thread)]
        return [event for event in events if isinstance(event, ScopeEntered)]

    # --- gradients in flight

    @cached_property
    def _flow(self) -> Flow | None:
        run = self.pass_info
        return None if run is None else self.moments.flow(run.first, run.last or self.trace.count - 1)

    @property
    def waiting(self) -> dict[int, list[Delivery]]:
        """For each node of the present pass the gradients that wait for it."""
        return self._flow.waiting(self.k) if self._flow is not None else {}

    @property
    def in_flight(self) -> int:
        """How many gradients wait at nodes."""
        return self._flow.in_flight(self.k) if self._flow is not None else 0

    def arrivals(self, node: int) -> list[Delivery]:
        """The gradients that came to a node in the present pass: their sum is what it receives."""
        return self._flow.arrivals(node, self.k) if self._flow is not None else []

    def received(self, node: int) -> Received | None:
        """The event at which a node took its gradients in the present pass; None if it has not."""
        at = self._flow.receipt(node, self.k) if self._flow is not None else None
        event = None if at is None else self.trace.event(at)
        return event if isinstance(event, Received) else None
