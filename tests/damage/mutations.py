"""Ways to damage a trace. Each takes random numbers and the path of a trace, which it changes.

`mutate(rng, path, turn)` applies one to three of them, the first by turns. The same seed damages the same trace in the
same way."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.damage import of_arrays, of_files, of_meaning, of_tables
from tests.damage.ways import WAYS

PLACES = (of_files, of_tables, of_arrays, of_meaning)  # where the ways are


def mutate(rng: Random, path: Path, turn: int, only: str = "") -> str:
    """Damage a trace in one to three ways, whose names begin with `only`: first in the one whose turn it is. Returns
    their names."""
    ways = [(name, mutation) for name, mutations in WAYS.items() if name.startswith(only) for mutation in mutations]
    used = []
    for name, mutation in [ways[turn % len(ways)], *rng.choices(ways, k=rng.choice([0, 0, 0, 1, 2]))]:
        used.append(f"{name}: {mutation.__name__}")
        with suppress(sqlite3.Error, ValueError, TypeError, IndexError):  # of what an earlier one has damaged
            mutation(rng, path)
    return ", ".join(used)
