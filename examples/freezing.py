"""Three ways to freeze: requires_grad=False, no_grad, detach."""

import gradviz.engine as torch

w = torch.tensor([1.0, 2.0], requires_grad=True)
frozen = torch.tensor([3.0, 4.0])  # requires_grad=False

trained = (w * frozen).sum()
with torch.no_grad():
    unrecorded = w * frozen  # computed, but no graph
cut = (w * 2).detach()

print(trained.requires_grad, unrecorded.requires_grad, cut.requires_grad)
trained.backward()
print("w.grad =", w.grad)
print("frozen.grad =", frozen.grad)
