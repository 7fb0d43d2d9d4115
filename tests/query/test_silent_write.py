"""A tensor that backward uses with other values than forward did: both values are shown, in words and in pictures."""

from __future__ import annotations

from pathlib import Path

import pytest

import gradviz
from gradviz.graph.build import build
from gradviz.pictures.node_text import lines_of
from gradviz.pictures.textbook import textbook
from gradviz.query import Query
from gradviz.query.writes import silent_writes
from gradviz.sources.script import Target, run
from gradviz.tracefile import Trace, open_trace
from gradviz.words.words import Words

PROGRAM = """import gradviz.engine as torch
w = torch.tensor([1.0, 5.0], requires_grad=True)
loss = (w * w).sum()
w.data[0] = 100.0
loss.backward()
"""


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    source, path = tmp_path / "p.py", tmp_path / "p.gradviz"
    source.write_text(PROGRAM)
    assert run(Target(str(source), False, []), path).status == 0
    return open_trace(path)


def test_the_finding_has_the_value_of_forward_and_that_of_backward(trace: Trace) -> None:
    (finding,) = gradviz.check(trace)
    assert finding.rule == "silent-write"
    assert "it was [1, 5] in the forward that made MulBackward0 (line 3)" in finding.message
    assert "its backward computes with [100, 5]" in finding.message


def test_the_box_of_the_tensor_has_both_values(trace: Trace) -> None:
    (leaf,) = [node for node in build(trace).nodes.values() if node.name == "w"]
    lines = [text for _, text in lines_of(leaf, "both")]
    assert "[2] = [1, 5]" in lines
    assert "in backward [100, 5]" in lines
    assert ".grad = [200, 10]" in lines


def test_a_textbook_has_both_values(trace: Trace) -> None:
    scene = textbook(Words(trace), build(trace))
    assert any("w = [1, 5] → [100, 5] in backward" in text for t in scene.things.values() for _, text in t.lines)


def test_a_program_that_writes_nothing_unseen_has_none(tmp_path: Path) -> None:
    source, path = tmp_path / "p.py", tmp_path / "p.gradviz"
    source.write_text(PROGRAM.replace("w.data[0] = 100.0\n", ""))
    run(Target(str(source), False, []), path)
    with open_trace(path) as opened:
        assert silent_writes(Query(opened)) == []
