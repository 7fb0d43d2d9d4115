"""A normalising flow of affine couplings, by maximum likelihood."""

import math

import torch
from torch import nn


class Coupling(nn.Module):
    def __init__(self, flip, hidden=16):
        super().__init__()
        self.flip = flip
        self.inner = nn.Linear(1, hidden)
        self.scale = nn.Linear(hidden, 1)
        self.shift = nn.Linear(hidden, 1)
        nn.init.zeros_(self.scale.bias)

    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        if self.flip:
            a, b = b, a
        h = torch.tanh(self.inner(a))
        s = self.scale(h)
        t = self.shift(h)
        s = torch.tanh(s)
        b = b * s.exp() + t
        out = torch.cat([b, a], 1) if self.flip else torch.cat([a, b], 1)
        return out, s.sum(1)


class Flow(nn.Module):
    def __init__(self, depth=4):
        super().__init__()
        self.layers = nn.ModuleList([Coupling(flip=bool(i % 2)) for i in range(depth)])

    def log_prob(self, x):
        log_det = torch.zeros(len(x))
        for layer in self.layers:
            x, ld = layer(x)
            log_det = log_det + ld
        base = -0.5 * (x.pow(2) + math.log(2 * math.pi)).sum(1)
        return base + log_det


def moons(n):
    angle = torch.rand(n) * math.pi
    side = torch.randint(0, 2, (n,)).float()
    x = torch.stack([angle.cos() + side, angle.sin() * (1 - 2 * side)], 1)
    return x + 0.05 * torch.randn(n, 2)


torch.manual_seed(0)
flow = Flow()
optimizer = torch.optim.Adam(flow.parameters(), lr=5e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)
for epoch in range(10):
    loss = -flow.log_prob(moons(32)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if epoch % 3 == 0:
        with torch.no_grad():
            held = -flow.log_prob(moons(64)).mean()
        print(epoch, loss.item(), held.item())
