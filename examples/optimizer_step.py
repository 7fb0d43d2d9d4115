"""What an optimizer step does: w - lr * grad, and with momentum a part of the steps before."""

import gradviz.engine as torch

w = torch.tensor(3.0, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.5)

for _ in range(2):
    optimizer.zero_grad()
    loss = w**2
    loss.backward()
    optimizer.step()

print("w =", w)  # 3 - 0.1 * 6 = 2.4, then 2.4 - 0.1 * (0.5 * 6 + 4.8) = 1.62
