"""Small programs whose passes run again, each hard for a replay in a way of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import gradviz


def recorded(path: Path, program: Callable[[], object], values: str = "inputs") -> Path:
    """Record a program into a file, so that its passes can run again."""
    with gradviz.record(path, values=values):
        program()
    return path


class Double(torch.autograd.Function):
    """A function of the program's own: no replay can call it."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return 2 * gradient


def views_and_writes() -> None:
    w = torch.arange(6.0, requires_grad=True)
    b = (w * 2).view(2, 3)
    row = b[0]
    row.mul_(3)
    b[1, 2] = 7.0
    b.t().add_(1)
    loss = (b * row.sum()).sum()
    loss.backward()


def hidden_state() -> None:
    torch.manual_seed(0)
    cell, h = torch.nn.GRUCell(4, 5), torch.zeros(2, 5)
    for _ in range(3):
        h = cell(torch.randn(2, 4), h.detach())
        h.sum().backward()


def two_losses_of_one_trunk() -> None:
    torch.manual_seed(0)
    trunk = torch.nn.Linear(4, 4)
    h = trunk(torch.randn(2, 4)).tanh()
    h.sum().backward(retain_graph=True)
    (h**2).sum().backward()


def hand_written_update() -> None:
    w = torch.ones(3, requires_grad=True)
    for _ in range(3):
        (w**2).sum().backward()
        w.data.sub_(w.grad * 0.1)
        w.grad = None


def in_bfloat16() -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 4)
    with torch.autocast("cpu", torch.bfloat16):
        loss = net(torch.randn(3, 8)).relu().sum()
    loss.backward()


def a_part_of_a_data_set() -> None:
    torch.manual_seed(0)
    data, w = torch.randn(30, 4), torch.randn(4, requires_grad=True)
    for _ in range(2):
        chosen = data[torch.randperm(30)[:5]]
        (chosen * w).sum().backward()


def filled_through_data() -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 2)
    torch.nn.init.normal_(net.weight.data, 0.0, 0.1)
    net.bias.data.uniform_(-1, 1)
    net(torch.randn(4, 3)).square().sum().backward()


def gradient_penalty() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    x = torch.randn(5, 3, requires_grad=True)
    (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    ((slope.norm(dim=1) - 1) ** 2).mean().backward()


def sample_of_a_distribution() -> None:
    torch.manual_seed(0)
    mean = torch.zeros(40, requires_grad=True)
    torch.distributions.Normal(mean, mean.exp()).rsample().square().sum().backward()


PROGRAMS = {
    views_and_writes: 1, hidden_state: 3, two_losses_of_one_trunk: 2, hand_written_update: 3, in_bfloat16: 1,
    a_part_of_a_data_set: 2, filled_through_data: 1, gradient_penalty: 2, sample_of_a_distribution: 1,
}  # fmt: skip
