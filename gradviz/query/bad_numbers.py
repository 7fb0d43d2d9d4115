"""The events at which a NaN or an infinity appears.

An infinity that the program wrote itself, such as the −inf of a mask, is no fault. Such events, and events that only
pass the infinity on, are left out unless there is nothing else."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import REQUIRES_GRAD, Kind
from gradviz.events.values import GRADIENT, Stat
from gradviz.query.predicate_columns import TraceFields
from gradviz.query.query import Query
from gradviz.sets import distinct, without


class BadNumbers(NamedTuple):
    """The events, in order; whether any has a NaN (`nan`), and whether any has only infinities (`inf`); whether the
    program wrote all of these infinities itself (`written`), so that nothing is at fault."""

    events: np.ndarray
    nan: bool
    inf: bool
    written: bool = False


def bad_numbers(query: Query) -> BadNumbers:
    """The events with a NaN or a computed infinity; if there are none, the events with written infinities. Use
    `query.of(bad_numbers)`."""
    fields = TraceFields(query)
    with_nan, with_inf = (np.flatnonzero(fields.column(name).values) for name in ("nan", "inf"))
    written = _Written(query).events(with_inf)
    computed = without(with_inf, written)
    bad = distinct(np.concatenate([with_nan, computed]))
    if not len(bad):
        is_any = bool(len(with_inf))
        return BadNumbers(with_inf, nan=False, inf=is_any, written=is_any)
    only_inf = without(computed, with_nan)
    return BadNumbers(bad, nan=bool(len(with_nan)), inf=bool(len(only_inf)))


def first_bad_pass(query: Query) -> int:
    """The first pass whose root, or a gradient that it gave a leaf, has a NaN or an infinity; 0 if none has. In a run
    that can run again, the gradients are those that were kept."""
    trace = query.trace
    began, kept = trace.table(Kind.PASS_BEGAN), trace.table(Kind.KEPT)
    accumulated = trace.table(Kind.ACCUMULATED)
    roots, gradients = began.lists("roots"), trace.named(kept["how"], (GRADIENT,))
    tensors = (roots.elements[:, 2], kept["copy"][gradients], accumulated["gradient"])
    events = (began.events[roots.owners], kept.events[gradients], accumulated.events)
    at = np.concatenate(events)
    rows = trace.states.rows_of(np.concatenate(tensors), at)
    bad = trace.states.are_bad(rows)
    return int(query.passes.numbers[at[bad].min()]) if bad.any() else 0


class _Written:
    """Follows the infinities of a trace from the events that wrote them."""

    def __init__(self, query: Query) -> None:
        self.query, self.trace = query, query.trace
        self.written = WrittenInfinities()

    def events(self, with_inf: np.ndarray) -> list[int]:
        """The events of `with_inf`, in order, whose infinities the program wrote itself."""
        return [event for event in with_inf.tolist() if self._is_written(event)]

    def _is_written(self, event: int) -> bool:
        kind, made = int(self.trace.kinds[event]), self.trace.event(event)
        if kind == Kind.OP:
            op = self.query.tensors.op(event)
            statistic = self.trace.states.statistic
            infinite = [tensor for tensor in op.inputs if tensor and statistic(Stat.INF, tensor, event - 1) > 0]
            return self.written.by_op(op.args, infinite, op.outputs)
        if kind == Kind.TENSOR:
            tensor = int(getattr(made, "tensor", 0))
            how, flags = getattr(made, "how", ""), self.query.tensors.flags(tensor, event)
            return self.written.by_maker(tensor, how, flags)
        if kind == Kind.MUTATED:
            mutated = self.query.tensors.mutation(event)
            return self.written.by_write(mutated.tensor, mutated.source)
        return False


class WrittenInfinities:
    """Follows written infinities from event to event, in order. `tensors` are the tensors all of whose infinities were
    written. Each method is about an event that gave a tensor an infinity, and returns whether that was written."""

    def __init__(self) -> None:
        self.tensors: set[int] = set()

    def by_op(self, args: str, infinite: Iterable[int], outputs: Iterable[int]) -> bool:
        """Whether an infinity that an op made, with arguments `args`, was written; `infinite` are the inputs that had
        an infinity before."""
        infinite = set(infinite)
        is_written = self.tensors.issuperset(infinite) if infinite else "inf" in args
        return self._note(is_written, outputs)

    def by_maker(self, tensor: int, how: str, flags: int) -> bool:
        """Whether the infinity of a new tensor, as of `torch.full`, was written."""
        return self._note(not flags & REQUIRES_GRAD and how != "gradient", (tensor,))

    def by_write(self, tensor: int, source: int) -> bool:
        """Whether an infinity that was written into a tensor was written by the program: `source` is the tensor whose
        memory it shares, or whose value it took."""
        return self._note(source in self.tensors, (tensor,))

    def _note(self, is_written: bool, tensors: Iterable[int]) -> bool:
        if is_written:
            self.tensors.update(tensor for tensor in tensors if tensor)
        else:
            self.tensors.difference_update(tensors)
        return is_written
