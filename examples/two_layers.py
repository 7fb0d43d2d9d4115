"""A network of two layers learns exclusive or, with an optimizer."""

import gradviz.engine as torch
from gradviz.engine import nn, optim

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
inputs = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
targets = torch.tensor([[0.0], [1.0], [1.0], [0.0]])

for step in range(100):
    outputs = model(inputs)
    loss = nn.functional.mse_loss(outputs, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step}: loss = {loss.item():.4f}")

print([round(value[0], 1) for value in model(inputs).tolist()])
