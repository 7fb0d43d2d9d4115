"""The server of tests/warm.py: has the libraries in memory, and forks for each program.

It imports little before it sets aside what it has imported, since its own modules are there in each program."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, NamedTuple

# What is set aside until it is imported. Of gradviz, nothing that looks at the system as it is imported.
TORCH = ("torch", "torch.optim", "torch.utils.data")
KEPT = (
    "numpy", "rich.console", "rich.table", "click", "graphviz", "gradviz.diagnose.run_rules", "gradviz.graph.model",
    "gradviz.explain", "gradviz.graph.fold", "gradviz.page", "gradviz.step.plain", "gradviz.engine", "tomllib",
)  # fmt: skip
# What an interpreter, or a library, reads of the environment once: this has to be as the server's.
READ_ONCE = (b"PYTHON", b"OMP_", b"MKL_", b"OPENBLAS_", b"TORCH", b"LD_")
READ_HERE = (
    b"PYTHONPATH", b"PYTHONUNBUFFERED", b"PYTHON_EXEC", b"TORCHELASTIC", b"TORCH_NCCL", b"TORCHINDUCTOR_CACHE_DIR",
)  # fmt: skip


class Program(NamedTuple):
    """What a client asks for."""

    folder: bytes
    mask: int
    arguments: list[str]
    environment: dict[bytes, bytes]

    @property
    def paths(self) -> list[bytes]:
        given = self.environment.get(b"PYTHONPATH")
        return [os.path.join(self.folder, part) for part in given.split(b":")] if given else []

    @property
    def needs_its_own(self) -> bool:
        """Whether the interpreter has options that cannot be set later, something else to run than a file, or a module
        of its own for the start (unless the server has begun with it, too)."""
        own = os.environb.get(b"PYTHONPATH", b"").split(b":")
        if any(part not in own and os.path.isfile(os.path.join(part, b"sitecustomize.py")) for part in self.paths):
            return True
        first = next((word for word in self.arguments if word != "-u"), "-")
        return first not in ("-m", "-c") and not os.path.isfile(os.path.join(os.fsdecode(self.folder), first))


def settings(environment: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """What of an environment has to be as the server's."""
    read = {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_ONCE) and not name.startswith(READ_HERE)
    }
    locale = next(filter(None, map(environment.get, (b"LC_ALL", b"LC_CTYPE", b"LANG"))), b"C")
    return {**read, b"LC_ALL": b"C.UTF-8" if locale in (b"C", b"POSIX") else locale}


ENGINE = "gradviz.engine"
LATER = "torch._dynamo"  # PyTorch imports it when a program first makes an optimizer: a second of the processor


class SetAside:
    """Finds and loads modules that are in memory already, and are not in `sys.modules` until they are imported.
    `later` has the names of those that came with `LATER`, and `changed` what that changed in other modules."""

    def __init__(self, names: set[str], later: set[str], changed: dict[tuple[str, str], Any]) -> None:
        self.later, self.changed = later, changed
        self.modules: dict[str, Any] = {name: sys.modules.pop(name) for name in names}
        # Named beforehand: a process copies the memory of each module that it looks at, which took 10 ms for all.
        self.with_it: dict[str, list[str]] = {LATER: [*later]}
        for name in names:
            above = [name[:at] for at, letter in enumerate(name) if letter == "."]
            if f"{name}.".startswith(f"{ENGINE}."):
                above.remove("gradviz")  # a recorder waits for the import of the engine
            for one in {*above, *(["torch"] if not name.startswith("gradviz") else [])}:
                self.with_it.setdefault(one, []).append(name)
        vars(self.modules["gradviz"]).pop("engine", None)
        self.places = {
            name: (module.__spec__, getattr(module, "__loader__", None))
            for name, module in self.modules.items()
            if getattr(module, "__spec__", None) is not None
        }

    def find_spec(self, name: str, *_: object) -> Any:
        if name not in self.places:
            return None
        own = self.places[name][0]
        spec = type(own)(name, self, origin=own.origin)
        spec.submodule_search_locations = own.submodule_search_locations
        spec.has_location, spec.cached = own.has_location, own.cached
        return spec

    def create_module(self, spec: Any) -> Any:
        return self.modules[spec.name]

    def exec_module(self, module: Any) -> None:
        """Bring back a module and what is below it; with PyTorch, all that PyTorch has imported."""
        name = module.__spec__.name
        module.__spec__, module.__loader__ = self.places[name]
        if name in self.later and name.startswith("torch.") and not name.startswith(LATER):
            __import__(LATER)
        for other in self.with_it.get(name, ()):
            if other not in self.later or name in self.later:
                sys.modules.setdefault(other, self.modules[other])
        if name == ENGINE:  # as where it is imported: no two programs draw the same
            sys.modules[f"{ENGINE}.rng.generator"].default_generator.seed()
        if name == LATER:
            for (owner, attribute), value in self.changed.items():
                setattr(sys.modules[owner], attribute, value)


