# versions: a saved tensor that was modified in place is found out
import torch

x = torch.tensor([1.0, 2.0], requires_grad=True)
y = x * 2
y.add_(1)
print(y, y._version)
y.mul_(3)
print(y.grad_fn.name())
y.sum().backward()
print(x.grad)

a = torch.tensor([1.0, 2.0], requires_grad=True)
b = torch.exp(a)
b += 1
b.sum().backward()
