"""The command `gradviz`."""

from importlib import import_module
from typing import Any

import click

from gradviz.errors import DEBUG, GradvizError, tracebacks_are_wanted
from gradviz.system.process import CTRL_C_STATUS
from gradviz.version import __version__

# Commands are imported when they are called, so that `gradviz info` does not load the drawing code.
COMMANDS = {
    "trace": "Run a script and record its gradients.",
    "info": "Show what a trace contains.",
    "check": "Find what went wrong: the line, the reason, the cure.",
    "fix": "Cure a finding: the smallest edit as a diff, proved by a run of a copy.",
    "why": "Tell where a gradient came from: its largest contributions.",
    "what-if": "Run a recorded pass again, with another value, dtype or call.",
    "capsule": "Take one pass out of a trace: as a small trace, or as a program.",
    "diff": "Show where two runs part.",
    "runs": "Show the runs of a folder in a table.",
    "report": "Write findings, curves and the picture on one page.",
    "graph": "Draw the graph of a trace.",
    "step": "Step through a trace, forwards and backwards.",
    "learn": "Lessons in the stepper, which asks before it reveals.",
    "debug": "Run a script and pause it at breakpoints.",
    "dap": "Step through a trace in an editor, backwards too.",
    "tables": "Write a run as tables into an SQLite file, for SQL.",
    "export": "Write a run for TensorBoard, W&B, MLflow, as CSV or Parquet.",
    "mcp": "Answer an agent's questions about recorded runs.",
    "redact": "Copy a trace without source, paths, messages and elements.",
    "doctor": "Check the installation and the layout engine.",
}

_FILES = {"fix": "fixing"}  # the files of commands with another name than the command

FIRST = """\
gradviz records the gradients of a Python program, and shows them. Type first:

  gradviz trace SCRIPT.py       run your script as it is, and record it in SCRIPT.gradviz
  gradviz graph -o graph.svg    draw what was recorded
  gradviz step                  step through it, forwards and backwards
  gradviz check                 find what went wrong: the line, the reason, the cure
  gradviz learn                 take a lesson, without a script of your own

gradviz --help lists all commands; gradviz doctor checks the installation.
"""

EPILOG = """\b
First minute:
  gradviz trace examples/quickstart.py    run it, write quickstart.gradviz
  gradviz graph                           draw it
  gradviz step                            step through it
"""


_LONGEST = 200  # characters of an error


class _Commands(click.Group):
    """The group of commands. Every error becomes one line on stderr here, GradvizErrors and unforeseen errors alike:
    a command ends in a traceback only if tracebacks are wanted."""

    def invoke(self, context: click.Context) -> Any:
        from gradviz.cli.common import fail, say

        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            say("gradviz: interrupted")
            raise SystemExit(CTRL_C_STATUS) from None
        except GradvizError as error:
            fail(str(error))
        except click.UsageError as error:
            fail(_misused(error, context))
        except (click.exceptions.Exit, click.Abort, click.ClickException, BrokenPipeError):
            raise  # click itself handles these
        except Exception as error:
            if isinstance(error, OSError) and error.errno is None:  # the message is ours
                fail(str(error))
            if tracebacks_are_wanted():
                raise
            fail(_unforeseen(error, context.invoked_subcommand or ""))

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(context, args)
        except click.UsageError as error:
            from gradviz.cli.common import fail  # here, since it loads NumPy

            fail(_misused(error, context))

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        function = name.replace("-", "_")
        file = _FILES.get(name, function)
        command: click.Command = getattr(import_module(f"gradviz.cli.{file}"), function)
        for parameter in command.params:
            # whoever opens the file reports the error in one line, click in four
            if isinstance(parameter.type, click.Path):
                parameter.type.readable = False
        return command

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise GradvizError(_no_command(args[0]))
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _no_command(name: str) -> str:
    """The message for a word that is no command: perhaps a script, a trace, or a typing error."""
    from gradviz.errors import nearest
    from gradviz.system.paths import as_argument
    from gradviz.words.escape import shortened

    for suffix, command in (".py", "trace"), (".gradviz", "step"):
        if name.endswith(suffix):
            return f"{shortened(name, _LONGEST)} is no command: gradviz {command} {as_argument(name)}"
    near = nearest(name, COMMANDS)
    hint = f"did you mean gradviz {near}?" if near else "gradviz --help lists the commands"
    return f"there is no command {shortened(name, _LONGEST)}: {hint}"


def _misused(error: click.UsageError, context: click.Context) -> str:
    """The message for arguments that a command does not take; click says it in four lines."""
    said = error.format_message().rstrip(".")
    command = " ".join(filter(None, [context.command_path, context.invoked_subcommand]))
    return f"{said[:1].lower()}{said[1:]} (see {command} --help)"


def _unforeseen(error: Exception, command: str) -> str:
    """The message for an unforeseen error."""
    from gradviz.words.escape import shortened

    if isinstance(error, OSError):
        return f"{command} failed: {shortened(str(error), _LONGEST)}"
    if isinstance(error, MemoryError):
        return f"{command} needs more memory than there is: try a part of the run, or another machine"
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return (
        f"{command} failed ({shortened(said, _LONGEST)}). If the trace is not damaged, this is a bug of gradviz: "
        f"{DEBUG}=1 shows where"
    )


@click.command(
    cls=_Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True
)
@click.version_option(__version__, prog_name="gradviz", message="%(prog)s %(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """A flight recorder and debugger for gradients.

    Run an unmodified program under `gradviz trace`. Then look at its graph, step through its gradients, and find the
    line that is wrong."""
    if context.invoked_subcommand is None:
        click.echo(FIRST, nl=False)
