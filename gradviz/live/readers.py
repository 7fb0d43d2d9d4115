"""The two ways to handle a stop: a user at the terminal, or commands given in advance."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console

from gradviz.step.plain import script, told
from gradviz.step.state import Session
from gradviz.step.terminal import interact


class Commands:
    """Runs a list of commands, over all stops. When no command is left, the script is ended."""

    def __init__(self, lines: list[str], write: Callable[[str], None]) -> None:
        self.lines = lines
        self.write = write
        self.started = False

    @property
    def wants_the_end(self) -> bool:
        """Whether commands are left."""
        return bool(self.lines)

    def read(self, session: Session) -> None:
        """Run commands until a command continues the script."""
        if self.started or session.message:
            for piece in told(session, moved=True):
                self.write(piece)
            self.write("")
        if self.lines or not self.started:
            self.started = True
            for piece in script(session, self.lines):
                self.write(piece)


class AtTerminal:
    """A user with a screen and keys, separate from the script's standard streams."""

    wants_the_end = False

    def __init__(self, terminal: TextIO) -> None:
        self.terminal = terminal

    def read(self, session: Session) -> None:
        """Let the user step until they continue or quit."""
        with self._own_streams():
            interact(session, Console(file=self.terminal, highlight=False))

    @contextmanager
    def _own_streams(self) -> Iterator[None]:
        """Read keys from the process's own standard input, even if the script has replaced sys.stdin."""
        scripts = sys.stdin
        sys.stdin = sys.__stdin__
        try:
            yield
        finally:
            sys.stdin = scripts
