"""A custom Function, hooks, and a tensor that is written over in place."""

import torch


class Clipped(torch.autograd.Function):
    """The identity; its gradient is clipped."""

    @staticmethod
    def forward(ctx, x, limit):
        ctx.save_for_backward(x)
        ctx.limit = limit
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient.clamp(-ctx.limit, ctx.limit) * (x > -10), None


torch.manual_seed(0)
x = torch.randn(4, 3, requires_grad=True)
w = torch.randn(3, 2, requires_grad=True)
w.register_hook(lambda gradient: gradient * 0.5)
y = Clipped.apply(x @ w, 0.1)
y.retain_grad()
y[0] += 1.0
z = y.clone()
z.mul_(2)
loss = (z.exp() * torch.linspace(0, 1, 8).view(4, 2)).sum()
loss.backward()
print("loss =", loss)
print("x.grad =", x.grad)
print("w.grad =", w.grad)
print("y.grad =", y.grad)
