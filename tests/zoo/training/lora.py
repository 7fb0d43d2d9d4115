"""Fine-tuning with low-rank adapters: a frozen body, adapters, a new head."""

import torch
from torch import nn
from torch.nn import functional as F


class LoRALinear(nn.Module):
    def __init__(self, base, rank=2, alpha=4.0):
        super().__init__()
        self.base = base
        for p in self.base.parameters():
            p.requires_grad = False
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=5**0.5)
        self.scaling = alpha / rank

    def forward(self, x):
        low = F.linear(x, self.lora_A)
        return self.base(x) + self.scaling * F.linear(low, self.lora_B)


class Encoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x):
        hidden = self.up(x)
        hidden = F.relu(hidden)
        return x + self.down(hidden)


class Classifier(nn.Module):
    def __init__(self, dim=8, classes=3):
        super().__init__()
        self.encoder = nn.Sequential(Encoder(dim), Encoder(dim))
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        features = self.encoder(x)
        return self.head(features)


def pretrain(model, steps):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        x = torch.randn(16, 8)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def add_adapters(module):
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, LoRALinear(child))
        else:
            add_adapters(child)


def finetune(model, steps):
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=5e-3)
    for _ in range(steps):
        x = torch.randn(16, 8)
        logits = model(x)
        loss = F.cross_entropy(logits, x[:, 3:6].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


torch.manual_seed(0)
model = Classifier()
print(f"pretrained {pretrain(model, 8):.4f}")
for p in model.parameters():
    p.requires_grad = False
add_adapters(model.encoder)
model.head = nn.Linear(8, 3)
print(f"fine-tuned {finetune(model, 12):.4f}")
