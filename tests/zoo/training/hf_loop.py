"""A loop as Hugging Face writes it: parameter groups, warm-up, accumulation, a model that returns its loss."""

import argparse
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Output:
    loss: torch.Tensor | None
    logits: torch.Tensor


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.dense = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(0.1)

    def split(self, x):
        b, t, d = x.shape
        return x.view(b, t, self.heads, d // self.heads).transpose(1, 2)

    def forward(self, hidden, mask):
        query_layer = self.split(self.query(hidden))
        key_layer = self.split(self.key(hidden))
        value_layer = self.split(self.value(hidden))
        scores = query_layer @ key_layer.transpose(-1, -2) / math.sqrt(query_layer.shape[-1])
        scores = scores + mask
        probs = F.softmax(scores, dim=-1)
        probs = self.dropout(probs)
        context = (probs @ value_layer).transpose(1, 2).reshape(hidden.shape)
        return self.dense(context)


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attention = SelfAttention(dim, heads)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.intermediate, self.output = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, hidden, mask):
        attended = self.attention(hidden, mask)
        hidden = self.norm1(hidden + attended)
        inner = F.gelu(self.intermediate(hidden))
        return self.norm2(hidden + self.output(inner))


class TinyBert(nn.Module):
    def __init__(self, vocab=24, dim=16, layers=2, labels=3):
        super().__init__()
        self.embed, self.positions = nn.Embedding(vocab, dim), nn.Embedding(12, dim)
        self.layers = nn.ModuleList([Layer(dim, 2) for _ in range(layers)])
        self.pooler = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(dim, labels)
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=0.1)
        if isinstance(module, nn.Linear):
            module.bias.data.zero_()

    def forward(self, input_ids, attention_mask=None, labels=None):
        extended = (1.0 - attention_mask[:, None, None, :]) * -10000.0
        positions = torch.arange(input_ids.shape[1])
        hidden = self.embed(input_ids) + self.positions(positions)
        for layer in self.layers:
            hidden = layer(hidden, extended)
        pooled = torch.tanh(self.pooler(hidden[:, 0]))
        logits = self.classifier(self.dropout(pooled))
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits, labels)
        return Output(loss, logits)


def get_optimizer(model, args):
    no_decay = ["bias", "norm"]
    named = list(model.named_parameters())
    groups = [
        {"params": [p for n, p in named if not any(k in n for k in no_decay)], "weight_decay": 0.01},
        {"params": [p for n, p in named if any(k in n for k in no_decay)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=args.learning_rate)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--num_train_epochs", type=int, default=2)
    parser.add_argument("--accum", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(42)
    ids = torch.randint(2, 24, (48, 8))
    mask = torch.ones(48, 8)
    mask[::3, 6:] = 0
    labels = (ids[:, 0] + ids[:, 1]) % 3
    data = TensorDataset(ids, mask, labels)
    train_loader, eval_loader = DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=16)
    model = TinyBert()
    optimizer = get_optimizer(model, args)
    total = args.num_train_epochs * len(train_loader) // args.accum
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 2) * max(0.1, 1 - s / total))
    for epoch in range(args.num_train_epochs):
        model.train()
        for step, (input_ids, attention_mask, target) in enumerate(train_loader):
            outputs = model(input_ids=input_ids, attention_mask=attention_mask, labels=target)
            loss = outputs.loss / args.accum
            loss.backward()
            if (step + 1) % args.accum == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        model.eval()
        right = 0
        for input_ids, attention_mask, target in eval_loader:
            with torch.no_grad():
                outputs = model(input_ids=input_ids, attention_mask=attention_mask)
            right += (outputs.logits.argmax(-1) == target).sum().item()
        print(epoch, f"{loss.item():.4f}", right)


if __name__ == "__main__":
    main()
