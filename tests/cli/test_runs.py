"""Many runs in a table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import gradviz
import gradviz.engine as torch

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs of three learning rates, one run twice, and a file that is no trace."""
    folder = tmp_path_factory.mktemp("sweep")
    for rate in (0.1, 0.5, 1e30):
        with gradviz.record(folder / f"lr{rate:g}.gradviz"):
            w = torch.tensor([1.0, 2.0], requires_grad=True)
            optimizer = torch.optim.SGD([w], lr=rate)
            for _ in range(4):
                optimizer.zero_grad()
                (w * w).sum().backward()
                optimizer.step()
    shutil.copy(folder / "lr0.1.gradviz", folder / "lr0.1again.gradviz")
    (folder / "other.gradviz").write_text("no trace")
    return folder


@pytest.mark.slow
def test_each_run_has_a_line_with_its_loss_and_its_first_finding(sweep: Path, gradviz: Run) -> None:
    done = gradviz("runs", str(sweep), "--json")
    assert done.returncode == 0
    rows = {row["run"]: row for row in json.loads(done.stdout)}
    assert [*rows] == ["lr0.1", "lr0.1again", "lr0.5", "lr1e+30", "other"]
    assert rows["lr0.1"]["first_loss"] == 5
    assert rows["lr0.1"]["last_loss"] == pytest.approx(5 * 0.64**3)
    assert (rows["lr0.1"]["passes"], rows["lr0.1"]["steps"], rows["lr0.1"]["findings"]) == (4, 4, {})
    assert rows["lr1e+30"]["last_loss"] == "nan"
    assert rows["lr1e+30"]["findings"]["error"] >= 1
    assert "not a gradviz trace" in rows["other"]["failed"]


@pytest.mark.slow
def test_each_run_says_where_it_parts_from_the_first(sweep: Path, gradviz: Run) -> None:
    rows = {row["run"]: row["parts"] for row in json.loads(gradviz("runs", str(sweep), "--json").stdout)}
    assert rows["lr0.1"] == ""
    assert rows["lr0.1again"] == "same"
    assert rows["lr0.5"].startswith("pass 2, test_runs.py:")


@pytest.mark.slow
@pytest.mark.parametrize(("order", "first"), [("name", "lr0.1"), ("loss", "lr0.5"), ("findings", "lr1e+30")])
def test_runs_are_sorted(order: str, first: str, sweep: Path, gradviz: Run) -> None:
    lines = gradviz("runs", str(sweep), "--sort", order).stdout.splitlines()
    assert lines[0].split()[:2] == ["run", "script"]
    assert lines[1].split()[0] == first


@pytest.mark.slow
def test_many_runs_are_read_by_several_processes(sweep: Path, tmp_path: Path, gradviz: Run) -> None:
    for number in range(20):
        shutil.copy(sweep / "lr0.5.gradviz", tmp_path / f"{number:02}.gradviz")
    lines = gradviz("runs", str(tmp_path)).stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == [f"{number:02}" for number in range(20)]
    assert all(line.split()[-1] == "same" for line in lines[1:])


def test_a_folder_without_traces_is_refused_in_one_line(tmp_path: Path, gradviz: Run) -> None:
    done = gradviz("runs", str(tmp_path))
    assert (done.returncode, done.stderr) == (2, f"gradviz: there is no trace in the folder {tmp_path}\n")
    missing = gradviz("runs", str(tmp_path / "none"))
    assert (missing.returncode, missing.stderr) == (2, f"gradviz: {tmp_path / 'none'} is no folder\n")
