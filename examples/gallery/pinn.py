"""A network that is physics-informed: u'' = -u, u(0) = 0, u'(0) = 1."""

import torch
from torch import nn

torch.manual_seed(0)


class FCN(nn.Module):
    def __init__(self, width=16, layers=3):
        super().__init__()
        self.start = nn.Sequential(nn.Linear(1, width), nn.Tanh())
        self.hidden = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers - 1)])
        self.end = nn.Linear(width, 1)

    def forward(self, x):
        return self.end(self.hidden(self.start(x)))


pinn = FCN()
boundary = torch.tensor([[0.0]], requires_grad=True)
physics = torch.linspace(0, 6, 30).view(-1, 1).requires_grad_(True)
optimizer = torch.optim.Adam(pinn.parameters(), lr=1e-3)
for _ in range(5):
    optimizer.zero_grad()
    u = pinn(boundary)
    dudt = torch.autograd.grad(u, boundary, torch.ones_like(u), create_graph=True)[0]
    loss1 = torch.squeeze(u) ** 2 + (torch.squeeze(dudt) - 1) ** 2
    u = pinn(physics)
    dudt = torch.autograd.grad(u, physics, torch.ones_like(u), create_graph=True)[0]
    d2udt2 = torch.autograd.grad(dudt, physics, torch.ones_like(dudt), create_graph=True)[0]
    loss2 = torch.mean((d2udt2 + u) ** 2)
    loss = loss1 + 1e-1 * loss2
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
