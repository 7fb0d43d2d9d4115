"""A variational autoencoder; the data set is drawn picture by picture in a loop."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


def dataset(count):
    pictures = torch.zeros(count, 1, 16, 16)
    for number in range(count):
        size = int(torch.randint(3, 8, (1,)))
        row, column = (int(torch.randint(16 - size, (1,))) for _ in range(2))
        pictures[number, 0, row : row + size, column : column + size] = 1.0
        pictures[number] += 0.05 * torch.randn(1, 16, 16)
    return pictures.clamp(0, 1)


class VAE(nn.Module):
    def __init__(self, latent=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.ReLU())
        self.mu = nn.Linear(64, latent)
        self.logvar = nn.Linear(64, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 64), nn.ReLU(), nn.Linear(64, 256))

    def forward(self, x):
        hidden = self.encoder(x)
        mu, logvar = self.mu(hidden), self.logvar(hidden)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return self.decoder(z).view_as(x), mu, logvar


def loss_of(output, x, mu, logvar):
    reconstruction = F.binary_cross_entropy_with_logits(output, x, reduction="sum") / len(x)
    divergence = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp()) / len(x)
    return reconstruction + divergence


data = dataset(1000)
vae = VAE()
optimizer = torch.optim.Adam(vae.parameters(), lr=1e-3)
for batch in torch.utils.data.DataLoader(data, batch_size=100, shuffle=True):
    optimizer.zero_grad()
    output, mu, logvar = vae(batch)
    loss = loss_of(output, batch, mu, logvar)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.2f}")
