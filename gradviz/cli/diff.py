"""`gradviz diff`: shows where two runs part."""

from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Group

from gradviz.cli.common import PATH, all_opened, fail, format_option, opened, show
from gradviz.compare.noise import replicas_text
from gradviz.compare.parting import TOLERANCE, difference_json, difference_text
from gradviz.compare.parting import diff as difference_of
from gradviz.query.ranks import ranked_traces
from gradviz.tracefile import Trace
from gradviz.tracefile.opening import are_of_one_run


@click.command(
    epilog="""\b
Examples:
  gradviz diff good.gradviz bad.gradviz
  gradviz diff train.gradviz --pass 3 --pass 7        two passes of one run
  gradviz diff "train.rank*.gradviz" 0 1              two ranks of one run
  gradviz diff fp32.gradviz bf16.gradviz --noise      by rounding, or by a bug?
"""
)
@click.argument("traces", nargs=-1, type=PATH, metavar="A [B]")
@click.option(
    "--pass",
    "numbers",
    type=int,
    multiple=True,
    metavar="N",
    help="Compare only pass N; give it twice for a pass of each, or for two passes of A.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    default=TOLERANCE,
    show_default=True,
    help="Values differ that are further apart, relative to the largest element.",
)
@format_option("text", "json")
@click.option(
    "--noise",
    "beyond_noise",
    is_flag=True,
    help="Compare one pass of each beyond rounding, which replays measure: trace one with --values inputs.",
)
@click.option("--exit-code", is_flag=True, help="Exit with status 1 if the runs differ.")  # fmt: skip
def diff(
    traces: tuple[Path, ...], numbers: tuple[int, ...], tolerance: float, form: str, beyond_noise: bool, exit_code: bool
) -> None:
    """Show where runs A and B part: what only one of them computes, the first values that differ, forward and
    backward, and the norms of the gradients side by side.

    They may be of different engines. A alone with two --pass: two passes of A. RUN 0 1: two ranks of a run. With
    --noise: whether two runs of one program, as in another precision, compiled or on more ranks, are apart by rounding.
    """
    traces = _of_ranks(traces)
    if len(traces) > 2 or len(numbers) > 2:
        fail("diff compares two runs: give at most two traces and two --pass")
    with ExitStack() as stack:
        one, *others = [stack.enter_context(opened(path)) for path in traces or (None,)]
        if beyond_noise:
            is_same = _show_noise(one, others[0] if others else one, numbers, form)
            raise SystemExit(int(exit_code and not is_same))
        difference = difference_of(one, others[0] if others else None, numbers, tolerance)
        as_replicas = replicas_text([one, *others]) if are_of_one_run([one, *others]) else ()
    show(form == "json", lambda: difference_json(difference), lambda: Group(difference_text(difference), *as_replicas))
    raise SystemExit(int(exit_code and not difference.same))


def _show_noise(one: Trace, other: Trace, numbers: tuple[int, ...], form: str) -> bool:
    """Show the differences beyond rounding between a pass of each run; returns whether there are none."""
    from gradviz.compare.noise import noise, noise_json, noise_text
    from gradviz.sources.torch_replay import TorchRunner

    difference = noise(one, other, TorchRunner(), numbers)
    show(form == "json", lambda: noise_json(difference), lambda: noise_text(difference))
    return difference.same


def _of_ranks(traces: tuple[Path, ...]) -> tuple[Path, ...]:
    """The traces to compare: `RUN 0 3` means the traces of two ranks of a run."""
    if len(traces) != 3 or not all(rank.name.isdigit() for rank in traces[1:]):
        return traces
    with all_opened(traces[:1]) as opened_ranks:
        ranks = {rank: trace.path for rank, trace in ranked_traces(opened_ranks).items()}
    for rank in traces[1:]:
        if int(rank.name) not in ranks:
            fail(f"{traces[0]} has no rank {rank}: it has {', '.join(map(str, ranks))}")
    return tuple(ranks[int(rank.name)] for rank in traces[1:])
