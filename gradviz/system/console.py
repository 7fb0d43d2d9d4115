"""The terminal of a process: typed characters, a stream to draw on, its signals."""

import codecs
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TextIO

import click

_AT_ONCE = 1024  # bytes
_SCREEN = "CONOUT$" if sys.platform == "win32" else "/dev/tty"
END, INTERRUPT = "\x04", "\x03"  # Ctrl-D, Ctrl-C


def screen() -> TextIO | None:
    """The terminal of the process to draw on, whatever its standard streams are; None if there is none."""
    try:
        return open(_SCREEN, "w", encoding="utf-8", errors="replace", closefd=True)
    except OSError:
        return None


if sys.platform == "win32":

    class Keyboard:
        """Reads typed characters without waiting for Enter and without echo, from the console of the process."""

        def begin(self) -> None:
            """Do nothing: a console needs no other mode."""

        def end(self) -> None:
            """Do nothing."""

        def read(self) -> str:
            """One key. Raises KeyboardInterrupt on Ctrl-C, EOFError at the end of the input."""
            return click.getchar()

    @contextmanager
    def on_suspend(leave: Callable[[], None], come_back: Callable[[], None]) -> Iterator[None]:
        """Do nothing: a process is never suspended."""
        yield

else:
    import termios

    _LOCAL, _CHARACTERS = 3, 6  # of the list that tcgetattr returns

    class Keyboard:
        """Reads typed characters without waiting for Enter and without echo, between `begin` and `end`. It reads
        from standard input, or from the process's terminal if standard input is redirected. Characters typed
        between two reads are kept (`click.getchar` discards them)."""

        def __init__(self) -> None:
            self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
            self._file = 0
            self._own = False  # whether `begin` opened the file
            self._before: list[Any] | None = None

        def begin(self) -> None:
            """Switch the terminal to character-by-character input. Raises OSError if there is no terminal."""
            self._own = not _is_terminal(sys.stdin)
            self._file = os.open(_SCREEN, os.O_RDONLY) if self._own else sys.stdin.fileno()
            self._before = termios.tcgetattr(self._file)
            mode = termios.tcgetattr(self._file)
            mode[_LOCAL] &= ~(termios.ECHO | termios.ICANON)
            # Ctrl-C is read as a key. As a signal it would also end the parent process.
            mode[_CHARACTERS][termios.VINTR] = bytes([os.fpathconf(self._file, "PC_VDISABLE") & 0xFF])
            mode[_CHARACTERS][termios.VMIN], mode[_CHARACTERS][termios.VTIME] = 1, 0
            termios.tcsetattr(self._file, termios.TCSADRAIN, mode)

        def end(self) -> None:
            """Restore the terminal's mode."""
            if self._before is None:
                return
            with suppress(termios.error):  # the terminal may be gone
                termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)
            self._before = None
            if self._own:
                os.close(self._file)

        def read(self) -> str:
            """The characters typed so far, at least one; empty at the end of the input. Raises KeyboardInterrupt
            on Ctrl-C."""
            while True:
                data = os.read(self._file, _AT_ONCE)
                text = self._decoder.decode(data)
                if INTERRUPT in text:
                    raise KeyboardInterrupt
                if text or not data:
                    return text

    @contextmanager
    def on_suspend(leave: Callable[[], None], come_back: Callable[[], None]) -> Iterator[None]:
        """On Ctrl-Z call `leave` and suspend the process; on `fg` call `come_back`."""

        def stop() -> None:
            leave()
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)  # the process is suspended here
            signal.signal(signal.SIGTSTP, lambda *_: stop())
            come_back()

        with _handled("SIGTSTP", stop):
            yield


def _is_terminal(stream: Any) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # the stream is closed
        return False


def on_resize(draw: Callable[[], None]) -> AbstractContextManager[None]:
    """A context in which `draw` is called when the terminal changes its size, on systems that signal this."""
    return _handled("SIGWINCH", draw)


@contextmanager
def _handled(name: str, handle: Callable[[], None]) -> Iterator[None]:
    """Handle a signal, if the system has it and this is the main thread (no other thread may set handlers)."""
    number = getattr(signal, name, None)
    if number is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, lambda *_: handle())
    try:
        yield
    finally:
        signal.signal(number, before)
