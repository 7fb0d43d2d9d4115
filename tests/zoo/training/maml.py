"""Meta-learning: an inner step by torch.autograd.grad with create_graph, an outer Adam."""

import torch
from torch import nn
from torch.func import functional_call


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(1, 20)
        self.out = nn.Linear(20, 1)

    def forward(self, x):
        h = torch.tanh(self.hidden(x))
        return self.out(h)


def sinusoid():
    amplitude, phase = torch.rand(1) * 2 + 0.5, torch.rand(1) * 3
    x = torch.rand(12, 1) * 6 - 3
    return x, amplitude * torch.sin(x + phase)


def adapt(model, x, y, rate):
    params = dict(model.named_parameters())
    prediction = functional_call(model, params, (x,))
    inner_loss = (prediction - y).pow(2).mean()
    grads = torch.autograd.grad(inner_loss, list(params.values()), create_graph=True)
    return {name: p - rate * g for (name, p), g in zip(params.items(), grads, strict=False)}


def main():
    torch.manual_seed(0)
    model = Regressor()
    meta_optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for iteration in range(10):
        meta_loss = 0.0
        for _ in range(3):
            x, y = sinusoid()
            fast = adapt(model, x[:6], y[:6], 0.05)
            prediction = functional_call(model, fast, (x[6:],))
            meta_loss = meta_loss + (prediction - y[6:]).pow(2).mean()
        meta_optimizer.zero_grad()
        (meta_loss / 3).backward()
        meta_optimizer.step()
        if iteration % 3 == 0:
            print(iteration, f"{meta_loss.item() / 3:.4f}")


if __name__ == "__main__":
    main()
