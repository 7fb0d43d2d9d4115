"""Broadcasting in forward is a sum in backward."""

import gradviz.engine as torch

x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
b = torch.tensor([10.0, 20.0, 30.0], requires_grad=True)
s = torch.tensor(2.0, requires_grad=True)

shifted = x + b
loss = (shifted * s).sum()
loss.backward()

print("b.grad =", b.grad)  # each element of b was used in two rows
print("s.grad =", s.grad)  # s was used six times
