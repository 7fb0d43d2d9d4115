"""What to call tensors and places: by the names that the source gives them, never by an address."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property, lru_cache

import numpy as np

from gradviz.events.kinds import Event, Kind, OpRan, TensorMade
from gradviz.tracefile import Trace


class Names:
    """The names of one trace's tensors.

    A parameter is called by its path in its module; anything else by the variable that it was first assigned to
    (`y = x ** 3`), whose name may lie in the caller (`y = model(x)`)."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._maker = lru_cache(maxsize=65536)(self._find_maker)

    def of(self, tensor: int) -> str | None:
        """The tensor's name in the source, None where it has none."""
        if tensor in self.trace.parameters:
            return self.trace.parameters[tensor]
        return self.given(tensor, self._maker(tensor))

    def given(self, tensor: int, maker: Event | None) -> str | None:
        """The name of the variable that a tensor, made by event `maker`, was first assigned to."""
        site = self.trace.sites.get(maker.site) if maker is not None else None
        if site is None or not site.names:
            return None
        if isinstance(maker, TensorMade):
            return site.names[0] if len(site.names) == 1 else None
        assert isinstance(maker, OpRan)
        if tensor not in maker.outputs or not self._is_result(maker):
            return None
        position = maker.outputs.index(tensor)
        if len(maker.outputs) == len(site.names):
            return site.names[position]
        return None

    def _is_result(self, op: OpRan) -> bool:
        """Whether what the op gave is what its place gave: one call of a library function or a module makes
        several ops at one place, and the last gives what is assigned."""
        if op.op != self.last_ops.get(op.site):
            return False
        if op.site not in self.calls:
            return True
        starts, ends = self.calls[op.site]
        call = bisect_right(starts, op.index) - 1
        if call < 0 or op.index > ends[call]:
            return True
        later = self.trace.events[op.index + 1 : ends[call]]
        return not np.any((later["head"] & 0xFF == Kind.OP) & (later["site"] == op.site))

    @cached_property
    def calls(self) -> dict[int, tuple[list[int], list[int]]]:
        """For each place the calls made there that ran ops: scopes, but not within one another, and backward passes.
        Their first events in order, and their last."""
        found: dict[int, list[tuple[int, int]]] = {}
        for run in self.trace.passes:
            if run.last is not None:
                found.setdefault(run.site, []).append((run.first, run.last))
        for site, start, end in self._scope_calls():
            found.setdefault(site, []).append((start, end))
        ordered = {site: sorted(calls) for site, calls in found.items()}
        return {site: ([first for first, _ in at], [last for _, last in at]) for site, at in ordered.items()}

    def _scope_calls(self) -> Iterator[tuple[int, int, int]]:
        trace = self.trace
        open_scopes: dict[int, list[tuple[int, int, int]]] = {}
        indices = trace.indices(Kind.SCOPE_ENTERED, Kind.SCOPE_LEFT)
        columns = (trace.events[column][indices].tolist() for column in ("head", "subject", "site"))
        for index, head, scope, entered_at in zip(indices.tolist(), *columns, strict=True):
            stack = open_scopes.setdefault(head >> 16, [])
            if head & 0xFF == Kind.SCOPE_ENTERED:
                stack.append((scope, entered_at, index))
            elif stack and stack[-1][0] == scope:
                _, site, start = stack.pop()
                if all(other != site for _, other, _ in stack):
                    yield site, start, index

    @cached_property
    def last_ops(self) -> dict[int, str]:
        """Which op each place ends with."""
        events = self.trace.events
        ops = self.trace.indices(Kind.OP)
        sites, last = np.unique(events["site"][ops][::-1], return_index=True)
        names = events["name"][ops][::-1][last]
        return {int(site): self.trace.text(name) for site, name in zip(sites, names, strict=True)}

    def label(self, tensor: int) -> str:
        """The tensor's name, or `t` and its number."""
        return self.of(tensor) or f"t{tensor}"

    def maker(self, tensor: int) -> Event | None:
        """The event that made a tensor: a TensorMade or an OpRan; None where the trace has none."""
        return self._maker(tensor)

    def _find_maker(self, tensor: int) -> Event | None:
        born = self.trace.born(tensor)
        event = None if born is None else self.trace.event(born)
        return event if isinstance(event, (TensorMade, OpRan)) else None
