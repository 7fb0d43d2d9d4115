"""An encoder and a decoder with attention, an optimizer each, and teacher forcing."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, HIDDEN, LENGTH = 8, 16, 4


class EncoderRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.gru = nn.GRU(HIDDEN, HIDDEN, batch_first=True)

    def forward(self, tokens):
        embedded = self.embedding(tokens)
        output, hidden = self.gru(embedded)
        return output, hidden


class AttnDecoderRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.query = nn.Linear(HIDDEN, HIDDEN)
        self.gru = nn.GRU(2 * HIDDEN, HIDDEN, batch_first=True)
        self.out = nn.Linear(HIDDEN, VOCAB)

    def forward(self, token, hidden, encoder_outputs):
        embedded = self.embedding(token)
        query = self.query(hidden.transpose(0, 1))
        scores = query @ encoder_outputs.transpose(1, 2)
        weights = F.softmax(scores, dim=-1)
        context = weights @ encoder_outputs
        output, hidden = self.gru(torch.cat([embedded, context], dim=-1), hidden)
        logits = self.out(output)
        return logits.squeeze(1), hidden


def train_step(source, target, encoder, decoder, encoder_optimizer, decoder_optimizer):
    encoder_optimizer.zero_grad()
    decoder_optimizer.zero_grad()
    encoder_outputs, hidden = encoder(source)
    token = torch.zeros(len(source), 1, dtype=torch.long)
    loss = 0
    for i in range(LENGTH):
        logits, hidden = decoder(token, hidden, encoder_outputs)
        loss = loss + F.cross_entropy(logits, target[:, i])
        if random.random() < 0.5:
            token = target[:, i : i + 1]
        else:
            token = logits.argmax(1, keepdim=True).detach()
    loss.backward()
    nn.utils.clip_grad_norm_(encoder.parameters(), 5.0)
    nn.utils.clip_grad_norm_(decoder.parameters(), 5.0)
    encoder_optimizer.step()
    decoder_optimizer.step()
    return loss.item() / LENGTH


def main():
    random.seed(0)
    torch.manual_seed(0)
    encoder, decoder = EncoderRNN(), AttnDecoderRNN()
    encoder_optimizer = torch.optim.Adam(encoder.parameters(), lr=5e-3)
    decoder_optimizer = torch.optim.Adam(decoder.parameters(), lr=5e-3)
    for step in range(8):
        source = torch.randint(1, VOCAB, (12, LENGTH))
        target = source.flip(1)
        print(step, train_step(source, target, encoder, decoder, encoder_optimizer, decoder_optimizer))


main()
