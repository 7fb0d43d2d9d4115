"""Of a run with more operations than can be drawn, a graph has the last ones, and says so."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import gradviz.engine as torch
from gradviz.events.kinds import OpRan
from gradviz.graph import model as m
from gradviz.graph.build import SHOWS, build
from gradviz.graph.fold import folded
from gradviz.graph.model import Graph
from gradviz.sources.record import record
from gradviz.tracefile import Trace, open_trace
from tests.random_programs import drawn, ran

CHAIN = 10
Traced = Callable[[Callable[[], object]], Trace]


@pytest.fixture
def traced(tmp_path: Path) -> Traced:
    def run(program: Callable[[], object]) -> Trace:
        with record(tmp_path / "run.gradviz"):
            program()
        return open_trace(tmp_path / "run.gradviz")

    return run


@pytest.fixture
def three_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradviz.graph.build.MOST_OPS", 3)


def chain() -> torch.Tensor:
    x = torch.tensor([1.0], requires_grad=True)
    for _ in range(CHAIN):
        x = x * 2
    return x


def ops(graph: Graph) -> list[int]:
    return [node.number for node in graph.nodes.values() if node.kind == m.OP]


@pytest.mark.usefixtures("three_at_most")
@pytest.mark.parametrize("whole", [True, False])
def test_the_last_operations_before_the_root_are_shown(traced: Traced, whole: bool) -> None:
    trace = traced(lambda: chain().backward())
    graph = build(trace, None if whole else 1, whole=whole)
    assert graph.counts() == {"tensor": 4, "op": 3, "grad_fn": 3}
    assert ops(graph) == sorted(event.index for event in trace if isinstance(event, OpRan))[-3:]
    assert graph.notes == ["of 10 operations only the last 3 are looked at"]
    assert graph.left_out == 0


@pytest.mark.usefixtures("three_at_most")
def test_what_leads_nowhere_beyond_is_whole(traced: Traced) -> None:
    def program() -> None:
        chain()
        y = torch.tensor([1.0], requires_grad=True)
        (y * 3).backward()

    graph = build(traced(program), 1)
    assert graph.counts() == {"leaf": 1, "tensor": 1, "op": 1, "grad_fn": 2}
    assert graph.notes == []
    assert graph.left_out == CHAIN


@pytest.mark.usefixtures("three_at_most")
def test_next_functions_are_followed_as_far(traced: Traced) -> None:
    graph = build(traced(lambda: chain().backward()), 1, "backward")
    assert graph.counts() == {"grad_fn": 3}
    assert graph.notes == ["of 10 operations only the last 3 are looked at"]


@pytest.mark.usefixtures("three_at_most")
def test_writes_in_place_are_followed_as_far(traced: Traced) -> None:
    def program() -> None:
        x = torch.zeros(2)
        for _ in range(CHAIN):
            x.add_(1)

    graph = build(traced(program), whole=True)
    assert len(ops(graph)) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("three_at_most")
def test_each_edge_joins_what_is_shown_for_programs_drawn_at_random(tmp_path: Path) -> None:
    cut = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(60):
            with record(tmp_path / f"{seed}.gradviz"):
                ran(torch, drawn(seed), seed)
            with open_trace(tmp_path / f"{seed}.gradviz") as trace:
                for show in SHOWS:
                    for whole in (True, False):
                        graph = build(trace, None, show, whole)
                        assert len(ops(graph)) <= 3
                        assert all(e.source in graph.nodes and e.target in graph.nodes for e in graph.edges)
                        folded(graph)
                        cut += bool(graph.notes)
    assert cut > 60
