"""What is typed into a terminal, and the signals that a terminal sends."""

from __future__ import annotations

import codecs
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

try:
    import termios
except ImportError:  # Windows
    termios = None  # type: ignore[assignment]

_AT_ONCE = 1024  # bytes
_TERMINAL = "/dev/tty"
_LOCAL, _CHARACTERS = 3, 6  # of what tcgetattr gives
END, INTERRUPT = "\x04", "\x03"  # Ctrl-D, Ctrl-C


class Keyboard:
    """Reads what is typed, as it is typed and without echo, from `begin` to `end`: at standard input or, where that is
    something else, at the terminal of the process. Nothing that is typed between two reads is lost
    (`click.getchar` throws it away)."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._file = 0
        self._own = False  # whether we opened it
        self._before: list[Any] | None = None

    def begin(self) -> None:
        """Let the terminal hand on each key. Raises OSError where there is none."""
        if termios is None:
            return
        self._own = not _is_terminal(sys.stdin)
        self._file = os.open(_TERMINAL, os.O_RDONLY) if self._own else sys.stdin.fileno()
        self._before = termios.tcgetattr(self._file)
        mode = termios.tcgetattr(self._file)
        mode[_LOCAL] &= ~(termios.ECHO | termios.ICANON)
        # Ctrl-C is a key: as a signal it would end those who started us, too.
        mode[_CHARACTERS][termios.VINTR] = bytes([os.fpathconf(self._file, "PC_VDISABLE") & 0xFF])
        mode[_CHARACTERS][termios.VMIN], mode[_CHARACTERS][termios.VTIME] = 1, 0
        termios.tcsetattr(self._file, termios.TCSADRAIN, mode)

    def end(self) -> None:
        """Put the terminal back."""
        if self._before is None:
            return
        with suppress(termios.error):  # it may be gone
            termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)
        self._before = None
        if self._own:
            os.close(self._file)

    def read(self) -> str:
        """What has been typed, at least one character; empty at the end of the input. Raises KeyboardInterrupt."""
        if termios is None:
            return click.getchar()
        while True:
            data = os.read(self._file, _AT_ONCE)
            text = self._decoder.decode(data)
            if INTERRUPT in text:
                raise KeyboardInterrupt
            if text or not data:
                return text


def _is_terminal(stream: Any) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False


@contextmanager
def on_resize(draw: Callable[[], None]) -> Iterator[None]:
    """Draw again when the terminal changes its size, where the system tells."""
    with _handled("SIGWINCH", draw):
        yield


@contextmanager
def on_suspend(leave: Callable[[], None], come_back: Callable[[], None]) -> Iterator[None]:
    """Leave the terminal to the shell at Ctrl-Z, and take it again at `fg`."""

    def stop() -> None:
        leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # sleeps here
        signal.signal(signal.SIGTSTP, lambda *_: stop())
        come_back()

    with _handled("SIGTSTP", stop):
        yield


@contextmanager
def _handled(name: str, handle: Callable[[], None]) -> Iterator[None]:
    """Handle a signal, where the system has it and we are where Python handles signals."""
    number = getattr(signal, name, None)
    if number is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, lambda *_: handle())
    try:
        yield
    finally:
        signal.signal(number, before)
