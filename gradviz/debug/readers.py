"""Who looks at a stop: a reader at the terminal, or commands that were given beforehand."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console

from gradviz.step.plain import script, told
from gradviz.step.state import Session
from gradviz.step.terminal import interact

_TERMINAL = "/dev/tty"


class Commands:
    """Commands that run one after another, over all stops. When none is left the script is ended."""

    def __init__(self, lines: list[str], write: Callable[[str], None]) -> None:
        self.lines = lines
        self.write = write
        self.started = False

    @property
    def wants_the_end(self) -> bool:
        """While there are commands left."""
        return bool(self.lines)

    def read(self, session: Session) -> None:
        """Run commands up to one that lets the script go on."""
        if self.started or session.message:
            for piece in told(session, moved=True):
                self.write(piece)
            self.write("")
        if self.lines or not self.started:
            self.started = True
            for piece in script(session, self.lines):
                self.write(piece)


class AtTerminal:
    """A reader with a screen and keys, apart from the script's standard streams."""

    wants_the_end = False

    def __init__(self, terminal: TextIO) -> None:
        self.terminal = terminal

    def read(self, session: Session) -> None:
        """Let the reader step until they go on or quit."""
        with self._own_streams():
            interact(session, Console(file=self.terminal, highlight=False))

    @contextmanager
    def _own_streams(self) -> Iterator[None]:
        """Keys come from the process's own standard input, whatever the script has put in its place."""
        scripts = sys.stdin
        sys.stdin = sys.__stdin__
        try:
            yield
        finally:
            sys.stdin = scripts


def terminal() -> TextIO | None:
    """The terminal to draw on: the one that the process belongs to, or else standard output; None for neither."""
    try:
        return open(_TERMINAL, "w", encoding="utf-8", errors="replace", closefd=True)
    except OSError:
        pass
    stdin, stdout = sys.__stdin__, sys.__stdout__
    if os.name == "nt" and stdin is not None and stdout is not None and stdin.isatty() and stdout.isatty():
        return stdout
    return None
