"""Runs a script as `python` would, under a recorder."""

import builtins
import ctypes
import gc
import importlib
import io
import marshal
import os
import pkgutil
import runpy
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, SourcelessFileLoader
from importlib.util import MAGIC_NUMBER, find_spec
from os import getpid  # which a script may replace in `os`
from pathlib import Path
from traceback import walk_stack
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any, NamedTuple, Protocol

from gradviz.errors import GradvizError, nearest
from gradviz.events.listener import Listener
from gradviz.sources import pytorch
from gradviz.sources.ending import exit_status, report, shut_down, wait_for_threads
from gradviz.sources.on_import import OnImport
from gradviz.sources.output_tap import OutputTap
from gradviz.sources.pytorch import is_pytorchs
from gradviz.sources.shadowed import set_aside
from gradviz.sources.tracebacks import hiding
from gradviz.system.paths import absolute, as_argument
from gradviz.system.turns import new_turn
from gradviz.tracefile import Recorder, Sites
from gradviz.tracefile.sites import is_users

STATUS = 3  # the exit status of a script that was ended


class Stopped(SystemExit):
    """Raised in a script to end it."""

    def __init__(self) -> None:
        super().__init__(STATUS)


class Stopper:
    """Ends a script: `stop` raises Stopped in the thread that runs it, between two of its instructions. The script
    may clean up (`finally`), and `except Exception` does not catch it. It runs in a `with` block, on that
    thread. `looks` is called at the end of each pass (see `Recorder.look_at_passes`), and may stop the script there."""

    def __init__(self, looks: Callable[[bool], None] | None = None) -> None:
        self.looks = looks
        self.lock = new_turn()
        self.thread = 0  # the thread that runs the script now; 0 for none

    def __enter__(self) -> None:
        with self.lock:
            self.thread = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.thread = 0

    def stop(self) -> None:
        """End the script, if it still runs."""
        with self.lock:
            if self.thread:
                thread = ctypes.c_ulong(self.thread)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(Stopped))


class _GradvizAsTorch(MetaPathFinder, Loader):
    """Finds `torch` and `torch.x.y` as `gradviz.engine` and `gradviz.engine.x.y`."""

    def __init__(self) -> None:
        self.served: Callable[[], None] = lambda: None

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] != "torch" or _is_the_users(name):
            return None
        if find_ours(name) is None:
            raise ModuleNotFoundError(
                f"No module named {name!r}: gradviz's engine has no {name.removeprefix('torch.')}. "
                f"It has {', '.join(f'torch.{name}' for name in sorted(_PUBLIC))}.",
                name=name,
            )
        return ModuleSpec(name, self)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        sys.modules[name] = importlib.import_module(name.replace("torch", "gradviz.engine", 1))
        if name == "torch":
            self.served()


def _is_the_users(name: str) -> bool:
    """Whether `name` is the user's own module `torch`, or a module below it."""
    if name != "torch":
        return sys.modules.get("torch") is not sys.modules.get("gradviz.engine", _finder)
    spec = PathFinder.find_spec(name, sys.path)
    return spec is not None and spec.origin is not None and not is_pytorchs(spec)


_PUBLIC = ("autograd", "backends", "cuda", "func", "linalg", "nn", "optim", "special", "utils")


def find_ours(name: str) -> ModuleSpec | None:
    """The spec of gradviz's module for a module of PyTorch; None where it has none."""
    parts = name.split(".")
    if len(parts) > 1 and parts[1] not in _PUBLIC:
        return None
    try:
        return find_spec(name.replace("torch", "gradviz.engine", 1))
    except ModuleNotFoundError:
        return None


_finder = _GradvizAsTorch()
_set_aside: dict[str, ModuleType] = {}


def install(served: Callable[[], None] = lambda: None) -> None:
    """Make `import torch` give gradviz from now on, except where the user has a module `torch`. PyTorch, if it is
    already imported, is set aside. `served` is called when the engine has been imported."""
    _finder.served = served
    if _finder not in sys.meta_path:
        _set_aside.update(_take_out())
        sys.meta_path.insert(0, _finder)


