"""Waiting for a module: a function is called once it has been imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _Finder(MetaPathFinder):
    """Leaves the execution of the modules that it `wants` to `execute`, while it is among `sys.meta_path`."""

    looking = False

    def wants(self, name: str) -> object:
        """Whether a module is one of those."""
        raise AssertionError(f"nobody says whether {name} is wanted")

    def execute(self, execute: Callable[[], None]) -> None:
        """Execute a module."""
        execute()

    def end(self) -> None:
        """Wait no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self.looking or not self.wants(name):
            return None
        self.looking = True
        try:
            return _watched(name, self.execute)
        finally:
            self.looking = False


class OnImport(_Finder):
    """Calls `start` once module `name` is there: in `begin`, if it is so already. Imports nothing itself. The module is
    executed, and `start` called, in a context that `around` gives."""

    def __init__(
        self,
        name: str,
        start: Callable[[], None],
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.name, self.start, self.around = name, start, around

    def begin(self) -> None:
        """Wait from now on."""
        module = sys.modules.get(self.name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            self.start()
        else:
            sys.meta_path.insert(0, self)

    def wants(self, name: str) -> bool:
        return name == self.name

    def execute(self, execute: Callable[[], None]) -> None:
        if self not in sys.meta_path:  # nobody waits any more
            execute()
            return
        with self.around():
            execute()
            if self in sys.meta_path:
                self.end()
                self.start()


class AroundImports(_Finder):
    """Executes the modules below a package in a context that `around` gives, if `applies` says so when they are looked
    for: from `begin` to `end`."""

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


def _watched(name: str, execute: Callable[[Callable[[], None]], None]) -> ModuleSpec | None:
    """How a module is imported whose execution is left to `execute`; None where there is no such module."""
    spec = find_spec(name)
    if spec is not None and spec.loader is not None:
        spec.loader = _Watched(spec.loader, execute)
    return spec


class _Watched(Loader):
    """Stands for the loader of a module until the module is executed, which it leaves to `execute`. The loader itself
    may be that of other modules too."""

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
