"""A vector-quantised autoencoder: a straight-through estimator, a codebook loss and a commitment."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Quantizer(nn.Module):
    def __init__(self, codes, dim, beta=0.25):
        super().__init__()
        self.embedding = nn.Embedding(codes, dim)
        self.embedding.weight.data.uniform_(-0.5, 0.5)
        self.beta = beta

    def forward(self, z):
        distances = torch.cdist(z, self.embedding.weight)
        indices = distances.argmin(-1)
        quantized = self.embedding(indices)
        codebook = F.mse_loss(quantized, z.detach())
        commitment = F.mse_loss(z, quantized.detach())
        straight = z + (quantized - z).detach()
        return straight, codebook + self.beta * commitment, indices


class VQVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))
        self.quantizer = Quantizer(8, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, x):
        z = self.encoder(x)
        quantized, vq_loss, indices = self.quantizer(z)
        return self.decoder(quantized), vq_loss, indices


class Solver:
    def __init__(self, lr):
        self.model = VQVAE()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.history = []

    def epoch(self, data):
        self.model.train()
        for x in data.split(16):
            recon, vq_loss, _indices = self.model(x)
            recon_error = F.mse_loss(recon, x)
            loss = recon_error + vq_loss
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.history.append(recon_error.item())

    def evaluate(self, data):
        self.model.eval()
        with torch.no_grad():
            recon, _, indices = self.model(data)
        return F.mse_loss(recon, data).item(), indices.unique().numel()


torch.manual_seed(0)
centres = torch.randn(6, 10)
data = centres[torch.randint(0, 6, (64,))] + 0.1 * torch.randn(64, 10)
solver = Solver(3e-3)
for _ in range(5):
    solver.epoch(data)
print([f"{value:.4f}" for value in solver.history], "{:.4f} {}".format(*solver.evaluate(data)))
