# detach cuts the graph; backward from behind the cut fails
import torch

x = torch.tensor(5.0, requires_grad=True)
y = x * torch.tensor([2.0, 3.0, 5.0])
d = y.detach()
print(y, d, d.requires_grad, d.is_leaf)
d.requires_grad_()
z = d @ torch.tensor([4.0, 7.0, 9.0])
z.backward()
print(z, z.grad_fn.name(), d.grad, x.grad)
cut = y.detach() @ torch.tensor([4.0, 7.0, 9.0])
print(cut)
cut.backward()
