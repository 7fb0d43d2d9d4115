"""zero_grad: gradients add up from step to step until they are cleared."""

import gradviz.engine as torch

w = torch.tensor(1.0, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)

(w * 2).backward()
optimizer.step()

(w * 2).backward()  # not cleared: 2 + 2
optimizer.step()

optimizer.zero_grad()
(w * 2).backward()
optimizer.step()

print("w =", w)
