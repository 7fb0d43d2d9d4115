"""What recording costs a PyTorch program: a training step of three models, recorded in each grade, beside the same step
without a recorder, under PyTorch's anomaly mode, and traced with its gradients by torchlens, where that is installed
(`pip install torchlens==2.36.0`).

    python benchmarks/torch_recording.py [ROUNDS]
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import HEAP_IS_KEPT, machine, table
from torch import nn
from torch.nn import functional as F

import gradviz

GRADES = ("none", "stats", "full")
ANOMALY = "detect_anomaly"
TURN = 0.3  # seconds at least that steps are timed at once: the writer commits twelve times a second
REMEMBERED = 6  # steps whose peak memory is measured
PROCESSES = 5  # for each model: one differs from the next by what lies where in memory
Maker = Callable[[], tuple[nn.Module, torch.Tensor, torch.Tensor]]


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(x + self.norms[1](self.second(h)))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.project(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.norms[1](x))


def mlp() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Three layers, 128 samples."""
    net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    return net, torch.randn(128, 256), torch.randint(10, (128,))


def cnn() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Four residual blocks, 16 images of 32 by 32."""
    blocks = [Residual(16) for _ in range(4)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *blocks[:2], nn.MaxPool2d(2), *blocks[2:], *head)
    return net, torch.randn(16, 3, 32, 32), torch.randint(10, (16,))


def transformer() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Six layers of width 192, 8 sequences of 64."""
    layers = [Layer(192, 4) for _ in range(6)]
    net = nn.Sequential(nn.Embedding(500, 192), *layers, nn.LayerNorm(192), nn.Linear(192, 500), nn.Flatten(0, 1))
    tokens = torch.randint(500, (8, 64))
    return net, tokens, tokens.flatten()


def step_of(make: Maker) -> Callable[[], None]:
    """A training step of a model."""
    torch.manual_seed(0)
    net, inputs, labels = make()
    optimizer = torch.optim.AdamW(net.parameters())

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(net(inputs), labels).backward()
        optimizer.step()

    return step


def timed(step: Callable[[], None]) -> float:
    """Seconds of one step, of as many as fill a turn."""
    start = time.perf_counter()
    steps, taken = 0, 0.0
    while taken < TURN:
        step()
        steps += 1
        taken = time.perf_counter() - start
    return taken / steps


def measured(make: Maker, rounds: str) -> dict[str, float]:
    """The median seconds of a step, plain and in each grade, taken in turns."""
    step = step_of(make)
    step()
    with tempfile.TemporaryDirectory() as folder:
        ways: dict[str, Callable[[], AbstractContextManager[object]]] = {
            "plain": nullcontext,
            ANOMALY: lambda: torch.autograd.set_detect_anomaly(True),
            **{grade: partial(gradviz.record, Path(folder) / "run.gradviz", values=grade) for grade in GRADES},
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(int(rounds)):
            for name, way in ways.items():
                with way():
                    step()
                    times[name].append(timed(step))
    return {name: statistics.median(taken) for name, taken in times.items()}


def by_torchlens(make: Maker, rounds: str) -> float:
    """The median time of a step that torchlens traces, with all activations and gradients, as a multiple of a plain
    one. In a process of its own: what it has wrapped stays wrapped."""
    import torchlens
    from torchlens.options import CaptureOptions

    class Loss(nn.Module):
        def __init__(self, net: nn.Module, labels: torch.Tensor) -> None:
            super().__init__()
            self.net, self.labels = net, labels

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self.net(inputs), self.labels)

    torch.manual_seed(0)
    net, inputs, labels = make()
    model, optimizer = Loss(net, labels), torch.optim.AdamW(net.parameters())

    def plain() -> None:
        optimizer.zero_grad()
        model(inputs).backward()
        optimizer.step()

    def traced() -> None:
        optimizer.zero_grad()
        log = torchlens.trace(model, inputs, capture=CaptureOptions(save_grads="all"))
        log.log_backward(log[log.output_layers[0]].out)
        optimizer.step()

    medians = []
    for step in (plain, traced):
        step()
        medians.append(statistics.median(timed(step) for _ in range(int(rounds))))
    return medians[1] / medians[0]


def peak(make: Maker, grade: str) -> float:
    """The most memory that this process has had after some steps, in MB. Raises OSError where there is no /proc."""
    step = step_of(make)
    step()
    with tempfile.TemporaryDirectory() as folder:
        if grade == "plain":
            for _ in range(REMEMBERED):
                step()
        else:
            with gradviz.record(Path(folder) / "run.gradviz", values=grade):
                for _ in range(REMEMBERED):
                    step()
    # not getrusage, which counts the process that started this one too
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


MODELS: dict[str, Maker] = {make.__name__: make for make in (mlp, cnn, transformer)}
# What is measured in a process of its own: the model, and one word more.
ALONE = {"--step": measured, "--torchlens": by_torchlens, "--peak": peak}


def elsewhere(*arguments: str, **variables: str) -> Any:
    """What a process of its own finds, with these variables of the environment; None where it cannot run."""
    done = subprocess.run(
        [sys.executable, __file__, *arguments], env={**os.environ, **variables}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        print(f"{' '.join(arguments)}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def ratio(value: float | None, to: float | None = 1.0) -> str:
    """A ratio as text; a dash where there is none."""
    return "–" if value is None or to is None else f"{value / to:.2f}"


def spread(ratios: list[float]) -> str:
    """The median of ratios, and the least and the greatest."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main() -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    if sys.argv[1:2] and sys.argv[1] in ALONE:
        print(json.dumps(ALONE[sys.argv[1]](MODELS[sys.argv[2]], sys.argv[3])))
        return
    rounds = sys.argv[1] if len(sys.argv) > 1 else "9"
    print(f"PyTorch {torch.__version__} on one thread; {machine()}")
    runs = {name: [] for name in MODELS}
    for _ in range(PROCESSES):
        for name in MODELS:
            runs[name].append(elsewhere("--step", name, rounds, **HEAP_IS_KEPT))
    rows, memory = [], []
    for name, found in runs.items():
        plain = statistics.median(run["plain"] for run in found)
        ratios = [spread([run[column] / run["plain"] for run in found]) for column in (*GRADES, ANOMALY)]
        lens = ratio(elsewhere("--torchlens", name, str(max(3, int(rounds) // 3))))
        rows.append((name, f"{1e3 * plain:.1f} ms", *ratios, lens))
    for name in MODELS:
        plain_peak = elsewhere("--peak", name, "plain")
        peaks = [ratio(elsewhere("--peak", name, grade), plain_peak) for grade in GRADES]
        memory.append((name, f"{plain_peak:.0f} MB", *peaks))
    header = ("model", "plain", *GRADES)
    table(
        f"A training step, as a multiple of the plain one: medians of {PROCESSES} processes",
        rows,
        (*header, ANOMALY, "torchlens"),
    )
    table("Peak memory of the process, likewise", memory, header)


if __name__ == "__main__":
    main()
