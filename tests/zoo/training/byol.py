"""Self-supervision with a slowly moving copy of the network as the target."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


def MLP(dim, hidden, out):
    return nn.Sequential(nn.Linear(dim, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True), nn.Linear(hidden, out))


class BYOL(nn.Module):
    def __init__(self, dim=6, proj=8, decay=0.9):
        super().__init__()
        self.online = nn.Sequential(MLP(dim, 16, 12), MLP(12, 16, proj))
        self.predictor = MLP(proj, 16, proj)
        self.target = copy.deepcopy(self.online)
        for p in self.target.parameters():
            p.requires_grad = False
        self.decay = decay

    @torch.no_grad()
    def update_target(self):
        for t, o in zip(self.target.parameters(), self.online.parameters(), strict=True):
            t.data = self.decay * t.data + (1 - self.decay) * o.data

    def forward(self, a, b):
        za = self.online(a)
        zb = self.online(b)
        pa = self.predictor(za)
        pb = self.predictor(zb)
        with torch.no_grad():
            ta = self.target(a)
            tb = self.target(b)
        return (distance(pa, tb) + distance(pb, ta)).mean()


def distance(p, z):
    p = F.normalize(p, dim=-1)
    z = F.normalize(z, dim=-1)
    return 2 - 2 * (p * z).sum(dim=-1)


def main():
    torch.manual_seed(0)
    learner = BYOL()
    params = [p for p in learner.parameters() if p.requires_grad]
    opt = torch.optim.Adam(params, lr=3e-3)
    for epoch in range(6):
        x = torch.randn(16, 6)
        a = x + 0.1 * torch.randn_like(x)
        b = x + 0.1 * torch.randn_like(x)
        loss = learner(a, b)
        opt.zero_grad()
        loss.backward()
        opt.step()
        learner.update_target()
        print(f"{epoch}: {loss.item():.4f}")
    with torch.no_grad():
        features = learner.online(torch.randn(32, 6))
    probe = nn.Linear(8, 1)
    probe_opt = torch.optim.SGD(probe.parameters(), lr=0.1)
    for _ in range(3):
        probe_loss = (probe(features) - 1).pow(2).mean()
        probe_opt.zero_grad()
        probe_loss.backward()
        probe_opt.step()


if __name__ == "__main__":
    main()
