"""A neural ODE by Runge-Kutta steps, fitted to a spiral; a penalty on the speed."""

import itertools

import torch
import torch.nn as nn


class Dynamics(nn.Module):
    def __init__(self, hidden=20):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 2))
        for m in self.net.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, mean=0, std=0.2)
                nn.init.constant_(m.bias, val=0)

    def forward(self, t, y):
        return self.net(y)


def rk4(f, y, t, dt):
    k1 = f(t, y)
    k2 = f(t + dt / 2, y + dt / 2 * k1)
    k3 = f(t + dt / 2, y + dt / 2 * k2)
    k4 = f(t + dt, y + dt * k3)
    return y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4), k1


def odeint(f, y, times):
    path, speed = [y], 0.0
    for t0, t1 in itertools.pairwise(times):
        y, velocity = rk4(f, y, t0, t1 - t0)
        speed = speed + velocity.pow(2).mean()
        path.append(y)
    return torch.stack(path), speed


torch.manual_seed(0)
times = torch.linspace(0, 1, 6)
matrix = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])
start = torch.randn(8, 2)
true = torch.stack([start @ torch.matrix_exp(matrix * t).t() for t in times])
func = Dynamics()
optimizer = torch.optim.RMSprop(func.parameters(), lr=3e-3)
for itr in range(12):
    optimizer.zero_grad()
    pred, speed = odeint(func, start, times)
    loss = torch.mean(torch.abs(pred - true)) + 1e-4 * speed
    loss.backward()
    optimizer.step()
    if itr % 4 == 0:
        print(itr, f"{loss.item():.4f}")
