"""x ** 3 and x ** q: a number as exponent has one derivative, a tensor has two."""

import gradviz.engine as torch

x = torch.tensor(5.0, requires_grad=True)
q = torch.tensor(3.0, requires_grad=True)

by_number = x**3
by_tensor = x**q
print(by_number.grad_fn.name(), by_tensor.grad_fn.name())

torch.log(by_tensor).backward()
print("d/dx =", x.grad)  # q / x
print("d/dq =", q.grad)  # ln x
