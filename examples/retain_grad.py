"""retain_grad: keep the gradient of a tensor in the middle."""

import gradviz.engine as torch

x = torch.tensor(5.0, requires_grad=True)
y = x**3
z = torch.log(y)

y.retain_grad()  # without this y.grad stays None
z.backward()

print("dz/dy =", y.grad)  # 1 / y
print("dz/dx =", x.grad)  # 3 / x
