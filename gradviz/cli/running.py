"""Shared by the commands that run a script: their options, the script to run, and the summary at the end."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from gradviz.cli.common import fail, stderr
from gradviz.cli.summary import summary
from gradviz.sources.script import Outcome, Target
from gradviz.tracefile import TraceError, open_trace

SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}

_PARAMETERS = (
    click.option("-m", "module", metavar="MODULE", help="Run a module, as `python -m` does."),
    click.option("-o", "output", type=click.Path(path_type=Path), help="The trace [default: STEM.gradviz here]."),
    click.option(
        "--engine",
        type=click.Choice(["auto", "numpy", "torch"]),
        default="auto",
        show_default=True,
        help="The engine that `import torch` gives. This version only records gradviz's NumPy engine.",
    ),
    click.option(
        "--values",
        type=click.Choice(["none", "stats", "full"]),
        default="stats",
        show_default=True,
        help="Which values of tensors to keep; small tensors are kept in full unless `none`.",
    ),
    click.argument("script", required=False),
    click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
)  # fmt: skip


def runs_a_script(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `-m`, `-o`, `--engine`, `--values`, SCRIPT and its arguments."""
    for decorate in reversed(_PARAMETERS):
        command = decorate(command)
    return command


def target_of(
    verb: str, module: str | None, script: str | None, arguments: tuple[str, ...], engine: str
) -> Target:
    """The script or module to run. Exits with one line if none is given, or if this version cannot `verb` it."""
    if module is not None:
        arguments = arguments if script is None else (script, *arguments)
    elif script is None:
        fail(
            f"give a SCRIPT to run, or -m MODULE (see gradviz {click.get_current_context().info_name} --help)"
        )
    if engine == "torch":
        fail(
            f"this version cannot {verb} PyTorch itself yet: --engine numpy runs the script on gradviz's engine"
        )
    return Target(module or script or "", module is not None, arguments)


def tell(path: Path, outcome: Outcome, engine: str) -> None:
    """Print a summary of the recording. If `import torch` gave another engine than expected, mention it."""
    if engine == "auto" and outcome.served_as_torch and find_spec("torch") is not None:
        stderr.print(Text("gradviz: engine `import torch` gave gradviz's NumPy engine, not PyTorch", "dim"))
    try:
        with open_trace(path) as recorded:
            stderr.print(summary(recorded, outcome))
    except TraceError as error:
        fail(str(error))
