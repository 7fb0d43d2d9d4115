"""Leaves and non-leaves: who requires grad, who has a grad_fn, who gets a .grad."""

import gradviz.engine as torch


def describe(name, t):
    """Print what autograd knows of a tensor."""
    node = t.grad_fn.name() if t.grad_fn is not None else None
    print(f"{name}: requires_grad={t.requires_grad} is_leaf={t.is_leaf} grad_fn={node}")


data = torch.tensor([1.0, 2.0])  # a leaf that nobody wants gradients of
w = torch.tensor([3.0, 4.0], requires_grad=True)  # a leaf that collects gradients
product = w * data  # a non-leaf: its grad_fn knows the way back
loss = product.sum()

for name, t in (("data", data), ("w", w), ("product", product), ("loss", loss)):
    describe(name, t)

loss.backward()
print("data.grad =", data.grad)
print("w.grad =", w.grad)
