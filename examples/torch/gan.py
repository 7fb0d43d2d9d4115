"""Two networks against one another, each with its optimizer."""

import torch
from torch import nn

torch.manual_seed(0)
G = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 2))
D = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
of_G = torch.optim.Adam(G.parameters(), lr=1e-3)
of_D = torch.optim.Adam(D.parameters(), lr=1e-3, foreach=True)
judge = nn.BCEWithLogitsLoss()
real = torch.randn(16, 2) * 0.5 + 1

for step in range(4):
    fake = G(torch.randn(16, 2))
    loss_D = judge(D(real), torch.ones(16, 1)) + judge(D(fake.detach()), torch.zeros(16, 1))
    of_D.zero_grad()
    loss_D.backward()
    of_D.step()

    loss_G = judge(D(fake), torch.ones(16, 1))
    of_G.zero_grad()
    loss_G.backward()
    of_G.step()
    print(f"step {step}: D {loss_D.item():.9f}, G {loss_G.item():.9f}")
