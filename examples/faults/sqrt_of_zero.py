"""The square root of 0 is 0, but its slope is infinite: times 0, that is NaN."""

import gradviz.engine as torch

points = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
lengths = torch.sqrt((points**2).sum(1))
loss = lengths.sum()
loss.backward()
print(loss, points.grad)
