"""`gradviz graph`: draw a trace."""

from __future__ import annotations

from pathlib import Path

import click

from gradviz.cli.common import fail, opened, trace_argument
from gradviz.cli.summary import plural
from gradviz.graph.model import Graph

_WORDS = {
    "leaf": ("leaf", "leaves"),
    "tensor": ("tensor", ""),
    "op": ("operation", ""),
    "grad_fn": ("grad_fn", ""),
}


@click.command(
    epilog="""\b
Examples:
  gradviz graph                            the newest trace here, as STEM.svg
  gradviz graph net.gradviz -o net.png
  gradviz graph --pass 17 --show backward -o pass17.svg
"""
)
@trace_argument
@click.option(
    "-o", "output", type=click.Path(path_type=Path), help="The picture [default: STEM.svg beside TRACE]."
)
@click.option("--pass", "number", type=int, metavar="N", help="Draw backward pass N [default: the last].")
@click.option(
    "--show",
    type=click.Choice(["both", "forward", "backward"]),
    default="both",
    show_default=True,
    help="What was computed, how gradients flow back, or both.",
)
@click.option("--all", "whole", is_flag=True, help="Draw the whole run, nothing left out.")
def graph(trace: Path | None, output: Path | None, number: int | None, show: str, whole: bool) -> None:
    """Draw TRACE as a graph: .svg, .png, .pdf, .dot or .json by the ending of FILE.

    Shows the last backward pass and what led to it. Default: the newest *.gradviz here.
    """
    from gradviz.draw.render import DrawError, check_path, save
    from gradviz.graph.build import GraphError, build

    with opened(trace) as recorded:
        path = output or recorded.path.with_suffix(".svg")
        try:
            check_path(path)
            built = build(recorded, number, show, whole, values=path.suffix.lower() != ".json")
            save(built, path)
        except (DrawError, GraphError) as error:
            fail(str(error))
    click.echo(_told(built, path))


def _told(built: Graph, path: Path) -> str:
    """One line: what was written, and what is in it."""
    parts = ", ".join(plural(count, *_WORDS[kind]) for kind, count in built.counts().items()) or "nothing"
    edges = plural(len(built.edges), "edge")
    run = "the whole run" if built.pass_number is None else f"pass {built.pass_number} of {built.passes}"
    more = f"; {plural(built.left_out, 'operation')} outside it (--all draws them)" if built.left_out else ""
    return f"wrote {path}: {run}, {parts}, {edges}{more}"
