"""The grammar of training programs: what it draws, and that its figures come out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import python

pytest.importorskip("torch")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import random_programs  # noqa: E402

NUMBERS = range(40)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_fault_changes_lines_of_its_twin_and_both_are_python(number: int) -> None:
    twin, broken = random_programs.drawn(0, number), random_programs.broken(0, number)
    assert broken is not None
    for program in (twin, broken):
        compile("\n".join(program.lines), "program.py", "exec")
    assert broken.lines != twin.lines
    assert broken.guilty() <= set(range(1, len(broken.lines) + 2))
    assert broken.guilty() != set()
    assert twin.guilty() == set()


def test_the_same_seed_draws_the_same_programs_and_another_seed_draws_others() -> None:
    def drawn(seed: int) -> list[list[str]]:
        return [random_programs.drawn(seed, number).lines for number in NUMBERS]

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)


@pytest.mark.slow
def test_three_programs_are_recorded_and_counted(tmp_path: Path) -> None:
    command = [python(), str(BENCHMARKS / "random_programs.py"), "--count", "3", "--jobs", "1", "--keep", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (counts,) = (line for line in done.stdout.splitlines() if line.startswith("| all |"))
    programs, named, first, _, accused = (int(cell) for cell in counts.split("|")[2:7])
    assert (programs, accused) == (3, 0)
    assert named >= first >= 2
    assert len(list(tmp_path.glob("*.gradviz"))) == 6
