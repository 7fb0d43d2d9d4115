"""einsum, in PyTorch's steps (ATen's Linear.cpp).

First the dimensions of all operands are aligned. Then operands are multiplied pair by pair, by `bmm` where a
dimension is summed.
"""

from __future__ import annotations

import math
from typing import Any

from gradviz.engine.core.tensor import Tensor
from gradviz.engine.table.ops.elementwise import mul
from gradviz.engine.table.ops.products import bmm
from gradviz.engine.table.ops.reductions import sum
from gradviz.engine.table.ops.shape import diagonal, movedim, permute, reshape, unsqueeze, view


def einsum(equation: str, *operands: Any) -> Tensor:
    """Einstein summation: `einsum("ij,jk->ik", a, b)`.

    Each letter stands for a dimension. Letters that the result does not have are summed over. Raises RuntimeError
    where the equation does not fit the operands, NotImplementedError for lists of numbers instead of letters."""
    given = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else list(operands)
    if not isinstance(equation, str):
        raise NotImplementedError("gradviz does not support einsum with lists of numbers; write letters")
    inputs, result, ellipsis = _parsed(equation, given)
    _check_subscripts(inputs, given)
    lost = sorted(set("".join(inputs)) - set(result), key=lambda letter: (letter not in ellipsis, letter))
    order = [*result, *lost]
    x, *others = (_aligned(tensor, letters, order) for tensor, letters in zip(given, inputs, strict=True))
    summed = range(len(result), len(order))
    if not others:
        return sum(x, tuple(summed)) if summed else x
    for i, y in enumerate(others):
        x = _contracted(x, y, summed, others[i + 1 :])
    return view(x, *x.array.shape[: len(result)]) if summed else x


def _check_subscripts(inputs: list[str], given: list) -> None:
    """Raise RuntimeError where a letter stands for sizes that do not broadcast."""
    sizes: dict[str, int] = {}
    for operand, (letters, tensor) in enumerate(zip(inputs, given, strict=True)):
        for letter, size in zip(letters, tensor.array.shape, strict=True):
            seen = sizes.get(letter, 1)
            if size != seen and 1 not in (size, seen):
                raise RuntimeError(
                    f"einsum(): subscript {letter} has size {size} for operand {operand} which does not broadcast "
                    f"with previously seen size {seen}"
                )
            sizes[letter] = size if seen == 1 else seen


def _parsed(equation: str, given: list) -> tuple[list[str], str, str]:
    """The letters of each operand, of the result, and of the ellipsis, for which letters are chosen."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(given):
        more = "more" if len(given) > len(parts) else "fewer"
        raise RuntimeError(f"einsum(): {more} operands were provided than specified in the equation")
    spare = [c for c in _LETTERS if c not in equation]
    most = 0
    for i, (part, tensor) in enumerate(zip(parts, given, strict=True)):
        hidden = tensor.array.ndim - len(part.replace("...", ""))
        if hidden < 0 or (hidden and "..." not in part):
            told = "is more than" if "..." in part else "does not match"
            raise RuntimeError(
                f"einsum(): the number of subscripts in the equation ({len(part.replace('...', ''))}) {told} the "
                f"number of dimensions ({tensor.array.ndim}) for operand {i}"
                + ("" if "..." in part else " and no ellipsis was given")
            )
        most = max(most, hidden)
        parts[i] = part.replace("...", "".join(spare[:hidden][::-1]))
    ellipsis = "".join(spare[:most][::-1])
    if not arrow:
        letters = "".join(parts)
        right = ellipsis + "".join(c for c in sorted(set(letters) - set(ellipsis)) if letters.count(c) == 1)
    right = right.replace("...", ellipsis)
    if (lost := next((c for c in right if all(c not in part for part in parts)), None)) is not None:
        raise RuntimeError(f"einsum(): output subscript {lost} does not appear in the equation for any input operand")
    return parts, right, ellipsis


_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _aligned(x: Tensor, letters: str, order: list[str]) -> Tensor:
    """An operand with one dimension for each letter, in that order. Of a letter that it has twice the diagonal is
    taken."""
    dims: dict[str, int] = {}
    for letter in letters:
        dim = len(dims)
        if letter in dims:
            x = movedim(diagonal(x, 0, dims[letter], dim), -1, dims[letter])
        else:
            dims[letter] = dim
    for letter in order:
        if letter not in dims:
            dims[letter] = len(dims)
            x = unsqueeze(x, dims[letter])
    return permute(x, *(dims[letter] for letter in order))


def _contracted(x: Tensor, y: Tensor, summed: range, later: list[Tensor]) -> Tensor:
    """The product of two operands, summed over those `summed` dimensions that no later operand has."""
    now = [dim for dim in summed if all(other.array.shape[dim] == 1 for other in later)]
    a, b = x.array.shape, y.array.shape
    only_x = tuple(dim for dim in now if a[dim] != 1 and b[dim] == 1)
    only_y = tuple(dim for dim in now if a[dim] == 1 and b[dim] != 1)
    x = sum(x, only_x, keepdim=True) if only_x else x
    y = sum(y, only_y, keepdim=True) if only_y else y
    over = [dim for dim in now if a[dim] != 1 and b[dim] != 1]
    return _multiplied(x, y, over) if over else mul(x, y)


def _multiplied(x: Tensor, y: Tensor, over: list[int]) -> Tensor:
    """Σ x y over dimensions that both have. They are kept with size 1. The product is one product of batches of
    matrices."""
    a, b = x.array.shape, y.array.shape
    kept = [dim for dim in range(len(a)) if dim not in over]
    batch = [dim for dim in kept if a[dim] != 1 and b[dim] != 1]
    rows = [dim for dim in kept if a[dim] != 1 and b[dim] == 1]
    columns = [dim for dim in kept if a[dim] == 1]
    left = _as_matrices(x, batch, rows, over, columns)
    right = _as_matrices(y, batch, over, columns, rows)
    places = [*batch, *rows, *over, *columns]
    sizes = [*(a[dim] for dim in batch + rows), *(1 for _ in over), *(b[dim] for dim in columns)]
    return permute(view(bmm(left, right), *sizes), *(places.index(dim) for dim in range(len(places))))


def _as_matrices(x: Tensor, batch: list[int], rows: list[int], columns: list[int], without: list[int]) -> Tensor:
    """x as a batch of matrices. In the dimensions `without` it has size 1."""
    sizes = (math.prod(x.array.shape[dim] for dim in dims) for dims in (batch, rows, columns))
    return reshape(permute(x, *batch, *rows, *columns, *without), *sizes)
