"""The modules and custom Functions around each event."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from typing import Any

import numpy as np

from gradviz.events.kinds import Kind, ScopeEntered
from gradviz.query.tables import Nesting
from gradviz.tracefile import Trace

FUNCTION = "function"


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
        return self._at(event)[0]

    def in_function(self, event: int) -> bool:
        """Whether an event happened inside a custom Function's forward."""
        return self._at(event)[1]

    def _at(self, event: int) -> tuple[str, bool]:
        starts, paths = self._stretches
        if not starts:
            return "", False
        thread = self._threads[event]
        at = bisect_right(starts.get(thread, []), event)
        return paths[thread][at - 1] if at else ("", False)

    @cached_property
    def _threads(self) -> list[int]:
        return (self.trace.events["head"] >> 16).tolist()

    @cached_property
    def _stretches(self) -> tuple[dict[int, list[int]], dict[int, list[tuple[str, bool]]]]:
        """For each thread the events at which the innermost scope changes, and from each on the path and
        whether it is inside a custom Function."""
        trace = self.trace
        starts: dict[int, list[int]] = {}
        paths: dict[int, list[tuple[str, bool]]] = {}
        open_scopes: dict[int, list[tuple[int, str, str, bool]]] = {}
        for index in trace.indices(Kind.SCOPE_ENTERED, Kind.SCOPE_LEFT).tolist():
            thread = int(trace.events["head"][index]) >> 16
            stack = open_scopes.setdefault(thread, [])
            if trace.kinds[index] == Kind.SCOPE_ENTERED:
                stack.append(_entered(trace.table(Kind.SCOPE_ENTERED).object(index), stack))
            else:
                left = trace.table(Kind.SCOPE_LEFT).object(index).scope
                while stack and stack.pop()[0] != left:
                    pass
            starts.setdefault(thread, []).append(index)
            paths.setdefault(thread, []).append((stack[-1][2], stack[-1][3]) if stack else ("", False))
        return starts, paths

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
        for thread in np.unique(threads).tolist():
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


def _entered(event: ScopeEntered, stack: list[Any]) -> tuple[int, str, str, bool]:
    """A scope inside those of the stack: its number, name and path, and whether it is inside a custom
    Function."""
    outer_name, outer_path, in_function = (
        (stack[-1][1], stack[-1][2], stack[-1][3]) if stack else ("", "", False)
    )
    name = event.name.replace("/", "∕")  # / separates the parts of a path
    short = name.removeprefix(f"{outer_name}.") or name
    path = f"{outer_path}/{short}" if outer_path else short
    return event.scope, name, path, in_function or event.kind == FUNCTION
