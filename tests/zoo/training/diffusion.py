"""A denoising diffusion model with an average of its weights."""

import copy

import torch
import torch.nn as nn


class Denoiser(nn.Module):
    def __init__(self, dim, hidden, steps):
        super().__init__()
        self.time = nn.Embedding(steps, hidden)
        self.inp = nn.Linear(dim, hidden)
        self.mid = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, dim)
        self.act = nn.SiLU()

    def forward(self, x, t):
        h = self.inp(x) + self.time(t)
        h = self.act(h)
        h = h + self.act(self.mid(h))
        return self.out(h)


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = copy.deepcopy(model).eval().requires_grad_(False)

    def update(self, model):
        with torch.no_grad():
            for s, p in zip(self.shadow.parameters(), model.parameters(), strict=True):
                s.mul_(self.decay).add_(p, alpha=1 - self.decay)


class Diffusion:
    def __init__(self, steps):
        self.steps = steps
        betas = torch.linspace(1e-3, 0.2, steps)
        self.alphas = torch.cumprod(1 - betas, dim=0)

    def noised(self, x, t):
        noise = torch.randn_like(x)
        a = self.alphas[t][:, None]
        return a.sqrt() * x + (1 - a).sqrt() * noise, noise

    @torch.no_grad()
    def sample(self, model, n):
        x = torch.randn(n, 2)
        for step in reversed(range(self.steps)):
            t = torch.full((n,), step)
            a = self.alphas[step]
            x = (x - (1 - a).sqrt() * model(x, t)) / a.sqrt() * 0.9
        return x


def train_loop(model, diffusion, ema, epochs):
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    for _ in range(epochs):
        clean = torch.randn(32, 2) * 0.2 + 1
        timesteps = torch.randint(0, diffusion.steps, (32,))
        noisy, noise = diffusion.noised(clean, timesteps)
        noise_pred = model(noisy, timesteps)
        loss = nn.functional.mse_loss(noise_pred, noise)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        ema.update(model)
    return loss.item()


if __name__ == "__main__":
    torch.manual_seed(0)
    net = Denoiser(2, 16, 8)
    average = EMA(net, 0.9)
    process = Diffusion(8)
    print(train_loop(net, process, average, 10))
    print(process.sample(average.shadow, 4).shape)