def uninstall() -> None:
    """Make `import torch` mean PyTorch again."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
        _take_out()
        sys.modules.update(_set_aside)
        _set_aside.clear()


def _take_out() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name == "torch" or name.startswith("torch.")]
    return {name: sys.modules.pop(name) for name in names}


_PYC_HEADER = 16  # bytes
_FILE_INPUT = 257  # Py_file_input: a whole file is run


class ScriptError(GradvizError):
    """A script cannot be run at all; the message is one line for the user."""


class Target:
    """The program to run: a file, a directory or a zip, or (`-m`) a module, with its arguments.

    `path` is where the file is, written as `python` writes it: absolute, so that it holds in any directory."""

    def __init__(self, name: str, is_module: bool, arguments: Sequence[str]) -> None:
        self.name, self.is_module, self.arguments = name, is_module, arguments
        self.path = name if is_module else absolute(name)
        self.is_importable = not is_module and pkgutil.get_importer(self.path) is not None

    @property
    def stem(self) -> str:
        """The default name of its trace."""
        return self.name.rsplit(".", 1)[-1] if self.is_module else Path(self.name).stem

    @property
    def imported(self) -> str | None:
        """The module that is found by import: the module that was named, or the `__main__` of a directory or zip;
        None for a file."""
        return self.name if self.is_module else "__main__" if self.is_importable else None

    def check(self) -> None:
        """Raise ScriptError if the target does not exist."""
        if self.is_module:
            return
        path = Path(self.name)
        if path.is_dir() and not (path / "__main__.py").exists():
            raise ScriptError(f"{self.name} is a directory without __main__.py")
        if not path.exists():
            near = nearest(path.stem, sorted(other.stem for other in path.parent.glob("*.py")))
            hint = f" (did you mean {path.with_name(near)}.py?)" if near else ""
            raise ScriptError(f"no such script: {self.name}{hint}")

    @property
    def first_of_path(self) -> str:
        """The first directory in which its modules are looked up."""
        if self.is_module:
            return os.getcwd()
        return self.path if self.is_importable else str(Path(self.name).resolve().parent)

    def main_module(self) -> ModuleType:
        """An empty `__main__`."""
        module = ModuleType("__main__")
        named = {"__annotations__": {}, "__builtins__": builtins}
        if self.imported is None:
            maker = SourcelessFileLoader if self._is_compiled() else SourceFileLoader
            named |= {"__loader__": maker("__main__", self.path), "__file__": self.path, "__cached__": None}
        module.__dict__.update(named)
        return module

    def code(self, namespace: dict[str, Any]) -> CodeType:
        """The code of a file. Raises SyntaxError as Python does, also for bytes that are not source."""
        with io.open_code(self.path) as file:
            content = file.read()
        if self._is_compiled():
            return marshal.loads(content[_PYC_HEADER:])
        with suppress(SyntaxError):
            return compile(content, self.path, "exec", dont_inherit=True)
        return compile(_run_from_file(self.path, namespace), self.path, "exec")

    def _is_compiled(self) -> bool:
        with io.open_code(self.path) as file:
            return self.path.endswith(".pyc") or file.read(len(MAGIC_NUMBER)) == MAGIC_NUMBER


def _run_from_file(path: str, namespace: dict[str, Any]) -> str:
    """Run a file as the interpreter does: its messages about encodings and null bytes differ from those of `compile`.
    Returns the code that is left to run, which is empty."""
    # The interpreter opens the file itself, since its C library need not be that of `ctypes`.
    python = ctypes.pythonapi
    since_3_14, before = "Py_fopen", "_Py_fopen_obj"
    open_file = getattr(python, since_3_14 if hasattr(python, since_3_14) else before)
    open_file.restype = ctypes.c_void_p
    open_file.argtypes = [ctypes.py_object, ctypes.c_char_p]
    run_file = python.PyRun_FileExFlags
    run_file.restype = ctypes.py_object
    run_file.argtypes = [
        ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.py_object, ctypes.py_object, ctypes.c_int,
        ctypes.c_void_p,
    ]  # fmt: skip
    name = os.fsencode(path)
    run_file(open_file(path, b"rb"), name, _FILE_INPUT, namespace, namespace, True, None)
    return ""


_OURS = __name__.partition(".")[0]
_FEW_OBJECTS = 100_000  # the most objects that a script may have made before it imports PyTorch


class Outcome(NamedTuple):
    """The end of a script: its exit status, and the exception that ended it or None. If the scope to record was never
    entered, `others` are the names of some scopes that were. `lost` means that the recording ended before the script,
    because it could not be written; `kept_earlier`, that nothing was recorded and an earlier trace is still there."""

    status: int
    error: BaseException | None
    others: tuple[str, ...] | None = None
    lost: bool = False
    kept_earlier: bool = False


class Companion(Protocol):
    """A debugger that accompanies a run."""

    def began(self, recording: Any) -> None:
        """The `record` has begun."""

    def listener(self, recorder: Recorder) -> Listener:
        """The listener that the engine is given instead of the recorder."""

    def failed(self, error: BaseException) -> None:
        """An exception has left the script, and is about to be printed."""


class Running:
    """A script that runs and is recorded into `trace`: its use of gradviz's engine and of PyTorch.

    `engine` decides which module `import torch` returns: `torch`, PyTorch; `numpy`, gradviz's engine; `auto`, PyTorch
    where it is installed. A `stopper` may end the script. `say` takes a line for the user. `printed` keeps what the
    script prints. The other `settings` are those of `record`.

    Call `begin()`, `execute(running)`, `ended()` and `end()` in this order. Raises ScriptError if the script cannot
    be run, OSError if the trace cannot be written."""

    def __init__(
        self,
        target: Target,
        trace: Path | str,
        companion: Companion | None = None,
        engine: str = "numpy",
        stopper: Stopper | None = None,
        say: Callable[[str], None] | None = None,
        printed: bool = False,
        **settings: Any,
    ) -> None:
        from gradviz.sources.record import record

        target.check()
        self.target = target
        self.companion = companion
        self.stopper = stopper or Stopper()
        self.engine, self.say = engine, say
        self.serves = engine == "numpy" or (engine == "auto" and not pytorch.is_installed())
        torch_folders = [] if self.serves else pytorch.own_directories()
        sites = Sites([execute.__code__], torch_folders, {target.path: target.name})
        through = companion.listener if companion is not None else None
        program = "-m " * target.is_module + as_argument(target.name) + " ARGUMENTS" * bool(target.arguments)
        meta = {"script": target.name, "program": program}  # the arguments are nobody's business
        self.recording = record(
            trace, sites=sites, meta=meta, through=through, with_torch=not self.serves, say=say, **settings
        )
        self.tap = OutputTap(self.recording) if printed else nullcontext()
        self.loading = OnImport(pytorch.NAME, lambda: None, _looked_through_no_more)
        self.main = target.main_module()
        self.error: BaseException | None = None
        self.process = getpid()

    @property
    def is_copy(self) -> bool:
        """Whether this process is a copy, made by `fork`: the recording belongs to the original."""
        return getpid() != self.process

    def begin(self) -> None:
        """Begin to record."""
        if self.serves:
            install(self._tell_of_engine if self.engine == "auto" else lambda: None)
            if self.recording.profile and self.say is not None:
                self.say("gradviz: --profile measures PyTorch's ops, and this program runs on gradviz's own engine")
        self.recording.__enter__()
        if self.stopper.looks is not None and self.recording.recorder is not None:
            self.recording.recorder.look_at_passes(self.stopper.looks)
        hiding.begin()
        self.tap.__enter__()
        if self.companion is not None:
            self.companion.began(self.recording)
        gc.freeze()  # exempts what we have loaded from each collection of the script's garbage
        self.loading.begin()

    def _tell_of_engine(self) -> None:
        if self.say is not None:
            self.say(
                "gradviz: PyTorch is not installed here, so gradviz's engine on NumPy serves `import torch` (to record "
                f"PyTorch: {sys.executable} -m pip install torch)"
            )

    def __enter__(self) -> None:
        """Begin a block that runs the script's own code. Its exceptions are kept."""
        self.stopper.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> bool:
        self.stopper.__exit__()
        self.error = error
        return True

    def ended(self) -> None:
        """After the script's own code has ended: print the exception that left it, as the interpreter would."""
        if self.error is not None:
            if self.companion is not None and not isinstance(self.error, SystemExit) and not self.is_copy:
                self.companion.failed(self.error)
            self.error = report(self.error)
        if self.target.imported is None:  # as the interpreter does
            for name in ("__file__", "__cached__"):
                self.main.__dict__.pop(name, None)

    def wait(self, ends_the_process: bool, waits: bool = True) -> None:
        """Wait for the script's threads. If the process ends with the script, also do all that the interpreter does
        before it removes the modules."""
        with self.stopper:
            try:
                if ends_the_process:
                    shut_down(waits)
                elif self.error is None:
                    wait_for_threads()
            except SystemExit as error:  # raised by the stopper
                self.error = error

    def end(self) -> Outcome:
        """Stop recording."""
        self.loading.end()
        self.tap.__exit__(None, None, None)
        hiding.end()
        self.recording.error = self.error
        self.recording.__exit__(None, None, None)
        failed = None if isinstance(self.error, SystemExit) else self.error
        recording, status = self.recording, exit_status(self.error)
        lost = recording.failure is not None
        return Outcome(status, failed, recording.scopes_instead, lost, recording.kept_earlier)


