"""A character-level GPT of 12 blocks, trained on a repeated sentence."""

import math

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
TEXT = "the gradient flows from the root to the leaves. " * 20
LETTERS = sorted(set(TEXT))
DATA = torch.tensor([LETTERS.index(letter) for letter in TEXT])
BLOCK, WIDTH, HEADS, LAYERS = 32, 64, 4, 12


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("mask", torch.tril(torch.ones(BLOCK, BLOCK)).view(1, 1, BLOCK, BLOCK))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.c_attn(x).split(width, dim=2)
        q, k, v = (part.view(batch, length, HEADS, width // HEADS).transpose(1, 2) for part in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        weights = self.dropout(F.softmax(scores, dim=-1))
        return self.c_proj((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(len(LETTERS), WIDTH)
        self.wpe = nn.Embedding(BLOCK, WIDTH)
        self.h = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, len(LETTERS), bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1)))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def batch_of(size):
    starts = torch.randint(len(DATA) - BLOCK, (size,))
    tokens = torch.stack([DATA[start : start + BLOCK] for start in starts])
    targets = torch.stack([DATA[start + 1 : start + BLOCK + 1] for start in starts])
    return tokens, targets


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(6):
    tokens, targets = batch_of(4)
    loss = model(tokens, targets)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
print(f"loss {loss.item():.3f}")
