"""An LSTM, and a cell that is called at every time step."""

import torch
from torch import nn

torch.manual_seed(0)
lstm = nn.LSTM(4, 8, num_layers=2, batch_first=True)
cell = nn.GRUCell(8, 8)
head = nn.Linear(8, 1)
parameters = [*lstm.parameters(), *cell.parameters(), *head.parameters()]
optimizer = torch.optim.RMSprop(parameters, lr=1e-2)
series, target = torch.randn(6, 5, 4), torch.randn(6, 1)

for step in range(4):
    outputs, _ = lstm(series)
    h = torch.zeros(6, 8)
    for t in range(5):
        h = cell(outputs[:, t], h)
    loss = (head(h) - target).pow(2).mean()
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss = {loss.item():.9f}")
