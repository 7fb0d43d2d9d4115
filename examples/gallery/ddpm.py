"""A denoising diffusion model of points on a spiral."""

import math

import torch
from torch import nn

torch.manual_seed(0)
STEPS = 50
betas = torch.linspace(1e-4, 0.02, STEPS)
alphas_cumprod = torch.cumprod(1.0 - betas, dim=0)
sqrt_alphas_cumprod = torch.sqrt(alphas_cumprod)
sqrt_one_minus = torch.sqrt(1.0 - alphas_cumprod)


class TimeEmbedding(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width

    def forward(self, t):
        half = self.width // 2
        frequencies = torch.exp(-math.log(10000) * torch.arange(half) / half)
        angles = t[:, None] * frequencies[None]
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


class ResidualBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.time = nn.Linear(width, width)
        self.inner = nn.Sequential(nn.SiLU(), nn.Linear(width, width))

    def forward(self, x, time):
        return x + self.inner(self.norm(x) + self.time(time))


class Denoiser(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.time_mlp = nn.Sequential(TimeEmbedding(width), nn.Linear(width, width), nn.SiLU())
        self.first = nn.Linear(2, width)
        self.blocks = nn.ModuleList([ResidualBlock(width) for _ in range(4)])
        self.last = nn.Linear(width, 2)

    def forward(self, x, t):
        time = self.time_mlp(t)
        x = self.first(x)
        for block in self.blocks:
            x = block(x, time)
        return self.last(x)


angle = 3 * math.pi * torch.rand(256).sqrt()
data = torch.stack([angle.cos() * angle, angle.sin() * angle], dim=1) / 10
model = Denoiser()
ema = {name: value.clone() for name, value in model.state_dict().items()}
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for x0 in data.split(64):
    t = torch.randint(STEPS, (len(x0),))
    noise = torch.randn_like(x0)
    noisy = sqrt_alphas_cumprod[t, None] * x0 + sqrt_one_minus[t, None] * noise
    loss = nn.functional.mse_loss(model(noisy, t), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for name, value in model.state_dict().items():
        ema[name].mul_(0.99).add_(value, alpha=0.01)
print(f"loss {loss.item():.3f}")
