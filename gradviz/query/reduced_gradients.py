"""The way of gradients between ranks: the collectives that the gradients of a pass went through, themselves or in a
copy of several, and the scalings of parts of gradients that lie on several ranks, as by a clip written by hand."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import Event, GradAssigned, Kind, Mutated, OpRan, TensorMade
from gradviz.query.collective_calls import COLLECTIVES
from gradviz.query.query import Query
from gradviz.query.replicas import parameters_by_name
from gradviz.sets import grouped
from gradviz.tracefile import PassInfo, Snapshot

_FOLLOWING = 4  # the most passes that may run before the gradients of a pass are reduced
# the collective that wrote a tensor, with its arguments, by event and tensor
_Writes = Mapping[tuple[int, int], str]


def on_gradients(query: Query, backward_pass: PassInfo) -> dict[int, list[str]]:
    """The collectives that each `.grad` went through, by the leaf that the pass accumulated into, in order, from then
    until a pass accumulated into it again; each with its arguments: `all_reduce`, `all_reduce AVG, group`."""
    return grouped((leaf, name) for _, leaf, name in _reductions(query, backward_pass))


def reduced_gradients(query: Query, backward_pass: PassInfo) -> dict[int, Snapshot | None]:
    """The `.grad` of each leaf that a pass accumulated into, just after the last collective that it went through; only
    for leaves whose `.grad` went through collectives."""
    return {leaf: query.tensors.gradient(leaf, event) for event, leaf, _ in _reductions(query, backward_pass)}


def _reductions(query: Query, backward_pass: PassInfo) -> list[tuple[int, int, str]]:
    """The collectives that gradients of a pass went through, in order: the event at which a leaf had the result, the
    leaf, and the collective."""
    trace = query.trace
    if COLLECTIVES.isdisjoint(trace.strings.values()):
        return []
    trace.reach(backward_pass.first, trace.count if backward_pass.last is None else backward_pass.last + 1)
    since = _filled_in(query, backward_pass.number)
    until = _filled_again(query, backward_pass, since)
    writes = _collective_writes(query, backward_pass.first, max(until.values(), default=0))
    held = {query.tensors.grad(leaf, event): leaf for leaf, event in since.items()}
    reductions: list[tuple[int, int, str]] = []
    others: dict[tuple[int, int], str] = {}
    for (event, tensor), name in writes.items():
        leaf = held.get(tensor, 0)
        if not leaf or query.tensors.grad(leaf, event) != tensor:
            leaf = query.at(event).owner(tensor)  # `p.grad.data`, or a gradient that was assigned since
        if leaf:
            reductions.append((event, leaf, name))
        else:
            others[event, tensor] = name
    if others:
        reductions += _Copies(query, held, others).followed(min(since.values()), max(until.values()))
    return [
        (event, leaf, name)
        for event, leaf, name in sorted(reductions)
        if since.get(leaf, trace.count) <= event < until.get(leaf, 0)
    ]


def _filled_in(query: Query, number: int) -> dict[int, int]:
    """The last event at which a pass accumulated into each leaf."""
    filled = query.trace.table(Kind.ACCUMULATED)
    in_pass = filled["in_pass"] == number
    return dict(zip(filled["tensor"][in_pass].tolist(), filled.events[in_pass].tolist(), strict=True))


def _filled_again(query: Query, backward_pass: PassInfo, since: Mapping[int, int]) -> dict[int, int]:
    """The event at which a later pass accumulates into each leaf; the end of the examined events if none does."""
    trace = query.trace
    events: dict[int, int] = {}
    end = trace.count
    for number in range(backward_pass.number + 1, backward_pass.number + 1 + _FOLLOWING):
        following = trace.find_pass(number)
        if following is None or len(events) == len(since):
            break
        last = trace.count if following.last is None else following.last + 1
        trace.reach(backward_pass.first, last)
        for leaf, event in _filled_in(query, number).items():
            if event > since.get(leaf, trace.count):
                events.setdefault(leaf, event)
    else:
        end = last
    trace.reach(backward_pass.first, max(events.values()) if since and len(events) == len(since) else end)
    return {leaf: events.get(leaf, end) for leaf in since}


def _collective_writes(query: Query, first: int, end: int) -> _Writes:
    """The writes of collectives from event `first` to before `end`, in order."""
    trace = query.trace
    written, ops = trace.table(Kind.MUTATED), trace.table(Kind.OP)
    writes = {}
    for row in np.flatnonzero((written.events >= first) & (written.events < end)).tolist():
        name = trace.text(int(written["how"][row]))
        if name in COLLECTIVES:
            writes[int(written.events[row]), int(written["tensor"][row])] = name
    of_ranks = query.tensors.are_collectives & (ops.events >= first) & (ops.events < end)
    for event in ops.events[of_ranks].tolist():
        op = query.tensors.op(event)
        writes |= {(event, tensor): " ".join(filter(None, (op.op, op.args))) for tensor in op.outputs}
    return dict(sorted(writes.items()))


class _Copies:
    """Follows gradients into tensors that are made of them and that a collective writes, and back: all gradients in one
    flat tensor."""

    def __init__(self, query: Query, held: Mapping[int, int], writes: _Writes) -> None:
        self.query, self.held, self.writes = query, held, writes
        # the leaves whose gradients a tensor is made of
        self.leaves = {gradient: {leaf} for gradient, leaf in held.items()}
        self.through: dict[int, str] = {}  # the collective that a tensor, or a source of it, went through

    def followed(self, first: int, end: int) -> Iterator[tuple[int, int, str]]:
        """The events at which gradients came back to their leaves, each with the leaf and the collective."""
        for kind, event in _writing(self.query, first, end):
            if kind == Kind.GRAD_ASSIGNED:
                assert isinstance(event, GradAssigned)
                yield from self._came_back(event.index, event.tensor, event.grad)
            else:
                sources, targets = _of_write(event)
                for target in targets:
                    yield from self._written(event.index, sources, target)

    def _written(self, event: int, sources: tuple[int, ...], target: int) -> Iterator[tuple[int, int, str]]:
        if name := self.writes.get((event, target)):
            if target in self.leaves:
                self.through[target] = name
            return
        others = [source for source in sources if source and source != target]
        for source in others:
            if source in self.through:
                leaf = self.held.get(target) or self.query.at(event).owner(target)  # `p.grad.data`
                yield from self._came_back(event, leaf, source)
                self.through[target] = self.through[source]
        made_of: set[int] = set().union(*(self.leaves.get(source, ()) for source in (*others, target)))
        if made_of:
            self.leaves[target] = made_of

    def _came_back(self, event: int, leaf: int, source: int) -> Iterator[tuple[int, int, str]]:
        """The event, the leaf and the collective, if the leaf got a gradient from a tensor that is made of its gradient
        and went through a collective."""
        if source in self.through and leaf in self.leaves.get(source, ()):
            yield event, leaf, self.through[source]


def _writing(query: Query, first: int, end: int) -> Iterator[tuple[Kind, Event]]:
    """The events from `first` to before `end` at which a tensor gets a value from other tensors, in order."""
    trace = query.trace
    kinds = (Kind.TENSOR, Kind.OP, Kind.MUTATED, Kind.GRAD_ASSIGNED)
    places = []
    for kind in kinds:
        events = trace.table(kind).events
        places += [(event, kind) for event in events[(events >= first) & (events < end)].tolist()]
    for event, kind in sorted(places):
        yield kind, trace.table(kind).object(event)


def _of_write(event: Event) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tensors that an event reads, and the tensors that it writes."""
    if isinstance(event, OpRan):
        return event.inputs, event.outputs
    assert isinstance(event, (TensorMade, Mutated))
    return (event.source,), (event.tensor,)


