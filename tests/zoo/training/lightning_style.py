"""A module with training_step and configure_optimizers, and a small fit() that drives it."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class LitAutoEncoder(nn.Module):
    def __init__(self, dim=10, latent=3, lr=1e-2):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(dim, 16), nn.GELU(), nn.Linear(16, latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 16), nn.GELU(), nn.Linear(16, dim))
        self.lr = lr

    def forward(self, x):
        return self.encoder(x)

    def training_step(self, batch):
        x, _ = batch
        z = self.encoder(x)
        x_hat = self.decoder(z)
        loss = F.mse_loss(x_hat, x)
        return loss  # noqa: RET504 (as such modules are written)

    def validation_step(self, batch):
        x, _ = batch
        return F.mse_loss(self.decoder(self.encoder(x)), x)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
        return optimizer, scheduler


class Fit:
    def __init__(self, max_epochs, clip=1.0):
        self.max_epochs = max_epochs
        self.clip = clip

    def fit(self, module, train_batches, val_batches):
        optimizer, scheduler = module.configure_optimizers()
        for epoch in range(self.max_epochs):
            module.train()
            for batch in train_batches:
                loss = module.training_step(batch)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(module.parameters(), self.clip)
                optimizer.step()
            scheduler.step()
            module.eval()
            with torch.no_grad():
                val = sum(module.validation_step(batch).item() for batch in val_batches)
            print(f"epoch {epoch} loss {loss.item():.4f} val {val:.4f}")


def batches(count):
    for _ in range(count):
        x = torch.randn(16, 4) @ torch.randn(4, 10)
        yield x / x.std(), torch.randint(0, 2, (16,))


torch.manual_seed(1)
Fit(max_epochs=6).fit(LitAutoEncoder(), list(batches(3)), list(batches(1)))
