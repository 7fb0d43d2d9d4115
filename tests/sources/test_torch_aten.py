"""`--aten`: the ops that PyTorch's ops, nodes and optimizers are made of are told, and nothing else changes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.events.kinds import KernelRan, Kind, NodeMade, Stepped  # noqa: E402
from gradviz.tracefile import Trace  # noqa: E402
from gradviz.words import Stop, Words  # noqa: E402
from gradviz.words.sentences import sentence  # noqa: E402

pytestmark = pytest.mark.torch

PROGRAM = """
import threading
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
x = torch.randn(16, 4)
for _ in range(2):
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
grad, = torch.autograd.grad(net[0].weight.exp().sum(), net[0].weight, create_graph=True)
grad.sum().backward()
worker = threading.Thread(target=lambda: (net(x) * 2).sum().backward())
worker.start()
worker.join()
print(loss.item().hex(), torch.rand(2).tolist(), [p.sum().item().hex() for p in net.parameters()])
"""


@pytest.fixture
def traced(tmp_path: Path, gradviz_here: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., Trace]:
    """The trace of a program, with options."""

    def run(*options: str, name: str = "run") -> Trace:
        (tmp_path / "program.py").write_text(PROGRAM)
        done = gradviz_here("trace", *options, "-o", f"{name}.gradviz", "program.py")
        assert done.returncode == 0, done.stderr
        (tmp_path / f"{name}.txt").write_text(done.stdout)
        return gradviz.open(tmp_path / f"{name}.gradviz")

    return run


def test_all_else_is_as_without(
    traced: Callable[..., Trace], tmp_path: Path, gradviz_here: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    with traced() as plain, traced("--aten", name="aten") as trace:
        assert (tmp_path / "run.txt").read_text() == (tmp_path / "aten.txt").read_text()
        kernels = trace.kinds == Kind.KERNEL
        assert kernels.sum() > 200
        assert trace.kinds[~kernels].tolist() == plain.kinds.tolist()
    graphs = []
    for name in ("run", "aten"):
        assert gradviz_here("graph", f"{name}.gradviz", "--pass", 1, "-o", f"{name}.json").returncode == 0
        graph = json.loads((tmp_path / f"{name}.json").read_text())
        graphs.append([sorted(str(node.get("label")) for node in graph["nodes"]), len(graph["edges"])])
    assert graphs[0] == graphs[1]


def test_they_are_told_below_ops_in_nodes_and_in_optimizers(traced: Callable[..., Trace]) -> None:
    with traced("--aten") as trace:
        words = Words(trace)
        found = [event for event in trace if isinstance(event, KernelRan)]
        at = next(at for at, event in enumerate(found) if event.op == "addmm")
        first, second = found[at - 1], found[at]
        assert (first.op, first.args, first.result, first.node) == ("t", "float32[8, 4]", "float32[4, 8]", 0)
        assert (second.op, second.result) == ("addmm", "float32[16, 8]")
        weight, bias = (t for t, name in trace.parameters.items() if name in ("net.0.weight", "net.0.bias"))
        assert first.inputs == (weight,)
        assert second.inputs[0] == bias
        names = {event.node: event.grad_fn for event in trace if isinstance(event, NodeMade)}
        inside = [event for event in found if event.node and event.in_pass]
        assert {"NativeLayerNormBackward0", "AddmmBackward0", "ReluBackward0"} <= {names.get(e.node) for e in inside}
        (normed, *_) = (event for event in inside if event.op == "native_layer_norm_backward")
        assert sentence(Stop(words, normed.index)).startswith(
            "NativeLayerNormBackward0: aten native_layer_norm_backward(float32[16, 8], float32[16, 8], [8], "
        )
        steps = [event.index for event in trace if isinstance(event, Stepped)]
        assert any(
            event.op.startswith("_foreach_") or event.op.startswith("add") for event in found if event.index > steps[0]
        )
        assert len({event.thread for event in found}) == 2


def test_no_mode_stays_on(tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "run.gradviz", aten=True):
        torch.ones(3, requires_grad=True).exp().sum().backward()
    assert torch._C._len_torch_dispatch_stack() == 0
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        count = trace.count
        assert any(isinstance(event, KernelRan) and event.op == "exp" for event in trace)
    torch.ones(3).exp()
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        assert trace.count == count
