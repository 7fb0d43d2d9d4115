"""A Wasserstein critic with a gradient penalty, and a generator every second step."""

import argparse

import torch
from torch import autograd, nn, optim

parser = argparse.ArgumentParser()
parser.add_argument("--iters", type=int, default=8)
parser.add_argument("--lam", type=float, default=10.0)
parser.add_argument("--critic-iters", type=int, default=2)
args = parser.parse_args()


def mlp(a, b, c):
    return nn.Sequential(nn.Linear(a, b), nn.LeakyReLU(0.2), nn.Linear(b, b), nn.LeakyReLU(0.2), nn.Linear(b, c))


torch.manual_seed(3)
G = mlp(4, 16, 2)
D = mlp(2, 16, 1)
opt_g = optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.9))
opt_d = optim.Adam(D.parameters(), lr=1e-3, betas=(0.5, 0.9))


def gradient_penalty(real, fake):
    alpha = torch.rand(len(real), 1)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    score = D(mixed)
    grads = autograd.grad(score.sum(), mixed, create_graph=True)[0]
    return ((grads.norm(2, dim=1) - 1) ** 2).mean()


def sample_real(n):
    angle = torch.rand(n) * 6.283
    return torch.stack([angle.cos(), angle.sin()], 1)


for it in range(args.iters):
    for p in D.parameters():
        p.requires_grad = True
    for _ in range(args.critic_iters):
        real = sample_real(16)
        fake = G(torch.randn(16, 4)).detach()
        d_real = D(real).mean()
        d_fake = D(fake).mean()
        penalty = gradient_penalty(real, fake)
        d_loss = d_fake - d_real + args.lam * penalty
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()
    for p in D.parameters():
        p.requires_grad = False
    fake = G(torch.randn(16, 4))
    g_loss = -D(fake).mean()
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
    print(it, d_loss.item(), g_loss.item())
