"""Functions of single elements. Most are a row of the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradviz.engine.core.apply import apply, binary, operands, unary
from gradviz.engine.core.tensor import Tensor
from gradviz.engine.table.derivatives import TABLE
from gradviz.engine.table.ops.choice import to

_CHOSEN = {
    "pow",
    "rsub",
    "rsub_tensor",
    "square",
    "div",
    "clamp",
    "clamp_above",
    "clamp_below",
    "floor_divide",
    "fmod",
    "lerp",
    "remainder",
    "round",
}  # rows that a function below chooses


def _rows(inputs: int) -> list:
    return [
        op
        for key, op in TABLE.items()
        if op.kind == "elementwise" and len(op.inputs) == inputs and not op.args and key not in _CHOSEN
    ]


functions: dict[str, Callable] = {op.name: unary(op) for op in _rows(1)}
functions |= {op.name: binary(op) for op in _rows(2)}
functions["div"] = _div = binary(TABLE["div"])
functions["round"] = _round = unary(TABLE["round"])

add, sub, mul = (functions[name] for name in ("add", "sub", "mul"))
maximum, minimum = functions["maximum"], functions["minimum"]
abs_, exp, log, neg, reciprocal, relu, sigmoid, sqrt, tanh = (
    functions[name] for name in ("abs", "exp", "log", "neg", "reciprocal", "relu", "sigmoid", "sqrt", "tanh")
)
log1p, rsqrt = functions["log1p"], functions["rsqrt"]


def _elementwise(key: str, *tensors: Any, args: tuple = ()) -> Any:
    """Run a row on several tensors. Some of them may be numbers."""
    first = next(tensor for tensor in tensors if isinstance(tensor, Tensor))
    inputs = [operands(first, tensor)[1] if tensor is not first else tensor for tensor in tensors]
    return apply(TABLE[key], inputs, args)


def _kind_of(value: Any) -> str:
    return np.asarray(value.array if isinstance(value, Tensor) else value).dtype.kind


def _with_alpha(name: str) -> Callable:
    """`add` or `sub` with PyTorch's `alpha=`, the factor of y."""
    plain, row = functions[name], f"{name}_scaled"

    def call(x: Any, y: Any, *, alpha: Any = 1) -> Any:
        if alpha == 1:
            return plain(x, y)
        if isinstance(alpha, float) and not any(_kind_of(value) in "fc" for value in (x, y)):
            raise RuntimeError("For integral input tensors, argument alpha must not be a floating point number.")
        return _elementwise(row, x, y, args=(alpha,))

    call.__name__ = call.__qualname__ = name
    return call


add_with_alpha, sub_with_alpha = _with_alpha("add"), _with_alpha("sub")

_pow_tensors = binary(TABLE["pow"])
_rsub_tensor = binary(TABLE["rsub_tensor"])


def pow(x: Any, exponent: Any) -> Any:
    """x to the power of a number (PowBackward0) or of a tensor (PowBackward1; PowBackward2 where x is a number).

    Raises RuntimeError for an integer tensor to a negative integer."""
    if isinstance(x, Tensor) and isinstance(exponent, (int, float)):
        if isinstance(exponent, int) and exponent < 0 and x.array.dtype.kind in "iu":
            raise RuntimeError("Integers to negative integer powers are not allowed.")
        return apply(TABLE["pow_number"], (x,), (exponent,))
    if isinstance(exponent, Tensor) and isinstance(x, (int, float)):
        return rpow(exponent, x)
    return _pow_tensors(x, exponent)


def rpow(x: Any, base: Any) -> Any:
    """A number or a tensor to the power of x (PowBackward2 for a number)."""
    return apply(TABLE["rpow"], (x,), (base,)) if isinstance(base, (int, float)) else _pow_tensors(base, x)


def rsub(x: Any, other: Any, *, alpha: Any = 1) -> Any:
    """other − alpha · x. `other` is a tensor or a number."""
    if isinstance(other, (int, float)):
        return apply(TABLE["rsub"], (x,), (other,)) if alpha == 1 else apply(TABLE["rsub_scaled"], (x,), (other, alpha))
    return _rsub_tensor(x, other) if alpha == 1 else _elementwise("rsub_tensor_scaled", x, other, args=(alpha,))


