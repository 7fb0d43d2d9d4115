"""Mixed precision on the CPU: products in bfloat16, the weights in float32."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
inputs, labels = torch.randn(32, 16), torch.randint(4, (32,))

for step in range(4):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = net(inputs)
        loss = nn.functional.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss = {loss.item():.9f}, logits are {logits.dtype}")
