"""Message passing by index_add over the edges of small graphs, with a readout per graph."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn


class Graphs(NamedTuple):
    nodes: torch.Tensor
    source: torch.Tensor
    target: torch.Tensor
    owner: torch.Tensor
    count: int
    label: torch.Tensor


class MessageLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU())
        self.update = nn.GRUCell(width, width)

    def forward(self, h, source, target):
        pair = torch.cat([h[source], h[target]], dim=-1)
        messages = self.message(pair)
        collected = torch.zeros_like(h).index_add(0, target, messages)
        return self.update(collected, h)


class GraphNet(nn.Module):
    def __init__(self, features=5, width=12, layers=3):
        super().__init__()
        self.encode = nn.Linear(features, width)
        self.layer = nn.ModuleList([MessageLayer(width) for _ in range(layers)])
        self.gate = nn.Linear(width, 1)
        self.readout = nn.Linear(width, 1)

    def forward(self, g):
        h = torch.tanh(self.encode(g.nodes))
        for layer in self.layer:
            h = layer(h, g.source, g.target)
        weight = torch.sigmoid(self.gate(h))
        pooled = torch.zeros(g.count, h.shape[1]).index_add(0, g.owner, weight * h)
        return self.readout(pooled).squeeze(-1)


def random_graphs(count, generator):
    nodes, source, target, owner = [], [], [], []
    for number in range(count):
        size = int(torch.randint(3, 6, (1,), generator=generator))
        first = len(nodes)
        kinds = torch.randint(0, 5, (size,), generator=generator)
        nodes += F.one_hot(kinds, 5).float().unbind(0)
        for i in range(size - 1):
            source += [first + i, first + i + 1]
            target += [first + i + 1, first + i]
        owner += [number] * size
    stacked, owners = torch.stack(nodes), torch.tensor(owner)
    label = torch.zeros(count).index_add(0, owners, stacked[:, 0] - stacked[:, 1])
    return Graphs(stacked, torch.tensor(source), torch.tensor(target), owners, count, label)


def train():
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = GraphNet()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.5)
    for epoch in range(16):
        graphs = random_graphs(10, generator)
        prediction = model(graphs)
        loss = F.smooth_l1_loss(prediction, graphs.label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if epoch % 5 == 0:
            print(epoch, f"{loss.item():.4f}")


train()