def _with_number(name: str) -> Callable:
    """A function of two tensors. Where the second operand is a number it runs a row of its own."""
    of_two, row = binary(TABLE[name]), TABLE[f"{name}_number"]

    def call(input: Any, other: Any) -> Any:
        if isinstance(input, Tensor) and isinstance(other, (int, float)) and _kind_of(input) == "f":
            return apply(row, (input,), (other,))
        return of_two(input, other)

    call.__name__ = call.__qualname__ = name
    return call


for _name in ("remainder", "fmod", "floor_divide"):
    functions[_name] = _with_number(_name)
remainder, fmod, floor_divide = (functions[name] for name in ("remainder", "fmod", "floor_divide"))


def rdiv(x: Any, other: Any) -> Any:
    """other / x, as other times the reciprocal of x."""
    return mul(reciprocal(x), other)


def square(x: Any) -> Any:
    """x²."""
    return pow(x, 2)


def div(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    """x / y. With `rounding_mode` "trunc" the quotient is rounded towards zero, with "floor" down.

    Raises RuntimeError for another mode."""
    if rounding_mode is None:
        return _div(x, y)
    if rounding_mode not in ("trunc", "floor"):
        raise RuntimeError(
            f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{rounding_mode}'"
        )
    x, y = operands(x, y)
    return apply(TABLE["div_rounded"], (x, y), (rounding_mode,))


true_divide = div


def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """x clamped to [min, max]. The bounds are numbers, tensors or None. Raises RuntimeError where both are None."""
    if min is None and max is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    if not (isinstance(min, Tensor) or isinstance(max, Tensor)):
        return apply(TABLE["clamp"], (x,), (min, max))
    if _kind_of(x) != "f":  # infinity would turn integers into floats
        x = x if min is None else _elementwise("clamp_below", x, min)
        return x if max is None else _elementwise("clamp_above", x, max)
    below, above = -np.inf if min is None else min, np.inf if max is None else max
    return _elementwise("clamp_between", x, below, above)


_below, _above = functions["clamp_min"], functions["clamp_max"]


def clamp_min(x: Tensor, min: Any) -> Tensor:
    """x where it is at least `min`, a number or a tensor, else `min`."""
    return _below(x, min) if isinstance(min, Tensor) else apply(TABLE["clamp_min_number"], (x,), (min, None))


def clamp_max(x: Tensor, max: Any) -> Tensor:
    """x where it is at most `max`, a number or a tensor, else `max`."""
    return _above(x, max) if isinstance(max, Tensor) else apply(TABLE["clamp_max_number"], (x,), (None, max))


_IN_C = {"float32": "float", "float64": "double", "int64": "long int", "int32": "int"}


def lerp(x: Tensor, end: Tensor, weight: Any) -> Tensor:
    """x + weight (end − x). `weight` is a number or a tensor. Raises RuntimeError where dtypes differ."""
    for name, operand in (("end", end), ("weight", weight)):
        if isinstance(operand, Tensor) and operand.array.dtype != x.array.dtype:
            expected, got = (_IN_C.get(tensor.array.dtype.name, str(tensor.dtype)) for tensor in (x, operand))
            raise RuntimeError(f"expected dtype {expected} for `{name}` but got dtype {got}")
    if isinstance(weight, Tensor):
        return apply(TABLE["lerp_tensor"], (x, end, weight))
    return apply(TABLE["lerp"], (x, end), (weight,))


def addcmul(x: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Tensor:
    """x + value · tensor1 · tensor2."""
    return _elementwise("addcmul", x, tensor1, tensor2, args=(value,))


def addcdiv(x: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Tensor:
    """x + value · tensor1 / tensor2."""
    return _elementwise("addcdiv", x, tensor1, tensor2, args=(value,))


def float_power(x: Any, exponent: Any) -> Tensor:
    """x to the power of `exponent`, in float64, or complex128 where one is complex. Either may be a number."""
    is_complex = any(_kind_of(value) == "c" for value in (x, exponent))
    kind, number = (np.complex128, complex) if is_complex else (np.float64, float)
    double = [to(value, kind) if isinstance(value, Tensor) else number(value) for value in (x, exponent)]
    if not isinstance(double[0], Tensor):
        return rpow(double[1], double[0])
    return pow(*double)


def add_number(x: Tensor, number: float) -> Tensor:
    """x + a number, as PyTorch's own functions add it (AddBackward1). `x + 2` in a program is AddBackward0."""
    return apply(TABLE["add_number"], (x,), (number,))


def sub_number(x: Tensor, number: float) -> Tensor:
    """x − a number (SubBackward1)."""
    return apply(TABLE["sub_number"], (x,), (number,))


def mul_number(x: Tensor, number: float) -> Tensor:
    """x times a number (MulBackward1)."""
    return apply(TABLE["mul_number"], (x,), (number,))


def div_number(x: Tensor, number: float) -> Tensor:
    """x divided by a number (DivBackward1)."""
    return apply(TABLE["div_number"], (x,), (number,))


def ndtr(x: Tensor) -> Tensor:
    """The distribution function of the standard normal distribution, (1 + erf(x/√2)) / 2."""
    return mul_number(add_number(functions["erf"](mul_number(x, 0.5**0.5)), 1), 0.5)


_copysign, _ldexp = functions["copysign"], functions["ldexp"]


def copysign(x: Any, other: Any) -> Tensor:
    """|x| with the sign of `other`, a tensor or a number."""
    return apply(TABLE["copysign_number"], (x,), (other,)) if isinstance(other, (int, float)) else _copysign(x, other)


functions["copysign"] = copysign


def ldexp(x: Tensor, other: Tensor) -> Tensor:
    """x · 2^other."""
    return _ldexp(x, other)


def round(x: Tensor, *, decimals: int | None = None) -> Tensor:
    """x rounded to integers, or to `decimals` digits after the point. Halves are rounded to even."""
    return _round(x) if decimals is None else apply(TABLE["round_decimals"], (x,), (decimals,))


def nan_to_num(x: Tensor, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Tensor:
    """x with replacements for NaN (default 0), ∞ and −∞ (default: the limits of the dtype)."""
    return apply(TABLE["nan_to_num"], (x,), (nan, posinf, neginf))


def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """ln(x / (1 − x)). With `eps`, x is clamped to [eps, 1 − eps] first."""
    return apply(TABLE["logit"], (x,), (eps,))


def polygamma(n: int, x: Tensor) -> Tensor:
    """The n-th derivative of digamma."""
    return apply(TABLE["polygamma"], (x,), (n,))


def mvlgamma(x: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of p dimensions."""
    return apply(TABLE["mvlgamma"], (x,), (p,))


def itself(x: Tensor) -> Tensor:
    """x. For real numbers conjugation and the like do nothing."""
    return x


def conj(x: Tensor) -> Tensor:
    """The complex conjugate; x itself where it is real."""
    return apply(TABLE["conj"], (x,)) if x.array.dtype.kind == "c" else x


def conj_physical(x: Tensor) -> Tensor:
    """The complex conjugate; x itself where it is real."""
    return apply(TABLE["conj_physical"], (x,)) if x.array.dtype.kind == "c" else x


def view_as_real(x: Tensor) -> Tensor:
    """The view of complex numbers as pairs of real numbers, in a new last dimension.

    Raises RuntimeError for real numbers."""
    if x.array.dtype.kind != "c":
        raise RuntimeError("view_as_real is only supported for complex tensors")
    return apply(TABLE["view_as_real"], (x,))


def real(x: Tensor) -> Tensor:
    """The view of the real parts; x itself where it is real."""
    return _part(x, 0) if x.array.dtype.kind == "c" else x


def imag(x: Tensor) -> Tensor:
    """The view of the imaginary parts. Raises RuntimeError for real numbers."""
    if x.array.dtype.kind != "c":
        raise RuntimeError("imag is not implemented for tensors with non-complex dtypes.")
    return _part(x, 1)


def _part(x: Tensor, index: int) -> Tensor:
    return apply(TABLE["select"], (view_as_real(x),), (x.array.ndim, index))


positive = resolve_conj = resolve_neg = itself
