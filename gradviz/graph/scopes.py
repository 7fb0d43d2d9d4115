"""Which module or custom Function an event happened in."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property

from gradviz.events.kinds import Kind, ScopeEntered
from gradviz.tracefile import Trace

FUNCTION = "function"


class Scopes:
    """The scopes of one trace, as paths: `Sequential/0`."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._starts: dict[int, list[int]] = {}
        self._paths: dict[int, list[tuple[str, bool]]] = {}
        open_scopes: dict[int, list[tuple[int, str, str, bool]]] = {}
        for index in trace.indices(Kind.SCOPE_ENTERED, Kind.SCOPE_LEFT).tolist():
            thread = int(trace.events["head"][index]) >> 16
            stack = open_scopes.setdefault(thread, [])
            if trace.kinds[index] == Kind.SCOPE_ENTERED:
                event = trace.event(index)
                assert isinstance(event, ScopeEntered)
                stack.append(self._entered(event, stack))
            else:
                left = int(trace.events["subject"][index])
                while stack and stack.pop()[0] != left:
                    pass
            self._starts.setdefault(thread, []).append(index)
            self._paths.setdefault(thread, []).append((stack[-1][2], stack[-1][3]) if stack else ("", False))

    @staticmethod
    def _entered(event: ScopeEntered, stack: list) -> tuple[int, str, str, bool]:
        """A scope within those of the stack: its number, name and path, and whether it is inside a Function."""
        outer_name, outer_path, in_function = (
            (stack[-1][1], stack[-1][2], stack[-1][3]) if stack else ("", "", False)
        )
        name = event.name.replace("/", "∕")  # a path's separator is ours
        short = name.removeprefix(f"{outer_name}.") or name
        path = f"{outer_path}/{short}" if outer_path else short
        return event.scope, name, path, in_function or event.kind == FUNCTION

    @cached_property
    def _threads(self) -> list[int]:
        return (self._trace.events["head"] >> 16).tolist()

    def path(self, event: int) -> str:
        """The path of the scope that an event happened in."""
        return self._at(event)[0]

    def in_function(self, event: int) -> bool:
        """Whether an event happened inside a custom Function's forward."""
        return self._at(event)[1]

    def _at(self, event: int) -> tuple[str, bool]:
        if not self._starts:
            return "", False
        thread = self._threads[event]
        at = bisect_right(self._starts.get(thread, []), event)
        return self._paths[thread][at - 1] if at else ("", False)
