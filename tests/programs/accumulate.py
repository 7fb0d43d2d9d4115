# gradients add up, unless somebody clears them
import torch

x = torch.tensor(5.0, requires_grad=True)
z = torch.log(x**3)
z.backward(retain_graph=True)
print(x.grad.item())
z.backward(retain_graph=True)
print(x.grad.item())
x.grad.zero_()
z.backward(retain_graph=True)
print(x.grad.item())
x.grad = None
z.backward()
print(x.grad.item(), x.grad._version)
