"""f(x, y) = xy + sin x, differentiated forwards and backwards.

Forward accumulation pushes tangents along with the values, once for each input; reverse accumulation runs once,
from the output, and reaches all inputs.
"""

import gradviz.engine as torch
from gradviz.engine.autograd import forward_ad

X, Y = 2.0, 3.0


def f(x, y):
    """The function of the textbook."""
    return x * y + torch.sin(x)


x = torch.tensor(X, requires_grad=True)
y = torch.tensor(Y, requires_grad=True)
f(x, y).backward()
print("reverse: df/dx =", x.grad, " df/dy =", y.grad)

for name, seed_x, seed_y in (("df/dx", 1.0, 0.0), ("df/dy", 0.0, 1.0)):
    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.tensor(X), torch.tensor(seed_x))
        y = forward_ad.make_dual(torch.tensor(Y), torch.tensor(seed_y))
        out = f(x, y)
        print("forward:", name, "=", forward_ad.unpack_dual(out).tangent)
