"""What the benchmarks share: interleaved timing, and a line that says on what they ran."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable

import numpy as np

# glibc gives the end of the heap back to the system, or not, as chance has laid it out; where it does, each step pays
# for a thousand page faults, recorded or not. With these variables it never does.
HEAP_IS_KEPT = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}


def machine() -> str:
    """The machine and versions that figures belong to."""
    core = os.environ.get("OPENBLAS_CORETYPE", "automatic")
    return (
        f"Python {sys.version.split()[0]}, NumPy {np.__version__}, {platform.machine()} {platform.system()}, "
        f"{os.cpu_count()} cores, OpenBLAS kernel {core}"
    )


def interleaved(functions: dict[str, Callable[[], object]], rounds: int = 15) -> dict[str, float]:
    """The median time of each function in seconds, taken in turns so that a slow moment hits all."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return {name: sorted(taken)[len(taken) // 2] for name, taken in times.items()}


def table(title: str, rows: list[tuple[str, ...]], header: tuple[str, ...]) -> None:
    """Print a table in Markdown."""
    print(f"\n## {title}\n")
    print("| " + " | ".join(header) + " |")
    print("|" + "-|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |")
