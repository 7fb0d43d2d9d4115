"""Ways to damage a trace. Each takes random numbers and the path of a trace, which it changes.

`mutate(rng, path)` applies one to three of them. The same seed damages the same trace in the same way."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.damage import of_arrays, of_files, of_meaning, of_tables
from tests.damage.ways import WAYS

PLACES = (of_files, of_tables, of_arrays, of_meaning)  # where the ways are


def mutate(rng: Random, path: Path, only: str = "") -> str:
    """Damage a trace in one to three ways, whose names begin with `only`; their names."""
    used = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        name = rng.choice([name for name in WAYS if name.startswith(only)])
        mutation = rng.choice(WAYS[name])
        used.append(f"{name}: {mutation.__name__}")
        with suppress(sqlite3.Error, ValueError, TypeError, IndexError):  # of what an earlier one has damaged
            mutation(rng, path)
    return ", ".join(used)
