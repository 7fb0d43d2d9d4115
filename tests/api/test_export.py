"""A run for other tools: each tool's own reader finds what the trace has."""

from __future__ import annotations

import csv
import re
import struct
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import gradviz as package
import gradviz.engine as torch
from gradviz.exporting import WAYS
from gradviz.query.curves import binned, learning_rates, losses
from gradviz.query.query import Query
from gradviz.recorded_run import TABLE_NAMES, RecordedRun
from tests.invoked import invoked

DOCS = (Path(__file__).parents[2] / "docs/export.md").read_text(encoding="utf-8")
QUESTIONS = re.findall(r"```sql\n(.*?)```", DOCS, re.DOTALL)
PASSES = 4


def train(path: Path, rank: int = 0, rate: float = 0.1) -> None:
    """A recorded training of a network whose second layer no optimizer holds; rank 1 gets a NaN in its last pass."""
    with package.record(path):
        torch.manual_seed(rank)
        net = torch.nn.Sequential(torch.nn.Linear(3, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
        optimizer = torch.optim.SGD([net[0].weight], lr=rate)
        for step in range(PASSES):
            optimizer.zero_grad()
            loss = net(torch.ones(2, 3)).sum()
            (loss * float("nan") if rank and step == PASSES - 1 else loss).backward()
            optimizer.step()


@pytest.fixture
def run(tmp_path: Path) -> RecordedRun:
    train(tmp_path / "run.gradviz")
    return package.open(tmp_path / "run.gradviz")


def records_of(log: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format, which W&B's file has behind its first seven bytes."""
    at, whole = 7, b""
    while at + 7 <= len(log):
        left = 32768 - at % 32768
        length, kind = struct.unpack_from("<HB", log, at + 4)
        if left < 7 or not kind:
            at += left
            continue
        whole += log[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield whole
            whole = b""


def needed(*modules: str) -> None:
    for module in modules:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


def test_csv_has_the_tables(run: RecordedRun, tmp_path: Path) -> None:
    WAYS["csv"](run, "run", tmp_path / "out")
    for table in TABLE_NAMES:
        with (tmp_path / f"out/run/{table}.csv").open(encoding="utf-8", newline="") as file:
            names, *rows = csv.reader(file)
        columns = run.columns(table)
        assert names == [*columns]
        assert rows == [
            ["" if value is None else str(value) for value in row] for row in zip(*columns.values(), strict=True)
        ]


@pytest.mark.slow
def test_duckdb_reads_the_tables_of_parquet(run: RecordedRun, tmp_path: Path) -> None:
    needed("pyarrow", "duckdb")
    import duckdb

    WAYS["parquet"](run, "run", tmp_path)
    for table in TABLE_NAMES:
        columns = run.columns(table)
        names = ", ".join(f'"{column}"' for column in columns)
        found = duckdb.sql(f"SELECT {names} FROM read_parquet('{tmp_path}/{table}/*/*/*')")
        assert found.fetchall() == [*zip(*columns.values(), strict=True)]


@pytest.mark.slow
def test_every_documented_question_about_ranks_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed("pyarrow", "duckdb")
    import duckdb

    for rank in (0, 1):
        train(tmp_path / f"train.rank{rank}.gradviz", rank)
    monkeypatch.chdir(tmp_path)
    done = invoked(["export", "train.rank*.gradviz", "--to", "parquet", "-o", "lake"])
    assert (done.exit_code, done.stdout) == (0, "wrote 2 runs for parquet into lake\n")
    parting, first, lazy, disordered = (duckdb.sql(question).fetchall() for question in QUESTIONS)
    assert parting
    assert first == [(1, PASSES)]
    assert {name for name, link, ranks in lazy} == set()
    assert disordered == []


@pytest.mark.slow
@pytest.mark.torch
def test_the_first_collective_in_another_order_is_found_by_sql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed("pyarrow", "duckdb", "torch")
    import duckdb
    import torch as pytorch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # that of a process group stays behind it
    part = pytorch.ones(2)
    for rank, second in enumerate((lambda: dist.all_reduce(part), lambda: dist.broadcast(part, 0))):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)  # waits for no other process
        with package.record(tmp_path / f"train.rank{rank}.gradviz"):
            dist.all_reduce(part)
            second()
        dist.destroy_process_group()
    monkeypatch.chdir(tmp_path)
    assert invoked(["export", "train.rank*.gradviz", "--to", "parquet", "-o", "lake"]).exit_code == 0
    ((number, calls, _),) = duckdb.sql(QUESTIONS[-1]).fetchall()
    assert number == 2
    assert {call.split()[0] for call in calls} == {"all_reduce", "broadcast"}


@pytest.mark.slow
def test_tensorboard_reads_curves_histograms_and_findings(run: RecordedRun, tmp_path: Path) -> None:
    needed("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    WAYS["tensorboard"](run, "run", tmp_path)
    read = EventAccumulator(str(tmp_path / "run"), size_guidance={"tensors": 0})
    read.Reload()

    def points(tag: str) -> list[tuple[int, Any]]:
        return [(event.step, make_ndarray(event.tensor_proto)) for event in read.Tensors(tag)]

    query = Query(run)
    (loss,), (rate,) = losses(query), learning_rates(query)
    for title, curve in ((f"loss/{loss.name}", loss), (f"learning rate/{rate.name}", rate)):
        assert [at for at, _ in points(title)] == curve.at.tolist()
        assert [float(value) for _, value in points(title)] == pytest.approx(curve.values.tolist(), rel=1e-6)
    known = {f"{one.what}/{one.name}": one.histograms for one in binned(query)}
    assert known
    for title, by_pass in known.items():
        for (at, rows), (number, one) in zip(points(title), by_pass.items(), strict=True):
            assert (at, rows[:, 2].tolist()) == (number, one.counts.tolist())
            assert (rows[0, 0], rows[-1, 1]) == (one.low, one.high)
    texts = [str(value) for _, value in points("findings/1")]
    assert package.check(run).findings[0].message in texts[0]


@pytest.mark.slow
def test_wandb_keeps_curves_and_findings_offline(
    run: RecordedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.delenv("WANDB_MODE", raising=False)
    hooks = sys.excepthook, sys.exit
    WAYS["wandb"](run, "run", tmp_path)
    assert (sys.excepthook, sys.exit) == hooks
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    rows = []
    for data in records_of(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        items = record.history.item
        rows.append({item.key or ".".join(item.nested_key): item.value_json for item in items})
    (loss,) = losses(Query(run))
    told = [(int(row["pass"]), float(row[f"loss/{loss.name}"])) for row in rows if f"loss/{loss.name}" in row]
    assert told == [*zip(loss.at.tolist(), loss.values.tolist(), strict=True)]
    assert any("findings.nrows" in row for row in rows)


@pytest.mark.slow
def test_mlflow_reads_curves_and_findings(run: RecordedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed("mlflow", "sqlalchemy", "alembic")
    import mlflow

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for _ in range(2):  # the second run joins the experiment
        WAYS["mlflow"](run, "run", tmp_path)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("gradviz")
    first, second = client.search_runs([experiment.experiment_id])
    assert first.info.run_name == second.info.run_name == "run"
    (loss,) = losses(Query(run))
    title = "loss/" + re.sub(r"[()]", "_", loss.name)
    history = client.get_metric_history(first.info.run_id, title)
    assert [(one.step, one.value) for one in history] == [*zip(loss.at.tolist(), loss.values.tolist(), strict=True)]
    (findings,) = tmp_path.glob(f"artifacts/{first.info.run_id}/artifacts/findings.md")
    assert package.check(run).findings[0].message in findings.read_text(encoding="utf-8")


@pytest.mark.parametrize("tool", [tool for tool in WAYS if tool != "csv"])
def test_a_missing_package_is_one_line_that_says_what_to_install(
    run: RecordedRun, tmp_path: Path, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("gradviz.exporting.import_module", missing)
    done = invoked(["export", str(tmp_path / "run.gradviz"), "--to", tool, "-o", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert re.match(rf"gradviz: --to {tool} needs \w+, which is not installed: pip install .*\n$", done.stderr)


def test_a_file_is_no_folder(run: RecordedRun, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("kept")
    done = invoked(["export", str(tmp_path / "run.gradviz"), "--to", "csv", "-o", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert (tmp_path / "out").read_text() == "kept"
