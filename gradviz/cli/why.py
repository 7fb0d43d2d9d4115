"""`gradviz why`: shows where a gradient came from."""

from pathlib import Path

import click

from gradviz.cli.common import fail, format_option, opened, show, wide_console
from gradviz.explain.account import account_text
from gradviz.explain.by_norms import NormReason, norm_json, norm_text
from gradviz.explain.origin import PATHS, reason_json, reason_text
from gradviz.replaying import why as reason_of
from gradviz.system.paths import as_argument
from gradviz.words.escape import json_text
from gradviz.words.stop import UnknownName
from gradviz.words.words import Words


@click.command(
    epilog="""\b
Examples:
  gradviz why train.gradviz net.0.weight
  gradviz why train.gradviz "w[3, 0]" --pass 7
  gradviz why w --paths 10 --format json        of the newest trace here
  gradviz why train.gradviz --across batch      which samples depend on which?
"""
)
@click.argument("words", nargs=-1, metavar="[TRACE] TENSOR")
@click.option("--pass", "number", type=int, metavar="N", help="In backward pass N [default: its last].")
@click.option("--paths", type=click.IntRange(1), default=PATHS, show_default=True, metavar="N", help="Show N paths.")
@click.option(
    "--across",
    type=click.Choice(["batch"]),
    help="Instead of a TENSOR: which samples of the batch depend on which, in a pass that runs again.",
)
@format_option("text", "json")
def why(words: tuple[str, ...], number: int | None, paths: int, across: str | None, form: str) -> None:
    """Tell where the gradient of TENSOR came from: the largest contributions, each a path from the root.

    TENSOR is a name (w, net.0.weight), an element ("w[3, 0]") or a number (t12). Default: the newest *.gradviz here."""
    if across:
        _across(words, number, form)
        return
    if not words:
        fail("why needs a TENSOR, or --across batch: gradviz why TRACE TENSOR")
    if len(words) > 2:
        fail(f"why reads one TRACE and one TENSOR; {words[2]} is one argument too many")
    if len(words) == 1 and Path(words[0]).is_file():
        fail(f"{words[0]} is a file: name a tensor, too, as in: gradviz why {as_argument(words[0])} TENSOR")
    with opened(Path(words[0]) if len(words) == 2 else None) as trace:
        try:
            reason = reason_of(trace, words[-1], number, paths)
        except UnknownName as error:
            fail(str(error) if len(words) == 2 else f"{error} (of {trace.path.name}, the newest trace here)")
        account = account_text(trace, reason.tensor)
    if form == "json":
        data = norm_json(reason) if isinstance(reason, NormReason) else reason_json(reason)
        click.echo(json_text(data))
        return
    text = norm_text(reason) if isinstance(reason, NormReason) else reason_text(reason)
    wide_console().print(text, *account)


def _across(words: tuple[str, ...], number: int | None, form: str) -> None:
    if len(words) > 1:
        fail(f"why --across batch reads one TRACE and takes no TENSOR; {words[1]} is one argument too many")
    from gradviz.replay.across_samples import across_json, across_samples, across_text
    from gradviz.sources.torch_replay import runner_of

    with opened(Path(words[0]) if words else None) as trace:
        told = Words(trace)
        found = across_samples(told, runner_of(told.query, told.at_line), number)
        show(form == "json", lambda: across_json(told, found), lambda: across_text(told, found))
