"""A saved tensor that is changed in place: backward notices by the version."""

import gradviz.engine as torch

x = torch.tensor([1.0, 2.0], requires_grad=True)
y = torch.exp(x)  # its node saves the result
z = y * 3
y.add_(1)  # ... and here it is another one

try:
    z.sum().backward()
except RuntimeError as error:
    print(str(error).split(":")[0])

y = torch.exp(x)
z = (y + 1) * 3  # a new tensor instead
z.sum().backward()
print("x.grad =", x.grad)
