"""What is said of a name that gradviz has not: which, and the nearest that it has."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

_ELSEWHERE = ("", ".nn", ".nn.functional", ".optim", ".linalg", ".special", ".func", ".autograd")


def nearest(name: str, known: Iterable[str]) -> str:
    """The known public name that is most like `name`; "" where none is much like it."""
    near = get_close_matches(name, [other for other in known if not other.startswith("_")], n=1, cutoff=0.75)
    return near[0] if near else ""


def says_what_is_missing(module: str, names: dict[str, Any]) -> Callable[[str], Any]:
    """The `__getattr__` of a module whose globals are `names`: it raises AttributeError with a better message."""

    def __getattr__(name: str) -> Any:
        message = f"module {module!r} has no attribute {name!r}"
        if not name.startswith("_"):
            message += _advice(name, names)
        raise AttributeError(message)

    return __getattr__


def _advice(name: str, names: dict[str, Any]) -> str:
    for place in _ELSEWHERE:
        elsewhere = vars(sys.modules.get(f"gradviz{place}") or object).get(name)
        if elsewhere is not None:
            return f"; there is gradviz{place}.{name}"
    near = nearest(name, names)
    return f"; the nearest is {near}" if near else ", nor one that is much like it"
