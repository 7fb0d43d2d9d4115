"""A vision transformer with label smoothing and gradient accumulation."""

import torch
from torch import nn

torch.manual_seed(0)
WIDTH, PATCH = 48, 4


class ViT(nn.Module):
    def __init__(self, depth=6, classes=10):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 65, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.1, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


model = ViT()
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
ACCUMULATED = 2
for step in range(6):
    images, labels = torch.randn(8, 3, 32, 32), torch.randint(10, (8,))
    loss = criterion(model(images), labels) / ACCUMULATED
    loss.backward()
    if (step + 1) % ACCUMULATED == 0:
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
print(f"loss {loss.item():.3f}")
