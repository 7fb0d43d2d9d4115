# requires_grad, is_leaf, grad_fn and grad: before and after backward
import torch


def show(name, t):
    print(name, t, t.requires_grad, t.is_leaf, t.retains_grad, t.grad_fn)


a = torch.tensor(2.0)
b = a**3
show("a", a)
show("b", b)

x = torch.tensor(2.0, requires_grad=True)
y = x**3
z = torch.log(y)
for name, t in (("x", x), ("y", y), ("z", z)):
    show(name, t)
z.backward()
print(x.grad, x.grad.requires_grad, x.grad.is_leaf)
print(y.is_leaf, z.grad_fn.next_functions[0][0] is y.grad_fn)
print(y.grad_fn.next_functions[0][0].name())
