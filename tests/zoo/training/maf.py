"""A masked autoregressive flow with batch permutations: likelihood by the sum of log determinants."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class MaskedLinear(nn.Linear):
    def __init__(self, n_in, n_out, mask):
        super().__init__(n_in, n_out)
        self.register_buffer("mask", mask)

    def forward(self, x):
        return F.linear(x, self.weight * self.mask, self.bias)


class MADE(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        order, degree = torch.arange(dim), torch.arange(hidden) % (dim - 1)
        first = (degree[:, None] >= order[None, :]).float()
        second = (order[:, None] > degree[None, :]).float()
        self.inner = MaskedLinear(dim, hidden, first)
        self.shift = MaskedLinear(hidden, dim, second)
        self.log_scale = MaskedLinear(hidden, dim, second)

    def forward(self, x):
        h = torch.relu(self.inner(x))
        shift = self.shift(h)
        log_scale = torch.tanh(self.log_scale(h))
        return (x - shift) * torch.exp(-log_scale), -log_scale.sum(-1)


class Flow(nn.Module):
    def __init__(self, dim, hidden, depth):
        super().__init__()
        self.steps = nn.ModuleList([MADE(dim, hidden) for _ in range(depth)])

    def log_prob(self, x):
        total = torch.zeros(len(x))
        for made in self.steps:
            x, log_det = made(x)
            total = total + log_det
            x = x.flip(-1)
        base = -0.5 * (x**2).sum(-1) - 0.5 * x.shape[-1] * math.log(2 * math.pi)
        return base + total


def sample_batch(n):
    z = torch.randn(n, 3)
    return torch.stack([z[:, 0], 0.5 * z[:, 0] ** 2 + 0.5 * z[:, 1], z[:, 2] + z[:, 0]], 1)


def main(steps=20):
    torch.manual_seed(0)
    flow = Flow(3, 16, 3)
    optimizer = torch.optim.Adam(flow.parameters(), lr=5e-3)
    for step in range(steps):
        x = sample_batch(64)
        loss = -flow.log_prob(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(step, round(loss.item(), 4))


main()
