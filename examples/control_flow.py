"""Loops and branches: the graph is what ran, and differs from one run to the next."""

import gradviz.engine as torch


def grow(x):
    """Double what is large, add to what is small, until it is enough."""
    while x.sum() < 10:
        x = x * 2 if x.mean() > 1 else x + 1
    return x.sum()


for start in (0.5, 1.5):
    x = torch.full((2,), start, requires_grad=True)
    total = grow(x)
    total.backward()
    print(f"from {start}: {total.item()}, gradient {x.grad.tolist()}")
