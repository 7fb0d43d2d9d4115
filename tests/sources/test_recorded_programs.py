"""Recording changes nothing of what a program does, and what it records adds up: programs drawn at random."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradviz import engine
from gradviz.engine.core.state import listen
from gradviz.events import kinds as k
from gradviz.events.kinds import EVENTS, Kind
from gradviz.events.listener import Listener, State, Where
from gradviz.sources.record import record
from gradviz.tracefile import Trace, open_trace
from tests.random_programs import drawn, ran

AT_ONCE = 50


@pytest.mark.parametrize("values", ["full", "none"])
@pytest.mark.parametrize("first", range(0, 400, AT_ONCE))
def test_a_program_does_the_same_while_it_is_recorded(tmp_path: Path, first: int, values: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(first, first + AT_ONCE):
            lines = drawn(seed)
            alone = ran(engine, lines, seed)
            path = tmp_path / f"{seed}.gradviz"
            with record(path, values=values):
                assert repr(ran(engine, lines, seed)) == repr(alone), "\n".join(lines)
            with open_trace(path) as trace:
                for run in trace.passes if values == "full" else ():
                    if run.last is not None:
                        check_sums(trace, run.first, run.last)


class Heard(Listener):
    """Overrides `tell` alone, and so hears of every event."""

    def __init__(self) -> None:
        self.kinds: list[Kind] = []

    def tell(self, kind: Kind, where: Where, values: tuple[Any, ...], states: Sequence[State] = ()) -> None:
        self.kinds.append(kind)


def test_who_overrides_tell_alone_hears_every_event_that_a_recorder_writes(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(AT_ONCE):
            lines = drawn(seed)
            with record(tmp_path / "run.gradviz"):
                ran(engine, lines, seed)
            heard = Heard()
            before = listen(heard)
            try:
                ran(engine, lines, seed)
            finally:
                listen(before)
            with open_trace(tmp_path / "run.gradviz") as trace:
                events = [type(trace.event(number)) for number in range(trace.count)]
            assert [EVENTS[kind] for kind in heard.kinds] == events, "\n".join(lines)


def check_sums(trace: Trace, first: int, last: int) -> None:
    """In a pass, what a node of one output received is the sum of what was produced for it."""
    arrived: dict[int, list[int]] = defaultdict(list)
    for number in range(first, last + 1):
        event = trace.event(number)
        if isinstance(event, k.PassBegan):
            for root in event.roots:
                arrived[root.node].append(root.gradient)
        elif isinstance(event, k.Produced):
            for flow in event.flows:
                if flow.gradient:
                    arrived[flow.node].append(flow.gradient)
        elif isinstance(event, k.Hooked):
            arrived.pop(event.node, None)  # it received what the hook returned
        elif isinstance(event, k.Received) and len(event.gradients) == 1 and event.node in arrived:
            (received,) = event.gradients
            total = sum(elements(trace, gradient) for gradient in arrived[event.node])
            np.testing.assert_allclose(elements(trace, received), total, rtol=1e-12, atol=1e-300)


def elements(trace: Trace, tensor: int) -> np.ndarray:
    snapshot = trace.snapshot(tensor, trace.born(tensor))
    assert snapshot is not None
    assert snapshot.array is not None
    return snapshot.array
