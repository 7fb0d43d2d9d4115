"""`gradviz capsule`: one pass of a trace, as a small file of its own."""

from pathlib import Path

import click

from gradviz.cli.common import PATH, fail, opened, pass_option, trace_argument
from gradviz.query.query import Query
from gradviz.replay.pass_capsule import write
from gradviz.replay.plan import plan_of


@click.command(
    epilog="""\b
Examples:
  gradviz capsule train.gradviz --pass 17 -o bad.gradviz
  gradviz capsule --script bad_step.py                    of the last pass of the newest trace here
"""
)
@trace_argument
@pass_option
@click.option("-o", "output", metavar="OUT", type=PATH, help="The trace to write.")
@click.option("--script", metavar="FILE.py", type=PATH, help="The program to write; its values go into FILE.npz.")
def capsule(trace: Path | None, number: int | None, output: Path | None, script: Path | None) -> None:
    """Take one pass out of TRACE, with what it needs to run again: as a trace (-o), or as a program (--script).

    TRACE was recorded with gradviz trace --values inputs. Both hold the values of the parameters and of the data of
    that pass. Default: the newest *.gradviz here."""
    if output is None and script is None:
        fail("say what to write: -o OUT.gradviz, --script STEP.py or both")
    if script is not None and script.suffix != ".py":
        fail(f"--script writes a program: {script} does not end in .py")
    with opened(trace) as recorded:
        query = Query(recorded)
        plan = plan_of(query, number)
        if output is not None:
            write(query, plan, output)
            click.echo(f"wrote {output}: pass {plan.number}, {_size(output)}")
        if script is not None:
            from gradviz.replay.pass_capsule import write_script

            values = write_script(query, plan, script)
            click.echo(f"wrote {script} and {values}: pass {plan.number}, {_size(values)}")


def _size(path: Path) -> str:
    return f"{path.stat().st_size / 1000:,.0f} kB"
