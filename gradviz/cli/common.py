"""Shared by the commands: finding the trace, reporting errors, printing to stderr."""

import io
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import IO, Any, NoReturn, TextIO, cast

import click
import numpy as np
from rich.console import Console, RenderableType
from rich.text import Text

from gradviz.system.descriptors import high_copy, identity, write
from gradviz.system.signs import SHOWN, encoded
from gradviz.tracefile import Trace, newest_trace, open_trace
from gradviz.tracefile.opening import in_order, traces_of
from gradviz.words.escape import clean, json_text, shortened
from gradviz.words.languages import LANGUAGES

_LONGEST = 450  # characters of a message
_WIDE = 1000  # characters of a line where stdout is not a terminal

stderr = Console(stderr=True, highlight=False, soft_wrap=True)


def fail(message: str) -> NoReturn:
    """Print one line to stderr and exit with status 2."""
    say(f"gradviz: {message}")
    raise SystemExit(2)


def say(message: str) -> None:
    """Print one line to stderr."""
    with suppress(OSError, ValueError):  # stderr may be closed
        click.echo(shortened(one_line(message), _LONGEST), file=stderr.file)


def speak_past_the_script() -> None:
    """Print to the stderr that the process has now, whatever the script does to its own."""
    with suppress(OSError):  # stderr is closed: messages are lost
        stderr.file = cast(IO[str], _OwnStderr(sys.stderr))
        return
    stderr.file = io.StringIO()


@contextmanager
def stdout_kept() -> Iterator[None]:
    """A context in which what a script writes to stdout goes to stderr: stdout is for what a program reads."""
    stdout = sys.stdout
    if stdout is not sys.__stdout__:  # inside a program that has replaced it
        with redirect_stdout(sys.stderr):
            yield
        return
    kept = None
    with suppress(OSError):  # one of them is closed
        kept = high_copy(1)
        os.dup2(2, 1)
    try:
        yield
    finally:
        with suppress(OSError, ValueError):  # the script may have closed it
            if stdout is not None:
                stdout.flush()
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)


class _OwnStderr:
    """A copy of the process's stderr. Text that cannot be written there is lost."""

    def __init__(self, stream: TextIO | None) -> None:
        self.encoding = getattr(stream, "encoding", None) or "utf-8"
        self.descriptor = high_copy(2)
        self.identity = identity(self.descriptor)

    def fileno(self) -> int:
        """The descriptor of the copy, or of the original if the script has closed the copy."""
        return self.descriptor if identity(self.descriptor) == self.identity else 2

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self.fileno())

    def write(self, text: str) -> int:
        """Write text at once."""
        with suppress(OSError):
            write(self.fileno(), encoded(text, self.encoding))
        return len(text)

    def flush(self) -> None:
        """Do nothing: no text waits to be written."""


@contextmanager
def patience(doing: str, after: float = 1.0, console: Console = stderr) -> Iterator[Callable[[str], None]]:
    """Show a status line on a terminal if the block takes longer than `after` seconds. The block gets a
    function that changes the text."""
    if not console.is_terminal:
        yield lambda text: None
        return
    status = console.status(Text(clean(doing), "dim"), spinner_style="dim")
    late = threading.Timer(after, status.start)
    late.daemon = True
    late.start()
    try:
        yield lambda text: status.update(Text(clean(text), "dim"))
    finally:
        late.cancel()
        late.join()
        status.stop()


class _Unpadded(io.TextIOBase):
    """Stdout, without the blanks that pad the lines of a table."""

    def write(self, text: str) -> int:
        """Write a text of whole lines."""
        return sys.stdout.write(re.sub(" +$", "", text, flags=re.MULTILINE))


def wide_console() -> Console:
    """The console for a table on stdout. If stdout is not a terminal, lines are neither cut, wrapped nor padded."""
    show_all_on_stdout()
    console = Console(highlight=False)
    return console if console.is_terminal else Console(file=cast(IO[str], _Unpadded()), highlight=False, width=_WIDE)


def show(as_json: bool, data: Callable[[], Any], text: Callable[[], RenderableType]) -> None:
    """Print a result on stdout: as JSON, for programs, or as text."""
    if as_json:
        click.echo(json_text(data()))
    else:
        wide_console().print(text())


def how_ended(trace: Trace) -> str:
    """The end of the run of a trace: `ok`, `exit 3`, `error`, `killed`, `not yet`."""
    return trace.meta.get("ended", "") or ("not yet" if trace.is_being_recorded else "killed")


def line_of_error(error: Mapping[str, Any], trace: Trace) -> str:
    """The line of the error that ended a run: `line 7` of the script, `helper.py:7` of another file; "" if unknown."""
    if not error.get("line"):
        return ""
    file = error["file"]
    return f"{'line ' if file == trace.meta.get('script') else clean(Path(file).name) + ':'}{error['line']}"


def one_line(message: str) -> str:
    """A message as one line that is safe to print on a terminal."""
    return clean(" ".join(message.split()))


def show_all_on_stdout() -> None:
    """Replace characters that the encoding of stdout lacks by similar ones."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=SHOWN)


PATH = click.Path(path_type=Path)

# Arguments and options that several commands share, each a decorator.
traces_argument = click.argument("traces", nargs=-1, metavar="[TRACE]...", type=PATH)
trace_argument = click.argument("trace", required=False, metavar="[TRACE]", type=PATH)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
pass_option = click.option("--pass", "number", type=int, metavar="N", help="Of backward pass N [default: the last].")


def one_of(choices: Iterable[str], *names: str, help: str = "", default: str = "") -> Callable[..., Any]:
    """An option with some choices, of which the first is the default."""
    kind = click.Choice([*choices])
    return click.option(*names, type=kind, default=default or kind.choices[0], show_default=True, help=help)


def format_option(*formats: str, what: str = "it") -> Callable[..., Any]:
    """The option `--format`, of which the first format is the default."""
    return one_of(formats, "--format", "form", help=f"How to print {what}.")


def language_option(what: str) -> Callable[..., Any]:
    """The option `--lang`, the language of a screen or a lesson."""
    return one_of(LANGUAGES, "--lang", help=f"The language of the {what}.", default="en")


def commands_option(example: str) -> Callable[..., Any]:
    """The option `--commands`, with an example of commands."""
    help = f'Run "{example}", or @FILE, and print plain text.'
    return click.option("--commands", "text", metavar="COMMANDS", help=help)


@contextmanager
def all_opened(paths: tuple[Path, ...]) -> Iterator[list[Trace]]:
    """Open several traces (none: the newest here); a folder or a pattern gives the traces of all ranks, by rank.
    Raises TraceError if a trace cannot be read."""
    with ExitStack() as stack:
        yield [stack.enter_context(opened(path)) for path in named_traces(paths) or (None,)]


def named_traces(paths: Sequence[Path]) -> list[Path]:
    """The traces that paths name: a folder or a pattern names all ranks of a run. Ranks of one run are in numerical
    order, which a shell does not give. Raises TraceError if there are none."""
    traces = [trace for path in paths for trace in traces_of(path)]
    return in_order(traces) or traces


@contextmanager
def opened(path: Path | None) -> Iterator[Trace]:
    """Open the trace at `path` (None: the newest here). Raises TraceError if it cannot be read."""
    show_all_on_stdout()
    # A trace may have any numbers: results that cannot be computed are shown as NaN or inf.
    with np.errstate(all="ignore"), open_trace(path or newest_trace()) as trace:
        yield trace
