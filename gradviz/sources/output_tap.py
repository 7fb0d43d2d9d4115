"""Keeps the text that a program writes to its `sys.stdout`, if the recording was asked for it.

`sys.stdout` stays the same object: it gets an attribute `write`, which calls its own method first. A program can
notice that (docs/reliability.md), so this happens only when the user asks for it."""

from __future__ import annotations

import io
import sys
from sys import _getframe  # bound now: a program may replace it
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradviz.sources.record import record


_begun: list[OutputTap] = []  # the taps of this process, and of the process that it is a copy of


class OutputTap:
    """Gives the recorder of a recording the text that is written, until enough text is kept or the recording ends."""

    def __init__(self, recording: record) -> None:
        self.recording = recording
        self.stream: Any = None
        self.write: Any = None

    def __enter__(self) -> None:
        """Begin to keep text. A stream that is not Python's own is left alone, since it may be anything."""
        while _begun and _begun[-1].recording.recorder is None:
            _begun.pop().end()
        stream = sys.stdout
        if type(stream) not in (io.TextIOWrapper, io.StringIO) or "write" in vars(stream):
            return
        own = stream.write

        def write(*arguments: Any, **names: Any) -> Any:
            done = own(*arguments, **names)
            self._wrote(arguments[0])
            return done

        self.stream, self.write = stream, write
        stream.write = write  # type: ignore[method-assign]
        _begun.append(self)

    def _wrote(self, text: str) -> None:
        recorder = self.recording.recorder  # None in a copy of the process, made by `fork`
        if recorder is None:
            return
        if recorder.printed.is_full:
            self.end()
            return
        recorder.print_piece(_getframe(2), "".join([text]))  # a plain str, whatever class it has

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Restore the stream, unless the program has given it another `write` meanwhile."""
        if self.stream is not None and vars(self.stream).get("write") is self.write:
            del self.stream.write
