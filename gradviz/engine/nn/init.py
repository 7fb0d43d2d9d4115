"""Initial values of parameters. See PyTorch's `torch.nn.init`. With the same seed the values are the same.

All functions fill the tensor in place, outside of the graph, and return it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradviz.engine.basics.missing import says_what_is_missing
from gradviz.engine.core.tensor import Tensor, announce
from gradviz.engine.rng import distributions
from gradviz.engine.tensors.writing import overwrite


def _fill(tensor: Tensor, array: Any, how: str) -> Tensor:
    if tensor.__dict__.pop("unfilled", False):  # the layer's own: they have no values before
        tensor.array[...] = array
        announce(tensor, "Parameter")
        return tensor
    return overwrite(tensor, array, how)


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Uniform on [a, b)."""
    kind = tensor.array.dtype
    draws = distributions.uniform(tensor.array.shape, kind)
    low, high = kind.type(a), kind.type(b)
    exact = draws.astype(np.float64) * np.float64(high - low) + np.float64(low)  # one rounding, as in PyTorch
    return _fill(tensor, exact, "uniform_")


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normal with a mean and a standard deviation."""
    draws = distributions.normal(tensor.array.shape, tensor.array.dtype)
    return _fill(tensor, draws * tensor.array.dtype.type(std) + tensor.array.dtype.type(mean), "normal_")


def trunc_normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0) -> Tensor:
    """Raise NotImplementedError: gradviz does not have it."""
    raise NotImplementedError("gradviz has no trunc_normal_: use normal_ with a clamp.")


def constant_(tensor: Tensor, val: float) -> Tensor:
    """The same value everywhere."""
    return _fill(tensor, val, "constant_")


def ones_(tensor: Tensor) -> Tensor:
    """1 everywhere."""
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """0 everywhere."""
    return constant_(tensor, 0.0)


def eye_(tensor: Tensor) -> Tensor:
    """The identity matrix. Raises ValueError where the tensor is no matrix."""
    if tensor.array.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    return _fill(tensor, np.eye(*tensor.array.shape), "eye_")


def _fans(tensor: Tensor) -> tuple[int, int]:
    """The number of inputs of each output, and the number of outputs of each input."""
    shape = tensor.array.shape
    if len(shape) < 2:
        raise ValueError("Fan in and fan out can not be computed for tensor with fewer than 2 dimensions")
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


_GAINS = {"tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 3.0 / 4}
_LINEAR = {f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)} | {"linear", "sigmoid"}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor that keeps the variance through an activation. Raises ValueError for an unknown one."""
    if nonlinearity in _LINEAR:
        return 1.0
    if nonlinearity == "leaky_relu":
        if param is not None and (isinstance(param, bool) or not isinstance(param, (int, float))):
            raise ValueError(f"negative_slope {param} not a valid number")
        slope = 0.01 if param is None else param
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity in _GAINS:
        return _GAINS[nonlinearity]
    raise ValueError(f"Unsupported nonlinearity {nonlinearity}")


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Uniform with the variance 2 gain² / (fan in + fan out) (Glorot and Bengio 2010)."""
    bound = math.sqrt(3.0) * gain * math.sqrt(2.0 / sum(_fans(tensor)))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Normal with the variance 2 gain² / (fan in + fan out) (Glorot and Bengio 2010)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(_fans(tensor))))


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode} not supported, please use one of ['fan_in', 'fan_out']")
    fan = _fans(tensor)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(fan) if fan else 0.0


def kaiming_uniform_(tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Tensor:
    """Uniform with the variance gain² / fan (He et al. 2015)."""
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Tensor:
    """Normal with the variance gain² / fan (He et al. 2015)."""
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity))


def orthogonal_(tensor: Tensor, gain: float = 1) -> Tensor:
    """A matrix with orthonormal rows or columns, whichever are fewer (Saxe et al. 2013)."""
    if tensor.array.ndim < 2:
        raise ValueError("Only tensors with 2 or more dimensions are supported")
    rows = tensor.array.shape[0]
    columns = tensor.array.size // rows
    flat = distributions.normal((rows, columns), tensor.array.dtype)
    q, r = np.linalg.qr(flat.T if rows < columns else flat)
    q = q * np.sign(np.diag(r))
    q = q.T if rows < columns else q
    return _fill(tensor, q.reshape(tensor.array.shape) * gain, "orthogonal_")


def default_(weight: Tensor, bias: Tensor | None) -> None:
    """The initial values of Linear and of convolutions: uniform within ±1/√(fan in)."""
    kaiming_uniform_(weight, a=math.sqrt(5))
    if bias is not None:
        fan = _fans(weight)[0]
        bound = 1 / math.sqrt(fan) if fan else 0
        uniform_(bias, -bound, bound)


__getattr__ = says_what_is_missing(__name__, globals())
