"""Forward and backward of five workloads against NumPy by hand, PyTorch, HIPS autograd and mygrad.

Each library runs in a process of its own, on one thread; they take turns, and the medians are compared. All
gradients are compared with those by hand first. The peers: `pip install torch==2.13.0 autograd mygrad`; one that
is not installed is left out, and named.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from common import machine, table

LIBRARIES = {
    "NumPy": "NumPy by hand",
    "gradviz": "gradviz",
    "torch": "PyTorch",
    "hips": "HIPS autograd",
    "mygrad": "mygrad",
}
WORKLOADS = {
    "chain": "1,000 multiplications on (4,)",
    "mlp": "MLP 784-256-10, batch 64",
    "products": "10 products of 512 × 512",
    "attention": "attention, 8 × 64 words",
    "convnet": "convnet, batch 32",
}
ROUNDS = 25
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Library:
    """A library at work in its process. Raises ImportError where it is not installed."""

    def __init__(self, name: str) -> None:
        command = [sys.executable, "-m", "workloads.serve", name]
        self.process = subprocess.Popen(
            command, cwd=Path(__file__).parent, env={**os.environ, **ONE_THREAD}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        answer = self._answer()
        if not answer.startswith("ready"):
            raise ImportError(self.process.communicate()[1].strip().splitlines()[-1])
        self.workloads = answer.split()[1:]

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def ask(self, line: str) -> str:
        """What the process answers to a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._answer()


def started() -> dict[str, Library]:
    """The libraries that are installed."""
    libraries = {}
    for name, title in LIBRARIES.items():
        try:
            libraries[name] = Library(name)
        except ImportError as error:
            print(f"{title} is left out: {error}")
    return libraries


def compare_gradients(libraries: dict[str, Library]) -> None:
    """Every library's gradients against those by hand. Raises AssertionError."""
    with tempfile.TemporaryDirectory() as folder:
        for workload in WORKLOADS:
            found = {}
            for name, library in libraries.items():
                if workload in library.workloads:
                    file = Path(folder, f"{name}-{workload}.npz")
                    library.ask(f"{workload} {file}")
                    with np.load(file) as arrays:
                        found[name] = list(arrays.values())
            for name, gradients in found.items():
                for expected, gradient in zip(found["NumPy"], gradients, strict=True):
                    scale = float(np.abs(expected).max())
                    np.testing.assert_allclose(
                        gradient, expected, rtol=1e-3, atol=1e-4 * scale, err_msg=f"{workload} of {name}"
                    )


def medians(libraries: dict[str, Library], workload: str) -> dict[str, float]:
    """Each library's seconds for a step, taken in turns."""
    times: dict[str, list[float]] = {n: [] for n, library in libraries.items() if workload in library.workloads}
    for _ in range(ROUNDS):
        for name in times:
            times[name].append(float(libraries[name].ask(workload)))
    return {name: sorted(taken)[len(taken) // 2] for name, taken in times.items()}


def main() -> None:
    print(machine())
    libraries = started()
    compare_gradients(libraries)
    rows = []
    for workload, title in WORKLOADS.items():
        found = medians(libraries, workload)
        by_hand = found["NumPy"]
        ratios = [f"{found[name] / by_hand:.2f}" if name in found else "–" for name in libraries]
        rows.append((title, f"{by_hand * 1e3:.2f} ms", *ratios[1:]))
    header = ("forward + backward", *(LIBRARIES[name] for name in libraries))
    table("ratios to NumPy by hand", rows, header)
    for library in libraries.values():
        library.process.kill()


if __name__ == "__main__":
    main()