@contextmanager
def _looked_through_no_more() -> Iterator[None]:
    """A context whose new objects, the 300,000 of PyTorch, are exempt from collections of the script's garbage. A
    recorder makes some objects for each op, so that Python collects often. The script's earlier objects would be
    exempt too: if they are many, or have a class of their own, nothing is exempt."""
    own = gc.get_objects()
    kinds = {id(kind): kind for kind in map(type, own)}.values()  # a class may have no hash
    is_frozen = len(own) < _FEW_OBJECTS and not any(map(_is_of_the_script, kinds))
    del own, kinds
    yield
    if is_frozen:
        gc.freeze()


def _is_of_the_script(kind: type) -> bool:
    """Whether a class may be the script's own and not a library's: its objects may have something to do when they are
    collected."""
    name: Any = type.__getattribute__(kind, "__module__")  # bypasses the metaclass's own `__getattribute__`
    if type(name) is not str or name == "__main__":
        return True
    module = sys.modules.get(name)
    if name.partition(".")[0] == _OURS or not issubclass(type(module), ModuleType):
        return False
    file = object.__getattribute__(module, "__dict__").get("__file__")  # this must not load a lazy module
    return isinstance(file, str) and is_users(file)


def execute(running: Running) -> None:
    """Run the script's own code, with no frame of ours below it except this one and its callers."""
    with running:
        if running.target.imported is not None:
            as_main: Any = runpy._run_module_as_main  # type: ignore[attr-defined]
            as_main(running.target.imported, running.target.is_module)
        else:
            exec(running.target.code(running.main.__dict__), running.main.__dict__)


