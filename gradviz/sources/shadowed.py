"""Keeps the modules that we have imported apart from the script's changes to them.

Under `python` the script's directory comes first: a script that has its own module under the same name (`rich.py`,
`queue.py`) has to find its own. A script may also replace functions of modules that we use later (`builtins.open`,
`os.stat`)."""

import sys
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

# The modules that the interpreter has imported before a script runs.
_ALWAYS = frozenset(
    """
    __future__ __main__ _collections_abc _sitebuiltins abc builtins codecs encodings genericpath gradviz io marshal
    nt ntpath os posix posixpath site stat sys time winreg zipimport
    """.split()
)
_own: set[str] = set()  # the names of the script's modules that are also names of ours
_modules: dict[str, ModuleType] = {}  # the modules that were loaded before the script
_path: list[str] = []
_finders = sys.meta_path[:]
_is_callable = callable  # kept for the case that a script replaces it
_contents: list[
    tuple[dict[str, Any], dict[str, Any]]
] = []  # for each module: its present names, and its names before the script


def set_aside(folder: str) -> None:
    """Forget our imports of names that modules in this folder have; the folder is the first of `sys.path`. Remember
    the functions of all that we have imported."""
    _modules.update((name, module) for name, module in sys.modules.items() if name != "__main__")
    _path[:] = sys.path if sys.flags.safe_path else sys.path[1:]
    for name, module in _modules.items():
        if name.partition(".")[0] != "gradviz":
            names = getattr(module, "__dict__", {})
            _contents.append((names, dict(names)))
    names_there = {found.name for found in iter_modules([folder])} - _ALWAYS
    for name in [name for name in sys.modules if name.partition(".")[0] in names_there]:
        del sys.modules[name]
        _own.add(name.partition(".")[0])


def forget() -> None:
    """Drop all references: objects that only we keep alive could not end with the interpreter."""
    _modules.clear()
    _contents.clear()


class ours_again:
    """A context in which our modules have their names and functions back, and imports ignore the script's directory.

    Nothing in modules that the script may have changed is called before they are restored."""

    def __enter__(self) -> None:
        self.replaced = _put_back()
        self.scripts = dict(sys.modules), sys.path[:], sys.meta_path[:]
        for name in list(sys.modules):
            if name.partition(".")[0] in _own:
                del sys.modules[name]
        sys.modules.update(_modules)
        sys.path[:], sys.meta_path[:] = _path, _finders

    def __exit__(self, *_: object) -> None:
        modules, sys.path[:], sys.meta_path[:] = self.scripts
        for name in list(sys.modules):
            if name in _modules or name.partition(".")[0] in _own:
                del sys.modules[name]
        sys.modules.update(modules)
        for names, functions in self.replaced:
            names.update(functions)


def _put_back() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Restore functions that were replaced. Returns the replacements."""
    replaced = []
    for names, known in _contents:
        changed = [name for name, value in known.items() if names.get(name) is not value and _is_callable(value)]
        if changed:
            replaced.append((names, {name: names[name] for name in changed if name in names}))
            names.update((name, known[name]) for name in changed)
    return replaced
