"""`gradviz export`: a run for other tools."""

from pathlib import Path

import click
import numpy as np

from gradviz.cli.common import PATH, fail, named_traces, patience, traces_argument
from gradviz.exporting import WAYS
from gradviz.recorded_run import open as open_run
from gradviz.system.paths import as_argument
from gradviz.tracefile import newest_trace


@click.command(
    epilog="""\b
Examples:
  gradviz export --to csv                         the newest trace here, as a folder of tables
  gradviz export train.gradviz --to tensorboard -o logs
  gradviz export runs --to parquet -o lake        all ranks of a run, partitioned
  gradviz export train.gradviz --to wandb         offline: wandb sync sends it
"""
)
@traces_argument
@click.option("--to", "tool", type=click.Choice([*WAYS]), required=True, help="What to write it for.")
@click.option("-o", "output", type=PATH, help="The folder [default: the name of the tool].")
def export(traces: tuple[Path, ...], tool: str, output: Path | None) -> None:
    """Write TRACE for another tool into a folder.

    csv and parquet get the tables of the run, as `gradviz.open(TRACE).sql(...)` has them: a file for each table;
    Parquet's are partitioned by run and rank. tensorboard, wandb and mlflow get its curves (losses, norms of gradients,
    relative changes, learning rates), histograms and findings, a run for each trace. W&B works offline unless
    WANDB_MODE says otherwise; MLflow writes to MLFLOW_TRACKING_URI if that is set, and takes no histograms. Several
    traces, a folder or a pattern name all ranks of a run. Default: the newest *.gradviz here."""
    folder = output or Path(tool)
    if folder.exists() and not folder.is_dir():
        fail(f"{as_argument(folder)} is a file: -o takes a folder")
    paths = named_traces(traces) or [newest_trace()]
    try:
        with np.errstate(all="ignore"), patience(f"writing for {tool} …"):
            for path in paths:
                with open_run(path) as run:
                    WAYS[tool](run, path.stem, folder)
    except OSError as error:
        fail(f"cannot write {as_argument(folder)}: {(error.strerror or str(error)).lower()}")
    what = "1 run" if len(paths) == 1 else f"{len(paths)} runs"
    click.echo(f"wrote {what} for {tool} into {as_argument(folder)}")
