"""Activations. All work element by element, except for softmax and glu. The result has the shape and dtype of x."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradviz.engine.basics.dtypes import to_numpy
from gradviz.engine.core.apply import apply, unary
from gradviz.engine.core.op import with_next_node
from gradviz.engine.core.tensor import Tensor
from gradviz.engine.table import ops
from gradviz.engine.table.derivatives import TABLE
from gradviz.engine.tensors.inplace import in_place_of

logsigmoid: Callable = unary(TABLE["log_sigmoid"])
_gelu = {"none": unary(TABLE["gelu"]), "tanh": unary(TABLE["gelu_tanh"])}
tanh, sigmoid = ops.tanh, ops.sigmoid


def _with_inplace(key: str, by: int = 0) -> Callable[..., Tensor]:
    """The function of a row, to be called with the tensor, whether the result is written to it, and the arguments. The
    number of the node is higher `by` as much where it is."""
    row = TABLE[key]
    of_its_own = with_next_node(row, by) if by else row
    there = in_place_of(f"{row.name}_", lambda x, *args: apply(of_its_own, (x,), args))

    def call(x: Tensor, inplace: bool, *args: Any) -> Tensor:
        return there(x, *args) if inplace else apply(row, (x,), args)

    return call


_leaky_relu, _elu, _celu, _threshold = (_with_inplace(key, 1) for key in ("leaky_relu", "elu", "celu", "threshold"))
_silu, _mish, _hardtanh, _hardsigmoid, _hardswish = map(
    _with_inplace, ("silu", "mish", "hardtanh", "hardsigmoid", "hardswish")
)


def relu(x: Tensor, inplace: bool = False) -> Tensor:
    """max(x, 0)."""
    return x.relu_() if inplace else ops.relu(x)


def leaky_relu(x: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x where it is positive, else negative_slope · x."""
    return _leaky_relu(x, inplace, negative_slope)


def elu(x: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where it is positive, else alpha (e^x − 1)."""
    return _elu(x, inplace, alpha, 1.0, 1.0)


def selu(x: Tensor, inplace: bool = False) -> Tensor:
    """`elu` with constants that keep mean 0 and variance 1 (Klambauer et al. 2017)."""
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    return _elu(x, inplace, alpha, scale, 1.0)


def celu(x: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where it is positive, else α (e^(x/α) − 1)."""
    if alpha == 0:
        raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")
    return _celu(x, inplace, alpha)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x Φ(x). With `approximate="tanh"` Φ is approximated. Raises RuntimeError for another value."""
    if approximate not in _gelu:
        raise RuntimeError("approximate argument must be either none or tanh.")
    return _gelu[approximate](x)


def silu(x: Tensor, inplace: bool = False) -> Tensor:
    """x σ(x)."""
    return _silu(x, inplace)


def mish(x: Tensor, inplace: bool = False) -> Tensor:
    """x tanh(ln(1 + e^x))."""
    return _mish(x, inplace)


def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """x clamped to [min_val, max_val]."""
    if min_val > max_val:
        raise ValueError("min_val cannot be greater than max_val")
    return _hardtanh(x, inplace, min_val, max_val)


def relu6(x: Tensor, inplace: bool = False) -> Tensor:
    """x clamped to [0, 6]."""
    return hardtanh(x, 0.0, 6.0, inplace)


def hardsigmoid(x: Tensor, inplace: bool = False) -> Tensor:
    """x/6 + 1/2, clamped to [0, 1]."""
    return _hardsigmoid(x, inplace)


def hardswish(x: Tensor, inplace: bool = False) -> Tensor:
    """x · hardsigmoid(x)."""
    return _hardswish(x, inplace)


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """ln(1 + exp(βx)) / β, and x where βx > threshold."""
    return apply(TABLE["softplus"], (x,), (beta, threshold))


def softsign(x: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    return ops.div(x, ops.add(ops.abs_(x), 1))


def tanhshrink(x: Tensor) -> Tensor:
    """x − tanh(x)."""
    return ops.sub(x, ops.tanh(x))


def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved towards 0 by λ; 0 where |x| ≤ λ."""
    if lambd < 0:
        raise RuntimeError(f"lambda must be greater or equal to 0, but found to be {lambd}.")
    return apply(TABLE["softshrink"], (x,), (lambd,))


def hardshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x; 0 where |x| ≤ λ."""
    return apply(TABLE["hardshrink"], (x,), (lambd,))


def threshold(x: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """x where it is above the threshold, else the value."""
    return _threshold(x, inplace, threshold, value)


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """x where it is positive, else weight · x. There is one weight, or one for each channel."""
    n = weight.array.size
    if n != 1 and (x.array.ndim < 2 or x.array.shape[1] != n):
        raise RuntimeError(f"prelu: the weight has {n} elements, the input has shape {list(x.shape)}")
    shape = [1] * max(x.array.ndim, 1)
    if x.array.ndim > 1:
        shape[1] = n
    return apply(TABLE["prelu"], (x, ops.reshape(weight, *shape[: x.array.ndim])))


def glu(x: Tensor, dim: int = -1) -> Tensor:
    """The first half of x along `dim`, times σ of the second half. Raises RuntimeError for an odd size."""
    axis = ops.checked_dim(dim, x.array.ndim)
    if x.array.shape[axis] % 2:
        raise RuntimeError(f"Halving dimension must be even, but dimension {axis} is size {x.array.shape[axis]}")
    return apply(TABLE["glu"], (x,), (axis,))


def _implicit_dim(ndim: int) -> int:
    return 0 if ndim in (0, 1, 3) else 1


def softmax(x: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """exp(x) / Σ exp(x) along `dim`."""
    x = x if dtype is None else ops.to(x, to_numpy(dtype))
    return ops.softmax(x, _implicit_dim(x.array.ndim) if dim is None else dim)


def softmin(x: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """softmax(−x)."""
    return softmax(ops.neg(x), dim, dtype)


def log_softmax(x: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """ln softmax(x) along `dim`."""
    x = x if dtype is None else ops.to(x, to_numpy(dtype))
    return ops.log_softmax(x, _implicit_dim(x.array.ndim) if dim is None else dim)
