"""Two tasks on one body, weighted by learnt uncertainties; Siamese pairs as a third."""

import torch
from torch import nn, optim


class Body(nn.Module):
    def __init__(self, size, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(size, width), nn.ELU(), nn.Linear(width, width), nn.ELU())

    def forward(self, x):
        return self.layers(x)


class MultiTask(nn.Module):
    def __init__(self, size=8, width=16):
        super().__init__()
        self.body = Body(size, width)
        self.regress = nn.Linear(width, 1)
        self.classify = nn.Linear(width, 3)
        self.embed = nn.Linear(width, 4)
        self.log_vars = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        shared = self.body(x)
        value = self.regress(shared).squeeze(-1)
        logits = self.classify(shared)
        return value, logits

    def pair_distance(self, a, b):
        left = self.embed(self.body(a))
        right = self.embed(self.body(b))
        return nn.functional.pairwise_distance(left, right)


def contrastive(distance, same, margin=1.0):
    attract = same * distance.pow(2)
    repel = (1 - same) * (margin - distance).clamp(min=0).pow(2)
    return (attract + repel).mean()


def weighted(losses, log_vars):
    total = 0
    for loss, log_var in zip(losses, log_vars, strict=False):
        total = total + torch.exp(-log_var) * loss + log_var
    return total


def batch(n=24):
    x = torch.randn(n, 8)
    return x, x[:, :2].sum(1), x[:, 2:5].argmax(1)


class Runner:
    def __init__(self, lr):
        self.net = MultiTask()
        self.mse, self.ce = nn.MSELoss(), nn.CrossEntropyLoss()
        self.opt = optim.Adam(self.net.parameters(), lr=lr)

    def step(self):
        x, y, c = batch()
        value, logits = self.net(x)
        loss_reg = self.mse(value, y)
        loss_cls = self.ce(logits, c)
        same = (c == c.flip(0)).float()
        distance = self.net.pair_distance(x, x.flip(0) + 0.01)
        loss_pair = contrastive(distance, same)
        total = weighted([loss_reg, loss_cls, loss_pair], self.net.log_vars)
        self.opt.zero_grad()
        total.backward()
        self.opt.step()
        return loss_reg.item(), loss_cls.item(), loss_pair.item()


torch.manual_seed(5)
runner = Runner(5e-3)
for i in range(12):
    told = runner.step()
    if i % 4 == 0:
        print(i, " ".join(f"{v:.3f}" for v in told))
