"""Traces of many ranks, made by one process: `python -m tests.ranks.many_ranks FOLDER COUNT [RANK]`. The ranks train
one after another; what they average is computed before, in one network. With RANK, the optimizer of that rank has
another learning rate."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import gradviz

STEPS = 6


class KnownSums(dist.ProcessGroup):
    """A group whose `all_reduce` gives the sums that are known already, in their order."""

    def __init__(self, rank: int, world: int, sums: Iterator[torch.Tensor]) -> None:
        super().__init__(rank, world)
        self.sums = sums

    def getBackendName(self) -> str:
        return "known_sums"

    def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> Any:
        for tensor in tensors:
            tensor.copy_(next(self.sums))
        done: Any = torch.futures.Future()
        done.set_result(tensors)
        return torch._C._distributed_c10d._create_work_from_future(done)


def model() -> nn.Sequential:
    """The network that each rank begins with."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def batch(rank: int, step: int) -> torch.Tensor:
    """The data of a rank for a step."""
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + rank))


def summed_gradients(world: int) -> list[torch.Tensor]:
    """The sum over all ranks of each gradient, in the order in which the ranks ask for them."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    sums = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(world):
            net(batch(rank, step)).pow(2).mean().backward()
        for p in net.parameters():
            sums.append(p.grad.clone())
            p.grad /= world
        optimizer.step()
    return sums


def train(rank: int, world: int, lr: float) -> None:
    """What each rank runs."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for step in range(STEPS):
        optimizer.zero_grad()
        net(batch(rank, step)).pow(2).mean().backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()


def main(folder: Path, world: int, apart: int = -1) -> None:
    """Record all ranks."""
    torch.set_num_threads(1)
    sums = summed_gradients(world)
    dist.Backend.register_backend(
        "known_sums", lambda store, rank, size, timeout: KnownSums(rank, size, iter(sums)), devices=["cpu"]
    )
    for rank in range(world):
        dist.init_process_group("known_sums", store=dist.HashStore(), rank=rank, world_size=world)
        with gradviz.record(folder / f"train.rank{rank}.gradviz"):
            train(rank, world, 0.2 if rank == apart else 0.1)
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
