"""Several processes that train one model: each rank is recorded, and computes what it computes untraced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.events.kinds import Accumulated, ScopeEntered  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,  # five processes, each of which imports PyTorch
    pytest.mark.skipif(
        not torch.distributed.is_available(), reason="PyTorch was built without torch.distributed"
    ),
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


def launched(folder: Path, *program: str) -> list[list[str]]:
    """Run a program on two ranks; returns the losses and weights of each."""
    (folder / "train.py").write_text(TRAIN)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1", *program,
    ]  # fmt: skip
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": loopback, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        try:
            printed, _ = running.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            running.terminate()  # it ends its ranks then
            raise
    assert running.returncode == 0, printed
    return [(folder / f"rank{rank}.txt").read_text().split() for rank in range(2)]


def test_each_rank_writes_its_trace_and_trains_as_untraced(tmp_path: Path) -> None:
    plain = launched(tmp_path, "train.py")
    traced = launched(tmp_path, "-m", "gradviz", "trace", "--values", "full", "train.py")
    assert traced == plain
    assert plain[0][:3] != plain[1][:3]  # each has its own batches
    assert plain[0][3:] == plain[1][3:]  # and all have the same weights
    assert sorted(path.name for path in tmp_path.glob("*.gradviz")) == [
        "train.rank0.gradviz",
        "train.rank1.gradviz",
    ]
    for rank in range(2):
        with gradviz.open(tmp_path / f"train.rank{rank}.gradviz") as trace:
            assert trace.meta["ended"] == "ok"
            assert len(trace.passes) == 3
            events = list(trace)
            scopes = [event.type for event in events if isinstance(event, ScopeEntered)]
            assert scopes.count("DistributedDataParallel") == 3
            assert len([event for event in events if isinstance(event, Accumulated)]) == 12
