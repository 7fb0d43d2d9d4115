"""Parameters that require a gradient on some ranks of a run, and not on others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradviz.events.kinds import Kind
from gradviz.query.of_one_rank import MOST_STEPS, parameters_by_name
from gradviz.query.query import Query
from gradviz.query.rank_values import are_same
from gradviz.query.replicas import Replicas


@dataclass(frozen=True, slots=True)
class FrozenOnSome:
    """Parameters that do not require a gradient on the ranks in `places`, and do on all others, when the pass
    `pass_number` begins (0: at the end of a run without a pass). For each of these ranks, `tensors` has the first
    parameter, and `events` the last event that changed whether it requires a gradient, 0 for none."""

    names: tuple[str, ...]
    tensors: tuple[int, ...]
    pass_number: int
    places: tuple[int, ...]
    events: tuple[int, ...]


def frozen_on_some(ranks: Replicas) -> FrozenOnSome | None:
    """The parameters that are first frozen on some ranks alone. The ranks must have one model: parameters of the same
    names and shapes, with the same values where the first pass begins. None if there are none."""
    parameters = [query.of(_named) for query in ranks.queries]
    if not _are_alike(parameters):
        parameters = [query.of(_in_order) for query in ranks.queries]
    names = list(parameters[0])
    if not names or not _are_alike(parameters):
        return None
    points = _points(ranks)
    starts = points[0][1]
    for name in names:
        at = zip(ranks.queries, parameters, starts, strict=True)
        if not are_same([query.memory.value(known[name], event) for query, known, event in at]):
            return None
    for pass_number, events in points:
        requires = {
            name: tuple(
                query.tensors.requires_grad(known[name], event)
                for query, known, event in zip(ranks.queries, parameters, events, strict=True)
            )
            for name in names
        }
        apart = [name for name in names if len(set(requires[name])) > 1]
        if apart:
            first = requires[apart[0]]
            places = tuple(place for place, does in enumerate(first) if not does)
            alike = tuple(name for name in apart if requires[name] == first)
            changed = tuple(
                _last_change(ranks.queries[place], parameters[place][apart[0]], events[place])
                for place in places
            )
            tensors = tuple(parameters[place][apart[0]] for place in places)
            return FrozenOnSome(alike, tensors, pass_number, places, changed)
    return None


def _are_alike(parameters: Sequence[Mapping[str, int]]) -> bool:
    return bool(parameters[0]) and all(known.keys() == parameters[0].keys() for known in parameters)


def _named(query: Query) -> dict[str, int]:
    """The parameters of modules and of optimizers by name."""
    trace = query.trace
    tensors = dict.fromkeys([*trace.parameters, *parameters_by_name(query).values()])
    return {
        name: tensor for tensor in tensors if tensor not in trace.buffers and (name := query.names.of(tensor))
    }


def _in_order(query: Query) -> dict[str, int]:
    """All parameters by their place and shape, for parameters that neither a called module nor an optimizer names."""
    made = query.trace.table(Kind.TENSOR)
    tensors = made["tensor"][query.trace.named(made["how"], ("Parameter",))].tolist()
    shapes = [query.tensors.shape(tensor) or () for tensor in tensors]
    pairs = zip(shapes, tensors, strict=True)
    return {f"parameter {place} of shape {shape}": tensor for place, (shape, tensor) in enumerate(pairs, 1)}


def _points(ranks: Replicas) -> list[tuple[int, tuple[int, ...]]]:
    """The passes that all ranks begin: the number, and the event on each rank. The end of the run, if a rank begins
    none."""
    passes = list(zip(*(query.trace.passes[:MOST_STEPS] for query in ranks.queries), strict=False))
    if not passes:
        return [(0, tuple(query.trace.count - 1 for query in ranks.queries))]
    return [(together[0].number, tuple(one.first for one in together)) for together in passes]


def _last_change(query: Query, tensor: int, until: int) -> int:
    """The last event up to `until` that changed whether a tensor requires a gradient; 0 if there is none."""
    changed = query.trace.table(Kind.REQUIRES_GRAD_CHANGED)
    events = changed.events[(changed["tensor"] == tensor) & (changed.events <= until)]
    return int(events[-1]) if len(events) else 0
