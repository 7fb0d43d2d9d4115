"""The errors of shapes, dimensions and indices that do not fit: PyTorch's messages for NumPy's errors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradviz.engine.basics.dtypes import scalar_type_name, torch_type_name
from gradviz.engine.basics.errors import with_advice

Shape = Sequence[int]


class LinAlgError(RuntimeError):
    """A matrix is singular, or not positive-definite."""


def check_kernel(kernel: str, array: np.ndarray) -> None:
    """Raise NotImplementedError where an array is not floating point, but PyTorch's kernel of that name needs it to
    be."""
    if array.dtype.kind != "f":
        error = NotImplementedError(f"\"{kernel}\" not implemented for '{scalar_type_name(array.dtype)}'")
        raise with_advice(error, "convert the input with .float() first.")


def broadcast_shape(*shapes: Shape) -> tuple[int, ...]:
    """The shape that several shapes broadcast to. Raises RuntimeError where they do not broadcast."""
    first = tuple(shapes[0])
    if all(tuple(shape) == first for shape in shapes[1:]):  # NumPy's function would take microseconds
        return first
    try:
        return np.broadcast_shapes(*map(tuple, shapes))
    except ValueError:
        raise mismatch(*shapes) or RuntimeError("shapes cannot be broadcast to a single shape") from None


def mismatch(*shapes: Shape) -> RuntimeError | None:
    """The error for the first shape that does not broadcast with those before it, or None where all broadcast."""
    together: tuple[int, ...] = ()
    for shape in shapes:
        n = max(len(together), len(shape))
        a, b = ((1,) * (n - len(sizes)) + tuple(sizes) for sizes in (together, shape))
        for dim in reversed(range(n)):
            if a[dim] != b[dim] and 1 not in (a[dim], b[dim]):
                return RuntimeError(
                    f"The size of tensor a ({a[dim]}) must match the size of tensor b ({b[dim]}) at "
                    f"non-singleton dimension {dim}"
                )
        together = tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))
    return None


def explained(error: Exception, *shapes: Shape) -> Exception:
    """PyTorch's error for NumPy's error, where shapes do not broadcast or bools are subtracted; else NumPy's error."""
    text = str(error)
    if isinstance(error, TypeError):
        return bools_subtracted(2 if "subtract" in text else 0) if "boolean" in text else error
    return (mismatch(*shapes) if "broadcast" in text else None) or error


def bools_subtracted(operands: int) -> RuntimeError:
    """The error of subtracting or negating bool tensors. `operands` is the number of bool operands; 0 is a
    negation."""
    what, where = ("Subtraction", "with") if operands else ("Negation", "on")
    which = "two bool tensors" if operands == 2 else "a bool tensor"
    instead = (
        "Use the `^` or `logical_xor()` operator instead."
        if operands == 2
        else "If you are trying to invert a mask, use the `~` or `logical_not()` operator instead."
    )
    return RuntimeError(f"{what}, the `-` operator, {where} {which} is not supported. {instead}")


def too_few_sizes(array: np.ndarray, wanted: Shape) -> RuntimeError:
    """The error of expanding an array to fewer dimensions than it has."""
    return RuntimeError(
        f"expand({torch_type_name(array.dtype)}{{{list(array.shape)}}}, size={list(wanted)}): the number of sizes "
        f"provided ({len(wanted)}) must be greater or equal to the number of dimensions in the tensor ({array.ndim})"
    )


def not_expandable(shape: Shape, wanted: Shape) -> RuntimeError | None:
    """The error of expanding a tensor of `shape` to the sizes `wanted`, or None where it can be expanded."""
    extra = len(wanted) - len(shape)
    for dim in reversed(range(len(shape))):
        n, size = shape[dim], wanted[dim + extra]
        if size not in (n, -1) and n != 1:
            return RuntimeError(
                f"The expanded size of the tensor ({size}) must match the existing size ({n}) at non-singleton "
                f"dimension {dim + extra}.  Target sizes: {list(wanted)}.  Tensor sizes: {list(shape)}"
            )
    return None


def check_fits(value: np.ndarray, place: Shape, in_view: bool) -> None:
    """Raise RuntimeError where a value cannot be written to a view or to elements of the shape `place`."""
    given = list(value.shape)
    while len(given) > len(place) and given[0] == 1:
        del given[0]
    error = not_expandable(given, place) if len(given) <= len(place) else too_few_sizes(value, place)
    if error is None:
        return
    if in_view:
        raise error
    raise RuntimeError(
        f"shape mismatch: value tensor of shape {list(value.shape)} cannot be broadcast to indexing result of shape "
        f"{list(place)}"
    )


def check_cat(shapes: Sequence[Shape], dim: int) -> None:
    """Raise RuntimeError where tensors of these shapes cannot be concatenated along `dim`."""
    first = shapes[0]
    for position, shape in enumerate(shapes):
        if not shape:
            raise RuntimeError(f"zero-dimensional tensor (at position {position}) cannot be concatenated")
    for position, shape in enumerate(shapes):
        if len(shape) != len(first):
            raise RuntimeError(f"Tensors must have same number of dimensions: got {len(first)} and {len(shape)}")
        for i, (n, size) in enumerate(zip(first, shape, strict=True)):
            if i != dim and n != size:
                raise RuntimeError(
                    f"Sizes of tensors must match except in dimension {dim}. Expected size {n} but got size {size} "
                    f"for tensor number {position} in the list."
                )


def check_stack(shapes: Sequence[Shape]) -> None:
    """Raise RuntimeError where tensors of these shapes cannot be stacked."""
    for position, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(shapes[0])} at entry 0 and "
                f"{list(shape)} at entry {position}"
            )
