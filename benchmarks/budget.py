"""What recording a long run takes by default, with a budget, beside `--passes all` and the plain program.

    python benchmarks/budget.py [STEPS [PAIRS [MODEL...]]]

Prints for each model the seconds of the program's thread in its loop, as multiples of the plain loop (median of pairs
of processes, in turns), the same for the last third of the steps, which is behind the passes that a budget records in
any case where the loop takes long enough, the size of the file, and how much more memory the process took at its
peak."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PROGRAM = """
import resource, sys, time
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
which, steps = sys.argv[1], int(sys.argv[2])
if which == "mlp":
    layers, shape = [nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)], (64, 128)
elif which == "cnn":
    first = [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2)]
    layers, shape = [*first, nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5408, 10)], (16, 3, 32, 32)
else:
    layers = [layer for _ in range(100) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU())]
    layers, shape = [*layers, nn.Linear(64, 10)], (32, 64)
model = nn.Sequential(*layers)
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(shape), torch.randint(0, 10, shape[:1])
began = time.thread_time()
for step in range(steps):
    if step == steps * 2 // 3:
        late = time.thread_time()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(time.thread_time() - began, time.thread_time() - late, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
WAYS = {
    "plain": [],
    "default": ["-m", "gradviz", "trace", "-q"],
    "all": ["-m", "gradviz", "trace", "-q", "--passes", "all"],
}


def ran(folder: Path, way: str, which: str, steps: int) -> tuple[float, float, float, float]:
    """The seconds of the loop and of its last third, the most memory and the size of the file in MB."""
    command = [sys.executable, *WAYS[way], "program.py", which, str(steps)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    seconds, late, memory = map(float, done.stdout.split())
    file = folder / "program.gradviz"
    return seconds, late, memory, file.stat().st_size / 1e6 if way != "plain" else 0


def main(steps: int = 3000, pairs: int = 3, models: Sequence[str] = ("mlp", "cnn", "layers")) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "program.py").write_text(PROGRAM)
        for which in models:
            of_model = steps if which != "layers" else steps // 5
            runs = [{way: ran(Path(folder), way, which, of_model) for way in WAYS} for _ in range(pairs)]
            plain = statistics.median(run["plain"][0] for run in runs)
            told = [f"{which:7}{of_model:,} steps, plain {1e3 * plain / of_model:.2f} ms a step"]
            for way in ("default", "all"):
                times = statistics.median(run[way][0] / run["plain"][0] for run in runs)
                late = statistics.median(run[way][1] / run["plain"][1] for run in runs)
                more = statistics.median(run[way][2] - run["plain"][2] for run in runs)
                told.append(f"{way} ×{times:.2f} (end ×{late:.2f}), +{more:.0f} MB, file {runs[0][way][3]:.1f} MB")
            print("; ".join(told), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *([sys.argv[3:]] if sys.argv[3:] else []))