def attributes(names: set[str]) -> dict[tuple[str, str], Any]:
    """The attributes of modules."""
    found = ((name, vars(sys.modules[name])) for name in names if name != "__main__")
    return {(name, attribute): value for name, own in found for attribute, value in own.items()}


def import_later() -> tuple[set[str], dict[tuple[str, str], Any]]:
    """Import what comes later. Returns the names of its modules, and what it changed in others, which are as before, as
    are the environment and the filters of warnings. Nothing does where it brings Triton: a process that ends without
    taking that apart says what it leaked."""
    import importlib.util
    import warnings

    if importlib.util.find_spec("triton"):
        return set(), {}

    names = {name for name, module in sys.modules.items() if isinstance(module, type(sys))}
    modules, before = {*sys.modules}, attributes(names)
    environment, filters = {**os.environ}, [*warnings.filters]
    with suppress(ImportError):  # PyTorch need not be there
        __import__(LATER)
    os.environ.clear()
    os.environ.update(environment)
    warnings.filters[:] = filters
    nothing = object()
    changed = {key: value for key, value in attributes(names).items() if before.get(key, nothing) is not value}
    for owner, attribute in changed:
        if (owner, attribute) in before:
            setattr(sys.modules[owner], attribute, before[owner, attribute])
        else:
            delattr(sys.modules[owner], attribute)
    changed.pop(("tempfile", "tempdir"), None)  # which is the program's to choose
    return {*sys.modules} - modules, changed


def set_aside(kept: tuple[str, ...], has_later: bool) -> None:
    """Import what is kept, and set it aside. A process ends without taking it apart, neither Python's modules nor what
    the libraries of PyTorch hold: that takes a second of the processor."""
    before = {*sys.modules}
    for name in kept:
        with suppress(ImportError):  # PyTorch need not be there
            __import__(name)
    later, changed = import_later() if has_later else (set(), {})
    import atexit
    import ctypes
    import gc
    import posix
    import weakref

    # What libraries would take apart at the end: PyTorch, each of its operations by itself.
    left_alone = weakref.finalize._registry  # type: ignore[attr-defined]
    weakref.finalize._registry = {}  # type: ignore[attr-defined]
    aside = SetAside({*sys.modules} - before, later, changed)
    sys.meta_path.insert(0, aside)  # type: ignore[arg-type]
    library = ctypes.CDLL(None)
    for last_first in (library._exit, library.fcloseall):  # `_exit` is given the exit status
        library.on_exit(ctypes.cast(last_first, ctypes.c_void_p), None)
    atexit.register(lambda: [sys.modules.pop(name) for name in [*sys.modules] if name in aside.modules])  # the last
    for kept_for_ever in (aside, left_alone):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept_for_ever))
    gc.freeze()
    # gradviz thaws what it froze as a program ends: Python would look through the million objects that are kept here,
    # and copy their memory, which takes longer than all else that most programs do.
    gc.unfreeze = lambda: None
    # A stand-in for another system hides /proc, but not from `posix`.
    assert len(posix.listdir("/proc/self/task")) == 1, "a fork would lose a thread"


def received(connection: Any) -> tuple[Program, list[int]]:
    """A request: the program, and its standard streams. Raises OSError if whoever asked has ended meanwhile."""
    import array
    import socket

    head, extra, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(12))
    content, size = b"", int.from_bytes(head)
    while len(content) < size and (part := connection.recv(1 << 16)):
        content += part
    if not extra or len(content) < size:
        raise ConnectionResetError
    folder, mask, count, *words = content.split(b"\0")
    arguments = [os.fsdecode(word) for word in words[: int(count)]]
    environment = dict(word.split(b"=", 1) for word in words[int(count) :])
    return Program(folder, int(mask), arguments, environment), [*array.array("i", extra[0][2])]


