"""Functions without a gradient: comparisons, logic, integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradviz.engine.basics.dtypes import result_type, scalar_type_name
from gradviz.engine.basics.scipy_later import special
from gradviz.engine.basics.shape_errors import explained
from gradviz.engine.core.apply import apply, as_tensor, operands
from gradviz.engine.core.tell import without_node
from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.table.derivatives import TABLE
from gradviz.engine.table.kernels import heaviside

_NOT_DIFFERENTIATED = {"igamma", "igammac"}


def _plain(name: str, ufunc: Callable, nargs: int = 2) -> Callable:
    """A function without a gradient, made of a NumPy function of `nargs` operands."""

    def of_one(input: Any) -> Tensor:
        return compute((as_tensor(input),))

    def of_two(input: Any, other: Any) -> Any:
        inputs = operands(input, other)
        return NotImplemented if inputs[0] is None else compute(inputs)

    def compute(inputs: tuple[Tensor, ...]) -> Tensor:
        if name in _NOT_DIFFERENTIATED and any(tensor.requires_grad for tensor in inputs):
            raise NotImplementedError(f"gradviz does not support the derivative of {name} yet")
        if name == "heaviside" and any(tensor.requires_grad for tensor in inputs):
            return apply(TABLE[name], inputs)  # its node raises in backward
        arrays = [tensor.array for tensor in inputs]
        try:
            array = np.asarray(ufunc(*arrays))
        except ValueError as error:
            raise explained(error, *(array.shape for array in arrays)) from None
        except TypeError:
            array = None
        expected = result_type(*arrays)
        has_no_order = name in _ORDERED and expected.kind == "c"
        if array is None or has_no_order or (expected.kind == "b" and array.dtype.kind == "i"):
            raise NotImplementedError(f"\"{name}_cpu\" not implemented for '{scalar_type_name(expected)}'")
        is_apart = array.dtype != expected and array.dtype.kind != "b"
        if is_apart and (array.dtype.kind in "fc") == (expected.kind in "fc"):
            array = array.astype(expected)
        return without_node(name, inputs, new_tensor(array))

    call = of_two if nargs == 2 else of_one
    call.__name__ = name
    return call


_ORDERED = {"lt", "le", "gt", "ge"}
PLAIN: dict[str, Callable] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "logical_and": np.logical_and, "logical_or": np.logical_or,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "logical_xor": np.logical_xor, "heaviside": heaviside,
    "bitwise_left_shift": np.left_shift, "bitwise_right_shift": np.right_shift, "gcd": np.gcd, "lcm": np.lcm,
    "igamma": special.gammainc, "igammac": special.gammaincc,
}  # fmt: skip
PLAIN_UNARY: dict[str, Callable] = {
    "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, "logical_not": np.logical_not,
    "bitwise_not": np.invert, "signbit": np.signbit, "isposinf": np.isposinf, "isneginf": np.isneginf,
    "isreal": np.isreal,
}  # fmt: skip
plain: dict[str, Callable] = {name: _plain(name, ufunc) for name, ufunc in PLAIN.items()}
plain |= {name: _plain(name, ufunc, 1) for name, ufunc in PLAIN_UNARY.items()}


def isclose(x: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """A bool tensor: where |x − other| ≤ atol + rtol · |other|."""
    found = np.isclose(x.array, other.array, rtol, atol, equal_nan)
    return without_node("isclose", (x, other), new_tensor(np.asarray(found)))


def allclose(x: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether |x − other| ≤ atol + rtol · |other| everywhere."""
    return bool(np.allclose(x.array, other.array, rtol, atol, equal_nan))


def equal(x: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape and the same elements."""
    return x.array.shape == other.array.shape and bool(np.all(x.array == other.array))


def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """A bool tensor: whether each element is among `test_elements`."""
    x, others = as_tensor(elements), as_tensor(test_elements)
    found = np.isin(x.array, others.array, invert=invert)
    return without_node("isin", (x, others), new_tensor(np.asarray(found)))


def nonzero(x: Tensor, *, as_tuple: bool = False) -> Any:
    """The indices of the elements that are not 0: an int64 tensor (n, ndim), or with `as_tuple` a tensor (n,) for
    each dimension."""
    if as_tuple:
        places = tuple(new_tensor(place.copy()) for place in np.nonzero(np.atleast_1d(x.array)))
        return without_node("nonzero", (x,), places, "as_tuple=True")
    return _places("nonzero", x)


def argwhere(x: Tensor) -> Tensor:
    """The indices of the elements that are not 0: an int64 tensor (n, ndim)."""
    return _places("argwhere", x)


def _places(name: str, x: Tensor) -> Tensor:
    return without_node(name, (x,), new_tensor(np.ascontiguousarray(np.argwhere(x.array))))


def searchsorted(
    sorted_sequence: Tensor,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: Any = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """The indices at which the elements of x would be inserted into a sorted sequence, in the shape of x.

    The sequence has one dimension, or the leading dimensions of x. `sorter` has the indices that sort it. The dtype
    is int64, or int32 with `out_int32`."""
    x = as_tensor(x)
    places = _searched(sorted_sequence, x, out_int32, right, side, sorter)
    return without_node("searchsorted", (sorted_sequence, x), places)


def _searched(
    sorted_sequence: Tensor, x: Tensor, out_int32: bool, right: bool, side: Any, sorter: Tensor | None
) -> Tensor:
    sequence, values = sorted_sequence.array, x.array
    if side not in (None, "left", "right") or (side == "left" and right):
        raise RuntimeError(f"searchsorted: side is {side!r} and right is {right}; give one of them")
    if sorter is not None:
        sequence = np.take_along_axis(sequence, sorter.array, -1)
    if sequence.ndim > 1 and sequence.shape[:-1] != values.shape[:-1]:
        raise RuntimeError(
            "boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries tensor and "
            f"input value tensor must match, but we got boundaries tensor {list(sequence.shape)} and input "
            f"value tensor {list(values.shape)}"
        )
    places = np.empty(values.shape, np.int32 if out_int32 else np.int64)
    for row in np.ndindex(sequence.shape[:-1]):
        places[row] = np.searchsorted(sequence[row], values[row], "right" if right else side or "left")
    return new_tensor(places)


def bucketize(x: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The index of the bucket between `boundaries` for each element of x, in the shape of x."""
    x = as_tensor(x)
    places = _searched(boundaries, x, out_int32, right, None, None)
    return without_node("bucketize", (x, boundaries), places)


def bincount(x: Tensor, weights: Any = None, minlength: int = 0) -> Tensor:
    """How often each integer occurs in x, which has one dimension. Raises NotImplementedError for weights."""
    if weights is not None:
        raise NotImplementedError("gradviz does not support weights in bincount")
    return without_node("bincount", (x,), new_tensor(np.bincount(x.array, minlength=minlength)))
