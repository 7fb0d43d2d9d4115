"""Truncated backpropagation through time: an LSTM whose state is kept across batches and detached."""

import math

import torch
from torch import nn


class Config:
    vocab, embed, hidden, layers = 20, 12, 16, 2
    batch, bptt, epochs, lr, clip = 4, 6, 2, 2.0, 0.25


class LanguageModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.drop = nn.Dropout(0.1)
        self.encoder = nn.Embedding(cfg.vocab, cfg.embed)
        self.rnn = nn.LSTM(cfg.embed, cfg.hidden, cfg.layers, dropout=0.1)
        self.decoder = nn.Linear(cfg.hidden, cfg.vocab)
        self.init_weights()
        self.cfg = cfg

    def init_weights(self):
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, tokens, hidden):
        emb = self.drop(self.encoder(tokens))
        output, hidden = self.rnn(emb, hidden)
        output = self.drop(output)
        decoded = self.decoder(output)
        return decoded.view(-1, self.cfg.vocab), hidden

    def init_hidden(self, size):
        weight = next(self.parameters())
        shape = (self.cfg.layers, size, self.cfg.hidden)
        return weight.new_zeros(shape), weight.new_zeros(shape)


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


def get_batch(source, i, bptt):
    n = min(bptt, len(source) - 1 - i)
    return source[i : i + n], source[i + 1 : i + 1 + n].reshape(-1)


def evaluate(model, source, criterion, cfg):
    model.eval()
    total = 0.0
    hidden = model.init_hidden(cfg.batch)
    with torch.no_grad():
        for i in range(0, source.size(0) - 1, cfg.bptt):
            data, targets = get_batch(source, i, cfg.bptt)
            output, hidden = model(data, hidden)
            total += len(data) * criterion(output, targets).item()
    return total / (len(source) - 1)


def train(model, source, criterion, cfg, lr):
    model.train()
    hidden = model.init_hidden(cfg.batch)
    for i in range(0, source.size(0) - 1, cfg.bptt):
        data, targets = get_batch(source, i, cfg.bptt)
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
    return loss.item()


torch.manual_seed(7)
cfg = Config()
tokens = (torch.arange(37 * cfg.batch) * 3 % cfg.vocab).view(cfg.batch, -1).t().contiguous()
model = LanguageModel(cfg)
criterion = nn.CrossEntropyLoss()
lr, best = cfg.lr, None
for epoch in range(cfg.epochs):
    last = train(model, tokens, criterion, cfg, lr)
    valid = evaluate(model, tokens, criterion, cfg)
    print(f"{epoch} {last:.4f} {math.exp(valid):.2f}")
    if best is None or valid < best:
        best = valid
    else:
        lr /= 4.0
