"""The backward passes: which one an event belongs to, and what began it."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from gradviz.events.fields import Root
from gradviz.events.kinds import Kind, PassBegan
from gradviz.events.layout import LAYOUTS
from gradviz.query.nodes import Nodes
from gradviz.query.tables import Nesting
from gradviz.tracefile import PassInfo, Trace

_BEGINNING = (Kind.PASS_BEGAN, Kind.PASS_ENDED)


class Passes:
    """Look-ups about the passes of one trace."""

    def __init__(self, trace: Trace, nodes: Nodes) -> None:
        self.trace, self.nodes = trace, nodes

    @cached_property
    def by_number(self) -> dict[int, PassInfo]:
        """The passes by their numbers."""
        return {run.number: run for run in self.trace.passes}

    def began(self, number: int) -> PassBegan:
        """The event that began a pass, with its roots' tensors."""
        found = self.trace.event(self.by_number[number].first)
        assert isinstance(found, PassBegan)
        return self.with_tensors(found)

    def with_tensors(self, began: PassBegan) -> PassBegan:
        """The same event with the tensors of roots that are GradientEdges: it knows only their nodes."""
        return replace(began, roots=tuple(map(self._with_tensor, began.roots)))

    def _with_tensor(self, root: Root) -> Root:
        outputs = self.nodes.outputs(root.node)
        known = root.tensor or root.nr >= len(outputs)
        return root if known else root._replace(tensor=outputs[root.nr])

    def last(self, run: PassInfo) -> int:
        """The last event of a pass: the trace's last where it did not end."""
        return self.trace.count - 1 if run.last is None else run.last

    @cached_property
    def nesting(self) -> Nesting:
        """The passes one within another, thread by thread."""
        return Nesting(self.trace, Kind.PASS_BEGAN, Kind.PASS_ENDED)

    @cached_property
    def numbers(self) -> np.ndarray:
        """For each event the innermost pass that it belongs to, 0 for none: the one that it names, or else the one
        that its thread is in."""
        trace = self.trace
        found = np.zeros(trace.count, np.int32)
        spans = self.nesting.spans()
        threads = trace.events["head"] >> 16
        by_first = {run.first: run.number for run in trace.passes}
        for first, last, thread in spans:  # the outer before those within
            own = found[first : last + 1]
            own[threads[first : last + 1] == thread] = by_first.get(first, 0)
        for kind, layout in LAYOUTS.items():
            if "in_pass" in layout.fields:
                table = trace.table(kind)
                told = table["in_pass"]
                found[table.events[told > 0]] = told[told > 0]
        return found

    def at(self, k: int) -> PassInfo | None:
        """The innermost pass that event k belongs to, None for none."""
        event = self.trace.event(k)
        number = getattr(event, "in_pass", 0) or (
            event.number if self.trace.kinds[k] in _BEGINNING else 0  # type: ignore[attr-defined]
        )
        if not number:
            around = self.nesting.around(k, event.thread)
            number = self._by_first.get(around[-1], 0) if around else 0
        return self.by_number.get(number)

    @cached_property
    def _by_first(self) -> dict[int, int]:
        return {run.first: run.number for run in self.trace.passes}

    def contains(self, events: np.ndarray) -> np.ndarray:
        """Which of these events lie between the beginning and the end of a pass, on whatever thread."""
        firsts, lasts = self._spans
        at = np.searchsorted(firsts, events, side="right") - 1
        if not len(firsts):
            return np.zeros(len(events), bool)
        return (at >= 0) & (events <= lasts[np.maximum(at, 0)])

    @cached_property
    def _spans(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the passes begin, and how far all up to each of them reach."""
        runs = sorted(self.trace.passes, key=lambda run: run.first)
        lasts = [self.last(run) for run in runs]
        return np.array([run.first for run in runs]), np.maximum.accumulate(np.array(lasts, np.int64))

    def are_a_loop(self, passes: list[PassInfo]) -> bool:
        """Whether passes repeat a structure, each on a graph of its own."""
        roots: dict[str, set[tuple[int, ...]]] = {}
        for run in passes:
            if run.digest:
                begun = tuple(root.node for root in self.began(run.number).roots)
                roots.setdefault(run.digest, set()).add(begun)
        return any(len(found) > 1 for found in roots.values())
