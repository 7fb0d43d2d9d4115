# the gradients of several paths from x to z are summed
import torch

x = torch.tensor(5.0, requires_grad=True)
a = x**3
b = x**2
z = torch.log(a) + torch.sqrt(b) * x - b / (x + 1)
z.backward()
print(z, x.grad)

v = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
w = v * v + v
(w * v).sum().backward()
print(v.grad)
