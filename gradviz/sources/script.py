"""Running a script as `python` would, under a recorder."""

from __future__ import annotations

import builtins
import gc
import io
import os
import runpy
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Protocol

from gradviz.errors import GradvizError
from gradviz.events.listener import Listener
from gradviz.sources import alias, pytorch
from gradviz.sources.stopping import Stopper
from gradviz.sources.tracebacks import without_our_frames
from gradviz.tracefile import Recorder, Sites


class ScriptError(GradvizError):
    """A script cannot be run at all; the message is one line for the user."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a script ended: its exit status, the exception that ended it or None, and whether it imported
    `torch` and was given gradviz's engine. If the scope to record was never entered, `others` are the names of some
    that were."""

    status: int
    error: BaseException | None
    served_as_torch: bool
    others: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """What to run: a file or (`-m`) a module, with its arguments."""

    name: str
    is_module: bool
    arguments: Sequence[str]

    @property
    def stem(self) -> str:
        """What its trace is called by default."""
        return self.name.rsplit(".", 1)[-1] if self.is_module else Path(self.name).stem

    def check(self) -> None:
        """Raise ScriptError if there is nothing to run."""
        if self.is_module:
            return
        path = Path(self.name)
        if path.is_dir() and not (path / "__main__.py").exists():
            raise ScriptError(f"{self.name} is a directory without __main__.py")
        if not path.exists():
            raise ScriptError(f"no such script: {self.name}")


class Companion(Protocol):
    """Who goes along with a run: a debugger."""

    def began(self, recording: Any) -> None:
        """The `record` has begun."""

    def listener(self, recorder: Recorder) -> Listener:
        """Whom the engine is to tell in the recorder's place."""

    def failed(self, error: BaseException) -> None:
        """An exception has left the script, and is about to be printed."""


def run(
    target: Target,
    trace: Path | str,
    values: str = "stats",
    passes: Any = None,
    companion: Companion | None = None,
    engine: str = "numpy",
    stopper: Stopper | None = None,
    scope: str | None = None,
    last: int | None = None,
    aten: bool = False,
) -> Outcome:
    """Run the target and record into `trace` what it does with gradviz's engine and with PyTorch. What `import torch`
    gives the `engine` says: `torch`, PyTorch; `numpy`, gradviz's engine; `auto`, PyTorch where it is installed. The
    other settings are those of `record`.

    The script sees `__main__`, `sys.argv` and `sys.path` as under `python`. What it raises is printed as
    `python` prints it and returned. A `stopper` may end it before. Raises ScriptError and OSError
    where nothing can be run or written."""
    from gradviz.sources.record import record

    target.check()
    serves = engine == "numpy" or (engine == "auto" and not pytorch.is_installed())
    own = [] if serves else pytorch.own_directories()
    sites = Sites([_execute.__code__, _run_module.__code__], own)
    through = companion.listener if companion is not None else None
    meta = {"script": target.name}
    recording = record(trace, values, passes, sites, meta, through, not serves, scope, last, aten)
    main = _run_module if target.is_module else _run_file
    before = sys.argv, sys.path[:], sys.modules.get("__main__")
    home = os.getcwd()
    if serves:
        alias.install()
    gc.freeze()  # what we have loaded is not looked through each time that the script's garbage is
    try:
        with recording as running:
            if companion is not None:
                companion.began(running)
            hears = companion.failed if companion is not None else _ignore
            error = _caught(lambda: main(target), hears, stopper or Stopper())
            running.ended_by(error)
        served = serves and "torch" in sys.modules
    finally:
        gc.unfreeze()
        alias.uninstall()
        sys.argv, sys.path[:] = before[0], before[1]
        with suppress(OSError):  # the directory may be gone
            os.chdir(home)  # the trace, and what is said of it, is there
        if before[2] is not None:
            sys.modules["__main__"] = before[2]
    failed = None if isinstance(error, SystemExit) else error
    return Outcome(exit_status(error), failed, served, recording.scopes_instead)


def of_this_rank(trace: Path | str) -> Path:
    """The trace of this process: under `torchrun` each of several writes its own, `NAME.rank0.gradviz`."""
    from gradviz.sources.record import rank_meta

    path, rank = Path(trace), rank_meta().get("rank")
    return path if rank is None else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def _ignore(error: BaseException) -> None:
    pass


def _caught(
    main: Callable[[], None], failed: Callable[[BaseException], None], stopper: Stopper
) -> BaseException | None:
    """Run, print what is raised as the interpreter would, and return it. `failed` hears of it first."""
    try:
        with stopper.running():
            main()
            _wait_for_threads()
    except SystemExit as error:
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        return error
    except BaseException as error:
        failed(error)
        print_exception(error)
        return error
    return None


def _wait_for_threads() -> None:
    """Wait for the script's threads, as the interpreter does at its end."""
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()


def _run_file(target: Target) -> None:
    path = Path(target.name)
    sys.argv = [target.name, *target.arguments]
    if path.is_dir():
        sys.path.insert(0, str(path))
        runpy.run_path(target.name, run_name="__main__")
        return
    sys.path.insert(0, str(path.resolve().parent))
    module = ModuleType("__main__")
    module.__dict__.update(__file__=os.path.abspath(target.name), __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = module
    _execute(compiled(path, target.name), module.__dict__)


def compiled(path: Path, name: str) -> CodeType:
    """The script's code; raises SyntaxError as Python does, for bytes that are no source too."""
    with io.open_code(os.fspath(path.resolve())) as file:
        return compile(file.read(), name, "exec", dont_inherit=True)


def _execute(code: CodeType, namespace: dict[str, Any]) -> None:
    exec(code, namespace)


def _run_module(target: Target) -> None:
    sys.argv = [target.name, *target.arguments]
    sys.path.insert(0, os.getcwd())
    runpy.run_module(target.name, run_name="__main__", alter_sys=True)


def exit_status(error: BaseException | None) -> int:
    """The status that `python` would exit with."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        code = error.code
        return code if isinstance(code, int) else 0 if code is None else 1
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def print_exception(error: BaseException) -> None:
    """Print the exception without gradviz's own frames, unless it is all there is."""
    trimmed = error.with_traceback(without_our_frames(error.__traceback__))
    sys.excepthook(type(error), trimmed, trimmed.__traceback__)
