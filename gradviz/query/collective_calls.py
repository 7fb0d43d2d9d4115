"""The collectives that a rank calls, and the gradients that are all-reduced."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import CollectiveCalled, Kind
from gradviz.query.query import Query
from gradviz.query.ranks import Apart
from gradviz.query.writes import writes_by_any_name
from gradviz.sets import contained, distinct
from gradviz.tracefile import Trace

ALL_REDUCE = "all_reduce"
_IN_GROUP = "all_reduce in a group"  # by DistributedDataParallel over some ranks
# The collectives in which every rank of a group takes part.
COLLECTIVES = frozenset({
    ALL_REDUCE, _IN_GROUP, "barrier", "monitored_barrier",
    "broadcast", "reduce", "scatter", "all_gather", "gather", "all_gather_into_tensor", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "all_gather_single", "reduce_scatter_single",
})  # fmt: skip


class Collective(NamedTuple):
    """A collective that a rank called: its name, the shape of its first tensor, the event, whether it has a tensor, and
    the first tensor (0 for none)."""

    name: str
    shape: tuple[int, ...]
    event: int
    has_tensor: bool
    tensor: int = 0


def partings(queries: Sequence[Query]) -> Apart | None:
    """The first collective that differs between the ranks: the n-th calls of all ranks are compared; None for a rank
    that called no more. None if there is no such collective, or if the ranks were interrupted."""
    called = [query.of(collectives) for query in queries]
    for number, calls in enumerate(zip_longest(*called), 1):
        if len({None if call is None else (call.name, call.shape) for call in calls}) > 1:
            return None if _are_interrupted(queries, called) else Apart((), calls, number=number)
    return None


def _are_interrupted(queries: Sequence[Query], called: Sequence[Sequence[Collective]]) -> bool:
    """Whether all ranks were stopped from outside while some were one collective ahead of others."""
    meta = [query.trace.meta for query in queries]
    is_stopped = all(not one.get("ended") or one.get("error_type") == "KeyboardInterrupt" for one in meta)
    counts = [len(calls) for calls in called]
    return is_stopped and max(counts) - min(counts) == 1


def mixed_up(queries: Sequence[Query], parameters: Sequence[Mapping[str, int]]) -> Apart | None:
    """The first collective that ranks call for different parameters, or for the gradients of different parameters: the
    names of these. `parameters` has the parameters of each rank by name. None if there is none, or if the ranks train
    parameters of different names."""
    if not parameters[0] or any(known.keys() != parameters[0].keys() for known in parameters):
        return None
    names = [_named_tensors(*one) for one in zip(queries, parameters, strict=True)]
    called = zip(*(query.of(collectives) for query in queries), strict=False)
    for number, calls in enumerate(called, 1):
        named = tuple(known.get(call.tensor, "") for known, call in zip(names, calls, strict=True))
        if all(named) and len(set(named)) > 1:
            return Apart((), named, events=tuple(call.event for call in calls), number=number)
    return None


def _named_tensors(query: Query, parameters: Mapping[str, int]) -> dict[int, str]:
    """The parameters and their gradients, each with the name of the parameter."""
    names = {}
    for name, tensor in parameters.items():
        names[tensor] = name
        names |= {int(gradient): name for gradient in query.tensors.grads.of(tensor)[1] if gradient}
    return names


def collectives(query: Query) -> list[Collective]:
    """The collectives over all ranks that a rank called itself, in order; without the collectives of
    DistributedDataParallel and of groups of some ranks. Use `query.of(collectives)`."""
    events = query.trace.events_named(Kind.COLLECTIVE, "how", COLLECTIVES).tolist()
    return [
        Collective(
            call.how,
            (query.tensors.shape(call.tensors[0]) or ()) if call.tensors and call.tensors[0] else (),
            call.index,
            bool(call.tensors),
            call.tensors[0] if call.tensors else 0,
        )
        for call in map(query.trace.table(Kind.COLLECTIVE).object, events)
        if not is_of_some_ranks(call.args)
    ]


def calls_around(query: Query, first: int, last: int, tensors: Iterable[int]) -> Iterator[CollectiveCalled]:
    """The calls between two events, and those at any time whose first tensor is one of `tensors`, in order."""
    called = query.trace.table(Kind.COLLECTIVE)
    is_between = (called.events >= first) & (called.events <= last)
    is_of_tensor = contained(called.lists("tensors").firsts, [*tensors])
    for call in called.decoded(called.events[is_between | is_of_tensor]):
        assert isinstance(call, CollectiveCalled)
        yield call


def collective_clock(query: Query) -> list[Collective]:
    """The moments that all ranks have in common, in order: the collectives over all ranks that a rank called itself,
    and the average by DistributedDataParallel at the end of a pass. Use `query.of(collective_clock)`."""
    written = query.trace.table(Kind.MUTATED)
    averaged = query.trace.named(written["how"], (ALL_REDUCE,)) & (written["in_pass"] > 0)
    firsts = np.unique(written["in_pass"][averaged], return_index=True)[1]  # the first gradient of each pass
    events = written.events[averaged][firsts].tolist()
    averages = [Collective(ALL_REDUCE, (), event, False) for event in events]
    return sorted([*query.of(collectives), *averages], key=lambda call: call.event)


def is_of_some_ranks(args: str) -> bool:
    """Whether the arguments of a collective name a group."""
    return "group" in args.split(", ")


def all_reduced(query: Query) -> np.ndarray:
    """The gradients that were all-reduced over all ranks: pairs of the gradient and the event. Use
    `query.of(all_reduced)`."""
    trace = query.trace
    grads = distinct(query.tensors.grads.values)
    pairs = [np.zeros((0, 2), np.int64)]
    written = trace.table(Kind.MUTATED)
    is_reduced = trace.named(written["how"], (ALL_REDUCE,))
    pairs.append(np.stack([written["tensor"][is_reduced], written.events[is_reduced]], axis=1))
    ops = trace.table(Kind.OP)
    outputs = ops.lists("outputs")
    of_all_ranks = (trace.named(ops["op"], (ALL_REDUCE,)) & ~_are_of_some_ranks(trace))[outputs.owners]
    pairs.append(np.stack([outputs.values[of_all_ranks], ops.events[outputs.owners[of_all_ranks]]], axis=1))
    reductions = np.concatenate(pairs)
    return reductions[contained(reductions[:, 0], grads)]


def _are_of_some_ranks(trace: Trace) -> np.ndarray:
    """Whether each OP event is a collective of a group."""
    texts = [text for text in trace.strings.values() if is_of_some_ranks(text)]
    return trace.named(trace.table(Kind.OP)["args"], texts)


# The reductions that neither add nor average.
_NO_SUMS = frozenset({"MAX", "MIN", "PRODUCT", "BAND", "BOR", "BXOR"})


def reduced_otherwise(query: Query) -> list[tuple[int, int, str]]:
    """The gradients that all ranks reduce by neither a sum nor an average, in order: the gradient, the event, and the
    reduction. Use `query.of(reduced_otherwise)`."""
    return [reduced for reduced in query.of(_reductions) if reduced[2] in _NO_SUMS]


def sums(query: Query) -> list[tuple[int, int]]:
    """The gradients that the program itself sums over all ranks, each with its event, in order. Use
    `query.of(sums)`."""
    return [(gradient, event) for gradient, event, how in query.of(_reductions) if how == "SUM"]


def _reductions(query: Query) -> list[tuple[int, int, str]]:
    """The gradients that the program itself all-reduces over all ranks, in order: the gradient, the event, and the
    reduction."""
    reductions = []
    for gradient, event in sorted(query.of(all_reduced).tolist(), key=lambda pair: pair[1]):
        if query.tensors.is_op(event):
            named = (part for part in query.tensors.op(event).args.split(", ") if part not in ("", "async"))
            reductions.append((gradient, event, next(named, "SUM")))  # the default
    return reductions


def changes_between(query: Query, gradient: int, since: int, until: int) -> list[int]:
    """The events between `since` and `until` at which something other than `all_reduce` changes a gradient, itself or
    through another tensor on the same memory."""
    events = writes_by_any_name(query, gradient)
    return [e for e in events if since < e < until and query.tensors.writer(e) != ALL_REDUCE]


def sent(query: Query) -> np.ndarray:
    """The tensors that the program sends to another rank. Use `query.of(sent)`."""
    called = query.trace.table(Kind.COLLECTIVE)
    tensors = called.lists("tensors")
    return distinct(tensors.values[query.trace.named(called["how"], ("send",))[tensors.owners]])


class HandedOver(NamedTuple):
    """A gradient that a collective with one special rank (`broadcast`, `reduce`) writes: the gradient, the name of the
    collective, and the event."""

    gradient: int
    name: str
    event: int


def handed_over(query: Query) -> list[HandedOver]:
    """The gradients that `broadcast` and `reduce` of all ranks write, in order. Use `query.of(handed_over)`."""
    grads = set(query.tensors.grads.values.tolist())
    handovers = []
    for event in query.trace.events_named(Kind.OP, "op", ("broadcast", "reduce")).tolist():
        op = query.tensors.op(event)
        gradients = [] if is_of_some_ranks(op.args) else [tensor for tensor in op.outputs if tensor in grads]
        handovers += [HandedOver(gradient, op.op, event) for gradient in gradients]
    return handovers


def is_reduced_in_groups(query: Query) -> bool:
    """Whether a group of some ranks all-reduces gradients."""
    trace = query.trace
    if trace.named(trace.table(Kind.MUTATED)["how"], (_IN_GROUP,)).any():
        return True
    grads = set(query.tensors.grads.values.tolist())
    ops = trace.table(Kind.OP)
    reducing = trace.named(ops["op"], (ALL_REDUCE,)) & _are_of_some_ranks(trace)
    return any(grads.intersection(query.tensors.op(event).outputs) for event in ops.events[reducing].tolist())
