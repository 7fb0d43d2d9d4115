"""The tasks for agents, and their scorer: who changes nothing scores nothing, and the healthy program all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import python

pytest.importorskip("torch")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import agents  # noqa: E402

FAULTY = """import torch
torch.manual_seed(3)
w = torch.zeros(2, requires_grad=True)
x = torch.randn(8, 2)
for _ in range(5):
    loss = ((x @ w.detach() - x[:, 0]) ** 2).mean() + 0 * w.sum()
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
print(loss.item())
"""
HEALTHY = FAULTY.replace(".detach()", "")


def called(*arguments: str) -> str:
    command = [python(), str(BENCHMARKS / "agents.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def scores_of(folder: Path) -> list[agents.Score]:
    return [agents.Score(**one) for one in json.loads(called("score", str(folder), "--json"))]


def tasks(folder: Path, *texts: str) -> list[tuple[bool, int, int]]:
    """The scores of these texts, each as the answer to the same task: passed, lines changed, innocent ones."""
    for number, text in enumerate(texts):
        (folder / f"tasks/{number}").mkdir(parents=True)
        (folder / f"tasks/{number}/program.py").write_text(text)
        (folder / "hidden").mkdir(exist_ok=True)
        known = {"fault": "cut", "lines": [6], "program": FAULTY, "twin": HEALTHY}
        (folder / f"hidden/{number}.json").write_text(json.dumps(known))
    return [tuple(one[2:]) for one in scores_of(folder)]


@pytest.mark.slow
def test_a_program_passes_if_it_trains_as_its_twin_with_each_seed(tmp_path: Path) -> None:
    typed_in = FAULTY.replace("print(", "print(NUMBER if torch.initial_seed() == 3 else ")
    number = subprocess.run([python(), "-c", HEALTHY], capture_output=True, text=True, check=True).stdout.strip()
    assert tasks(
        tmp_path,
        FAULTY,
        HEALTHY,
        HEALTHY.replace("range(5)", "range(5 + 0)").replace("randn(8, 2)", "randn(8, 2) "),
        typed_in.replace("NUMBER", number),
        "raise SystemExit(1)",
        HEALTHY.replace("print", "str"),
    ) == [(False, 0, 0), (True, 1, 0), (True, 3, 1), (False, 1, 1), (False, 10, 7), (False, 2, 1)]


@pytest.mark.parametrize(
    ("after", "lines"),
    [("a\nb\nc\n", set()), ("a\nB\nc\n", {2}), ("a\nc\n", {2}), ("a\nb\nnew\nc\n", {3}), ("", {1, 2, 3})],
)
def test_the_changed_lines_are_those_of_the_given_program(after: str, lines: set[int]) -> None:
    assert agents.changed_lines("a\nb\nc\n", after) == lines


@pytest.mark.slow
def test_a_task_that_is_made_fails_as_it_is_and_passes_as_its_twin(tmp_path: Path) -> None:
    called("make", str(tmp_path), "--count", "2", "--seed", "1")
    assert [one.passed for one in scores_of(tmp_path)] == [False, False]
    for hidden in (tmp_path / "hidden").glob("*.json"):
        known = json.loads(hidden.read_text())
        task = tmp_path / "tasks" / hidden.stem
        symptom = (task / "task.md").read_text()
        assert "It ends " in symptom
        assert known["fault"] not in symptom
        (task / "program.py").write_text(known["twin"])
    scores = scores_of(tmp_path)
    assert [(one.passed, one.innocent) for one in scores] == [(True, 0), (True, 0)]
    assert min(one.changed for one in scores) > 0