_TO_PART = "_ToTorchTensor"  # the name of `DTensor.to_local()` in a trace


class ScaledPart(NamedTuple):
    """The part of a gradient that a rank scales: the parameter, the event, the factor, the norm of the part before, the
    number of elements of the part and that of the whole."""

    parameter: int
    event: int
    factor: float
    norm: float
    elements: tuple[int, int]


def scaled_parts(query: Query) -> list[ScaledPart]:
    """The first scaling of the part of each parameter's gradient, in order, before the first step of an optimizer. Use
    `query.of(scaled_parts)`."""
    steps = query.trace.table(Kind.STEPPED).events
    until = int(steps[0]) if len(steps) else query.trace.count
    first_of: dict[int, ScaledPart] = {}
    for parameter, part, since, elements in [*_gradients(query, until), *_parts(query, until)]:
        for event in query.tensors.writes(part):
            if since < event < until and parameter not in first_of and (scaled := _scaling(query, part, event)):
                first_of[parameter] = ScaledPart(parameter, event, *scaled, elements)
    return sorted(first_of.values(), key=lambda one: one.event)


def _gradients(query: Query, until: int) -> Iterator[tuple[int, int, int, tuple[int, int]]]:
    """The gradients that lie on several ranks in parts: the parameter, the gradient, the event since which it is the
    `.grad`, and the numbers of elements here and in the whole."""
    for parameter in parameters_by_name(query).values():
        for event, gradient in zip(*(column.tolist() for column in query.tensors.grads.of(parameter)), strict=True):
            value = query.trace.snapshot(gradient, event) if gradient and event < until else None
            if value is not None and value.part is not None:
                yield parameter, gradient, event, value.part


