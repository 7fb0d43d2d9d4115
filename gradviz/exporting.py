"""A run for other tools: its tables as CSV or Parquet, its curves, histograms and findings for TensorBoard, W&B and
MLflow. Each tool's own package writes its files."""

import csv
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gradviz.diagnose.finding import Finding
from gradviz.errors import GradvizError
from gradviz.query import curves as trace_curves
from gradviz.query.curves import NamedCurve
from gradviz.query.query import Query
from gradviz.recorded_run import TABLE_NAMES, RecordedRun, type_of
from gradviz.replaying import check
from gradviz.tracefile.opening import rank_in

_PASS, _STEP = "pass", "step"  # what a curve is over
_NOT_OF_MLFLOW = re.compile(r"[^\w\-. :/]")  # characters that a name in MLflow cannot have


class NotExported(GradvizError):
    """A run that cannot be written for another tool. The message is one line for the user."""


class Exported(NamedTuple):
    """The parts of a run that are written: its curves, each with its title and its axis (`pass`, `step`); the
    histograms of leaves, each with its title, its pass, the counts and the edges of its bins; and its findings."""

    curves: Sequence[tuple[str, str, NamedCurve]]
    histograms: Sequence[tuple[str, int, np.ndarray, np.ndarray]]
    findings: Sequence[Finding]

    def values(self, over: str) -> dict[int, dict[str, float]]:
        """The values of all curves over passes or over steps: by number, then by title."""
        titled = (curve._replace(name=title) for title, axis, curve in self.curves if axis == over)
        return dict(sorted(trace_curves.by_place(titled).items()))


def exported(run: RecordedRun) -> Exported:
    """The curves, histograms and findings of a run."""
    query = Query(run)
    module_of = trace_curves.innermost_module(query)
    groups = (
        ("loss", _PASS, trace_curves.losses(query)),
        ("gradient norm", _PASS, trace_curves.gradients_of_modules(query, module_of)),
        ("relative change", _STEP, trace_curves.changes_of_modules(query, module_of)),
        ("learning rate", _STEP, trace_curves.learning_rates(query)),
    )
    curves = [(f"{group}/{curve.name}", over, curve) for group, over, known in groups for curve in known]
    histograms = [
        (f"{one.what}/{one.name}", number, counts, np.linspace(low, high, len(counts) + 1))
        for one in trace_curves.binned(query)
        for number, (low, high, counts) in one.histograms.items()
    ]
    return Exported(curves, histograms, check(run).findings)


# --- tables


