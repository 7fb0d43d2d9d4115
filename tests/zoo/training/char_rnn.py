"""A character model whose hidden state is carried from batch to batch."""

import math

import torch
import torch.nn as nn

TEXT = "the quick brown fox jumps over the lazy dog " * 8


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid):
        super().__init__()
        self.nhid = nhid
        self.drop = nn.Dropout(0.1)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid)
        self.decoder = nn.Linear(nhid, ntoken)
        self.init_weights()

    def init_weights(self):
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, tokens, hidden):
        emb = self.drop(self.encoder(tokens))
        output, hidden = self.rnn(emb, hidden)
        output = self.drop(output)
        decoded = self.decoder(output)
        return decoded.view(-1, decoded.size(-1)), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return weight.new_zeros(1, bsz, self.nhid), weight.new_zeros(1, bsz, self.nhid)


def repackage_hidden(h):
    return tuple(v.detach() for v in h)


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data[: nbatch * bsz].view(bsz, -1).t().contiguous()


def main():
    torch.manual_seed(0)
    vocab = sorted(set(TEXT))
    data = batchify(torch.tensor([vocab.index(c) for c in TEXT]), 4)
    model = RNNModel(len(vocab), 8, 16)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    total_loss = 0.0
    model.train()
    hidden = model.init_hidden(4)
    for i in range(0, data.size(0) - 9, 8):
        inputs = data[i : i + 8]
        targets = data[i + 1 : i + 9].reshape(-1)
        hidden = repackage_hidden(hidden)
        output, hidden = model(inputs, hidden)
        loss = criterion(output, targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        total_loss += loss.item()
    print(f"perplexity {math.exp(total_loss / 10):.2f}")


main()
