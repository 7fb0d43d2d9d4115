"""Damages traces in many ways, reads each with every command, and prints what should not have happened.

    python benchmarks/fuzz.py [--count 10000] [--first 0] [--seed 1] [--jobs 2] [--few N] [--only WAYS]

Each is read in a process with 1 GB and 10 s of the processor for a command. `--only meaning`
changes events so that lengths, counts and tables agree. `python -m tests.damage.trial SEED NUMBER [WAYS]` makes one
again.
Exits with status 1 where anything was found."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.damage.trial import Laboratory, Violation, sorted_by_kind  # noqa: E402


def _tried(seed: int, few: int | None, only: str, numbers: range) -> list[tuple[int, str, list[Violation]]]:
    with tempfile.TemporaryDirectory() as folder:
        laboratory = Laboratory(Path(folder), few, only)
        return [(number, *laboratory.trial(seed, number)) for number in numbers]


def main() -> int:
    """Run, print, and say by the exit status whether anything was found."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=10_000)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--few", type=int, help="only so many commands for each, by turns")
    options.add_argument("--only", default="", help="only ways to damage whose names begin so")
    options.add_argument("--quiet", action="store_true", help="only the counts")
    given = options.parse_args()
    start = time.time()
    all_numbers = range(given.first, given.first + given.count)
    parts = [all_numbers[at : at + 100] for at in range(0, len(all_numbers), 100)]
    found: list[Violation] = []
    bad = 0
    with ProcessPoolExecutor(given.jobs) as pool:
        for part in pool.map(_tried, repeat(given.seed), repeat(given.few), repeat(given.only), parts):
            for number, ways, violations in part:
                found += violations
                bad += bool(violations)
                if violations and not given.quiet:
                    print(f"{number}  {ways}", *(f"    {violation}" for violation in violations), sep="\n", flush=True)
            done = part[-1][0] + 1 - given.first
            if done % 1000 == 0 and not given.quiet:
                print(f"{done} of {given.count} tried: {bad} with violations", flush=True)
    kinds = sorted_by_kind(found)
    print(f"\n{given.count} mutations in {time.time() - start:.0f} s: {bad} with violations, {len(kinds)} kinds")
    for kind, count in kinds:
        print(f"{count:6}  {kind}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
