"""detach: the same numbers, outside the graph. Gradients stop there."""

import gradviz.engine as torch

x = torch.tensor(5.0, requires_grad=True)
y = x * torch.tensor([2.0, 3.0, 5.0])
w = y.detach()  # cut: w is a leaf
w.requires_grad_()
z = w @ torch.tensor([4.0, 7.0, 9.0])

z.backward()

print("w.grad =", w.grad)
print("x.grad =", x.grad)  # None: no way leads back to x
