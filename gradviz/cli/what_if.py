"""`gradviz what-if`: runs a recorded pass again with changes."""

from pathlib import Path
from typing import Any

import click

from gradviz.cli.common import fail, json_option, opened, pass_option, show, trace_argument
from gradviz.compare.compiled import compiled as compiled_pass
from gradviz.compare.compiled import compiled_json, compiled_text
from gradviz.replay.changed_pass import DTYPES, scaled_step
from gradviz.replay.changed_pass import what_if as what_if_of
from gradviz.replay.changed_pass_text import (
    micro_batches_json,
    micro_batches_text,
    samples_json,
    samples_text,
    scaled_step_json,
    scaled_step_text,
    what_if_json,
    what_if_text,
)
from gradviz.replay.micro_batches import joined, split
from gradviz.replay.samples import samples as samples_of
from gradviz.words.words import Words


@click.command(
    name="what-if",
    epilog="""\b
Examples:
  gradviz trace --values inputs train.py
  gradviz what-if train.gradviz --pass 3 --set x=4
  gradviz what-if --set 'w[0,2]=0' --json
  gradviz what-if --dtype float64              is it precision?
  gradviz what-if --without detach@6           would the cure work?
  gradviz what-if --samples                    which sample did it?
  gradviz what-if --without-sample 5           and without it?
  gradviz what-if --pass 3 --scale lr=0.1      is the step too large?
  gradviz what-if --split 4                    do four micro-batches give the same?
  gradviz what-if --join                       do the passes of a step give that of one batch?
  gradviz what-if --compiled                   does torch.compile give the same?
""",
)
@trace_argument
@pass_option
@click.option(
    "--set", "sets", multiple=True, metavar="NAME=NUMBER", help="Give a tensor, or an element of it, another value."
)  # fmt: skip
@click.option("--dtype", type=click.Choice(DTYPES), help="Compute all floating-point numbers in this dtype.")
@click.option(
    "--without", multiple=True, metavar="OP@LINE", help="Leave out a call, as detach@6, clamp@12 or dropout@30."
)
@click.option(
    "--without-sample", "sample", type=int, metavar="INDEX", help="Leave a sample of the batch out of the loss."
)
@click.option(
    "--scale", metavar="lr=FACTOR", help="Give the optimizer's step behind the pass so many times its learning rate."
)
@click.option("--samples", is_flag=True, help="Show which samples of the batch give most of the gradients.")
@click.option(
    "--split", "parts", type=int, metavar="K", help="Compare the gradient of the batch with that of K micro-batches."
)
@click.option(
    "--join",
    is_flag=True,
    help="Compare what the passes between two changes of the parameters accumulate with the gradient of one batch.",
)
@click.option(
    "--compiled",
    is_flag=True,
    help="Run the pass under torch.compile, and show the first gradient that differs beyond rounding.",
)
@click.option(
    "--backend",
    metavar="NAME",
    help="What compiles with --compiled, as inductor where there is a C++ compiler. [default: aot_eager]",
)
@json_option
def what_if(
    trace: Path | None,
    number: int | None,
    sets: tuple[str, ...],
    dtype: str | None,
    without: tuple[str, ...],
    sample: int | None,
    scale: str | None,
    samples: bool,
    parts: int | None,
    join: bool,
    compiled: bool,
    backend: str | None,
    as_json: bool,
) -> None:
    """Run a pass of TRACE again, and show what becomes of the loss and of each gradient if something is different.

    TRACE is one of a run with tensors of at most 64 elements, or was recorded with gradviz trace --values inputs.
    Without an option the pass runs as it was, and is compared with what was recorded. Default: the newest *.gradviz
    here."""
    is_edited = bool(sets or dtype or without) or sample is not None
    alone = {
        "--compiled": compiled, "--samples": samples, "--scale": scale, "--split": parts is not None, "--join": join
    }  # fmt: skip
    named = [option for option, is_asked in alone.items() if is_asked]
    if named and len(named) + is_edited > 1:
        fail(f"{named[0]} shows the pass as it was: leave out what else is to be different")
    if backend and not compiled:
        fail("--backend says what compiles with --compiled")
    from gradviz.sources.torch_replay import runner_of

    with opened(trace) as recorded:
        words = Words(recorded)
        runner = runner_of(words.query, words.at_line)
        found: Any
        if compiled:
            from gradviz.sources.compiled_replay import compiling_runner_of

            by = backend or "aot_eager"
            compiling = compiling_runner_of(words.query, by, words.at_line)
            ways: tuple[Any, Any] = compiled_json, compiled_text
            found = compiled_pass(words, runner, compiling, by, number)
        elif samples:
            ways, found = (samples_json, samples_text), samples_of(words.query, runner, number)
        elif join or parts is not None:
            ways = micro_batches_json, micro_batches_text
            found = joined(words, runner, number) if parts is None else split(words, runner, number, parts)
        elif scale:
            ways, found = (scaled_step_json, scaled_step_text), scaled_step(words, runner, number, scale)
        else:
            ways = what_if_json, what_if_text
            found = what_if_of(words, runner, number, sets, dtype or "", without, sample)
        as_data, as_text = ways
        show(as_json, lambda: as_data(words, found), lambda: as_text(words, found))
