"""SciPy's functions. SciPy is loaded when the first of them is called: few programs need one, and to load it takes as
long as to load NumPy and the engine. It need not be installed: the common functions have a stand-in here, made of the
standard library's `math`, which is slower."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np


class Function:
    """A function of SciPy's, or its stand-in."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.__name__ = module, name

    @cached_property
    def loaded(self) -> Callable[..., Any]:
        """SciPy's own; without SciPy its stand-in. Raises ModuleNotFoundError if there is neither."""
        try:
            return getattr(import_module(self.module), self.__name__)
        except ModuleNotFoundError:
            if self.__name__ in STAND_INS:
                return _recording_itself(self, STAND_INS[self.__name__])
            raise ModuleNotFoundError(
                f"gradviz's engine needs SciPy for this ({self.module}.{self.__name__}): pip install scipy"
            ) from None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.loaded(*args, **kwargs)


def _recording_itself(function: Function, stand_in: Callable[..., Any]) -> Callable[..., Any]:
    """The stand-in, which calls `__array_ufunc__` of a tensor among its arguments, as NumPy's functions do."""

    def call(*args: Any) -> Any:
        for argument in args:
            if hasattr(argument, "__array_ufunc__") and not isinstance(argument, np.ndarray | np.generic):
                return argument.__array_ufunc__(function, "__call__", *args)
        with np.errstate(all="ignore"):
            return np.asarray(stand_in(*args)).astype(np.result_type(*args, np.float32), copy=False)[()]

    return call


def _times_log(log: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """x · log(y), and 0 where x is 0 and y is a number."""
    return lambda x, y: np.where((np.asarray(x) == 0) & ~np.isnan(y), 0, x * log(y))


def _entropy(x: Any) -> Any:
    """−x · log(x); 0 at 0, −∞ below."""
    x = np.asarray(x)
    return np.select([x > 0, x == 0, x < 0], [-x * np.log(np.abs(x)), 0, -np.inf], x)


STAND_INS: dict[str, Callable[..., Any]] = {
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "erfc": np.vectorize(math.erfc, otypes=[np.float64]),
    "ndtr": np.vectorize(lambda x: math.erfc(-x / math.sqrt(2)) / 2, otypes=[np.float64]),
    "xlogy": _times_log(np.log),
    "xlog1py": _times_log(np.log1p),
    "entr": _entropy,
}


def _functions(module: str, names: str) -> SimpleNamespace:
    return SimpleNamespace(**{name: Function(module, name) for name in names.split()})


special = _functions(
    "scipy.special",
    """entr erf erfc erfcx erfinv gammainc gammaincc gammaln i0 i0e i1 i1e log_ndtr ndtr ndtri polygamma
    psi xlog1py xlogy""",
)
lapack = _functions("scipy.linalg.lapack", "dgetrf dpotrf")
