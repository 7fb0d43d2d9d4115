"""`import torch` served by gradviz's engine: the same modules under PyTorch's names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType

from gradviz.sources.pytorch import is_pytorchs


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
                f"It has {', '.join(sorted(our_modules()))}.",
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
        return not is_served()
    spec = PathFinder.find_spec(name, sys.path)
    return spec is not None and spec.origin is not None and not is_pytorchs(spec)


def is_served() -> bool:
    """Whether `torch` is gradviz's engine now."""
    return sys.modules.get("torch") is sys.modules.get("gradviz.engine", _finder)


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


def our_modules() -> Iterator[str]:
    """PyTorch's modules that gradviz's engine has."""
    return (f"torch.{name}" for name in _PUBLIC)


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
