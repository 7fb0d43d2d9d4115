"""SciPy's functions. SciPy is loaded when the first of them is called: few programs need one, and to load it takes as
long as to load NumPy and the engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from types import SimpleNamespace
from typing import Any


class Function:
    """A function of SciPy's."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.__name__ = module, name

    @cached_property
    def loaded(self) -> Callable[..., Any]:
        """SciPy's own."""
        return getattr(import_module(self.module), self.__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.loaded(*args, **kwargs)


def _functions(module: str, names: str) -> SimpleNamespace:
    return SimpleNamespace(**{name: Function(module, name) for name in names.split()})


special = _functions(
    "scipy.special",
    """entr erf erfc erfcx erfinv gammainc gammaincc gammaln i0 i0e i1 i1e log_ndtr ndtr ndtri polygamma
    psi xlog1py xlogy""",
)
lapack = _functions("scipy.linalg.lapack", "dgetrf dpotrf")
