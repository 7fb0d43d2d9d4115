"""An op has the name by which the program calls it, on both engines; what PyTorch computes as one function of several
nodes is several ops of gradviz's engine."""

from pathlib import Path
from typing import Any

import pytest

import gradviz.engine
from gradviz import record
from gradviz.events.kinds import Kind
from gradviz.tracefile import open_trace

torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")

pytestmark = pytest.mark.torch

CALLS = """
x[0] | x[1, :] | x[:, 1] | x[:, 1:3] | x[:, ::2] | x[rows] | x[x > 0.5] | x[None] | x[..., None] | x.view(4, 3)
x.view(-1) | x.reshape(2, 6) | x.flatten() | q.flatten(1) | x.T | x.mT | x.t() | q.transpose(0, 1) | q.permute(2, 0, 1)
x.chunk(2, 1) | x.split(2, 1) | x.split([1, 3], 1) | x.unbind(0) | x.unsqueeze(0) | x.expand(2, 3, 4)
x + 1 | 1 - x | x ** 2 | x @ w | x.sum(0) | x.mean() | x.exp() | x.clamp(min=0.2) | x.softmax(1) | x.relu()
""".replace("\n", "|").split("|")


def ops(t: Any, call: str, path: Path) -> list[str]:
    known = {
        "x": t.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8], [0.9, 0.8, 0.7, 0.6]], requires_grad=True),
        "q": t.ones(2, 3, 4), "w": t.ones(4, 2), "rows": t.tensor([0, 2]),
    }  # fmt: skip
    with record(path):
        exec(f"z = {call}", known)
    with open_trace(path) as trace:
        return [trace.text(op) for op in trace.table(Kind.OP)["op"]]


@pytest.mark.parametrize("call", [call.strip() for call in CALLS if call.strip()])
def test_both_engines_name_an_op_as_the_program_calls_it(call: str, tmp_path: Path) -> None:
    assert ops(gradviz.engine, call, tmp_path / "ours.gradviz") == ops(torch, call, tmp_path / "theirs.gradviz")
