"""Waiting for a module: a function is called once it has been imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class OnImport(MetaPathFinder):
    """Calls `start` once module `name` is there: in `begin`, if it is so already. Imports nothing itself."""

    def __init__(self, name: str, start: Callable[[], None]) -> None:
        self.name, self.start = name, start
        self.looking = False

    def begin(self) -> None:
        """Wait from now on."""
        module = sys.modules.get(self.name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            self.start()
        else:
            sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Wait no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.name or self.looking:
            return None
        self.looking = True
        try:
            spec = find_spec(name)
        finally:
            self.looking = False
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return spec
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            if self in sys.meta_path:  # else nobody waits any more
                self.end()
                self.start()

        loader.exec_module = exec_module
        return spec
