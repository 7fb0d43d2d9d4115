"""`gradviz redact`: a copy of a trace that may be shared."""

from pathlib import Path

import click

from gradviz.cli.common import PATH, opened, trace_argument
from gradviz.tracefile.redaction import redact as redact_trace


@click.command(
    epilog="""\b
Examples:
  gradviz redact train.gradviz -o shared.gradviz
  gradviz redact -o shared.gradviz                 of the newest trace here
"""
)
@trace_argument
@click.option("-o", "output", required=True, metavar="OUT", type=PATH, help="The copy to write.")
def redact(trace: Path | None, output: Path) -> None:
    """Copy TRACE to OUT without source texts, paths above the working folder, messages and elements of tensors.

    Names, shapes, small whole numbers, lines, times and statistics of tensors of more than 16 elements stay. Every
    command reads the copy. Default: the newest *.gradviz here."""
    with opened(trace) as recorded:
        redact_trace(recorded, output)
    click.echo(f"wrote {output}: without source texts, paths, messages and elements of tensors")
