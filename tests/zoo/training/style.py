"""Style transfer: the image is optimized through a frozen network; then a small network that learns a mask."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 6, 3, padding=1)

    def forward(self, x):
        a = F.relu(self.conv1(x))
        b = F.relu(self.conv2(F.avg_pool2d(a, 2)))
        return a, b


def gram(features):
    n, c, h, w = features.shape
    flat = features.view(n, c, h * w)
    return flat @ flat.transpose(1, 2) / (c * h * w)


torch.manual_seed(0)
network = Features().eval()
for p in network.parameters():
    p.requires_grad_(False)
content, style = torch.rand(1, 1, 12, 12), torch.rand(1, 1, 12, 12).round()
with torch.no_grad():
    wanted = network(content)[1]
    styles = [gram(f) for f in network(style)]
image = content.clone().requires_grad_(True)
optimizer = torch.optim.Adam([image], lr=0.02)
for step in range(12):
    optimizer.zero_grad()
    features = network(image)
    content_loss = F.mse_loss(features[1], wanted)
    style_loss = sum(F.mse_loss(gram(f), s) for f, s in zip(features, styles, strict=False))
    smooth = (image[..., 1:] - image[..., :-1]).pow(2).mean()
    loss = content_loss + 50 * style_loss + 0.1 * smooth
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        image.clamp_(0, 1)
    if step % 4 == 0:
        print(step, f"{loss.item():.5f}")
