"""A gate that opens only above 12, and what would be below."""

import gradviz.engine as torch

x = torch.tensor(5.0, requires_grad=True)
y = x**2
loss = torch.relu(y - 12)
loss.backward()

print("dloss/dx =", x.grad)  # 2 x where x² is above 12, else 0
