"""The names and the order of the traces of several ranks, and what is not the same on all of them."""

from collections.abc import Sequence
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query.copies import same_elements
from gradviz.tracefile import Snapshot, Trace

_CLOSE = 1e-3  # relative


class Apart(NamedTuple):
    """Something that is not the same on all ranks: its names, and by rank its value, the tensor and the event, as far
    as there are any (0: none). `number` is that of the pass, the step or the collective, from 1."""

    names: tuple[str, ...]
    values: tuple[Any, ...]
    tensors: tuple[int, ...] = ()
    events: tuple[int, ...] = ()
    number: int = 0

    @property
    def name(self) -> str:
        """The first of the names."""
        return self.names[0]


def are_close(numbers: Sequence[float]) -> bool:
    """Whether numbers are the same but for rounding. False if one of them is not finite."""
    return all(map(isfinite, numbers)) and max(numbers) - min(numbers) <= _CLOSE * min(map(abs, numbers))


def are_same(values: Sequence[Snapshot | None]) -> bool:
    """Whether the values of all ranks are known and equal: by elements, else by statistics."""
    return all(map(_is_known, values)) and not are_apart(values)


def are_apart(values: Sequence[Snapshot | None]) -> bool:
    """Whether the values of the ranks are known to differ; also if only some ranks have a value."""
    return any(_differ(values[0], other) for other in values[1:])


def alike(values: Sequence[Snapshot | None]) -> list[int]:
    """The place, for each value, of the first value that is not known to differ from it."""
    firsts: list[int] = []
    first_of = []
    for place, value in enumerate(values):
        first = next((at for at in firsts if not are_apart((values[at], value))), place)
        if first == place:
            firsts.append(place)
        first_of.append(first)
    return first_of


def _is_known(value: Snapshot | None) -> bool:
    return value is not None and value.stats is not None


def _differ(one: Snapshot | None, other: Snapshot | None) -> bool:
    if one is None or other is None:
        return one is not other
    if not _is_known(one) or not _is_known(other):  # as for a part of a tensor that lies on several ranks
        return False
    if one.array is not None and other.array is not None:
        return not same_elements(one.array, other.array)
    return one.shape != other.shape or repr(one.stats) != repr(other.stats)


def label_of(trace: Trace) -> str:
    """The name of one of several traces: `rank 0`, or the name of its file."""
    rank = trace.meta.get("rank", "")
    return f"rank {rank}" if rank else trace.path.stem


def ranked_traces(traces: Sequence[Trace]) -> dict[int, Trace]:
    """Traces by their ranks; by their places if a rank is missing or occurs twice."""
    ranks = [trace.meta.get("rank", "") for trace in traces]
    if not all(map(str.isdigit, ranks)) or len(set(ranks)) < len(ranks):
        return dict(enumerate(traces))
    return dict(zip(map(int, ranks), traces, strict=True))


def same_pass(trace: Trace, number: int, other: Trace) -> int | None:
    """The pass of another rank that is the same as pass `number`; None if there is none. Where the ranks have as many
    passes, as they mostly do, it has the same number; else it is the same among the passes that were called alike
    (`backward` or `grad`): a rank of a pipeline may differentiate for itself."""
    if len(trace.pass_numbers) != len(other.pass_numbers):
        hows = [_hows(one) for one in (trace, other)]
        how = hows[0].get(number, "")
        alike = [[known for known, called in of_rank.items() if called == how] for of_rank in hows]
        place = alike[0].index(number) if number in alike[0] else len(alike[1])
        return alike[1][place] if place < len(alike[1]) else None
    return number if other.find_pass(number) is not None else None


def _hows(trace: Trace) -> dict[int, str]:
    """How each pass was called, in their order."""
    trace.reach_all()
    began = trace.table(Kind.PASS_BEGAN)
    order = np.argsort(began["number"], kind="stable")
    return {int(began["number"][row]): trace.text(int(began["how"][row])) for row in order.tolist()}
