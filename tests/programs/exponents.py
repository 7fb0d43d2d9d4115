# a number as exponent, a tensor as exponent, a tensor as exponent of a number
import torch

x = torch.tensor(5.0, requires_grad=True)
q = torch.tensor(3.0, requires_grad=True)
print((x**3).grad_fn.name(), (x**q).grad_fn.name(), (2**q).grad_fn.name())
torch.log(x**q).backward()
print(x.grad.item(), q.grad.item())
q.grad = None
(2**q).backward()
print(q.grad)
e = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
(torch.tensor([0.0, 0.0, 2.0]) ** e).sum().backward()
print(e.grad)
