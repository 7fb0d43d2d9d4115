"""A Trainer as libraries write it: a sentence classifier with warm-up, clipping and evaluation."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Arguments:
    epochs: int = 2
    rate: float = 5e-4
    batch: int = 16
    clip: float = 1.0
    warmup: int = 4


class Sentences(Dataset):
    def __init__(self, count):
        self.rows = [self.row(number) for number in range(count)]

    @staticmethod
    def row(number):
        length = int(torch.randint(4, 13, (1,)))
        tokens = torch.randint(2, 50, (length,))
        return tokens, int(tokens.sum() % 2)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        return self.rows[number]


def collate(rows):
    tokens, labels = zip(*rows, strict=True)
    padded = nn.utils.rnn.pad_sequence(tokens, batch_first=True)
    return {"input_ids": padded, "attention_mask": (padded != 0).long(), "labels": torch.tensor(labels)}


class Classifier(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embeddings = nn.Embedding(50, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.pooler = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.classifier = nn.Linear(width, 2)

    def forward(self, input_ids, attention_mask, labels):
        hidden = self.encoder(self.embeddings(input_ids), src_key_padding_mask=attention_mask == 0)
        weights = attention_mask.unsqueeze(-1).float()
        pooled = self.pooler((hidden * weights).sum(1) / weights.sum(1))
        logits = self.classifier(pooled)
        return nn.functional.cross_entropy(logits, labels), logits


class Trainer:
    def __init__(self, model, arguments, training, evaluation):
        self.model, self.arguments, self.training, self.evaluation = model, arguments, training, evaluation
        decayed = [p for name, p in model.named_parameters() if "bias" not in name]
        plain = [p for name, p in model.named_parameters() if "bias" in name]
        groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=arguments.rate)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / arguments.warmup)
        )

    def training_step(self, batch):
        self.model.train()
        loss, _ = self.model(**batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.arguments.clip)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return loss.detach()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        right = sum((self.model(**batch)[1].argmax(-1) == batch["labels"]).sum() for batch in self.evaluation)
        return float(right) / len(self.evaluation.dataset)

    def train(self):
        for _ in range(self.arguments.epochs):
            losses = [self.training_step(batch) for batch in self.training]
            print(f"loss {torch.stack(losses).mean():.3f}, accuracy {self.evaluate():.2f}")


def main():
    torch.manual_seed(0)
    arguments = Arguments()
    loaders = [DataLoader(Sentences(count), arguments.batch, collate_fn=collate) for count in (96, 32)]
    Trainer(Classifier(), arguments, *loaders).train()


if __name__ == "__main__":
    main()
