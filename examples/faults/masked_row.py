"""A row that is masked completely: its softmax is NaN."""

import gradviz.engine as torch

torch.manual_seed(0)
scores = torch.randn(3, 4, requires_grad=True)
mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]]) == 0
masked = scores.masked_fill(mask, float("-inf"))
weights = torch.softmax(masked, 1)
loss = weights.sum()
loss.backward()
