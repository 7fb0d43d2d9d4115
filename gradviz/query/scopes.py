"""The modules and custom Functions around each event."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import Kind, ScopeEntered
from gradviz.query.tables import Nesting
from gradviz.sets import distinct
from gradviz.tracefile import Trace

FUNCTION = "function"


class Visit(NamedTuple):
    """A visit to a scope: its first and last event, its path, and the class of the module or Function."""

    first: int
    last: int
    path: str
    type: str


class Scopes:
    """The scopes of one trace. The *path* of a scope consists of the names from the outermost inwards:
    `net/0`."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @cached_property
    def nesting(self) -> Nesting:
        """The nesting of scopes, for each thread."""
        return Nesting(self.trace, Kind.SCOPE_ENTERED, Kind.SCOPE_LEFT)

    def around(self, k: int, thread: int) -> list[ScopeEntered]:
        """The scopes around event k of a thread, outermost first."""
        entered = self.trace.table(Kind.SCOPE_ENTERED)
        return [entered.object(event) for event in self.nesting.around(k, thread)]

    def path(self, event: int) -> str:
        """The path of the innermost scope around an event."""
        return self._at(event).path

    def in_function(self, event: int) -> bool:
        """Whether an event happened inside a custom Function's forward."""
        return self._at(event).in_function

    def entered(self, event: int) -> tuple[int, int]:
        """The number of the visit to the innermost scope around an event, and the site at which it was entered; zeros
        for none."""
        scope = self._at(event)
        return scope.scope, scope.site

    def _at(self, event: int) -> _Open:
        starts, innermost = self._stretches
        if not starts:
            return _NONE
        thread = self._threads[event]
        at = bisect_right(starts.get(thread, []), event)
        return innermost[thread][at - 1] if at else _NONE

    @cached_property
    def _threads(self) -> list[int]:
        return (self.trace.events["head"] >> 16).tolist()

    @cached_property
    def _stretches(self) -> tuple[dict[int, list[int]], dict[int, list[_Open]]]:
        """For each thread the events at which the innermost scope changes, and the scope from each on."""
        trace = self.trace
        starts: dict[int, list[int]] = {}
        innermost: dict[int, list[_Open]] = {}
        open_scopes: dict[int, list[_Open]] = {}
        for index in trace.indices(Kind.SCOPE_ENTERED, Kind.SCOPE_LEFT).tolist():
            thread = int(trace.events["head"][index]) >> 16
            stack = open_scopes.setdefault(thread, [])
            if trace.kinds[index] == Kind.SCOPE_ENTERED:
                stack.append(_entered(trace.table(Kind.SCOPE_ENTERED).object(index), stack))
            else:
                _leave(trace.table(Kind.SCOPE_LEFT).object(index).scope, stack)
            starts.setdefault(thread, []).append(index)
            innermost.setdefault(thread, []).append(stack[-1] if stack else _NONE)
        return starts, innermost

    @cached_property
    def visits(self) -> list[Visit]:
        """All visits to scopes, in order."""
        trace = self.trace
        table = trace.table(Kind.SCOPE_ENTERED)
        threads = dict(zip(table.events.tolist(), table.threads.tolist(), strict=True))
        inside = [(first, last) for first, last, thread in self.nesting.spans() if threads[first] == thread]
        return [Visit(first, last, self.path(first), table.object(first).type) for first, last in inside]

    @cached_property
    def depths(self) -> np.ndarray:
        """For each event the number of scopes and passes around it on its thread. Events that begin or end
        one are outside of it."""
        trace = self.trace
        step = np.zeros(256, np.int8)
        step[[Kind.SCOPE_ENTERED, Kind.PASS_BEGAN]] = 1
        step[[Kind.SCOPE_LEFT, Kind.PASS_ENDED]] = -1
        steps = step[trace.kinds]
        threads = trace.events["head"] >> 16
        depths = np.zeros(trace.count, np.int32)
        for thread in distinct(threads).tolist():
            own = threads == thread
            depths[own] = np.cumsum(steps[own], dtype=np.int32) - (steps[own] > 0)
        return depths

    def calls(self) -> list[tuple[int, int, int]]:
        """(site, first event, last event) for each scope, except scopes inside another scope entered at the
        same site."""
        trace = self.trace
        found = []
        open_scopes: dict[int, list[tuple[int, int, int]]] = {}
        indices = trace.indices(Kind.SCOPE_ENTERED, Kind.SCOPE_LEFT)
        entered, left = (
            dict(zip(table.events.tolist(), table["scope"].tolist(), strict=True))
            for table in (trace.table(Kind.SCOPE_ENTERED), trace.table(Kind.SCOPE_LEFT))
        )
        columns = (trace.events[column][indices].tolist() for column in ("head", "site"))
        for index, head, site in zip(indices.tolist(), *columns, strict=True):
            stack = open_scopes.setdefault(head >> 16, [])
            if index in entered:
                stack.append((entered[index], site, index))
            elif stack and stack[-1][0] == left[index]:
                _, site, start = stack.pop()
                if all(other != site for _, other, _ in stack):
                    found.append((site, start, index))
        return found


class _Open(NamedTuple):
    """A scope that is open: the number of the visit, its name and path, whether it is inside a custom Function, and
    where it was entered."""

    scope: int
    name: str
    path: str
    in_function: bool
    site: int


_NONE = _Open(0, "", "", False, 0)


def _entered(event: ScopeEntered, stack: list[_Open]) -> _Open:
    """A scope inside those of the stack."""
    outer = stack[-1] if stack else _NONE
    name = event.name.replace("/", "∕")  # / separates the parts of a path
    short = name.removeprefix(f"{outer.name}.") or name
    path = f"{outer.path}/{short}" if outer.path else short
    in_function = outer.in_function or event.kind == FUNCTION
    return _Open(event.scope, name, path, in_function, event.site)


def _leave(scope: int, stack: list[_Open]) -> None:
    """Close a scope, and those inside it that an exception left open."""
    while stack and stack.pop().scope != scope:
        pass
