"""Learning to begin well: the gradient of a loss after a gradient step, through that step."""

import torch

torch.manual_seed(0)
weight = torch.randn(3, 1, requires_grad=True)
rate = torch.tensor(0.1, requires_grad=True)
optimizer = torch.optim.SGD([weight, rate], lr=0.05)

for step in range(3):
    total = 0.0
    for task in range(2):
        x = torch.randn(5, 3)
        y = x @ torch.full((3, 1), float(task))
        inner = ((x @ weight - y) ** 2).mean()
        (gradient,) = torch.autograd.grad(inner, weight, create_graph=True)
        adapted = weight - rate * gradient
        total = total + ((x @ adapted - y) ** 2).mean()
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
    print(f"step {step}: loss = {total.item():.9f}, rate = {rate.item():.9f}")
