"""`gradviz graph`: draws a trace."""

from pathlib import Path
from typing import Any

import click

from gradviz.cli.common import PATH, all_opened, fail, one_of, traces_argument
from gradviz.system.paths import as_argument


@click.command(
    epilog="""\b
Examples:
  gradviz graph                            the newest trace here, as STEM.svg
  gradviz graph net.gradviz -o net.png
  gradviz graph --pass 17 --show backward -o pass17.svg
  gradviz graph --pass 1 --pass 2          two steps of a loop, side by side
  gradviz graph --depth 1                  outer scopes only
  gradviz graph --unfold layers/3          also open this scope
  gradviz graph --unrolled                 each step of a loop
  gradviz graph --from layer1.weight --to loss
  gradviz graph train.rank0.gradviz train.rank1.gradviz
  gradviz graph --what-if x=4              values and gradients before and after
  gradviz graph --style textbook           gates and wires, as in a textbook
  gradviz graph --legend -o legend.png
"""
)
@traces_argument
@click.option("-o", "output", type=PATH, help="The picture [default: STEM.svg beside TRACE].")
@click.option(
    "--pass",
    "numbers",
    type=int,
    multiple=True,
    metavar="N",
    help="Draw backward pass N; given twice, two passes side by side. [default: the pass of the first finding, NaN or "
    "error; without these, in a small program the pass of an infinity or the last pass, in a larger program the first "
    "pass with a cut or the first pass]",
)
@one_of(("both", "forward", "backward"), "--show", help="What was computed, how gradients flow back, or both.")
@click.option("--all", "whole", is_flag=True, help="Draw the whole run, without folding.")
@click.option("--depth", type=click.IntRange(0), metavar="N", help="Open N levels of scopes and repetitions.")
@click.option("--unfold", multiple=True, metavar="SCOPE", help="Also open this scope or class; repeatable.")
@click.option(
    "--rolled/--unrolled",
    default=None,
    help="Each place of the program as one box, or each step of a loop [default: what is clearer].",
)
@click.option("--around", metavar="NODE", help="Only what is near NODE (a name, an id, or FILE:LINE).")
@click.option("--hops", type=click.IntRange(0), default=3, show_default=True, help="The reach of --around.")
@click.option("--from", "start", metavar="A", help="Only the paths from A (to --to B).")
@click.option("--to", "end", metavar="B", help="Only the paths to B (from --from A).")
@click.option("--only-grad", is_flag=True, help="Only what requires grad.")
@click.option(
    "--findings/--no-findings", default=True, show_default=True,
    help="Mark what `gradviz check` finds (in runs up to 200,000 events).",
)  # fmt: skip
@click.option(
    "--what-if",
    "edits",
    multiple=True,
    metavar="EDIT",
    help="Show at each box what it would be with NAME=NUMBER, or without OP@LINE, as in gradviz what-if.",
)
@one_of(
    ("graph", "textbook"),
    "--style",
    help="`textbook`: gates and wires, the value above and the gradient below, for small graphs.",
)
@click.option(
    "--names", metavar="w1,w2,...", help="Other names for the tensors of a picture, in the order of their making."
)
@click.option("--legend", is_flag=True, help="Draw the legend of all symbols, instead of a trace.")
@one_of(("light", "dark"), "--theme")
@click.option(
    "--rankdir",
    type=click.Choice(["TB", "LR"]),
    help="From top to bottom, or from left to right. [default: TB, and LR for a short picture of a textbook]",
)
def graph(
    traces: tuple[Path, ...],
    output: Path | None,
    numbers: tuple[int, ...],
    names: str | None,
    legend: bool,
    rankdir: str | None,
    **options: Any,
) -> None:
    """Draw TRACE as a graph. The ending of FILE gives the format: .svg, .png, .pdf, .html, .dot, .mmd or .json.

    Shows one backward pass and what led to it. A large graph opens as its modules, and a loop as one box for each
    place. Default: the newest *.gradviz here. Several traces are drawn side by side; the ranks of one run, as a folder
    or a pattern names them, as one graph, with what is not the same on all ranks at each box."""
    from gradviz.cli.drawing import Choice, draw
    from gradviz.pictures.render import ENDINGS, save_legend

    if legend:
        save_legend(path := output or Path("legend.svg"), options["theme"])
        click.echo(f"wrote {path}: the legend of all symbols")
        return
    if (options["start"] is None) != (options["end"] is None):
        fail("--from and --to go together: give the start and the end of the paths")
    for path in traces[1:]:
        if path.suffix.lower() in ENDINGS and not path.exists():
            fail(f"{as_argument(path)} is no trace: -o {as_argument(path)} names the picture")
    choice = Choice(
        number=numbers[0] if numbers else None,
        beside=numbers[1:],
        names=tuple(names.split(",")) if names else (),
        rankdir=rankdir or "",
        **options,
    )
    with all_opened(traces) as recorded:
        message = draw(recorded, output or recorded[0].path.with_suffix(".svg"), choice)
    click.echo(message)
