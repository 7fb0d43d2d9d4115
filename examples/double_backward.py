"""create_graph: the gradient is a graph too, and has a gradient."""

import gradviz.engine as torch

x = torch.tensor(5.0, requires_grad=True)
z = torch.log(x**3)

(first,) = torch.autograd.grad(z, x, create_graph=True)
(second,) = torch.autograd.grad(first, x)

print("dz/dx   =", first.detach())  # 3 / x
print("d²z/dx² =", second)  # −3 / x²
