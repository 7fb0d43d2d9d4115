"""An LSTM language model whose hidden state goes on from batch to batch."""

import torch
from torch import nn

torch.manual_seed(0)
WORDS = "a leaf has a gradient and a root has none so the root gives and the leaf receives".split()
VOCABULARY = sorted(set(WORDS))
CORPUS = torch.tensor([VOCABULARY.index(word) for word in WORDS * 40])
BATCH, LENGTH, WIDTH = 8, 10, 32


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(len(VOCABULARY), WIDTH)
        self.rnn = nn.LSTM(WIDTH, WIDTH, num_layers=2, dropout=0.2)
        self.decoder = nn.Linear(WIDTH, len(VOCABULARY))

    def forward(self, tokens, hidden):
        embedded = self.drop(self.encoder(tokens))
        output, hidden = self.rnn(embedded, hidden)
        decoded = self.decoder(self.drop(output))
        return decoded.view(-1, len(VOCABULARY)), hidden


def repackage_hidden(hidden):
    return tuple(state.detach() for state in hidden)


rows = CORPUS[: len(CORPUS) // BATCH * BATCH].view(BATCH, -1).t().contiguous()
model = RNNModel()
criterion = nn.CrossEntropyLoss()
hidden = (torch.zeros(2, BATCH, WIDTH), torch.zeros(2, BATCH, WIDTH))
for start in range(0, 60, LENGTH):
    data, targets = rows[start : start + LENGTH], rows[start + 1 : start + 1 + LENGTH].reshape(-1)
    model.zero_grad()
    hidden = repackage_hidden(hidden)
    output, hidden = model(data, hidden)
    loss = criterion(output, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-5.0)
print(f"loss {loss.item():.3f}")
