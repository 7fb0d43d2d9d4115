"""Several processes that train one model: each rank is recorded, and computes what it computes untraced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.cli.common import all_opened  # noqa: E402
from gradviz.events.kinds import Accumulated, Mutated, OpRan, ScopeEntered  # noqa: E402
from gradviz.query import Query  # noqa: E402
from gradviz.query.replicas import Difference, Replicas  # noqa: E402
from gradviz.sources.torch_recorder.collectives import WRITTEN  # noqa: E402
from tests.warm import python  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,  # many processes, each of which imports PyTorch
    pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch was built without torch.distributed"),
]

TRAIN = """\
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
torch.manual_seed(rank)
losses = []
for step in range(3):
    loss = net(torch.randn(4, 3)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
weights = [weight.hex() for p in net.parameters() for weight in p.flatten().tolist()]
with open(f"rank{rank}.txt", "w") as file:
    file.write(" ".join([*losses, *weights]))
dist.destroy_process_group()
"""


SHARDED = """\
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
torch.manual_seed(rank)
losses = []
for step in range(2):
    loss = net(torch.randn(4, 3)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
weights = [weight.hex() for p in net.parameters() for weight in p.full_tensor().flatten().tolist()]
with open(f"rank{rank}.txt", "w") as file:
    file.write(" ".join([*losses, *weights]))
dist.destroy_process_group()
"""
BY_HAND = """\
from datetime import timedelta

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank = dist.get_rank()
a = torch.ones(2, requires_grad=True)
b = torch.ones(2, requires_grad=True)
start = torch.full((2,), float(rank))
dist.broadcast(start, src=1)
parts = [torch.zeros(2) for _ in range(2)]
dist.all_gather(parts, start + rank)
optimizer = torch.optim.SGD([a, b], lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    ((a + b) * (rank + 1) * start).sum().backward()
    dist.all_reduce(a.grad)
    if step == 0:
        dist.all_reduce(b.grad, op=dist.ReduceOp.SUM)  # and forgotten later
    optimizer.step()
work = dist.all_reduce(torch.ones(3), async_op=True)
work.wait()
with open(f"rank{rank}.txt", "w") as file:
    file.write(" ".join(value.hex() for t in (a, b, *parts) for value in t.tolist()))
dist.destroy_process_group()
"""


# What gloo prints when it aborts a process that has finished, now and then, traced or not (pytorch issue 190489).
ABORTED_AT_EXIT = "terminate called without an active exception"


def launched(folder: Path, *program: str, script: str = TRAIN) -> list[list[str]]:
    """Run a program on two ranks; returns the losses and weights of each."""
    (folder / "train.py").write_text(script)
    for _ in range(5):
        status, printed = torchrun(folder, *program)
        if status == 0 or ABORTED_AT_EXIT not in printed:
            break
    assert status == 0, printed
    return [(folder / f"rank{rank}.txt").read_text().split() for rank in range(2)]


def torchrun(folder: Path, *program: str) -> tuple[int, str]:
    """Run a program on two ranks; returns the exit status and what they printed."""
    command = [
        python(), "-m", "torch.distributed.run", "--nproc_per_node", "2", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1", *program,
    ]  # fmt: skip
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    environment = {**os.environ, "PYTHON_EXEC": python(), "GLOO_SOCKET_IFNAME": loopback, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        try:
            printed, _ = running.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            running.terminate()  # it ends its ranks then
            raise
    return running.returncode, printed


def test_each_rank_writes_its_trace_and_trains_as_untraced(
    tmp_path: Path, gradviz_here: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    plain = launched(tmp_path, "train.py")
    traced = launched(tmp_path, "-m", "gradviz", "trace", "--values", "full", "train.py")
    assert traced == plain
    assert plain[0][:3] != plain[1][:3]  # each has its own batches
    assert plain[0][3:] == plain[1][3:]  # and all have the same weights
    assert sorted(path.name for path in tmp_path.glob("*.gradviz")) == ["train.rank0.gradviz", "train.rank1.gradviz"]
    for rank in range(2):
        with gradviz.open(tmp_path / f"train.rank{rank}.gradviz") as trace:
            assert trace.meta["ended"] == "ok"
            assert len(trace.passes) == 3
            events = list(trace)
            scopes = [event.type for event in events if isinstance(event, ScopeEntered)]
            assert scopes.count("DistributedDataParallel") == 3
            assert len([event for event in events if isinstance(event, Accumulated)]) == 12
            averaged = [event for event in events if isinstance(event, Mutated) and event.how == "all_reduce"]
            assert [event.in_pass for event in averaged] == 4 * [1] + 4 * [2] + 4 * [3]
    with opened(tmp_path) as traces:
        assert differences(traces) == []
    checked = gradviz_here("check", ".", "--format", "json")
    assert json.loads(checked.stdout)["findings"] == []
    assert checked.returncode == 0


def differences(traces: list[Any]) -> list[Difference]:
    """The parameters whose gradients are not the same on all ranks."""
    return Replicas({rank: Query(trace) for rank, trace in enumerate(traces)}).differences


def opened(folder: Path) -> Any:
    """The traces of both ranks."""
    return all_opened(tuple(folder / f"train.rank{rank}.gradviz" for rank in range(2)))


@pytest.mark.skipif(
    torch.__version__.startswith("2.5."),
    reason=f"PyTorch {torch.__version__} has no torch.distributed.fsdp.fully_shard",
)
def test_shards_train_as_untraced(
    tmp_path: Path, gradviz_here: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    plain = launched(tmp_path, "train.py", script=SHARDED)
    traced = launched(tmp_path, "-m", "gradviz", "trace", "train.py", script=SHARDED)
    assert traced == plain
    assert plain[0][2:] == plain[1][2:]
    with opened(tmp_path) as traces:
        for trace in traces:
            ops = [event.op for event in trace if isinstance(event, OpRan)]
            assert any(op.startswith("reduce_scatter_") for op in ops)  # each version has its own name for it
            assert any(op.startswith("all_gather_") for op in ops)
            assert trace.meta["ended"] == "ok"
            assert len(trace.passes) == 2
        assert differences(traces) == []  # each rank has its own part
        wholes = Replicas({rank: Query(trace) for rank, trace in enumerate(traces)}).wholes
        weights = [float.fromhex(weight) for weight in plain[0][2:]]
        whole, gradient = wholes["net.0.weight"]
        assert whole.rms == pytest.approx((sum(weight**2 for weight in weights[:12]) / 12) ** 0.5)
        assert (whole.min, whole.max) == pytest.approx((min(weights[:12]), max(weights[:12])))
        assert gradient is not None
    found = json.loads(gradviz_here("check", "train.rank*.gradviz", "--format", "json").stdout)["findings"]
    assert found == []


def test_a_nan_of_another_rank_is_not_blamed_on_the_step(
    tmp_path: Path, gradviz_here: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    bad = "    x = torch.randn(4, 3)\n    if rank == 1 and step == 1:\n        x = torch.log(x - 10)\n"
    data = "    loss = net(torch.randn(4, 3)).pow(2).mean()\n"
    assert data in TRAIN
    script = TRAIN.replace(data, bad + "    loss = net(x).pow(2).mean()\n")
    launched(tmp_path, "-m", "gradviz", "trace", "train.py", script=script)
    found = json.loads(gradviz_here("check", "train.rank*.gradviz", "--format", "json").stdout)["findings"]
    assert [(one["rule"], one["ranks"], one["pass"]) for one in found] == [("nonfinite-forward", [1], 2)]
    alone = json.loads(gradviz_here("check", "train.rank0.gradviz", "--format", "json").stdout)["findings"]
    assert "finite on this rank, and NaN after all_reduce" in alone[0]["message"]
    assert alone[0]["fix"].endswith('gradviz check "train.rank*.gradviz"')
    told = " ".join(gradviz_here("check", "train.rank*.gradviz").stdout.split())
    assert "on rank 0, by all_reduce from rank 1: " in told
    assert found[0]["line"] == script.splitlines().index("        x = torch.log(x - 10)") + 1


def test_collectives_are_ops_and_a_gradient_that_differs_is_pointed_out(
    tmp_path: Path, gradviz_here: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    plain = launched(tmp_path, "train.py", script=BY_HAND)
    traced = launched(tmp_path, "-m", "gradviz", "trace", "train.py", script=BY_HAND)
    assert traced == plain
    with opened(tmp_path) as traces:
        for rank, trace in enumerate(traces):
            told = [e for e in trace if isinstance(e, OpRan) and e.op in WRITTEN]
            assert [(event.op, event.args) for event in told] == [
                ("broadcast", "src=1"), ("all_gather", ""), ("all_reduce", ""), ("all_reduce", "SUM"),
                ("all_reduce", ""), ("all_reduce", "async"),
            ]  # fmt: skip
            broadcast, gather, reduce, *_, late = told
            assert trace.snapshot(broadcast.outputs[0], broadcast.index).array.tolist() == [1, 1]
            gathered = [trace.snapshot(t, gather.index).array.tolist() for t in gather.outputs]
            assert gathered == [[1, 1], [2, 2]]
            assert reduce.inputs == reduce.outputs
            assert trace.snapshot(reduce.outputs[0], reduce.index).array.tolist() == [3, 3]
            assert trace.snapshot(late.outputs[0], late.index).array is None
            assert trace.sites[broadcast.site].place.line == 12
            assert (trace.meta["rank"], trace.meta["world"]) == (str(rank), "2")
        (found,) = differences(traces)
        assert (found.name, found.step, found.averaged) == ("b", 2, (False, False))
    files = ["train.rank0.gradviz", "train.rank1.gradviz"]
    said = gradviz_here("info", *files).stdout
    assert "the ranks differ ranks-apart: the gradient of b differs between the ranks at step 2" in said
    assert "not all-reduced" in said
    gradviz_here("graph", *files, "--pass", "2", "-o", "both.json")
    nodes = json.loads((tmp_path / "both.json").read_text())["nodes"]
    assert [node["name"] for node in nodes if ".grad" in node.get("ranks", ())] == ["b"]
    stepped = gradviz_here("step", *files, "--commands", "next-backward; next").stdout
    assert stepped.count("backward pass 1 of 2") == 4
