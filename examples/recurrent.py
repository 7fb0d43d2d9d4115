"""One cell, used at every time step: its gradients add up, and fade on the way back to the first step."""

import gradviz.engine as torch
from gradviz.engine import nn


class Recurrent(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.cell = nn.Linear(size, size)
        self.head = nn.Linear(size, 1)

    def forward(self, h, steps):
        states = [h]
        for _ in range(steps):
            h = torch.tanh(self.cell(h))
            h.retain_grad()
            states.append(h)
        return self.head(h), states


torch.manual_seed(0)
net = Recurrent(8)
start = torch.ones(1, 8, requires_grad=True)
answer, states = net(start, 12)
loss = (answer**2).sum()
loss.backward()

for number in (12, 9, 6, 3):
    print(f"gradient of the state after step {number:2}: {states[number].grad.norm().item():.1e}")
print(f"gradient of the start:               {start.grad.norm().item():.1e}")
print(f"the cell's weight, used 12 times, has one gradient: {list(net.cell.weight.grad.shape)}")
