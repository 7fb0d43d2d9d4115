"""What is wrong between the ranks of one run: each fault in real processes, beside its healthy twin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,  # two processes for each, each of which imports PyTorch
    pytest.mark.skipif(
        not torch.distributed.is_available(), reason="PyTorch was built without torch.distributed"
    ),
]

PROGRAM = """\
import sys
import torch
import torch.distributed as dist
from torch import nn
torch.set_num_threads(1)
mode = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank if mode == "other start" else 0)
net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
if mode in ("wrapped", "inner module", "no_sync"):
    net = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
torch.manual_seed(rank + 1)
for step in range(2 if mode == "fewer steps" and rank else 3):
    x = torch.randn(4, 3)
    optimizer.zero_grad()
    if mode == "no_sync":
        with net.no_sync():
            net(x).pow(2).mean().backward()
    else:
        (net.module if mode == "inner module" else net)(x).pow(2).mean().backward()
    for number, p in enumerate(net.parameters()):
        alone = (mode == "fewer steps" and step == 2) or (mode == "partly" and number == 2)
        if mode in ("averaged by hand", "other start", "partly", "fewer steps") and not alone:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
    optimizer.step()
dist.destroy_process_group()
"""

FAULTS = {
    "not wrapped": ("ranks-unreduced", "DistributedDataParallel(model)"),
    "inner module": ("ranks-unreduced", "call net and not net.module"),
    "no_sync": ("ranks-unreduced", "outside of net.no_sync()"),
    "other start": ("ranks-start", "torch.manual_seed(0)"),
    "partly": ("ranks-apart", "dist.all_reduce(p.grad"),
    "fewer steps": ("ranks-steps", "DistributedSampler"),
}


def checked(mode: str, folder: Path) -> list[dict[str, object]]:
    """What is found in a run of two ranks."""
    (folder / "train.py").write_text(PROGRAM)
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        "2",
        "-m",
        "gradviz",
        "trace",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*launch, "train.py", mode]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    told = subprocess.run(
        [sys.executable, "-m", "gradviz", "check", ".", "--format", "json"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    return json.loads(told.stdout)["findings"]


@pytest.mark.parametrize("mode", FAULTS)
def test_a_fault_between_ranks_is_named(mode: str, tmp_path: Path) -> None:
    rule, cure = FAULTS[mode]
    (found,) = checked(mode, tmp_path)
    assert found["rule"] == rule
    assert cure in str(found["fix"])
    assert found["line"]


@pytest.mark.parametrize("mode", ["wrapped", "averaged by hand"])
def test_a_healthy_run_of_ranks_is_not_accused(mode: str, tmp_path: Path) -> None:
    assert checked(mode, tmp_path) == []


def test_the_first_collective_that_is_not_the_same_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os\n"
        "import torch\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "dist.all_reduce(torch.ones(2))\n"
        "some = dist.new_group([0])\n"
        "dist.all_reduce(torch.ones(5 + int(os.environ['RANK'])), group=some)\n"
        "dist.all_reduce(torch.ones(2 + int(os.environ['RANK'])))\n"
        "dist.destroy_process_group()\n"
    )
    for rank in ("0", "1"):  # each is a group of its own: with one another they would hang
        environment = {**os.environ, "RANK": rank, "WORLD_SIZE": "2"}
        command = [sys.executable, "-m", "gradviz", "trace", "train.py"]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    told = subprocess.run(
        [sys.executable, "-m", "gradviz", "check", ".", "--select", "ranks-collectives", "--format", "json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    (found,) = json.loads(told.stdout)["findings"]
    assert found["line"] == 8
    assert "collective 2 is not the same on all ranks" in found["message"]
    assert "shape (2,) on rank 0, all_reduce of shape (3,) on rank 1" in found["message"]
