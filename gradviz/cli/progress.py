"""The note on the terminal that a script is being recorded, with the size of the file."""

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
    """A context that shows on stderr the size of the trace at `path`: from `after` seconds on, if stderr is a
    terminal.

    The note is at the right end of the cursor's line, and the cursor does not move: the terminal belongs to the
    script. The note is erased at the end, unless the script has moved to another line since: the earlier position of
    the cursor is unknown."""
    # this console cannot show the note
    if sys.stderr is None or not sys.stderr.isatty() or stderr.legacy_windows:
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
        self.terminal = os.dup(terminal)  # a script may close the original
        # Not an Event: Ctrl-C inside its `set` can leave its lock taken for good.
        self.over: SimpleQueue[None] = SimpleQueue()
        self.width = 0  # width of the note that is shown
        self.thread = Background(self._run, lambda: self.over.put(None))

    def end(self) -> None:
        """Remove the note."""
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
        with suppress(OSError):  # the file or the terminal may be gone
            text = f" gradviz records: {size_of(self.path.stat().st_size)}"
            if os.get_terminal_size(self.terminal).columns >= _LEAST_COLUMNS:
                self._write(max(len(text), self.width), f"{text:>{self.width}}")
                self.width = len(text)

    def _erase(self) -> None:
        if self.width:
            with suppress(OSError):
                self._write(self.width, "")

    def _write(self, width: int, text: str) -> None:
        """Write at the right end of the line, in its last `width` columns, and erase the rest of them."""
        column = os.get_terminal_size(self.terminal).columns - width
        os.write(self.terminal, f"{_SAVE}\x1b[{column}G{_ERASE}{text}{_RESTORE}".encode())


def size_of(count: int) -> str:
    """A number of bytes in readable units."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"
