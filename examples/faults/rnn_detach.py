"""A detach in the middle of a sequence: nothing before it is learned from."""

import gradviz.engine as torch
from gradviz.engine import nn

torch.manual_seed(0)
start = torch.ones(1, 4, requires_grad=True)
cell, head = nn.GRUCell(3, 4), nn.Linear(4, 1)
h = start
for step in range(8):
    h = cell(torch.randn(1, 3), h)
    if step == 5:
        h = h.detach()
loss = head(h).sum()
loss.backward()
