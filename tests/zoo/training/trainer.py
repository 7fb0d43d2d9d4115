"""A regression with a Trainer class and a configuration."""

import copy
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    hidden: int = 16
    lr: float = 3e-3
    epochs: int = 6
    clip: float = 1.0


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, dim * 2)
        self.down = nn.Linear(dim * 2, dim)
        nn.init.normal_(self.up.weight, std=0.1)
        nn.init.zeros_(self.up.bias)

    def forward(self, x):
        h = self.up(self.norm(x))
        return x + self.down(torch.nn.functional.gelu(h))


class Regressor(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.stem = nn.Linear(5, config.hidden)
        self.blocks = nn.ModuleList([Block(config.hidden) for _ in range(2)])
        self.head = nn.Linear(config.hidden, 1)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x).squeeze(-1)


class Trainer:
    def __init__(self, model, config):
        self.model = model
        self.config = config
        self.criterion = nn.MSELoss()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
        self.best, self.best_state = float("inf"), None

    def training_step(self, batch):
        x, y = batch
        pred = self.model(x)
        loss = self.criterion(pred, y)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def validate(self, batch):
        self.model.eval()
        loss = self.criterion(self.model(batch[0]), batch[1]).item()
        self.model.train()
        return loss

    def fit(self, train_batches, valid_batch):
        for epoch in range(self.config.epochs):
            losses = [self.training_step(batch) for batch in train_batches]
            valid = self.validate(valid_batch)
            if valid < self.best:
                self.best = valid
                self.best_state = copy.deepcopy(self.model.state_dict())
            print(f"{epoch} {sum(losses) / len(losses):.4f} {valid:.4f}")
        self.model.load_state_dict(self.best_state)


def make_batch(n):
    x = torch.randn(n, 5)
    return x, x[:, 0] * 2 - x[:, 1] + 0.1 * torch.randn(n)


torch.manual_seed(0)
config = Config()
trainer = Trainer(Regressor(config), config)
trainer.fit([make_batch(16) for _ in range(3)], make_batch(32))
