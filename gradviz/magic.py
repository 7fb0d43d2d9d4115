"""`%%gradviz`: records a cell of a notebook, and shows what it did."""

from __future__ import annotations

import shlex
import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from gradviz.events.values import GRADES
from gradviz.notebook import draw, show
from gradviz.replaying import check
from gradviz.sources.record import record
from gradviz.tracefile import open_trace

MOST_EVENTS = 200_000  # of a cell that is checked: half a second


@click.command(add_help_option=False)
@click.option("-o", "output", type=click.Path(path_type=Path))
@click.option("--values", type=click.Choice(GRADES), default="stats")
@click.option("--page", "as_page", is_flag=True)
@click.option("--theme", type=click.Choice(["light", "dark"]), default="light")
def options(**chosen: Any) -> dict[str, Any]:
    """The options behind `%%gradviz`."""
    return chosen


def load(shell: Any) -> None:
    """Make `%%gradviz` known to an IPython shell."""

    def gradviz(line: str, cell: str) -> Any:
        """Run the cell, record it, and show what `gradviz check` finds, and the picture, or with --page the page."""
        try:
            chosen = options.main(shlex.split(line), "%%gradviz", standalone_mode=False)
        except click.ClickException as error:
            print(f"%%gradviz: {error.format_message()}")
            return None
        path = chosen["output"] or _last_cell()
        with record(path, values=chosen["values"]):
            ran = shell.run_cell(cell)
        if not ran.success:
            print("%%gradviz: the cell ended with an error; the picture shows what it did until then")
        _show_findings(path)
        return show(path) if chosen["as_page"] else draw(path, theme=chosen["theme"])

    shell.register_magic_function(gradviz, "cell", "gradviz")


def _show_findings(path: Path) -> None:
    """Show the errors and warnings of a cell as a table above its picture; nothing of one without, or of a long run."""
    with open_trace(path) as trace:
        report = check(trace) if trace.count <= MOST_EVENTS else None
    if report is not None and report.at_least("warning"):
        import_module("IPython.display").display(report)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Where the last recorded cell is kept, for `gradviz.draw(loss)` in a later one; gone when Python ends."""
    return tempfile.TemporaryDirectory(prefix="gradviz-")


def _last_cell() -> Path:
    return Path(_folder().name, "cell.gradviz")
