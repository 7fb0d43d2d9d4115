"""Modules that we have imported and a script has of its own, under the same names: `rich.py`, `queue.py`.

Under `python` the script's directory comes first, so it has to find its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pkgutil import iter_modules
from types import ModuleType

# What the interpreter has imported before a script runs.
_ALWAYS = frozenset(
    """
    __future__ __main__ _collections_abc _sitebuiltins abc builtins codecs encodings genericpath gradviz io marshal
    nt ntpath os posix posixpath site stat sys time winreg zipimport
    """.split()
)
_aside: dict[str, ModuleType] = {}


def set_aside(folder: str) -> None:
    """Forget what we have imported of the names that modules in this folder have."""
    own = {found.name for found in iter_modules([folder])} - _ALWAYS
    for name in [name for name in sys.modules if name.partition(".")[0] in own]:
        _aside[name] = sys.modules.pop(name)


@contextmanager
def ours_again() -> Iterator[None]:
    """In this block our modules have their names, and imports are not from the script's directory."""
    scripts = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_shadowed(name)}
    path = sys.path[:]
    sys.modules.update(_aside)
    with suppress(IndexError):
        del sys.path[0]
    try:
        yield
    finally:
        for name in _aside:
            sys.modules.pop(name, None)
        sys.modules.update(scripts)
        sys.path[:] = path


def _is_shadowed(name: str) -> bool:
    return any(name.partition(".")[0] == known.partition(".")[0] for known in _aside)
