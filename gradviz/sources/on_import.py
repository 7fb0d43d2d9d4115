"""Waits for modules: calls a function once a module has been imported."""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _Finder(MetaPathFinder):
    """A finder that takes over the execution of the modules that it `wants`, while it is among `sys.meta_path`.
    `execute` executes them."""

    looking = False

    def wants(self, name: str) -> object:
        """Whether this finder takes over a module."""
        raise AssertionError(f"nobody says whether {name} is wanted")

    def execute(self, execute: Callable[[], None]) -> None:
        """Execute a module."""
        execute()

    def end(self) -> None:
        """Stop waiting."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if self.looking or not self.wants(name):
            return None
        self.looking = True
        try:
            spec = find_spec(name)
            if spec is not None and spec.loader is not None:
                spec.loader = _Watched(spec.loader, self.execute)
            return spec
        finally:
            self.looking = False


class OnImport(_Finder):
    """Calls `start` once module `name` is imported; if it already is, `begin` calls it. Imports nothing itself. The
    module is executed, and `start` called, in a context that `around` gives."""

    def __init__(
        self, name: str, start: Callable[[], None], around: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self.name, self.start, self.around = name, start, around

    def begin(self) -> None:
        """Begin to wait."""
        module = sys.modules.get(self.name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            self.start()
        else:
            sys.meta_path.insert(0, self)

    def wants(self, name: str) -> bool:
        return name == self.name

    def execute(self, execute: Callable[[], None]) -> None:
        if self not in sys.meta_path:  # the waiting has ended
            execute()
            return
        with self.around():
            execute()
            if self in sys.meta_path:
                self.end()
                self.start()


class AroundImports(_Finder):
    """Executes the modules below a package in a context that `around` gives, from `begin` to `end`, for each module
    where `applies` returns true when it is looked up."""

    def __init__(
        self, package: str, around: Callable[[], AbstractContextManager[None]], applies: Callable[[], object]
    ) -> None:
        self.prefix, self.around, self.applies = f"{package}.", around, applies

    def begin(self) -> None:
        """Watch imports from now on."""
        sys.meta_path.insert(0, self)

    def wants(self, name: str) -> object:
        return name.startswith(self.prefix) and self.applies()

    def execute(self, execute: Callable[[], None]) -> None:
        with self.around():
            execute()


class _Watched(Loader):
    """Replaces the loader of a module until the module is executed, and leaves the execution to `execute`. The
    original loader is not changed, since other modules may share it."""

    def __init__(self, loader: Any, execute: Callable[[Callable[[], None]], None]) -> None:
        self.loader, self.execute = loader, execute

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.execute(lambda: self.loader.exec_module(module))
