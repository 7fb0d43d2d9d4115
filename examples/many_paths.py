"""Two ways from x to z: their gradients are summed."""

import gradviz.engine as torch

x = torch.tensor(5.0, requires_grad=True)
cube = x**3
square = x**2
z = torch.log(cube) + torch.sqrt(square)

z.backward()

print("dz/dx =", x.grad)  # 3 / x by way of the cube, 1 by way of the square
