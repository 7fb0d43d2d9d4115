"""The gradient of log(x³): what every example here is made of.

gradviz trace examples/quickstart.py --graph quickstart.svg
"""

import gradviz.engine as torch

x = torch.tensor(5.0, requires_grad=True)
y = x**3
z = torch.log(y)

z.backward()

print("z    =", z)
print("dz/dx =", x.grad)  # 3 / x
