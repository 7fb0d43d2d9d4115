"""The faults that tests/zoo/inject.py puts into programs: each fits somewhere, on its line, and a few are tried."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.zoo import inject

SAMPLE = [
    ("classifier", "no_grad"),
    ("contrastive", "numpy"),
    ("vae", "term as a number"),
    ("by_hand", "no zero_grad"),
    ("trainer", "plain list"),
    ("gcn", "second softmax"),
]


@pytest.fixture(scope="module")
def imported() -> None:
    """Import what each program's process, a fork of this one, would import anew: that took half of its time."""
    pytest.importorskip("torch", reason="the programs import torch")
    for name in ("torch._dynamo", "gradviz.diagnose", "gradviz.sources.torch_recorder.recording"):
        importlib.import_module(name)


@pytest.fixture(scope="module")
def mutants() -> list[inject.Mutant]:
    return [mutant for program in inject.programs() for mutant in inject.mutants(program)]


@pytest.mark.slow
def test_every_fault_fits_somewhere(mutants: list[inject.Mutant]) -> None:
    assert {mutant.fault for mutant in mutants} == set(inject.FAULTS)


@pytest.mark.slow
def test_a_mutant_keeps_the_lines_of_its_program_and_changes_one_of_its_own(mutants: list[inject.Mutant]) -> None:
    originals = {program.name: program.lines for program in inject.programs()}
    for mutant in mutants:
        lines, before = mutant.text.splitlines(), originals[mutant.program]
        assert len(lines) == len(before), mutant.fault
        changed = {number for number, pair in enumerate(zip(lines, before, strict=True), 1) if pair[0] != pair[1]}
        assert changed, mutant.fault
        assert changed <= mutant.lines, mutant.fault


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.usefixtures("imported")
@pytest.mark.parametrize("program", sorted(inject.TRAINING.glob("*.py")), ids=lambda program: program.stem)
def test_a_healthy_training_program_is_not_accused(program: Path, tmp_path: Path) -> None:
    found = inject.measured(program.stem, program.read_text(), str(tmp_path))
    assert found["ended"] == "0"
    assert found["findings"] == []


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.usefixtures("imported")
@pytest.mark.parametrize(("name", "fault"), SAMPLE)
def test_a_fault_in_a_training_program_is_named(name: str, fault: str, tmp_path: Path) -> None:
    (program,) = (program for program in inject.programs() if program.name == name)
    mutant = next(inject.mutants(program, fault))
    found = inject.measured(name, mutant.text, str(tmp_path))
    assert found["findings"]
    assert found["findings"][0][2] in mutant.lines
