"""A small residual network with autocast and a GradScaler on the CPU, an average of the weights, label smoothing."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class BasicBlock(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.shortcut = nn.Sequential()
        if stride != 1 or cin != cout:
            self.shortcut = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        skip = self.shortcut(x)
        out = out + skip
        return F.relu(out)


class ResNet(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.layer1 = BasicBlock(4, 4)
        self.layer2 = BasicBlock(4, 8, 2)
        self.linear = nn.Linear(8, classes)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer1(out)
        out = self.layer2(out)
        out = F.adaptive_avg_pool2d(out, 1).flatten(1)
        return self.linear(out)


class EMA:
    def __init__(self, model, decay):
        self.module = copy.deepcopy(model)
        self.module.eval()
        self.decay = decay
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for slow, fast in zip(self.module.state_dict().values(), model.state_dict().values(), strict=False):
            slow.copy_(self.decay * slow + (1 - self.decay) * fast)


def make_data(n):
    y = torch.randint(0, 3, (n,))
    x = torch.randn(n, 1, 8, 8) * 0.5
    for i, c in enumerate(y.tolist()):
        x[i, 0, 2 * c : 2 * c + 2] += 1.0
    return x, y


def run(epochs=3, lr=0.05):
    torch.manual_seed(3)
    x, y = make_data(48)
    net = ResNet()
    ema = EMA(net, 0.9)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    for epoch in range(epochs):
        net.train()
        for i in range(0, len(x), 16):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                outputs = net(x[i : i + 16])
                loss = criterion(outputs, y[i : i + 16])
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            ema.update(net)
        scheduler.step()
        net.eval()
        with torch.no_grad():
            accuracy = (net(x).argmax(1) == y).float().mean().item()
            averaged = (ema.module(x).argmax(1) == y).float().mean().item()
        print(epoch, f"{loss.item():.3f} {accuracy:.2f} {averaged:.2f}")


if __name__ == "__main__":
    run()
