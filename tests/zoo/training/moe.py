"""A mixture of experts with top-1 routing and a loss that balances the load."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden)
        self.w2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)))


class Switch(nn.Module):
    def __init__(self, dim, hidden, experts):
        super().__init__()
        self.gate = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList([Expert(dim, hidden) for _ in range(experts)])

    def forward(self, x):
        logits = self.gate(x)
        probs = F.softmax(logits, dim=-1)
        weight, index = probs.max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            chosen = (index == number).nonzero().squeeze(-1)
            if len(chosen):
                out = out.index_add(0, chosen, weight[chosen, None] * expert(x[chosen]))
        share = F.one_hot(index, len(self.experts)).float().mean(0)
        balance = len(self.experts) * (share * probs.mean(0)).sum()
        return out, balance


class Network(nn.Module):
    def __init__(self, dim=6, hidden=12, experts=3, depth=2):
        super().__init__()
        self.embed = nn.Linear(4, dim)
        self.blocks = nn.ModuleList([Switch(dim, hidden, experts) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(depth)])
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        h = self.embed(x)
        aux = 0.0
        for norm, block in zip(self.norms, self.blocks, strict=False):
            delta, balance = block(norm(h))
            h = h + delta
            aux = aux + balance
        return self.out(h), aux


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--aux", type=float, default=0.01)
    args = parser.parse_args()
    torch.manual_seed(0)
    net = Network()
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    for step in range(args.steps):
        x = torch.randn(48, 4)
        y = torch.where(x[:, :1] > 0, x[:, 1:2], -x[:, 2:3])
        pred, aux = net(x)
        err = F.mse_loss(pred, y)
        loss = err + args.aux * aux
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            print(step, f"{err.item():.4f} {float(aux):.3f}")


if __name__ == "__main__":
    main()
