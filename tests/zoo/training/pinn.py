"""A network that solves a differential equation: its loss has derivatives of the network."""

import itertools

import torch
import torch.nn as nn


class PINN(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.linears = nn.ModuleList([nn.Linear(a, b) for a, b in itertools.pairwise(layers)])
        for linear in self.linears:
            nn.init.xavier_normal_(linear.weight)

    def forward(self, t):
        for linear in self.linears[:-1]:
            t = torch.tanh(linear(t))
        return self.linears[-1](t)


def gradient(u, t):
    return torch.autograd.grad(u, t, grad_outputs=torch.ones_like(u), create_graph=True)[0]


def residual(model, t):
    u = model(t)
    u_t = gradient(u, t)
    u_tt = gradient(u_t, t)
    return u_tt + u


def main():
    torch.manual_seed(0)
    model = PINN([1, 12, 12, 1])
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    t0 = torch.zeros(1, 1, requires_grad=True)
    for epoch in range(8):
        t = torch.rand(24, 1) * 3
        t.requires_grad_(True)
        loss_eq = residual(model, t).pow(2).mean()
        u0 = model(t0)
        loss_ic = (u0 - 1).pow(2).mean() + gradient(u0, t0).pow(2).mean()
        loss = loss_eq + 10 * loss_ic
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(epoch, loss.item())


main()
