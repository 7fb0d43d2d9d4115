"""Two encoders and a temperature that are trained to agree on pairs."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, dim, width, out):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, width))
        self.projection = nn.Linear(width, out, bias=False)

    def forward(self, x):
        features = self.layers(x)
        return F.normalize(self.projection(features), dim=-1)


class CLIP(nn.Module):
    def __init__(self):
        super().__init__()
        self.image_encoder = Encoder(10, 16, 6)
        self.text_encoder = Encoder(7, 16, 6)
        self.logit_scale = nn.Parameter(torch.ones([]) * 2.0)

    def forward(self, images, texts):
        image_embeds = self.image_encoder(images)
        text_embeds = self.text_encoder(texts)
        scale = self.logit_scale.exp()
        return scale * image_embeds @ text_embeds.t()


def contrastive_loss(logits):
    labels = torch.arange(logits.shape[0])
    loss_i = F.cross_entropy(logits, labels)
    loss_t = F.cross_entropy(logits.t(), labels)
    return (loss_i + loss_t) / 2


def train_one_epoch(model, optimizer, scheduler, batches):
    running = 0.0
    for images, texts in batches:
        optimizer.zero_grad()
        logits = model(images, texts)
        loss = contrastive_loss(logits)
        loss.backward()
        optimizer.step()
        scheduler.step()
        running += loss.item()
    return running / len(batches)


def main():
    torch.manual_seed(0)
    shared = torch.randn(3, 12, 5)
    to_image, to_text = torch.randn(5, 10), torch.randn(5, 7)
    batches = [(s @ to_image, s @ to_text) for s in shared]
    model = CLIP()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, total_iters=12)
    for epoch in range(4):
        print(epoch, train_one_epoch(model, optimizer, scheduler, batches))


if __name__ == "__main__":
    main()
