"""`__main__` as the interpreter makes it: for a script, a directory, a zip, or (`-m`) a module."""

from __future__ import annotations

import builtins
import ctypes
import io
import marshal
import os
import pkgutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from gradviz.errors import GradvizError, nearest
from gradviz.system.paths import absolute

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

    def command_line(self) -> list[str]:
        """The value of `sys.orig_argv` when `python` runs the target."""
        options = sys.orig_argv[: sys.orig_argv.index("-m")] if "-m" in sys.orig_argv else sys.orig_argv[:1]
        return [*options, *(["-m"] if self.is_module else []), self.name, *self.arguments]

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
