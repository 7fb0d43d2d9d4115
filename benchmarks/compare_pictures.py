"""The pictures of five networks by gradviz, torchviz, torchview and torchlens, side by side.

    python benchmarks/compare_pictures.py FOLDER

writes NETWORK-TOOL.svg for each into FOLDER, and prints their sizes. It needs PyTorch, torchviz, torchview, torchlens
and `dot`; a tool that is not installed is left out."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from common import machine, table
from torch import nn

import gradviz


class Recurrent(nn.Module):
    """A GRU cell at ten steps."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 16)
        self.cell = nn.GRUCell(16, 16)
        self.out = nn.Linear(16, 12)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(tokens.shape[0], 16)
        for step in range(tokens.shape[1]):
            h = self.cell(self.embed(tokens[:, step]), h)
        return self.out(h)


class Adversaries(nn.Module):
    """A generator and a discriminator that sees its work."""

    def __init__(self) -> None:
        super().__init__()
        self.G = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        self.D = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return self.D(self.G(noise))


def perceptron() -> nn.Module:
    layers = (nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    return nn.Sequential(*layers)


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


NETWORKS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "mlp": lambda: (perceptron(), torch.randn(4, 8)),
    "cnn": lambda: (convolutional(), torch.randn(8, 1, 16, 16)),
    "gru": lambda: (Recurrent(), torch.randint(12, (4, 10))),
    "transformer": lambda: (transformer(), torch.randn(2, 5, 16)),
    "gan": lambda: (Adversaries(), torch.randn(4, 4)),
}  # fmt: skip


def by_gradviz(model: nn.Module, inputs: torch.Tensor, path: Path) -> None:
    with gradviz.record(path.with_suffix(".gradviz")):
        loss = model(inputs).pow(2).mean()
        loss.backward()
    gradviz.draw(path.with_suffix(".gradviz"), rolled=True).save(path)


def by_torchviz(model: nn.Module, inputs: torch.Tensor, path: Path) -> None:
    torchviz = importlib.import_module("torchviz")
    loss = model(inputs).pow(2).mean()
    dot = torchviz.make_dot(loss, params=dict(model.named_parameters()))
    path.write_bytes(dot.pipe("svg"))


def by_torchview(model: nn.Module, inputs: torch.Tensor, path: Path) -> None:
    torchview = importlib.import_module("torchview")
    drawn = torchview.draw_graph(model, input_data=inputs, depth=3, roll=True, expand_nested=True)
    path.write_bytes(drawn.visual_graph.pipe("svg"))


def by_torchlens(model: nn.Module, inputs: torch.Tensor, path: Path) -> None:
    visualization = importlib.import_module("torchlens.visualization")
    options = importlib.import_module("torchlens.options").VisualizationOptions
    chosen = options(view="rolled", container_path=str(path.with_suffix("")), file_format="svg", save_only=True)
    visualization.show_model_graph(model, inputs, visualization=chosen)


TOOLS = {"gradviz": by_gradviz, "torchviz": by_torchviz, "torchview": by_torchview, "torchlens": by_torchlens}


def size(svg: Path) -> tuple[int, int]:
    """Width and height in points."""
    found = re.search(r'<svg width="([0-9.]+)pt" height="([0-9.]+)pt"', svg.read_text())
    assert found is not None, svg
    return round(float(found[1])), round(float(found[2]))


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    print(machine())
    sizes: dict[tuple[str, str], str] = {}
    for tool, draw in TOOLS.items():  # torchlens comes last: it wraps the functions of PyTorch
        for name, made in NETWORKS.items():
            torch.manual_seed(0)
            model, inputs = made()
            path = folder / f"{name}-{tool}.svg"
            try:
                draw(model, inputs, path)
                sizes[name, tool] = "{} × {}".format(*size(path))
            except ImportError as error:
                sizes[name, tool] = str(error)
    rows = [(name, *(sizes[name, tool] for tool in TOOLS)) for name in NETWORKS]
    table("Sizes in points", rows, ("network", *TOOLS))


if __name__ == "__main__":
    main()
