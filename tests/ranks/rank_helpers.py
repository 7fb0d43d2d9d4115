"""What the programs of several ranks share. It is a file of its own, and so is each program, since `check` reads all
sources that a trace has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

rank, world = 0, 1  # those of this process, once the group has been made
Net = Any


def model(seed: int = 0) -> Net:
    """A small network."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def batches(count: int = 3, seed: int | None = None) -> list[torch.Tensor]:
    """Data of this rank."""
    torch.manual_seed(rank + 1 if seed is None else seed)
    return [torch.randn(4, 3) for _ in range(count)]


def average(net: Net) -> None:
    """Average the gradients over the ranks."""
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world


def sgd(net: Net, lr: float = 0.1) -> Any:
    """An optimizer."""
    return torch.optim.SGD(net.parameters(), lr=lr)


def train(
    net: Net, optimizer: Any, data: list[torch.Tensor], before_step: Callable[[Net], None] = lambda net: None
) -> None:
    """Make a step for each batch."""
    for x in data:
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        before_step(net)
        optimizer.step()


def wrapped(net: Net, **settings: Any) -> Net:
    """A replica that averages its gradients."""
    return nn.parallel.DistributedDataParallel(net, **settings)
