"""BYOL: an online network learns what a slow copy of it says, and a linear probe looks on."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


def mlp(ins, outs, hidden=64):
    return nn.Sequential(nn.Linear(ins, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, outs))


class BYOL(nn.Module):
    def __init__(self):
        super().__init__()
        self.online_encoder = nn.Sequential(mlp(32, 32), mlp(32, 16))
        self.online_predictor = mlp(16, 16)
        self.target_encoder = copy.deepcopy(self.online_encoder)
        for parameter in self.target_encoder.parameters():
            parameter.requires_grad = False

    @torch.no_grad()
    def update_moving_average(self, beta=0.99):
        for online, target in zip(self.online_encoder.parameters(), self.target_encoder.parameters(), strict=True):
            target.data = target.data * beta + online.data * (1 - beta)

    def forward(self, one, two):
        predicted = [self.online_predictor(self.online_encoder(view)) for view in (one, two)]
        with torch.no_grad():
            targets = [self.target_encoder(view) for view in (two, one)]
        losses = [
            2 - 2 * F.cosine_similarity(prediction, target.detach(), dim=-1)
            for prediction, target in zip(predicted, targets, strict=True)
        ]
        return (losses[0] + losses[1]).mean()


learner = BYOL()
opt = torch.optim.Adam(learner.parameters(), lr=3e-4)
probe = nn.Linear(16, 4)
probe_opt = torch.optim.SGD(probe.parameters(), lr=0.1)
centres = torch.randn(4, 32)
for _ in range(4):
    labels = torch.randint(4, (64,))
    points = centres[labels]
    loss = learner(points + 0.1 * torch.randn(64, 32), points + 0.1 * torch.randn(64, 32))
    opt.zero_grad()
    loss.backward()
    opt.step()
    learner.update_moving_average()
    with torch.no_grad():
        features = learner.online_encoder(points)
    probe_loss = F.cross_entropy(probe(features), labels)
    probe_opt.zero_grad()
    probe_loss.backward()
    probe_opt.step()
print(f"loss {loss.item():.3f}, of the probe {probe_loss.item():.3f}")
