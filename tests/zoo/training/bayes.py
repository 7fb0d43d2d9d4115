"""Bayes by backprop: weights with a mean and a spread, sampled in each forward, and a KL term."""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal, kl_divergence


class BayesLinear(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.mu = nn.Parameter(torch.randn(n_out, n_in) / math.sqrt(n_in))
        self.rho = nn.Parameter(torch.full((n_out, n_in), -3.0))
        self.bias = nn.Parameter(torch.zeros(n_out))
        self.prior = Normal(torch.tensor(0.0), torch.tensor(1.0))

    def posterior(self):
        sigma = F.softplus(self.rho)
        return Normal(self.mu, sigma)

    def forward(self, x):
        weight = self.posterior().rsample()
        return F.linear(x, weight, self.bias)

    def kl(self):
        return kl_divergence(self.posterior(), self.prior).sum()


class BayesNet(nn.Module):
    def __init__(self, n_in, hidden, n_out):
        super().__init__()
        self.l1 = BayesLinear(n_in, hidden)
        self.l2 = BayesLinear(hidden, n_out)

    def forward(self, x):
        h = F.relu(self.l1(x))
        return self.l2(h)

    def kl(self):
        return self.l1.kl() + self.l2.kl()


def elbo(net, x, y, samples, size):
    nll = 0.0
    for _ in range(samples):
        prediction = net(x)
        nll = nll + F.mse_loss(prediction, y, reduction="sum") / 0.02
    kl = net.kl()
    return nll / samples / len(x) + kl / size


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--samples", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 32).unsqueeze(1)
    y = x**3 + 0.05 * torch.randn(32, 1)
    net = BayesNet(1, 16, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for epoch in range(args.epochs):
        net.train()
        for batch_x, batch_y in zip(x.split(16), y.split(16), strict=False):
            loss = elbo(net, batch_x, batch_y, args.samples, len(x))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 3 == 0:
            print(epoch, f"{loss.item():.3f}")


if __name__ == "__main__":
    main()