def _parts(query: Query, until: int) -> Iterator[tuple[int, int, int, tuple[int, int]]]:
    """The tensors that `to_local()` makes of gradients that lie on several ranks in parts: the parameter, the tensor,
    the event, and the numbers of elements here and in the whole."""
    ops = query.trace.table(Kind.OP)
    for event in ops.events[query.trace.named(ops["op"], (_TO_PART,)) & (ops.events < until)].tolist():
        op = query.tensors.op(event)
        gradient = op.inputs[0] if op.inputs else 0
        value = query.trace.snapshot(gradient, event) if gradient else None
        parameter = query.at(event).owner(gradient) if gradient else 0
        if parameter and op.outputs and value is not None and value.part is not None:
            yield parameter, op.outputs[0], event, value.part


def _scaling(query: Query, part: int, event: int) -> tuple[float, float] | None:
    """The factor by which an event scales a tensor, and the norm before; None if it changes nothing, or if the elements
    have no common factor."""
    before, after = (query.trace.snapshot(part, at) for at in (event - 1, event))
    factor = one_factor(before, after)
    return None if factor is None else (factor, norm_of(before))


def one_factor(before: Snapshot | None, after: Snapshot | None) -> float | None:
    """The factor by which all elements of a tensor were multiplied; None if nothing changed, if there is no such
    factor, or if it is not known."""
    norms = norm_of(before), norm_of(after)
    if before is None or after is None or not norms[0] or norms[0] == norms[1]:
        return None
    if before.stats is None or after.stats is None:
        return None
    factor = norms[1] / norms[0]
    if before.array is not None and after.array is not None:
        is_one_factor = bool(np.allclose(before.array * factor, after.array, rtol=1e-3))
    else:
        is_one_factor = bool(np.isclose(before.stats.mean * factor, after.stats.mean, rtol=1e-3))
    return factor if is_one_factor else None


def norm_of(value: Snapshot | None) -> float:
    """The norm of a tensor by its statistics; 0 if it is not known."""
    if value is None or value.stats is None or not np.isfinite(value.stats.rms):
        return 0.0
    elements = value.part[0] if value.part is not None else np.prod(value.shape)
    return float(value.stats.rms * np.sqrt(elements))
