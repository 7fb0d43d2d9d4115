"""Every broken program of the zoo is named by its rule on its line, first; no cured or healthy one is accused."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gradviz.diagnose import RULES, Finding
from gradviz.diagnose.rule import Need
from gradviz.step.plain import script
from gradviz.step.state import Session
from gradviz.tracefile import open_trace
from tests.zoo_programs import ALL, OPT_IN, Program, checked

BROKEN = [program for program in ALL if program.state == "broken"]
SOUND = [program for program in ALL if program.state != "broken"]
NEEDS_VALUES = {rule.id for rule in RULES if Need.VALUES in rule.needs} - OPT_IN
ON_VALUES = {p.rule: p for p in reversed(BROKEN) if p.rule in NEEDS_VALUES and not p.needs_torch}
WITH_TORCH = find_spec("torch") is not None


def named(program: Program) -> str:
    return f"{program.name} ({program.state})"


def on_each_engine(programs: list[Program]) -> list[Any]:
    """Each program on the engines that can run it. The first of each file of the zoo belongs to the default suite."""
    found = []
    for engine in ("numpy", "torch"):
        marks = [pytest.mark.slow, pytest.mark.skipif(not WITH_TORCH, reason="no PyTorch")] * (engine == "torch")
        files: set[str] = set()
        for program in programs:
            if engine == "numpy" and program.needs_torch:
                continue
            file = program.name.partition(":")[0]
            first = [pytest.mark.default] * (file not in files)
            files.add(file)
            found.append(pytest.param(program, engine, id=f"{named(program)}-{engine}", marks=marks + first))
    return found


@pytest.mark.parametrize(("program", "engine"), on_each_engine(BROKEN))
def test_a_fault_is_named_first_and_on_its_line_and_the_stepper_opens_there(
    program: Program, engine: str, tmp_path: Path
) -> None:
    report = checked(program, tmp_path, engine=engine)
    told = [(finding.rule, finding.line) for finding in report]
    assert told[:1] == [(program.rule, program.line)]
    with open_trace(tmp_path / "run.gradviz") as trace:
        session = Session(trace)
        assert [f.message for f in report if not opens_at(session, f)] == []


def opens_at(session: Session, finding: Finding) -> bool:
    """Whether the stop that the stepper goes to for a finding belongs to it: it stands on its line, or it is an event
    of its pass and has a place in the source."""
    session.go(finding.events[0])
    where = "\n".join(script(session, ["where"]))
    event: Any = session.stop.event
    number = getattr(event, "in_pass", getattr(event, "number", 0))
    on_the_line = f"program.py:{finding.line} " in where
    return on_the_line or (number == finding.number > 0 and "program.py:" in where)


@pytest.mark.parametrize(("program", "engine"), on_each_engine(SOUND))
def test_a_sound_program_is_not_accused(program: Program, engine: str, tmp_path: Path) -> None:
    report = checked(program, tmp_path, engine=engine)
    assert [(f.rule, f.line, f.message) for f in report.at_least("warning")] == []


@pytest.mark.parametrize("program", ON_VALUES.values(), ids=named)
def test_without_values_the_rules_on_values_are_not_checked(program: Program, tmp_path: Path) -> None:
    report = checked(program, tmp_path, values="none")
    assert NEEDS_VALUES.isdisjoint(report.checked)
    assert NEEDS_VALUES.issubset(rule for rule, _ in report.not_checked)


def test_every_rule_has_two_broken_programs_and_each_broken_one_a_cured_twin() -> None:
    cured = {program.name for program in ALL if program.state == "cured"}
    assert [program.name for program in BROKEN if program.name not in cured] == []
    counts = {rule.id: sum(program.rule == rule.id for program in BROKEN) for rule in RULES}
    assert {rule: count for rule, count in counts.items() if count < 2} == {}
    assert {program.rule for program in BROKEN} <= counts.keys()


@pytest.mark.parametrize(
    "name",
    [
        "a target network that follows",
        "the frozen layers of a trained net through which an image gets its gradient",
        "points of an equation that a class of the program keeps beside the net",
        pytest.param(
            "a frozen encoder in training mode that follows the trained one",
            marks=pytest.mark.skipif(not WITH_TORCH, reason="no PyTorch"),
        ),
    ],
)
def test_what_is_meant_is_not_even_noted(name: str, tmp_path: Path) -> None:
    program = next(program for program in SOUND if name in program.name)
    engine = "torch" if name.startswith("a frozen encoder") else "numpy"  # numpy has no running statistics in a trace
    assert list(checked(program, tmp_path, engine=engine)) == []
