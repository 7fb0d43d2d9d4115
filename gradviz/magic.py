"""`%%gradviz`: records a cell of a notebook, and shows what it did."""

import shlex
import sys
import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from gradviz.events.values import GRADES
from gradviz.notebook import checked_graph, checked_page, show
from gradviz.pictures.picture import Picture
from gradviz.replaying import quick_report
from gradviz.sources import pytorch
from gradviz.sources.notebook_cells import cell_around, cell_name, follow_cells
from gradviz.sources.record import record
from gradviz.tracefile import Sites, open_trace


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
    follow_cells(shell)

    def gradviz(line: str, cell: str) -> Any:
        """Run the cell, record it, and show what `gradviz check` finds, and the picture, or with --page the page."""
        try:
            chosen = options.main(shlex.split(line), "%%gradviz", standalone_mode=False)
        except click.ClickException as error:
            print(f"%%gradviz: {error.format_message()}")
            return None
        own = Path(_folder().name, "cell.gradviz")
        own.unlink(missing_ok=True)
        path = chosen["output"] or own
        here = sys._getframe()
        sites = Sites([here.f_code], pytorch.own_directories(), cell_name=cell_name)
        count, around = shell.execution_count, cell_around(here)
        if around is not None:  # a reader sees one cell: the code in it has its number, in tracebacks too
            shell.execution_count = int(around[len("In[") : -1])
        try:
            with record(path, values=chosen["values"], sites=sites) as recording:
                ran = shell.run_cell(_below_magic(cell))
        finally:
            shell.execution_count = count
        if recording.kept_earlier:
            return None
        with open_trace(path) as trace:
            if not ran.success and not trace.count:
                return None
            if not ran.success:
                print("%%gradviz: the cell ended with an error; the picture shows what it did until then")
            report = quick_report(trace, None, print)
            if report is not None and report.at_least("warning"):
                import_module("IPython.display").display(report)
            if chosen["as_page"]:
                return checked_page(trace, report)
            return Picture(checked_graph(trace, report, {}), lambda: show(path), chosen["theme"])

    shell.register_magic_function(gradviz, "cell", "gradviz")


def _below_magic(cell: str) -> str:
    """The code below the line of the magic, as the cell has it: its lines count from that line. Code that begins with
    another magic, or with an indentation, stays as it is."""
    begins_in_place = not cell.startswith(("%", "!", "?", " ", "\t"))
    return f"# %%gradviz\n{cell}" if begins_in_place else cell


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Where the last recorded cell is kept, for `gradviz.draw(loss)` in a later one; gone when Python ends."""
    return tempfile.TemporaryDirectory(prefix="gradviz-")
