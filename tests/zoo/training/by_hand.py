"""Two layers whose steps are computed by hand, with momentum, through .data."""

import torch

torch.manual_seed(0)
N, D_in, H, D_out = 32, 5, 10, 2
x = torch.randn(N, D_in)
y = torch.randn(N, D_out)
w1 = torch.randn(D_in, H)
w2 = torch.randn(H, D_out)
b1 = torch.zeros(H)
params = [w1, b1, w2]
for p in params:
    p.data.mul_(0.3)
    p.requires_grad_()
velocity = [torch.zeros_like(p) for p in params]
learning_rate = 1e-2


def forward(x):
    h = x @ w1 + b1
    h = torch.tanh(h)
    return h @ w2


for t in range(12):
    y_pred = forward(x)
    loss = (y_pred - y).pow(2).mean()
    loss.backward()
    for p, v in zip(params, velocity, strict=True):
        v.mul_(0.9).add_(p.grad.data)
        p.data.add_(-learning_rate * v)
        p.grad.data.zero_()
    if t % 4 == 0:
        print(t, loss.item())