def be_main(running: Running, owns_process: bool) -> None:
    """Set up `sys` as the script expects it. If we own the process, nothing of our own stays in `sys`."""
    target = running.target
    sys.modules["__main__"] = running.main
    sys.argv = ["-m" if target.is_module else target.name, *target.arguments]
    if not sys.flags.safe_path:
        sys.path[: 1 if owns_process else 0] = [target.first_of_path]
    if owns_process:
        options = sys.orig_argv[: sys.orig_argv.index("-m")] if "-m" in sys.orig_argv else sys.orig_argv[:1]
        sys.orig_argv = [*options, *(["-m"] if target.is_module else []), target.name, *target.arguments]
        set_aside(target.first_of_path)


def make_room(caller: FrameType, running: Running) -> None:
    """Let the script recurse as deep as under `python`: the frames below it, those of `execute` and of its callers,
    are not counted."""
    frames = [frame for frame, _ in walk_stack(caller)]
    entered = 0
    if sys.version_info < (3, 12):  # code entered from C counts twice, except the outermost
        entered = sum(frame.f_code.co_name == "<module>" for frame in frames[:-1])
        entered += running.target.imported is None
    sys.setrecursionlimit(sys.getrecursionlimit() + 1 + len(frames) + entered)


def run(target: Target, trace: Path | str, **settings: Any) -> Outcome:
    """Run a script to its end and record it, inside a program that goes on; the settings are those of Running.

    The script sees `__main__`, `sys.argv` and `sys.path` as under `python`. An exception that it raises is printed as
    `python` prints it, and returned. Raises ScriptError if the script cannot be run, OSError if the trace cannot be
    written."""
    return run_inside(Running(target, trace, **settings))


def run_inside(running: Running) -> Outcome:
    """As `run`, for a script that is prepared already."""
    with restored():
        running.begin()
        try:
            be_main(running, owns_process=False)
            execute(running)
            running.ended()
            running.wait(ends_the_process=False)
        finally:
            outcome = running.end()
    return outcome


@contextmanager
def restored() -> Iterator[None]:
    """A context after which the interpreter's state that a script changes is restored."""
    argv, path, main = sys.argv, sys.path[:], sys.modules.get("__main__")
    home = os.getcwd()
    try:
        yield
    finally:
        gc.unfreeze()
        uninstall()
        sys.argv, sys.path[:] = argv, path
        with suppress(OSError):  # the directory may be gone
            os.chdir(home)  # the paths of the trace and of messages are relative to it
        if main is not None:
            sys.modules["__main__"] = main
