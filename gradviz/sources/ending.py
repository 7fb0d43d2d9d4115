"""Ends a script as Python ends a program, while the process goes on: prints the exception that left the script, waits
for threads, calls the functions that `atexit` was given. Each step follows what the interpreter does in C
(`Python/pythonrun.c`, `Python/pylifecycle.c`)."""

import atexit
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from types import SimpleNamespace, TracebackType
from typing import Any, NoReturn

from gradviz.sources.tracebacks import clean_chain, without_our_frames
from gradviz.system.process import CTRL_C_STATUS, stop_timers

_MISSING = object()
_display = sys.__excepthook__  # does its work even if a stream fails


def report(error: BaseException) -> BaseException:
    """Print what left a script as the interpreter does: the message of a SystemExit, or any other traceback by
    `sys.excepthook`. Returns the error that ends the script, which may be a SystemExit that the hook raised."""
    if isinstance(error, SystemExit):
        _say_why(error)
        return error
    clean_chain(error)
    trace = error.__traceback__
    ending = _by_hook(error, trace)
    for stream in (sys.stderr, sys.stdout):
        with suppress(Exception):
            stream.flush()
    return ending


def _by_hook(error: BaseException, trace: TracebackType | None) -> BaseException:
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    hook: Any = getattr(sys, "excepthook", _MISSING)
    try:
        sys.audit("sys.excepthook", None if hook is _MISSING else hook, type(error), error, trace)
    except RuntimeError:  # this is how an audit hook forbids it
        return error
    if hook is _MISSING:
        _to_stderr("sys.excepthook is missing\n")
        _display(type(error), error, trace)
        return error
    second = _raised_by(hook, error, trace)
    if isinstance(second, SystemExit):
        _say_why(second)
        return second
    if second is not None:
        _to_stderr("Error in sys.excepthook:\n")
        _display(type(second), second, second.__traceback__)
        _to_stderr("\nOriginal exception was:\n")
        _display(type(error), error, trace)
    return error


def _raised_by(hook: Any, error: BaseException, trace: TracebackType | None) -> BaseException | None:
    """The exception that a hook raises; None if it raises none."""
    try:
        hook(type(error), error, trace)
    except BaseException as second:
        return second.with_traceback(without_our_frames(second.__traceback__))
    return None


def _say_why(error: SystemExit) -> None:
    """Print the message of a SystemExit that has one."""
    code = _code_of(error)
    if code is None or isinstance(code, int):
        return
    with suppress(BaseException):
        text = str(code)
        if sys.stderr is None:
            os.write(2, text.encode(errors="backslashreplace"))
        else:
            sys.stderr.write(text)
    _to_stderr("\n")


def _to_stderr(text: str) -> None:
    """Write to `sys.stderr`, or to the file descriptor if that fails."""
    try:
        sys.stderr.write(text)
    except Exception:
        with suppress(OSError):
            os.write(2, text.encode())


def _code_of(error: SystemExit) -> object:
    with suppress(Exception):
        return error.code
    return error


def exit_status(error: BaseException | None) -> int:
    """The status that `python` would exit with."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        code = _code_of(error)
        return code if isinstance(code, int) else 0 if code is None else 1
    return CTRL_C_STATUS if isinstance(error, KeyboardInterrupt) else 1


def wait_for_threads() -> None:
    """Wait for the script's threads, in a process that goes on afterwards."""
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()


def shut_down(waits: bool) -> None:
    """Do what the interpreter does at its end, up to the removal of the modules: wait for threads (if `waits`), and
    call the functions that `atexit` was given. The interpreter then finds nothing left to do."""
    if waits:
        try:
            shut_threads_down: Any = threading._shutdown  # type: ignore[attr-defined]
            shut_threads_down()
        except SystemExit:
            raise
        except BaseException as error:  # Ctrl-C
            _unraisable(error.with_traceback(without_our_frames(error.__traceback__)), threading)
    atexit._run_exitfuncs()
    stop_timers()  # the program is over


def _unraisable(error: BaseException, thing: object) -> None:
    """Report an exception that cannot be caught, as the interpreter does."""
    hook: Any = sys.unraisablehook
    if hook is not sys.__unraisablehook__:
        hook(SimpleNamespace(exc_type=type(error), exc_value=error, exc_traceback=error.__traceback__,
                             err_msg=None, object=thing))  # fmt: skip
        return
    _to_stderr(f"{_IGNORED}{thing!r}\n")
    lines = traceback.format_exception(error)
    _to_stderr("".join([*lines[:-1], f"{type(error).__name__}: {error}\n"]))


_IGNORED = "Exception ignored on threading shutdown " if sys.version_info >= (3, 13) else "Exception ignored in: "


def leave(error_kind: type[BaseException] | None, status: int) -> NoReturn:
    """End the process as a script does that ended by an error of this kind."""
    if error_kind is not None and issubclass(error_kind, KeyboardInterrupt):
        # The interpreter ends itself by SIGINT if a KeyboardInterrupt leaves its main program; it has been printed.
        sys.excepthook = lambda *_: None
        if signal.getsignal(signal.SIGINT) is None:
            raise SystemExit(CTRL_C_STATUS)
        raise KeyboardInterrupt
    raise SystemExit(status)
