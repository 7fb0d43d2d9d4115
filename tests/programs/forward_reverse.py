# f(x, y) = x*y + sin(x): forward and reverse accumulation agree
import torch
import torch.autograd.forward_ad as fwAD

x = torch.tensor(2.0, requires_grad=True)
y = torch.tensor(3.0, requires_grad=True)
(x * y + torch.sin(x)).backward()
print(x.grad, y.grad)
for tx, ty in ((1.0, 0.0), (0.0, 1.0)):
    with fwAD.dual_level():
        dx = fwAD.make_dual(torch.tensor(2.0), torch.tensor(tx))
        dy = fwAD.make_dual(torch.tensor(3.0), torch.tensor(ty))
        print(fwAD.unpack_dual(dx * dy + torch.sin(dx)).tangent)
