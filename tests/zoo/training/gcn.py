"""A graph network on one small graph, with a mask of the nodes to train on."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class GraphConvolution(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = nn.Parameter(torch.FloatTensor(in_features, out_features))
        self.bias = nn.Parameter(torch.FloatTensor(out_features))
        self.reset_parameters()

    def reset_parameters(self):
        stdv = 1.0 / self.weight.size(1) ** 0.5
        self.weight.data.uniform_(-stdv, stdv)
        self.bias.data.uniform_(-stdv, stdv)

    def forward(self, inputs, adj):
        support = torch.mm(inputs, self.weight)
        output = adj @ support
        return output + self.bias


class GCN(nn.Module):
    def __init__(self, nfeat, nhid, nclass, dropout):
        super().__init__()
        self.gc1 = GraphConvolution(nfeat, nhid)
        self.gc2 = GraphConvolution(nhid, nclass)
        self.dropout = dropout

    def forward(self, x, adj):
        x = F.relu(self.gc1(x, adj))
        x = F.dropout(x, self.dropout, training=self.training)
        x = self.gc2(x, adj)
        return F.log_softmax(x, dim=1)


torch.manual_seed(0)
labels = torch.arange(20) % 3
adj = (labels[:, None] == labels[None]).float() + 0.1 * torch.rand(20, 20)
adj = adj / adj.sum(1, keepdim=True)
features = torch.randn(20, 6)
idx_train, idx_val = torch.arange(12), torch.arange(12, 20)
model = GCN(6, 8, 3, 0.3)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)


def train(epoch):
    model.train()
    optimizer.zero_grad()
    output = model(features, adj)
    loss_train = F.nll_loss(output[idx_train], labels[idx_train])
    loss_train.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        output = model(features, adj)
        loss_val = F.nll_loss(output[idx_val], labels[idx_val])
    print(f"{epoch} {loss_train.item():.4f} {loss_val.item():.4f}")


for epoch in range(8):
    train(epoch)
