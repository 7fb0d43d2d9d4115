"""Random tensors with tensors as parameters, and random values in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradviz.engine.basics.devices import on_the_cpu
from gradviz.engine.basics.dtypes import default_dtype, to_numpy
from gradviz.engine.core.tensor import Tensor
from gradviz.engine.rng import distributions
from gradviz.engine.rng.generator import drawing_from
from gradviz.engine.tensors.creation import made, sizes
from gradviz.engine.tensors.writing import check_writable, overwrite


def normal(
    mean: Any = 0.0,
    std: Any = 1.0,
    size: Any = None,
    *,
    generator: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Normal numbers. Mean and standard deviation are numbers or tensors, which broadcast.

    `size`, and what follows the generator, are for two numbers. Raises RuntimeError for a negative standard deviation,
    TypeError for a dtype or `requires_grad` without a size."""
    if size is None and (requires_grad or dtype is not None):
        raise TypeError("normal() takes dtype and requires_grad only with a size")
    on_the_cpu(device)
    means, deviations = (value.array if isinstance(value, Tensor) else value for value in (mean, std))
    given = default_dtype() if dtype is None else to_numpy(dtype)
    kind = next((a.dtype for a in (means, deviations) if isinstance(a, np.ndarray)), given)
    shape = sizes((size,)) if size is not None else np.broadcast_shapes(np.shape(means), np.shape(deviations))
    if np.any(np.asarray(deviations) < 0):
        raise RuntimeError(f"normal expects std >= 0.0, but found std {np.min(deviations)}")
    with drawing_from(generator):
        draws = distributions.normal(shape, kind)
    drawn = (draws * np.asarray(deviations, kind) + np.asarray(means, kind)).astype(kind)
    return made(drawn, "normal", requires_grad)


def bernoulli(x: Tensor, p: float | None = None, *, generator: Any = None) -> Tensor:
    """1 with the probability given by each element of x (or p), else 0, in the shape and dtype of x.

    Raises RuntimeError for a probability outside of [0, 1]."""
    chances = np.full(x.array.shape, p) if p is not None else x.array
    if ((chances < 0) | (chances > 1)).any():
        raise RuntimeError("Expected p_in >= 0 && p_in <= 1 to be true, but got false.")
    with drawing_from(generator):
        return made(
            (distributions.uniform_to_compare(x.array.shape, chances) < chances).astype(x.array.dtype), "bernoulli"
        )


def multinomial(x: Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None) -> Tensor:
    """`num_samples` indices for each row of x, whose elements are weights. The draws differ from PyTorch's."""
    weights = np.atleast_2d(x.array).astype(np.float64)
    if (weights < 0).any() or not np.isfinite(weights).all() or (weights.sum(-1) <= 0).any():
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0, or sums to 0")
    if not replacement and ((weights > 0).sum(-1) < num_samples).any():
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    with drawing_from(generator):
        if replacement:
            ends = np.cumsum(weights, -1) / weights.sum(-1, keepdims=True)
            draws = distributions.uniform((len(weights), num_samples), np.dtype(np.float64))
            picked = (draws[:, :, None] >= ends[:, None, :]).sum(-1)
        else:  # the greatest values of ln u / w are a sample (Efraimidis and Spirakis 2006)
            draws = distributions.uniform(weights.shape, np.dtype(np.float64))
            with np.errstate(divide="ignore"):
                keys = np.where(weights > 0, np.log1p(-draws) / weights, -np.inf)
            picked = np.argsort(-keys, -1)[:, :num_samples]
    return made(picked.astype(np.int64).reshape(*x.array.shape[:-1], num_samples), "multinomial")


def randint_like(x: Tensor, low: int, high: int | None = None, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Integers from low (default 0) to high − 1, in the shape and dtype of x."""
    low, high = (0, low) if high is None else (low, high)
    draws = distributions.integers(low, high, x.array.shape)
    return made(draws.astype(x.array.dtype if dtype is None else dtype.numpy), "randint_like")


def _drawn(name: str, draw: Callable) -> Callable:
    """A method that fills a tensor with random values. No gradient flows to its former value."""

    def fill(x: Tensor, *args: Any, generator: Any = None, **kwargs: Any) -> Tensor:
        check_writable(x)
        with drawing_from(generator):
            array = draw(x.array.shape, x.array.dtype, *args, **kwargs)
        return overwrite(x.zero_() if x.requires_grad else x, array, name)

    fill.__name__ = name
    fill.__doc__ = draw.__doc__
    return fill


def _normal(shape: tuple, kind: np.dtype, mean: float = 0.0, std: float = 1.0) -> np.ndarray:
    """Normal with a mean and a standard deviation."""
    return distributions.normal(shape, kind) * kind.type(std) + kind.type(mean)


def _uniform(shape: tuple, kind: np.dtype, a: float = 0.0, b: float = 1.0) -> np.ndarray:
    """Uniform on [a, b)."""
    low, high = kind.type(a), kind.type(b)
    return distributions.uniform(shape, kind).astype(np.float64) * np.float64(high - low) + np.float64(low)


def _bernoulli(shape: tuple, kind: np.dtype, p: Any = 0.5) -> np.ndarray:
    """1 with probability p, else 0."""
    if isinstance(p, Tensor):
        return distributions.uniform_to_compare(shape, p.array) < p.array
    return distributions.bernoulli(shape, p)


def _exponential(shape: tuple, kind: np.dtype, lambd: float = 1.0) -> np.ndarray:
    """Exponential with a rate. The draws differ from PyTorch's."""
    return -np.log1p(-distributions.uniform(shape, np.dtype(np.float64))) / lambd


def _integers(shape: tuple, kind: np.dtype, low: int = 0, to: int | None = None) -> np.ndarray:
    """Integers from low to `to` − 1. The draws differ from PyTorch's."""
    low, to = (0, low) if to is None and low else (low, to)
    return distributions.integers(low, 2**24 if to is None else to, shape)


def fill_diagonal_(x: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """Set the diagonal of x to a value."""
    n = min(x.array.shape)
    x.as_strided((n,), (sum(s // x.array.itemsize for s in x.array.strides),)).fill_(fill_value)
    return x


METHODS: dict[str, Callable] = {
    "normal_": _drawn("normal_", _normal),
    "uniform_": _drawn("uniform_", _uniform),
    "bernoulli_": _drawn("bernoulli_", _bernoulli),
    "exponential_": _drawn("exponential_", _exponential),
    "random_": _drawn("random_", _integers),
    "fill_diagonal_": fill_diagonal_,
    "bernoulli": bernoulli,
    "multinomial": multinomial,
}
for _name, _function in METHODS.items():
    setattr(Tensor, _name, _function)
PUBLIC: dict[str, Callable] = {
    "normal": normal,
    "bernoulli": bernoulli,
    "multinomial": multinomial,
    "randint_like": randint_like,
}
