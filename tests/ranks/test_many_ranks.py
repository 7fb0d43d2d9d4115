"""A run of 64 ranks: `info`, `check` and `report` say what is so of all of them, and which one is apart."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.warm import python

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("PyTorch was built without torch.distributed", allow_module_level=True)

pytestmark = [pytest.mark.torch, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
COUNT, APART = 64, 17


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs: `healthy`, and `apart`, where one rank has another learning rate."""
    folder = tmp_path_factory.mktemp("runs")
    for name, apart in (("healthy", -1), ("apart", APART)):
        (folder / name).mkdir()
        command = [python(), "-m", "tests.ranks.many_ranks", str(folder / name), str(COUNT), str(apart)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return folder


@cache
def gradviz(folder: Path, *arguments: str) -> str:
    """What gradviz prints in a folder. Each command runs once: a check of all ranks takes four seconds."""
    command = [python(torch=False), "-m", "gradviz", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120).stdout


def test_info_has_a_line_for_each_rank(runs: Path) -> None:
    lines = gradviz(runs, "info", "healthy").splitlines()
    ranks = [line.split()[0] for line in lines if ".gradviz" in line]
    assert ranks == [str(rank) for rank in range(COUNT)]
    assert lines[-1] == "the ranks differ in nothing that check compares"


def test_info_says_which_rank_is_apart(runs: Path) -> None:
    last = gradviz(runs, "info", "apart").splitlines()[-1]
    assert last.startswith("the ranks differ ranks-settings: ")
    assert last.endswith("at step 1: lr=0.1 on ranks 0 to 16 and 18 to 63, lr=0.2 on rank 17")


def test_check_finds_nothing_in_healthy_ranks(runs: Path) -> None:
    assert json.loads(gradviz(runs, "check", "healthy", "--format", "json"))["findings"] == []


def test_check_finds_the_rank_that_is_apart(runs: Path) -> None:
    (found,) = json.loads(gradviz(runs, "check", "apart", "--format", "json"))["findings"]
    assert (found["rule"], found["ranks"]) == ("ranks-settings", [APART])
    source = (ROOT / "tests" / "ranks" / "many_ranks.py").read_text().splitlines()
    assert "torch.optim.SGD(net.parameters(), lr=lr)" in source[found["line"] - 1]


def test_a_report_has_all_ranks_and_the_curves_of_the_one_that_is_apart(runs: Path) -> None:
    assert gradviz(runs, "report", "apart", "-o", "apart.html") == "wrote apart.html: 1 finding\n"
    page = (runs / "apart.html").read_text()
    assert page.count('<tr><th scope="row">') == COUNT
    assert "Of 64 ranks, the 20 with a colour have curves." in page
    assert "in rank 17" in page
    drawn = page.partition("Loss, by pass")[2].partition("<figure>")[0]
    assert f"rank {APART}<" in drawn
    assert "rank 63<" not in drawn


def test_a_report_of_ranks_has_as_many_rules_as_their_check(runs: Path) -> None:
    gradviz(runs, "report", "healthy", "-o", "healthy.html")
    checked = json.loads(gradviz(runs, "check", "healthy", "--format", "json"))["checked"]
    assert f"No findings: {len(checked)} rules were checked." in (runs / "healthy.html").read_text()
