"""The state of a run just after event k: values, gradients and scopes, as a debugger would show them.

A moment depends only on the trace and k. It is computed with a few binary searches in tables.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import LEAF, REQUIRES_GRAD, Kind, OpRan, Received, ScopeEntered, TangentPushed
from gradviz.query.lookups import Lookups
from gradviz.query.passes import Deliveries, Delivery
from gradviz.sets import contained, without
from gradviz.tracefile import PassInfo, Snapshot

_WANTED = LEAF | REQUIRES_GRAD


class TensorState(NamedTuple):
    """A tensor at a moment. `grad` is the number of its `.grad` (0: None), and `grad_value` the value of its
    `.grad`."""

    tensor: int
    name: str | None
    is_leaf: bool
    requires_grad: bool
    version: int
    value: Snapshot | None
    grad: int
    grad_value: Snapshot | None


MOST_ADDED = 500  # the most gradients whose sum is worked out


@dataclass(frozen=True)
class Meeting:
    """The gradients that have arrived at one output of a node. `of` is their number in the whole pass, and `value`
    gives the value of a gradient."""

    arrivals: list[Delivery]
    of: int
    value: Callable[[int], Snapshot | None]

    @cached_property
    def total(self) -> Snapshot | None:
        """The sum of the gradients so far; None if there are too many, or if elements of a gradient were not kept."""
        if len(self.arrivals) > MOST_ADDED:
            return None
        values = [self.value(delivery.gradient) for delivery in self.arrivals]
        arrays = [value.array for value in values if value is not None and value.array is not None]
        if len(arrays) < len(values) or len({array.shape for array in arrays}) != 1 or values[0] is None:
            return None
        with np.errstate(all="ignore"):
            return replace(values[0], array=np.asarray(sum(arrays[1:], arrays[0])), told=None)

    @property
    def complete(self) -> bool:
        """Whether all gradients of the pass have arrived, so that their sum is the derivative."""
        return len(self.arrivals) == self.of

    def adds_up_to(self, gradient: Snapshot | None) -> bool:
        """Whether a gradient is the sum, but for rounding: a hook may have changed it."""
        if self.total is None or self.total.array is None or gradient is None or gradient.array is None:
            return self.complete
        total, expected = self.total.array, gradient.array
        return total.shape == expected.shape and bool(
            np.allclose(total, expected, rtol=1e-2 if total.dtype.itemsize < 4 else 1e-4, equal_nan=True)
        )


class Moment:
    """The state just after event k. Use `Query.at` to make one."""

    def __init__(self, query: Lookups, k: int) -> None:
        self.query = query
        self.trace = query.trace
        self.k = k
        self.trace.reach(k)

    @property
    def thread(self) -> int:
        """The thread of event k."""
        return self.trace.thread(self.k)

    # --- tensors

    @cached_property
    def leaves(self) -> list[int]:
        """The leaves that require grad, in the order of their making."""
        return self._leaves.tolist()

    @cached_property
    def newest_leaves(self) -> list[int]:
        """The leaves that require grad; if one site makes a named tensor repeatedly, only the newest."""
        return self._newest(self._leaves)

    @property
    def _leaf_flags(self) -> tuple[np.ndarray, np.ndarray]:
        """The tensors that are leaves at any time, with their flags."""
        self._reach_leaves()
        return self.query.tensors.leaf_flags.standing(self.k)

    @property
    def _grads(self) -> tuple[np.ndarray, np.ndarray]:
        """The tensors that had a `.grad`, with their `.grad`, 0 for None."""
        self._reach_leaves()
        return self.query.tensors.grads.standing(self.k)

    def _reach_leaves(self) -> None:
        self.trace.reach_tensors(self.trace.leaves_to_reach(self.k), self.k)

    @cached_property
    def _leaves(self) -> np.ndarray:
        tensors, flags = self._leaf_flags
        return without(tensors[flags & _WANTED == _WANTED], self.query.tensors.views_of_leaves)

    @cached_property
    def frozen(self) -> list[int]:
        """The named leaves that do not require grad: the newest of each site, and parameters."""
        tensors, flags = self._leaf_flags
        tensors = tensors[flags & _WANTED == LEAF]
        named = contained(self._sites_of(tensors), list(self.query.places.with_names))
        named |= contained(tensors, list(self.trace.parameters))
        names = self.query.names
        return [tensor for tensor in self._newest(tensors[named]) if names.of(tensor) is not None]

    @cached_property
    def retained(self) -> list[int]:
        """The non-leaves that have a gradient because of retain_grad()."""
        tensors, grads = self._grads
        tensors = without(tensors[grads > 0], self._leaves)
        return [tensor for tensor in tensors.tolist() if not self.flags(tensor) & LEAF]

    @cached_property
    def newest_retained(self) -> list[int]:
        """The retained non-leaves; if one site makes a named tensor repeatedly, only the newest."""
        return self._newest(np.array(self.retained, np.int64))

    def state(self, tensor: int) -> TensorState:
        """The state of a tensor at this moment."""
        flags, grad, value = self.flags(tensor), self.grad(tensor), self.value(tensor)
        return TensorState(
            tensor=tensor,
            name=self.query.names.of(tensor),
            is_leaf=bool(flags & LEAF),
            requires_grad=bool(flags & REQUIRES_GRAD),
            version=self.query.tensors.version(tensor, self.k),
            value=value,
            grad=grad,
            grad_value=self.value(grad),
        )

    def flags(self, tensor: int) -> int:
        """A tensor's flags, as defined in `gradviz.events.kinds`."""
        return self.query.tensors.flags(tensor, self.k)

    def grad(self, tensor: int) -> int:
        """The tensor that is the `.grad` of `tensor`; 0 for None."""
        return self.query.tensors.grad(tensor, self.k)

    def tangent(self, tensor: int) -> int:
        """The tensor that is the tangent of `tensor`; 0 if there is none."""
        return self.query.tensors.tangent(tensor, self.k)

    def value(self, tensor: int) -> Snapshot | None:
        """The value of a tensor; None if it is unknown."""
        return self.query.memory.value(tensor, self.k)

    def grad_fn(self, tensor: int) -> int:
        """The node that is the `grad_fn` of a tensor; 0 if there is none."""
        flags = self.flags(tensor)
        has_one = flags & REQUIRES_GRAD and not flags & LEAF
        return self.query.nodes.grad_fn(tensor, self.k) if has_one else 0

    def owner(self, grad: int) -> int:
        """The tensor whose `.grad` is `grad` or shares memory with it; 0 if there is none."""
        tensors, grads = self._grads
        memory = self.query.memory
        sharing = grads == grad
        if grad in memory.shared:
            sharing |= contained(grads, list(memory.shared))
        pairs = zip(tensors[sharing].tolist(), grads[sharing].tolist(), strict=True)
        return next((t for t, g in pairs if g and memory.share(g, grad, self.k)), 0)

    def _sites_of(self, tensors: np.ndarray) -> np.ndarray:
        """The site where each tensor was made; 0 if it is unknown."""
        made = [self.query.tensors.maker(tensor) for tensor in tensors.tolist()]
        sites = self.trace.events["site"]
        return np.array([0 if event is None else sites[event] for event in made], np.int64)

    def _newest(self, tensors: np.ndarray) -> list[int]:
        """Drop older tensors of sites that assign to a name, because the program can only reach the newest of
        each site. `tensors` are sorted; parameters and tensors of other sites are all kept."""
        if not len(tensors):
            return []
        sites = self._sites_of(tensors)
        single = contained(sites, list(self.query.places.with_names))
        if self.trace.parameters:
            single &= ~contained(tensors, list(self.trace.parameters))
        newest = np.zeros(int(sites.max()) + 1, np.int64)
        newest[sites[single]] = tensors[single]  # the last tensor of a site
        return tensors[~single | (newest[sites] == tensors)].tolist()

    # --- scope and pass

    @cached_property
    def pass_info(self) -> PassInfo | None:
        """The innermost backward pass around event k; None in forward."""
        return self.query.passes.at(self.k)

    @property
    def scopes(self) -> list[ScopeEntered]:
        """The modules and custom Functions around event k, outermost first."""
        return self.query.scopes.around(self.k, self.thread)

    @property
    def place(self) -> str:
        """The modules and custom Functions around event k as one dotted path; empty for none."""
        return self.query.scopes.place(self.k, self.thread)

    # --- waiting gradients

    @cached_property
    def _flow(self) -> Deliveries | None:
        backward_pass = self.pass_info
        return None if backward_pass is None else self.query.deliveries(backward_pass.number)

    @property
    def waiting(self) -> dict[int, list[Delivery]]:
        """The gradients that wait for each node of the present pass."""
        return self._flow.waiting(self.k) if self._flow is not None else {}

    def arrivals(self, node: int) -> list[Delivery]:
        """The gradients that arrived at a node in the present pass. Their sum is what the node receives."""
        return self._flow.arrivals(node, self.k) if self._flow is not None else []

    def meeting(self, node: int, nr: int = 0) -> Meeting:
        """The gradients that meet at an output of a node in the present pass: those that have arrived so far, and the
        number in the whole pass."""
        backward_pass = self.pass_info
        if self._flow is None or backward_pass is None:
            return Meeting([], 0, self.value)
        came = self._flow.arrivals_at(node, nr, self.k)
        if self.query.passes.is_done(backward_pass):
            of = len(self._flow.arrivals_at(node, nr, self.trace.count))
        else:
            of = max(self.query.passes.led_to(backward_pass.number)[node, nr], len(came))
        return Meeting(came, of, self.value)

    def received(self, node: int) -> Received | None:
        """The event at which a node received its gradients in the present pass; None if it has not yet."""
        at = self._flow.receipt(node, self.k) if self._flow is not None else None
        return None if at is None else self.trace.table(Kind.RECEIVED).object(at)


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


class Pair(NamedTuple):
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
            if tangent.shape != gradient.shape or {tangent.array.dtype.kind, gradient.array.dtype.kind} != {"f"}:
                return None
            total += float(np.sum(tangent.array.astype(np.float64) * gradient.array.astype(np.float64)))
        return total