def _as_csv(run: RecordedRun, name: str, folder: Path) -> None:
    place = _made(folder / name)
    for table in TABLE_NAMES:
        columns = run.columns(table)
        with (place / f"{table}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))


def _as_parquet(run: RecordedRun, name: str, folder: Path) -> None:
    arrow, parquet = _package("pyarrow", "parquet"), _package("pyarrow.parquet", "parquet")
    types = {"TEXT": arrow.string(), "REAL": arrow.float64(), "INTEGER": arrow.int64()}
    rank = run.meta.get("rank") or str(max(rank_in(run.path), 0))
    stem = name.removesuffix(f".rank{rank}")
    for table in TABLE_NAMES:
        columns = {
            column: arrow.array(values).cast(types[type_of(column)]) for column, values in run.columns(table).items()
        }
        # the partitions of Hive, which DuckDB, Spark and Ray read
        place = _made(folder / table / f"run={stem}" / f"rank={rank}")
        parquet.write_table(arrow.table(columns), place / f"{table}.parquet")


# --- trackers


def _for_tensorboard(run: RecordedRun, name: str, folder: Path) -> None:
    events = _package("tensorboard.compat.proto.event_pb2", "tensorboard")
    writers = _package("tensorboard.summary.writer.event_file_writer", "tensorboard")
    scalar, histogram, text = (
        _package(f"tensorboard.plugins.{plugin}", "tensorboard")
        for plugin in ("scalar.summary_v2", "histogram.metadata", "text.summary_v2")
    )
    summaries = _package("tensorboard.compat.proto.summary_pb2", "tensorboard")
    tensors = _package("tensorboard.util.tensor_util", "tensorboard")
    of_run = exported(run)
    writer = writers.EventFileWriter(str(_made(folder / name)))
    recorded = run.path.stat().st_mtime

    def add(summary: Any, at: int) -> None:
        writer.add_event(events.Event(wall_time=recorded, step=at, summary=summary))

    for title, _, curve in of_run.curves:
        for at, value in zip(curve.at.tolist(), curve.values.tolist(), strict=True):
            add(scalar.scalar_pb(title, value), at)
    for title, number, counts, edges in of_run.histograms:
        rows = np.stack([edges[:-1], edges[1:], counts], axis=1)
        summary = summaries.Summary()
        summary.value.add(
            tag=title,
            metadata=histogram.create_summary_metadata(None, None),
            tensor=tensors.make_tensor_proto(rows, dtype=np.float64),
        )
        add(summary, number)
    for place, finding in enumerate(of_run.findings, 1):
        add(text.text_pb(f"findings/{place}", _text_of(finding)), finding.number or 0)
    writer.close()


def _for_wandb(run: RecordedRun, name: str, folder: Path) -> None:
    wandb = _package("wandb", "wandb")
    of_run, hooks = exported(run), (sys.excepthook, sys.exit)
    mode, settings = os.environ.get("WANDB_MODE", "offline"), wandb.Settings(silent=True, console="off")
    tracked = wandb.init(project="gradviz", name=name, dir=str(_made(folder)), mode=mode, settings=settings)
    for over in (_PASS, _STEP):
        tracked.define_metric(over)
        for title, axis, _ in of_run.curves:
            if axis == over:
                tracked.define_metric(title, step_metric=over)
        for at, values in of_run.values(over).items():
            tracked.log({over: at, **values})
    for title, number, counts, edges in of_run.histograms:
        tracked.define_metric(title, step_metric=_PASS)
        tracked.log({_PASS: number, title: wandb.Histogram(np_histogram=(counts, edges))})
    rows = [[one.severity, one.rule, one.file, one.line, one.message, one.fix] for one in of_run.findings]
    columns = ["severity", "rule", "file", "line", "finding", "cure"]
    tracked.log({"findings": wandb.Table(columns=columns, data=rows)})
    tracked.finish()
    wandb.teardown()  # the file is whole only when W&B's own process has ended
    sys.excepthook, sys.exit = hooks  # W&B leaves its own there


def _for_mlflow(run: RecordedRun, name: str, folder: Path) -> None:
    mlflow, entities = _package("mlflow", "mlflow"), _package("mlflow.entities", "mlflow")
    of_run = exported(run)
    place = _made(folder).absolute()
    client = mlflow.MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{place / 'mlflow.db'}")
    known = client.get_experiment_by_name("gradviz")
    experiment = (
        known.experiment_id
        if known is not None
        else client.create_experiment("gradviz", artifact_location=(place / "artifacts").as_uri())
    )
    tracked = client.create_run(experiment, run_name=name).info.run_id
    time = int(run.path.stat().st_mtime * 1000)
    metrics = [
        entities.Metric(_NOT_OF_MLFLOW.sub("_", title), value, time, at)
        for over in (_PASS, _STEP)
        for at, values in of_run.values(over).items()
        for title, value in values.items()
    ]
    for first in range(0, len(metrics), 1000):  # the most that MLflow takes at once
        client.log_batch(tracked, metrics=metrics[first : first + 1000])
    client.log_text(tracked, "\n\n".join(map(_text_of, of_run.findings)) or "no findings\n", "findings.md")
    client.set_terminated(tracked)


def _text_of(finding: Finding) -> str:
    place = f"{finding.file}:{finding.line}" if finding.line else "no line"
    return f"**{finding.severity} {finding.rule}** {place}\n\n{finding.message}\n\nfix: {finding.fix}"


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _package(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise NotExported(
            f'--to {extra} needs {package}, which is not installed: pip install "gradviz-recorder[export]"'
        ) from None


WAYS: dict[str, Callable[[RecordedRun, str, Path], None]] = {
    "csv": _as_csv,
    "parquet": _as_parquet,
    "tensorboard": _for_tensorboard,
    "wandb": _for_wandb,
    "mlflow": _for_mlflow,
}
