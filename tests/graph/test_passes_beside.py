"""Two passes of one run in one picture."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradviz.graph.build import build
from gradviz.graph.joined import beside, passes_beside
from gradviz.graph.model import Graph
from gradviz.pictures.layout import dot_of
from gradviz.pictures.scene import scene_of
from gradviz.query import Query
from gradviz.sources.script import Target, run
from gradviz.tracefile import open_trace
from tests.invoked import invoked

PROGRAM = """\
import torch
for start in (0.5, 1.5):
    x = torch.full((2,), start, requires_grad=True)
    y = x + 1 if start < 1 else x
    (y * 2).sum().backward()
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    source, path = tmp_path / "loop.py", tmp_path / "loop.gradviz"
    source.write_text(PROGRAM)
    assert run(Target(str(source), False, []), path, engine="numpy").status == 0
    return path


def both(path: Path) -> Graph:
    with open_trace(path) as trace:
        return passes_beside([build(Query(trace), number) for number in (1, 2)])


def test_each_pass_has_its_own_operations(trace: Path) -> None:
    graph = both(trace)
    ops = {
        scope: sorted(node.op for node in graph.nodes.values() if node.kind == "op" and node.scope == scope)
        for scope in ("pass 1", "pass 2")
    }
    assert ops == {"pass 1": ["add", "mul", "sum"], "pass 2": ["mul", "sum"]}


def test_nothing_of_one_pass_is_counted_as_outside_because_of_the_other(trace: Path) -> None:
    graph = both(trace)
    assert graph.left_out == 0
    assert graph.run() == "passes 1 and 2 of 2"


def test_each_line_of_a_picture_side_by_side_ends_at_boxes_of_it(trace: Path) -> None:
    with open_trace(trace) as recorded:
        one = build(Query(recorded), 1)
    for graph in (both(trace), beside([one, one], ["a", "b"])):
        dot = dot_of(scene_of(graph))
        boxes = set(re.findall(r"^\s*\"?(\w+)\"? \[label=", dot, re.MULTILINE))
        ends = re.findall(r"^\s*([\w:\"]+) -> ([\w:\"]+) \[", dot, re.MULTILINE)
        assert len(boxes) == len(graph.nodes)
        assert len(ends) >= len(graph.edges)
        assert {end.strip('"') for pair in ends for end in pair} <= boxes


def test_the_command_draws_two_passes(trace: Path) -> None:
    done = invoked(["graph", str(trace), "--pass", "1", "--pass", "2", "-o", str(trace.with_suffix(".dot"))])
    assert "passes 1 and 2 of 2" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-o", "both.html"], "a page has the other passes"),
        (["--style", "textbook", "-o", "both.dot"], "draws one pass"),
    ],
)
def test_where_two_passes_cannot_be_drawn_one_line_says_so(trace: Path, options: list[str], message: str) -> None:
    done = invoked(["graph", str(trace), "--pass", "1", "--pass", "2", *options])
    assert done.exit_code == 2
    assert message in done.stderr
