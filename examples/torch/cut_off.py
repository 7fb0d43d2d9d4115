"""A layer that gets no gradient: what it gives is detached on the way to the loss.

gradviz trace --values inputs examples/torch/cut_off.py
gradviz what-if cut_off.gradviz --without detach@16
"""

import torch

torch.manual_seed(0)
x = torch.randn(8, 4)
target = torch.randn(8)
w1 = torch.randn(4, 6, requires_grad=True)
w2 = torch.randn(6, requires_grad=True)

for _ in range(3):
    hidden = torch.relu(x @ w1).detach()
    loss = ((hidden @ w2 - target) ** 2).mean()
    w2.grad = None
    loss.backward()
    with torch.no_grad():
        w2 -= 0.1 * w2.grad
