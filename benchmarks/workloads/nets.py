"""Networks written once, for `torch` and for `gradviz`, which answers to the same names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def mlp(torch: Any) -> Any:
    """The loss of a multi-layer perceptron."""
    nn = torch.nn
    net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    return (net(torch.randn(8, 20)) ** 2).mean()


def resnet(torch: Any) -> Any:
    """The loss of a network like ResNet-18: eight blocks of two convolutions, with a way around each."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, inside: int, outside: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(outside)
            self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(outside)
            self.around = None
            if stride != 1 or inside != outside:
                convolution = nn.Conv2d(inside, outside, 1, stride, bias=False)
                self.around = nn.Sequential(convolution, nn.BatchNorm2d(outside))

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.bn1(self.conv1(x)))
            y = self.bn2(self.conv2(y))
            return torch.relu(y + (x if self.around is None else self.around(x)))

    widths = [(8, 8, 1), (8, 8, 1), (8, 16, 2), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1)]
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        *(Block(*width) for width in widths),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    return (net(torch.randn(2, 3, 16, 16)) ** 2).mean()


def transformer(torch: Any) -> Any:
    """The loss of six encoder layers."""
    nn = torch.nn
    net = nn.Sequential(*(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(6)))
    return (net(torch.randn(2, 5, 16)) ** 2).mean()


def steps(torch: Any, ops: int) -> Any:
    """The loss of a recurrent network that was run until it had done about so many ops."""
    w, u, b = (torch.randn(*shape, requires_grad=True) for shape in ((8, 8), (8, 8), (8,)))
    x, h = torch.randn(4, 8), torch.zeros(4, 8)
    for _ in range(ops // 5):
        h = torch.tanh(x @ w + h @ u + b)
    return (h**2).mean()


WORKLOADS: dict[str, Callable[[Any], Any]] = {
    "MLP": mlp,
    "ResNet-18-like": resnet,
    "transformer, 6 layers": transformer,
    "training step, 1,000 ops": lambda torch: steps(torch, 1_000),
    "training step, 10,000 ops": lambda torch: steps(torch, 10_000),
    "training step, 100,000 ops": lambda torch: steps(torch, 100_000),
}
