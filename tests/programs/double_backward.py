# the gradient's gradient
import torch

x = torch.tensor(5.0, requires_grad=True)
z = torch.log(x**3)
z.backward(create_graph=True)
print(x.grad.requires_grad, x.grad.item())
(g2,) = torch.autograd.grad(x.grad, x, create_graph=True)
print(g2.item())
(g3,) = torch.autograd.grad(g2, x)
print(g3)

t = torch.tensor([0.5, 1.0], requires_grad=True)
y = torch.sin(t) * torch.exp(t)
(dy,) = torch.autograd.grad(y.sum(), t, create_graph=True)
(ddy,) = torch.autograd.grad(dy.sum(), t)
print(dy.detach(), ddy)
