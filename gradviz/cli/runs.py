"""`gradviz runs`: many runs in a table."""

import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from rich.table import Table
from rich.text import Text

from gradviz.cli.common import PATH, fail, how_ended, json_option, one_of, patience, wide_console
from gradviz.compare import diff
from gradviz.diagnose import check
from gradviz.diagnose.finding import SEVERITIES
from gradviz.diagnose.rule_settings import Settings
from gradviz.diagnose.settings_file import settings_at
from gradviz.events.kinds import Kind
from gradviz.query.curves import losses
from gradviz.query.query import Query
from gradviz.replaying import fill_in_where_bad
from gradviz.system.paths import file_name
from gradviz.tracefile import Trace, TraceError, open_trace
from gradviz.words.escape import clean, json_number, json_text
from gradviz.words.numbers import number, plural

_ALONE = 16  # the most traces that are read in this process
_STYLES = {"error": "red", "warning": "yellow", "note": "cyan"}


class Row(NamedTuple):
    """A run: its end, its passes and steps, the loss at the first pass and at the last (None: not known), its
    findings by severity with the rule of the first, and the place where it parts from the first run."""

    run: str
    script: str
    ended: str
    passes: int
    steps: int
    first_loss: float | None
    last_loss: float | None
    findings: dict[str, int]
    first_rule: str
    parts: str
    failed: str = ""  # the reason why the trace cannot be read


@click.command(
    epilog="""\b
Examples:
  gradviz runs sweep
  gradviz runs sweep --sort loss
  gradviz runs sweep --json
"""
)
@click.argument("folder", type=PATH, default=".")
@one_of(
    ("name", "loss", "findings"),
    "--sort",
    help="What comes first: by name, the lowest last loss, the gravest findings.",
)
@json_option
def runs(folder: Path, sort: str, as_json: bool) -> None:
    """Show the runs of FOLDER in a table: how each ended, its loss, what `gradviz check` finds first, and where it
    parts from the first run by name. Default: this folder."""
    if not folder.is_dir():
        fail(f"{folder} is no folder")
    paths = sorted(folder.glob("*.gradviz"))
    if not paths:
        fail(f"there is no trace in the folder {folder}")
    with patience(f"reading {plural(len(paths), 'trace')}"):
        rows = _rows(paths, settings_at(Path.cwd()))
    rows = sorted(rows, key=_ORDERS[sort]) if sort != "name" else rows
    if as_json:
        click.echo(json_text([{name: json_number(value) for name, value in row._asdict().items()} for row in rows]))
        return
    wide_console().print(_table(rows))


def _rows(paths: Sequence[Path], settings: Settings) -> list[Row]:
    """The rows of traces, in their order; many traces are read on all processors."""
    read = partial(_row, paths[0], settings)
    if len(paths) <= _ALONE:
        return [read(path) for path in paths]
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        return list(pool.map(read, paths, chunksize=8))


def _row(first: Path, settings: Settings, path: Path) -> Row:
    """The row of a trace, which is compared with the first trace."""
    try:
        with np.errstate(all="ignore"), open_trace(path) as trace:
            query = Query(trace)
            curve = [value for one in losses(query)[:1] for value in one.values]
            fill_in_where_bad(trace)
            findings = check(trace, settings=settings).findings
            ended = how_ended(trace)
            return Row(
                path.stem,
                trace.meta.get("script", ""),
                trace.meta.get("error_type", ended) if ended == "error" else ended,
                len(trace.passes),
                len(trace.table(Kind.STEPPED)),
                float(curve[0]) if curve else None,
                float(curve[-1]) if curve else None,
                dict(Counter(finding.severity for finding in findings)),
                findings[0].rule if findings else "",
                "" if path == first else _parting(first, trace),
            )
    except TraceError as error:
        return Row(path.stem, "", "", 0, 0, None, None, {}, "", "", str(error))


def _parting(first: Path, trace: Trace) -> str:
    """The place where a run parts from the first: `same`, or the pass and the line."""
    try:
        difference = diff(first, trace)
    except TraceError as error:
        return str(error)
    parting = difference.forward or difference.backward
    if parting is None:
        return "same" if difference.same else "other operations"
    spot = parting.other or parting.one
    where = f", {file_name(spot.site.place.file)}:{spot.site.place.line}" if spot and spot.site else ""
    return f"pass {parting.number}{where}"


_ORDERS = {
    "loss": lambda row: (row.last_loss is None or row.last_loss != row.last_loss, row.last_loss or 0.0, row.run),
    "findings": lambda row: (*tuple(-row.findings.get(severity, 0) for severity in SEVERITIES), row.run),
}


def _table(rows: Sequence[Row]) -> Table:
    titles = "run", "script", "ended", "passes", "steps", "loss", "findings", "parts from the first at"
    table = Table(*titles, box=None, padding=(0, 2, 0, 0), header_style="dim")
    for row in rows:
        if row.failed:
            table.add_row(Text(clean(row.run), "bold"), Text(clean(row.failed), "red"))
            continue
        table.add_row(
            Text(clean(row.run), "bold"),
            Text(clean(file_name(row.script))),
            Text(clean(row.ended), "" if row.ended in ("ok", "exit 0") else "yellow"),
            Text(f"{row.passes:,}"),
            Text(f"{row.steps:,}"),
            Text(_loss(row)),
            _findings(row),
            Text(clean(row.parts), "dim" if row.parts == "same" else ""),
        )
    return table


def _loss(row: Row) -> str:
    if row.first_loss is None or row.last_loss is None:
        return "?"
    return f"{number(row.first_loss, 4)} → {number(row.last_loss, 4)}"


def _findings(row: Row) -> Text:
    """The counts by severity, the gravest first, and the rule of the first finding."""
    counts = [(severity, row.findings[severity]) for severity in SEVERITIES if severity in row.findings]
    if not counts:
        return Text("none", "green")
    counted = ", ".join(plural(count, severity) for severity, count in counts)
    return Text(f"{counted}: {row.first_rule}", _STYLES[counts[0][0]])