def serve(path: str) -> Program:
    """Answer requests until the tests end. Returns in the process of each program."""
    import posix
    import select
    import signal
    import socket

    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(64)
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    own = settings(dict(os.environb))
    running: dict[int, socket.socket] = {}
    os.write(1, b"ready\n")
    while True:
        ready = select.select([0, woken, listening, *running.values()], [], [])[0]
        if 0 in ready:  # the tests have ended
            for process in running:
                os.kill(process, signal.SIGKILL)
            os._exit(0)
        if woken in ready:
            os.read(woken, 1024)
        for process, client in [*running.items()]:
            if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                with suppress(OSError):  # it was killed
                    client.send(status.to_bytes(4, signed=True))
                running.pop(process).close()
            elif client in ready:  # it was killed
                os.kill(process, signal.SIGKILL)
        if listening not in ready:
            continue
        client, _ = listening.accept()
        try:
            program, streams = received(client)
        except OSError:
            client.close()
            continue
        is_here = settings(program.environment) == own and not program.needs_its_own
        process = os.fork() if is_here else 0
        if is_here and not process:
            break
        for stream in streams:
            os.close(stream)
        try:
            client.send(process.to_bytes(4))
        except OSError:
            if is_here:
                os.kill(process, signal.SIGKILL)
        if is_here:
            running[process] = client
        else:
            client.close()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for one in (listening, client, *running.values()):
        one.detach()
    for stream, given in enumerate(streams):
        os.dup2(given, stream)
    os.closerange(3, 1 + max(map(int, posix.listdir("/proc/self/fd"))))
    return program


def new_streams(is_unbuffered: bool) -> None:
    """Open the standard streams as Python does."""
    import io

    for number, name in enumerate(("stdin", "stdout", "stderr")):
        known = getattr(sys, f"__{name}__")
        mode = "w" if number else "r"
        is_raw = is_unbuffered and number
        binary: Any = open(number, f"{mode}b", 0 if is_raw else -1, closefd=False)  # noqa: SIM115
        (binary if is_raw else binary.raw).name = f"<{name}>"
        is_by_line = number == 2 or (number == 1 and os.isatty(1))
        stream: Any = io.TextIOWrapper(
            binary, known.encoding, known.errors, line_buffering=is_by_line, write_through=bool(is_raw)
        )
        stream.mode = mode
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def be(program: Program) -> int:
    """Be a program, by Python's own functions, which print its error. Returns 0 if it ended without one."""
    import ctypes

    os.setsid()
    os.umask(program.mask)
    os.chdir(program.folder)
    os.environ.clear()
    for name, value in program.environment.items():
        os.environb[name] = value
    words = program.arguments
    sys.orig_argv = [sys.executable, *words]
    is_unbuffered = words[0] == "-u" or bool(os.environ.get("PYTHONUNBUFFERED"))
    new_streams(is_unbuffered)
    kind, *arguments = words[words[0] == "-u" :]
    is_script = kind[0] != "-"
    sys.argv = [kind, *(arguments if is_script else arguments[1:])]
    first = {"-c": "", "-m": os.getcwd()}.get(kind, os.path.dirname(os.path.realpath(kind)))
    sys.path[:1] = [first, *map(os.fsdecode, program.paths)]
    main: Any = type(sys)("__main__")
    main.__builtins__, main.__annotations__ = __builtins__, {}
    sys.modules["__main__"] = main
    if not is_script:
        text = arguments[0] if kind == "-c" else f"import runpy; runpy._run_module_as_main({arguments[0]!r})"
        return ctypes.pythonapi.PyRun_SimpleStringFlags(text.encode(), None)
    library = ctypes.CDLL(None)
    library.fopen.restype = ctypes.c_void_p
    file = os.fsencode(os.path.abspath(kind))
    opened = ctypes.c_void_p(library.fopen(file, b"rb"))
    return ctypes.pythonapi.PyRun_SimpleFileExFlags(opened, file, 1, None)


if __name__ == "__main__":
    has_torch = sys.argv[2:] == ["torch"]
    set_aside((*TORCH, *KEPT) if has_torch else KEPT, has_torch)
    if be(serve(sys.argv[1])):
        raise SystemExit(1)
