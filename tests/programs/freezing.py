# three ways to freeze
import torch

w1 = torch.tensor([1.0, 2.0], requires_grad=True)
w2 = torch.tensor([3.0, 4.0])
y = (w1 * w2).sum()
with torch.no_grad():
    z = w1 * w2
    print(z, z.requires_grad, torch.is_grad_enabled())
    with torch.enable_grad():
        print((w1 * 2).requires_grad)


@torch.no_grad()
def frozen():
    return w1 * 2


print(frozen().requires_grad, (w1 * 2).detach())
y.backward()
print(w1.grad, w2.grad)
opt = torch.optim.SGD([w1], lr=0.1)
opt.step()
print(w1)
opt.zero_grad()
print(w1.grad)
w1 += 1
