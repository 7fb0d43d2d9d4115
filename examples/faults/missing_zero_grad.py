"""Gradients are never cleared: each pass adds to the sum of all before it."""

import gradviz.engine as torch
from gradviz.engine import nn

torch.manual_seed(0)
net = nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.randn(8, 2), torch.randn(8, 1)
for _ in range(5):
    loss = nn.functional.mse_loss(net(x), y)
    loss.backward()
    optimizer.step()
