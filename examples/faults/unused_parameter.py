"""A layer that was built and never called: its parameters get no gradient."""

import gradviz.engine as torch
from gradviz.engine import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.skip = nn.Linear(3, 4)
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


torch.manual_seed(0)
net = Net()
loss = net(torch.randn(8, 3)).pow(2).mean()
loss.backward()
