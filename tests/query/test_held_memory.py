"""How much memory the saved tensors of living graphs hold: what a trace can prove of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gradviz
import gradviz.engine
from gradviz.diagnose.rules.graph_leak import held_bytes
from gradviz.events.kinds import GraphsAlive, Kind
from gradviz.query import Query
from gradviz.tracefile import open_trace
from tests.invoked import invoked

ROWS, WIDTH = 8, 16
RESULT = 4 * ROWS * WIDTH  # the bytes of a result


@pytest.fixture(params=["engine", "torch"])
def library(request: pytest.FixtureRequest) -> Any:
    return gradviz.engine if request.param == "engine" else pytest.importorskip("torch")


def train(torch: Any, path: Path, retain_graph: bool, keep: str) -> int:
    """Record five passes, and return the bytes that the earlier graphs hold as the last ends."""
    weight = torch.ones(WIDTH, WIDTH, requires_grad=True)
    kept, hidden = [], torch.ones(ROWS, WIDTH)
    with gradviz.record(path):
        for _ in range(5):
            hidden = torch.tanh(hidden @ weight.t())
            loss = (hidden * hidden).sum()  # saves its input twice
            loss.backward(retain_graph=retain_graph)
            kept.append({"loss": loss, "hidden": hidden}[keep])
            if keep == "loss":
                hidden = hidden.detach() * 0.5  # data, which the graph of the next pass saves
    with open_trace(path) as trace:
        alive = trace.event(int(trace.table(Kind.ALIVE).events[-1]))
        assert isinstance(alive, GraphsAlive)
        assert len(alive.graphs) == 4
        return held_bytes(Query(trace), alive)


def test_graphs_that_lie_apart_hold_what_they_computed_once(library: Any, tmp_path: Path) -> None:
    held = train(library, tmp_path / "run.gradviz", True, "loss")
    assert held == (4 + 3) * RESULT  # of each the tanh, and of all but the first the data


def test_the_graph_of_the_pass_leads_to_earlier_ones(library: Any, tmp_path: Path) -> None:
    assert train(library, tmp_path / "run.gradviz", True, "hidden") == 4 * RESULT


def test_passes_that_free_saved_tensors_leave_none(library: Any, tmp_path: Path) -> None:
    assert train(library, tmp_path / "run.gradviz", False, "loss") == 0


LEAK = """\
import torch
w = torch.ones(100, requires_grad=True)
total, losses = 0.0, []
for step in range(6):
    loss = w.exp().sum()
    loss.backward(retain_graph=True)
    losses.append(loss)
"""
CHAIN = LEAK.replace("losses.append(loss)", "total = total + loss")


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (LEAK, "those of 5 earlier ones are still alive, and hold at least 2 kB of saved tensors"),
        (CHAIN, "at the end of pass 6 they hold at least 2 kB of saved tensors"),
        (LEAK.replace("retain_graph=True", ""), "those of 5 earlier ones are still alive\n"),
    ],
)
def test_the_finding_says_it(program: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leak.py").write_text(program)
    invoked(["trace", "--engine", "numpy", "leak.py"])
    done = invoked(["check", "--select", "graph-leak", "--format", "json", "leak.gradviz"])
    assert text.strip() in done.stdout
    assert ("hold at least" in done.stdout) == ("hold" in text)
