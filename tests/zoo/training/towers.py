"""Two towers whose pairs attract one another, with a temperature that is learnt."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Tower(nn.Module):
    def __init__(self, size, width, out):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(size, width), nn.ReLU(), nn.Linear(width, width))
        self.norm = nn.LayerNorm(width)
        self.proj = nn.Linear(width, out, bias=False)

    def forward(self, x):
        h = self.body(x)
        h = self.norm(h)
        return self.proj(h)


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = Tower(12, 24, 8)
        self.text = Tower(6, 24, 8)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.2)))

    def forward(self, image, text):
        a = self.image(image)
        b = self.text(text)
        a = F.normalize(a, dim=-1)
        b = F.normalize(b, dim=-1)
        return self.logit_scale.exp() * a @ b.t()


def clip_loss(logits):
    labels = torch.arange(len(logits))
    rows = F.cross_entropy(logits, labels)
    columns = F.cross_entropy(logits.t(), labels)
    return (rows + columns) / 2


def train(steps):
    model = TwoTowers()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    mixing = torch.randn(6, 12)
    for step in range(steps):
        text = torch.randn(16, 6)
        image = text @ mixing + 0.1 * torch.randn(16, 12)
        logits = model(image, text)
        loss = clip_loss(logits)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            accuracy = (logits.argmax(1) == torch.arange(16)).float().mean()
            print(step, f"{loss.item():.4f} {accuracy.item():.2f}")


torch.manual_seed(0)
train(15)
