"""Broadcasting: tensors that are expanded to a common shape, or that get more dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradviz.engine.basics.shape_errors import broadcast_shape
from gradviz.engine.core.tensor import Tensor
from gradviz.engine.table.ops.reductions import sum as sum_over
from gradviz.engine.table.ops.shape import expand, reshape, sizes, unsqueeze, view


def broadcast_to(x: Tensor, size: Any) -> Tensor:
    """A view of x in which dimensions of size 1 are repeated."""
    return expand(x, *size)


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, expanded to the shape that they broadcast to."""
    shape = broadcast_shape(*(tensor.array.shape for tensor in tensors))
    return tuple(tensor if tensor.array.shape == shape else expand(tensor, *shape) for tensor in tensors)


def _at_least(name: str, grow: Callable) -> Callable:
    def call(*tensors: Any) -> Any:
        if len(tensors) == 1 and isinstance(tensors[0], Tensor):
            return grow(tensors[0])
        given = tensors[0] if len(tensors) == 1 else tensors
        return tuple(grow(tensor) for tensor in given)

    call.__name__ = name
    call.__doc__ = f"Tensors with new dimensions of size 1 where they have too few: {name}."
    return call


def _one_dim(x: Tensor) -> Tensor:
    return x if x.array.ndim else reshape(x, 1)


def _two_dims(x: Tensor) -> Tensor:
    return x if x.array.ndim > 1 else reshape(x, 1, 1) if not x.array.ndim else unsqueeze(x, 0)


def _three_dims(x: Tensor) -> Tensor:
    if x.array.ndim > 2:
        return x
    if x.array.ndim == 2:
        return unsqueeze(x, -1)
    return reshape(x, 1, 1, 1) if not x.array.ndim else unsqueeze(unsqueeze(x, 0), -1)


atleast_1d, atleast_2d, atleast_3d = (
    _at_least(f"atleast_{n}d", grow) for n, grow in [(1, _one_dim), (2, _two_dims), (3, _three_dims)]
)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """The coordinates of a grid: a tensor for each dimension. Raises RuntimeError for another `indexing` than "ij"
    and "xy"."""
    given = tensors[0] if len(tensors) == 1 and not isinstance(tensors[0], Tensor) else tensors
    if indexing not in ("ij", "xy"):
        raise RuntimeError(f'torch.meshgrid: indexing must be one of "xy" or "ij", but received: {indexing}')
    given = list(given)
    swaps = indexing == "xy" and len(given) > 1
    if swaps:
        given[0], given[1] = given[1], given[0]
    shape = tuple(tensor.array.size for tensor in given)
    grids = [
        expand(reshape(tensor, *(-1 if i == j else 1 for j in range(len(given)))), *shape)
        for i, tensor in enumerate(given)
    ]
    if swaps:
        grids[0], grids[1] = grids[1], grids[0]
    return tuple(grids)


def sum_to_size(x: Tensor, *size: Any) -> Tensor:
    """x summed to a shape that broadcasts to that of x."""
    wanted, shape = sizes(size), x.array.shape
    if not wanted:
        return sum_over(x)
    extra = len(shape) - len(wanted)
    lost = [i for i, n in enumerate(shape) if i < extra or (wanted[i - extra] == 1 and n != 1)]
    if extra < 0 or any(wanted[i - extra] != n for i, n in enumerate(shape) if i not in lost):
        raise RuntimeError(f"size {{{list(wanted)}}} is not expandable to size {{{list(shape)}}}.")
    x = sum_over(x, lost, keepdim=True) if lost else x
    return view(x, *wanted) if extra else x
