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
    "group": ("group", ""),
}


@click.command(
    epilog="""\b
Examples:
  gradviz graph                            the newest trace here, as STEM.svg
  gradviz graph net.gradviz -o net.png
  gradviz graph --pass 17 --show backward -o pass17.svg
  gradviz graph --depth 1                  outer scopes only
  gradviz graph --unfold layers/3          what is in this one
  gradviz graph --from layer1.weight --to loss
  gradviz graph --legend -o legend.png
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
@click.option("--all", "whole", is_flag=True, help="Draw the whole run, nothing folded or left out.")
@click.option("--depth", type=click.IntRange(0), metavar="N", help="Open N levels of scopes and repetitions.")
@click.option("--unfold", multiple=True, metavar="SCOPE", help="Open this scope too; may be given again.")
@click.option("--around", metavar="NODE", help="Only what is near NODE: a name, an id, FILE:LINE.")
@click.option("--hops", type=click.IntRange(0), default=3, show_default=True, help="How near, in edges.")
@click.option("--from", "start", metavar="A", help="Only the ways from A (to --to B).")
@click.option("--to", "end", metavar="B", help="Only the ways to B (from --from A).")
@click.option("--only-grad", is_flag=True, help="Only what requires grad.")
@click.option("--legend", is_flag=True, help="Draw what everything means, instead of a trace.")
@click.option("--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True)
def graph(
    trace: Path | None,
    output: Path | None,
    number: int | None,
    show: str,
    whole: bool,
    depth: int | None,
    unfold: tuple[str, ...],
    around: str | None,
    hops: int,
    start: str | None,
    end: str | None,
    only_grad: bool,
    legend: bool,
    theme: str,
) -> None:
    """Draw TRACE as a graph: .svg, .png, .pdf, .html, .dot, .mmd or .json by the ending of FILE.

    Shows the last backward pass and what led to it; a large one is folded. Default: the newest *.gradviz here.
    """
    from gradviz.cli.page import write_page
    from gradviz.draw.render import PAGE, DrawError, check_path, save, save_legend
    from gradviz.graph import slices
    from gradviz.graph.build import GraphError, build
    from gradviz.graph.fold import FoldError, folded
    from gradviz.graph.many import no_collection

    if legend:
        try:
            save_legend(path := output or Path("legend.svg"), theme)
        except DrawError as error:
            fail(str(error))
        click.echo(f"wrote {path}: what everything means")
        return
    if (start is None) != (end is None):
        fail("--from and --to go together: say where the way begins and where it ends")
    with opened(trace) as recorded, no_collection():
        path = output or recorded.path.with_suffix(".svg")
        is_json = path.suffix.lower() == ".json"
        try:
            check_path(path)

            def built_for(wanted: int | None) -> Graph:
                built = build(recorded, wanted, show, whole, values=not is_json)
                if only_grad:
                    built = slices.only_grad(built)
                if start is not None and end is not None:
                    built = slices.between(built, start, end)
                return built if around is None else slices.around(built, around, hops)

            if path.suffix.lower() == PAGE:
                click.echo(write_page(recorded, built_for, number, path))
                return
            built = built_for(number)
            if not whole and not (is_json and depth is None and not unfold):
                built = folded(built, depth, unfold)
            save(built, path, theme)
        except (DrawError, GraphError, FoldError, slices.SliceError) as error:
            fail(str(error))
    click.echo(_told(built, path))


def _told(built: Graph, path: Path) -> str:
    """One line: what was written, and what is in it."""
    parts = ", ".join(plural(count, *_WORDS[kind]) for kind, count in built.counts().items()) or "nothing"
    edges = plural(len(built.edges), "edge")
    run = "the whole run" if built.pass_number is None else f"pass {built.pass_number} of {built.passes}"
    more = f"; {plural(built.left_out, 'operation')} outside it (--all draws them)" if built.left_out else ""
    notes = "".join(f"; {note}" for note in built.notes)
    return f"wrote {path}: {run}, {parts}, {edges}{notes}{more}"
