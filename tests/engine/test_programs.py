"""Whole programs, unedited, against what PyTorch printed for them."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gradviz.engine.core.node import edge_node
from gradviz.engine.core.watched import WatchedPass
from gradviz.events.kinds import PassBegan
from gradviz.graph.build import build
from gradviz.graph.model import to_json
from gradviz.sources.script import Target, run
from gradviz.step.plain import script
from gradviz.step.state import Session
from gradviz.tracefile import open_trace
from tests.conftest import PROGRAMS

Run = Callable[..., subprocess.CompletedProcess[str]]
programs = pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)


def without_addresses(text: str) -> str:
    return re.sub(r" object at 0x[0-9a-f]+", "", text)


def expected_error(program: Path) -> str:
    path = program.with_suffix(".exc")
    return path.read_text().strip() if path.exists() else ""


def first_sentence(message: str) -> str:
    return re.split(r"(?<=[a-z)])\. |\n", message)[0].rstrip(".")


@pytest.mark.slow
@programs
def test_a_traced_program_prints_what_it_prints_with_pytorch(program: Path, gradviz: Run) -> None:
    done = gradviz("trace", "--engine", "numpy", program)
    assert without_addresses(done.stdout) == program.with_suffix(".out").read_text()
    error = expected_error(program)
    assert done.returncode == (1 if error else 0)
    if error:
        assert first_sentence(error) in done.stderr
    assert "gradviz: recorded" in done.stderr


@pytest.mark.torch
def test_the_expected_outputs_are_pytorchs_own() -> None:
    torch = pytest.importorskip("torch")
    assert torch.__version__.startswith("2.13.0")
    for program in PROGRAMS:
        out, error = io.StringIO(), ""
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                exec(compile(program.read_text(), str(program), "exec"), {"__name__": "__main__"})
            except RuntimeError as raised:
                error = f"{type(raised).__name__}: {raised}"
        assert without_addresses(out.getvalue()) == program.with_suffix(".out").read_text(), program
        assert first_sentence(error) == first_sentence(expected_error(program)), program


def walk(roots: list) -> tuple[Counter, Counter]:
    """The names of all nodes that the roots lead to, and of their edges, by way of `next_functions`."""
    seen = dict.fromkeys(roots)
    stack = list(seen)
    edges: Counter = Counter()
    while stack:
        node = stack.pop()
        for target, _ in node.next_functions:
            if target is not None:
                edges[node.label, target.label] += 1
                if target not in seen:
                    seen[target] = None
                    stack.append(target)
    return Counter(node.label for node in seen), edges


@programs
def test_the_backward_graph_of_each_pass_is_what_next_functions_gives(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    walked: list[tuple[Counter, Counter]] = []
    ordinary = WatchedPass.run

    def noted(self: WatchedPass) -> list:
        walked.append(walk([edge_node(edge) for edge in self.edges]))
        return ordinary(self)

    monkeypatch.setattr(WatchedPass, "run", noted)
    run(Target(str(program), False, ()), tmp_path / "run.gradviz")
    with open_trace(tmp_path / "run.gradviz") as trace:
        numbers = [event.number for event in trace if isinstance(event, PassBegan)]
        assert len(numbers) == len(walked)
        for number, (nodes, edges) in list(zip(numbers, walked, strict=True))[:12]:
            graph = json.loads(json.dumps(to_json(build(trace, number, show="backward"))))
            names = {node["id"]: node["grad_fn"] for node in graph["nodes"]}
            assert Counter(names.values()) == nodes
            assert Counter((names[e["source"]], names[e["target"]]) for e in graph["edges"]) == edges
            assert {edge["kind"] for edge in graph["edges"]} <= {"grad"}
    capfd.readouterr()


@pytest.mark.slow
@programs
def test_every_event_is_reached_forwards_and_backwards_in_the_same_state(
    program: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run(Target(str(program), False, ()), tmp_path / "run.gradviz")
    capfd.readouterr()
    with open_trace(tmp_path / "run.gradviz") as trace:
        count = min(trace.count, 300)
        forwards = described(script(Session(trace), ["next"] * (count - 1)))
        backwards = described(script(Session(trace, count - 1), ["back"] * (count - 1)))
        assert len(forwards) == count - 1
        assert forwards[:-1] == backwards[::-1][1:]


def described(pieces: Iterator[str]) -> list[str]:
    """What a script printed at each stop, without the commands themselves."""
    return [piece for piece in pieces if piece and not piece.startswith("> ")]
