"""Gradient checkpointing, both kinds: what is not kept is computed again in backward."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.2)) for _ in range(4))
x = torch.randn(8, 16, requires_grad=True)

for use_reentrant in (False, True):
    h = x
    for layer in layers:
        h = checkpoint(layer, h, use_reentrant=use_reentrant)
    loss = h.square().mean()
    loss.backward()
    print(f"reentrant {use_reentrant}: loss = {loss.item():.9f}, |dx| = {x.grad.norm().item():.9f}")
