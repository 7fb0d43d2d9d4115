"""Linear regression by hand: one weight, a loss, and gradient descent without an optimizer."""

import gradviz.engine as torch

xs = [1.0, 2.0, 3.0]
ys = [2.0, 4.0, 6.0]
w = torch.tensor([1.0], requires_grad=True)


def model(x):
    """The line through the origin."""
    return x * w


def loss(x, y):
    """The squared error."""
    return (y - model(x)) ** 2


for epoch in range(10):
    for x, y in zip(xs, ys):
        error = loss(x, y)
        error.backward()
        with torch.no_grad():
            w -= 0.01 * w.grad
        w.grad.zero_()
    print(f"epoch {epoch}: w = {w.item():.4f}, loss = {error.item():.6f}")

print(f"prediction for 4: {model(4.0).item():.4f}")
