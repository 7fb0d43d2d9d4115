"""`gradviz tables`: a run as tables in an SQLite file, for SQLite, DuckDB and all that reads SQLite."""

import sqlite3
from pathlib import Path

import click
import numpy as np

from gradviz.cli.common import PATH, fail, trace_argument
from gradviz.recorded_run import TABLE_NAMES
from gradviz.recorded_run import open as open_run
from gradviz.system.paths import as_argument
from gradviz.tracefile import newest_trace

ENDINGS = (".sqlite", ".sqlite3", ".db")


@click.command(
    epilog="""\b
Examples:
  gradviz tables                              the newest trace here, as STEM.sqlite
  gradviz tables train.gradviz -o train.db
  sqlite3 train.db "SELECT pass, loss FROM passes"
"""
)
@trace_argument
@click.option("-o", "output", type=PATH, help="The file [default: STEM.sqlite].")
def tables(trace: Path | None, output: Path | None) -> None:
    """Write TRACE as tables into an SQLite file: passes, gradients, steps, updates, parameters, ops, errors, findings
    and more, as `gradviz.open(TRACE).sql(...)` has them.

    SQLite and DuckDB answer SQL on the file. Default: the newest *.gradviz here."""
    trace = trace or newest_trace()
    output = output or trace.with_suffix(ENDINGS[0])
    if output.suffix.lower() not in ENDINGS:
        fail(f"{as_argument(output)} has no ending of an SQLite file: use one of {' '.join(ENDINGS)}")
    try:
        with np.errstate(all="ignore"), open_run(trace) as run:
            run.save_tables(output)
    except (OSError, sqlite3.OperationalError) as error:
        said = getattr(error, "strerror", None) or str(error)
        fail(f"cannot write {as_argument(output)}: {said.lower()}")
    click.echo(f"wrote {as_argument(output)}: the tables {', '.join(TABLE_NAMES)}")
