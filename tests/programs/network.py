# a network of two layers, trained
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
y = torch.tensor([[0.0], [1.0], [1.0], [0.0]])
opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
for step in range(50):
    loss = F.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print(f"{step} {loss.item():.4f}")
print(model)
print([tuple(p.shape) for p in model.parameters()])
