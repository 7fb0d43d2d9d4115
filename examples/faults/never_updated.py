"""The update makes a new tensor; the parameter of that name stays as it was."""

import gradviz.engine as torch

torch.manual_seed(0)
x, y = torch.randn(16, 3), torch.randn(16, 1)
w = torch.zeros(3, 1, requires_grad=True)
for _ in range(4):
    loss = (x @ w - y).pow(2).mean()
    loss.backward()
    for p in (w,):
        p = p - 0.1 * p.grad
    w.grad = None
