# retain_grad keeps the gradients of non-leaves
import torch

x = torch.tensor([1.0, 2.0], requires_grad=True)
y = x * 3
z = (y**2).sum()
y.retain_grad()
z.retain_grad()
z.backward()
print(x.grad, y.grad, z.grad)
print(x.retains_grad, y.retains_grad, z.retains_grad)
