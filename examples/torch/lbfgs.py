"""LBFGS: an optimizer that calls for the loss several times a step."""

import torch

torch.manual_seed(0)
w = torch.randn(4, requires_grad=True)
a = torch.randn(10, 4)
b = torch.randn(10)
optimizer = torch.optim.LBFGS([w], lr=0.5, max_iter=4)


def closure():
    """The loss, with its gradients."""
    optimizer.zero_grad()
    loss = ((a @ w - b) ** 2).sum() + w.abs().sum()
    loss.backward()
    return loss


for step in range(3):
    loss = optimizer.step(closure)
    print(f"step {step}: loss = {loss.item():.9f}")
print("w =", w.tolist())
