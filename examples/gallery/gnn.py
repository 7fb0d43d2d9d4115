"""A graph network that hands messages along the edges of a ring with chords."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
NODES = 40


class GraphConv(nn.Module):
    def __init__(self, ins, outs):
        super().__init__()
        self.own = nn.Linear(ins, outs)
        self.neighbours = nn.Linear(ins, outs, bias=False)

    def forward(self, x, edges):
        source, target = edges
        messages = torch.zeros_like(x).index_add(0, target, x[source])
        degree = torch.zeros(len(x)).index_add(0, target, torch.ones(len(source))).clamp(min=1)
        return self.own(x) + self.neighbours(messages / degree[:, None])


class GNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([GraphConv(8, 32), GraphConv(32, 32), GraphConv(32, 3)])

    def forward(self, x, edges):
        for conv in self.convs[:-1]:
            x = F.dropout(F.relu(conv(x, edges)), 0.2, self.training)
        return F.log_softmax(self.convs[-1](x, edges), dim=-1)


ring = torch.arange(NODES)
edges = torch.stack([torch.cat([ring, ring]), torch.cat([(ring + 1) % NODES, (ring + 7) % NODES])])
x, labels = torch.randn(NODES, 8), torch.arange(NODES) % 3
train_mask = torch.rand(NODES) < 0.7
model = GNN()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for _ in range(10):
    optimizer.zero_grad()
    loss = F.nll_loss(model(x, edges)[train_mask], labels[train_mask])
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
