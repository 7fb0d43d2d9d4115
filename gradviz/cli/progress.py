"""The note on the terminal that a script is being recorded, and how large the file has become."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from gradviz.background import Background
from gradviz.cli.common import stderr

AFTER, EVERY = 2.0, 1.0  # seconds
_LEAST_COLUMNS = 60
_SAVE, _RESTORE, _ERASE = "\x1b7", "\x1b8", "\x1b[K"


@contextmanager
def shown_on_terminal(path: Path, after: float = AFTER, every: float = EVERY) -> Iterator[None]:
    """While the block runs, say on stderr how large the trace at `path` is: from `after` seconds on, where stderr is a
    terminal.

    The note stands at the right end of the line that the cursor is in, and the cursor stays where it is: the terminal
    is the script's to write to. It is erased at the end, unless the script has gone on to another line since: where the
    cursor was before, nobody can know."""
    if sys.stderr is None or not sys.stderr.isatty() or stderr.legacy_windows:  # which has no such note
        yield
        return
    note = _Note(path.absolute(), sys.stderr.fileno(), after, every)
    note.thread.start()
    try:
        yield
    finally:
        note.end()


class _Note:
    """A thread that writes the note."""

    def __init__(self, path: Path, terminal: int, after: float, every: float) -> None:
        self.path, self.after, self.every = path, after, every
        self.terminal = os.dup(terminal)  # a script may close its own
        # No Event: Ctrl-C inside its `set` can leave its lock taken for good.
        self.over: SimpleQueue[None] = SimpleQueue()
        self.width = 0  # of what is shown now
        self.thread = Background(self._run, lambda: self.over.put(None))

    def end(self) -> None:
        """Take the note away."""
        self.over.put(None)
        self.thread.join()
        os.close(self.terminal)

    def _run(self) -> None:
        if not self._is_over_in(self.after):
            self._show()
            while not self._is_over_in(self.every):
                self._show()
            self._erase()

    def _is_over_in(self, seconds: float) -> bool:
        try:
            self.over.get(timeout=seconds)
        except Empty:
            return False
        return True

    def _show(self) -> None:
        with suppress(OSError):  # no file any more, or no terminal
            text = f" gradviz records: {size_of(self.path.stat().st_size)}"
            if os.get_terminal_size(self.terminal).columns >= _LEAST_COLUMNS:
                self._write(max(len(text), self.width), f"{text:>{self.width}}")
                self.width = len(text)

    def _erase(self) -> None:
        if self.width:
            with suppress(OSError):
                self._write(self.width, "")

    def _write(self, width: int, text: str) -> None:
        """Write at the right end of the line, `width` from it, and leave nothing else there."""
        column = os.get_terminal_size(self.terminal).columns - width
        os.write(self.terminal, f"{_SAVE}\x1b[{column}G{_ERASE}{text}{_RESTORE}".encode())


def size_of(count: int) -> str:
    """A number of bytes, as a person reads it."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"
