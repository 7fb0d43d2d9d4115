"""The generator never learns: what it made is detached before its own loss, too."""

import gradviz.engine as torch
from gradviz.engine import nn

torch.manual_seed(0)
G = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
D = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
loss_of = nn.BCEWithLogitsLoss()
real, ones, zeros = torch.randn(16, 2) + 3, torch.ones(16, 1), torch.zeros(16, 1)

fake = G(torch.randn(16, 2))
loss_d = loss_of(D(real), ones) + loss_of(D(fake.detach()), zeros)
loss_d.backward()
loss_g = loss_of(D(fake.detach()), ones)
loss_g.backward()
