"""Damaged traces of `--values inputs`: a pass runs again, or is refused in one line. Nothing else happens."""

from __future__ import annotations

import shutil
import traceback
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
import gradviz.engine  # noqa: E402
from gradviz.errors import GradvizError  # noqa: E402
from gradviz.query.query import Query  # noqa: E402
from gradviz.replay.outcome import Edits, checked  # noqa: E402
from gradviz.replay.pass_capsule import write, write_script  # noqa: E402
from gradviz.replay.plan import plan_of  # noqa: E402
from gradviz.sources.torch_replay import runner_of  # noqa: E402
from gradviz.tracefile import open_trace  # noqa: E402
from tests.damage import mutations  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]
SEED = 39


def training(torch: ModuleType = torch) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(12, 9), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(9, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(8, 12)
        optimizer.zero_grad()
        loss = (net(x)[:, :1] ** 2).mean()
        loss.backward()
        optimizer.step()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "run.gradviz"
    with gradviz.record(path, values="inputs"):
        training()
    return path


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("engines") / "run.gradviz"
    with gradviz.record(path, values="inputs", with_torch=False):
        training(gradviz.engine)
    return path


def use(path: Path) -> tuple[int, list[str]]:
    """Do all that a replay is for; how many passes ran, and what was refused."""
    ran, refused = 0, []
    try:
        with open_trace(path) as trace:
            query = Query(trace)
            for number in trace.pass_numbers[:3]:
                try:
                    plan = plan_of(query, number)
                    checked(query, plan, runner_of(query).run(plan, Edits()))
                    write(query, plan, path.with_name("capsule.gradviz"))
                    write_script(query, plan, path.with_name("step.py"))
                    ran += 1
                except (GradvizError, OSError) as error:
                    refused.append(str(error))
    except (GradvizError, OSError) as error:
        refused.append(str(error))
    return ran, refused


def test_a_damaged_trace_is_refused_or_runs(sound: Path, tmp_path: Path) -> None:
    assert not faults_of(sound, tmp_path)


def test_a_damaged_trace_of_the_engine_is_refused_or_runs(engines: Path, tmp_path: Path) -> None:
    assert not faults_of(engines, tmp_path)


def faults_of(sound: Path, tmp_path: Path) -> dict[str, str]:
    """What copies of a trace, damaged in every way, raise that is no refusal in one line."""
    faults = {}
    for number in range(sum(map(len, mutations.WAYS.values()))):
        path = shutil.copy(sound, tmp_path / "run.gradviz")
        how = mutations.mutate(Random(f"{SEED}/{number}"), path, number)
        try:
            _, refused = use(path)
            assert not [line for line in refused if "\n" in line or len(line) > 300]
        except Exception:
            faults[f"{number}: {how}"] = traceback.format_exc(limit=-4)
    return faults


def test_a_sound_trace_runs(sound: Path, tmp_path: Path) -> None:
    assert use(shutil.copy(sound, tmp_path / "run.gradviz")) == (3, [])


def test_a_sound_trace_of_the_engine_runs(engines: Path, tmp_path: Path) -> None:
    assert use(shutil.copy(engines, tmp_path / "run.gradviz")) == (3, [])
