"""A small convolutional network with batch normalization and a residual connection."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        h = torch.relu(self.norm(self.first(x)))
        return torch.relu(x + self.second(h))


torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    Block(8),
    nn.MaxPool2d(2),
    Block(8),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(8, 3),
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
images, labels = torch.randn(8, 1, 12, 12), torch.randint(3, (8,))

for step in range(4):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(images), labels)
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss = {loss.item():.9f}")

net.eval()
with torch.no_grad():
    print("classes:", net(images).argmax(1).tolist())
