"""A loss that becomes NaN: find the line where it was born.

gradviz trace examples/nan.py
gradviz step
"""

import gradviz.engine as torch

w = torch.tensor([0.5, 0.0], requires_grad=True)
scale = torch.sqrt(w)
weighted = scale * torch.tensor([1.0, 0.0])  # the second element does not count ...
loss = weighted.sum()

loss.backward()

print("loss =", loss)
print("w.grad =", w.grad)  # ... and yet: 0 · ∞ is NaN
