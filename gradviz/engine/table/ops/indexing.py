"""Indexing: x[...], gather, scatter, and functions that put elements at an index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradviz.engine.basics.dtypes import scalar_type_name
from gradviz.engine.basics.shape_errors import broadcast_shape
from gradviz.engine.core.apply import apply
from gradviz.engine.core.op import called
from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.table.derivatives import TABLE
from gradviz.engine.table.kernels import at
from gradviz.engine.table.kernels.scatter_reduce import REDUCTIONS
from gradviz.engine.table.ops.reductions import checked_dim
from gradviz.engine.table.ops.shape import expand, flatten, reshape

OF_A_NUMBER = (
    "invalid index of a 0-dim tensor. Use `tensor.item()` in Python or `tensor.item<T>()` in C++ to convert a 0-dim "
    "tensor to a number"
)
_TOO_MANY = "too many indices for tensor of dimension {}"


def getitem(x: Tensor, index: Any) -> Tensor:
    """x[index]. The index consists of slices, integers, None, Ellipsis, and bool or integer tensors.

    Raises IndexError where it does not fit x."""
    read = tensors_of(index)
    index = plain_index(index)
    if isinstance(index, int) and not isinstance(index, bool) and x.array.ndim:
        n = x.array.shape[0]
        if not -n <= index < n:
            raise IndexError(f"index {index} is out of bounds for dimension 0 with size {n}")
        return apply(called(TABLE["select"], "getitem"), (x,), (0, index % n))
    parts = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(part, np.ndarray) for part in parts):
        return _sliced(x, _without_ellipsis(parts, x.array.ndim), "index" if type(index) is slice else "alias")
    if any(part is None or part is Ellipsis or isinstance(part, (int, slice)) for part in parts):
        x, parts = _sliced_first(x, parts)
    _check_masks(x, parts)
    try:
        return apply(called(TABLE["gather_index"], "getitem"), (x,), (parts,), read)
    except IndexError as error:
        raise out_of_place(error, x.array.ndim) from None


def out_of_place(error: IndexError, ndim: int) -> IndexError:
    """PyTorch's error for an index that NumPy does not accept."""
    said = str(error).replace("for axis", "for dimension")
    return IndexError(_TOO_MANY.format(ndim) if "too many" in said else said)


def _check_masks(x: Tensor, parts: tuple) -> None:
    """Raise IndexError where a mask does not have the shape of the dimensions that it stands for."""
    dim = 0
    for part in parts:
        taken = _consumed(part)
        if isinstance(part, np.ndarray) and part.dtype.kind == "b":
            shape = x.array.shape
            if part.shape != shape[dim : dim + taken]:
                wrong = next((i for i in range(taken) if part.shape[i : i + 1] != shape[dim + i : dim + i + 1]), 0)
                raise IndexError(
                    f"The shape of the mask {list(part.shape)} at index {wrong} does not match the shape of the "
                    f"indexed tensor {list(shape)} at index {dim + wrong}"
                )
        dim += taken


def _sliced(x: Tensor, parts: Sequence[Any], whole_by: str) -> Tensor:
    """x[parts] for an index without arrays. Each part that has an effect makes a node, as in PyTorch. Where no part
    has an effect, the row `whole_by` makes one."""
    whole, dim, original = x, 0, 0
    if not x.array.ndim and len(parts) == 1 and isinstance(parts[0], int):
        raise IndexError(OF_A_NUMBER)
    if sum(part is not None for part in parts) > x.array.ndim:
        raise IndexError(_TOO_MANY.format(x.array.ndim))
    for part in parts:
        original += part is not None
        if part is None:
            x = apply(called(TABLE["unsqueeze"], "getitem", ("dim",)), (x,), (dim,))
        elif isinstance(part, slice):
            if (part.step or 1) < 0:
                raise ValueError("step must be greater than zero. Use torch.flip to turn a dimension around.")
            n = x.array.shape[dim]
            if part.indices(n) != (0, n, 1):
                x = apply(called(TABLE["index"], "getitem"), (x,), (at(dim, part),))
        else:
            n = x.array.shape[dim]
            if not -n <= part < n:
                raise IndexError(f"index {part} is out of bounds for dimension {original - 1} with size {n}")
            x = apply(called(TABLE["select"], "getitem"), (x,), (dim, part % n))
            continue
        dim += 1
    if x is not whole:
        return x
    return apply(called(TABLE[whole_by], "getitem"), (x,), (tuple(parts),) if whole_by == "index" else ())


def _sliced_first(x: Tensor, parts: tuple) -> tuple[Tensor, tuple]:
    """x after the slices, integers and None of an index, and the rest of the index, which is arrays.

    PyTorch takes an integer beside a tensor as a selection. NumPy takes it as an array of one element."""
    parts = _without_ellipsis(parts, x.array.ndim)
    basic: list[Any] = []
    rest: list[Any] = []
    for part in parts:
        if isinstance(part, np.ndarray):
            basic += [slice(None)] * _consumed(part)
            rest.append(part)
        else:
            basic.append(part)
            if not isinstance(part, int):
                rest.append(slice(None))
    does_something = any(part != slice(None) for part in basic)
    return (_sliced(x, basic, "alias") if does_something else x), tuple(rest)


def _consumed(part: Any) -> int:
    """The number of dimensions that a part of an index stands for."""
    if part is None:
        return 0
    return part.ndim if isinstance(part, np.ndarray) and part.dtype.kind == "b" else 1


def _without_ellipsis(parts: tuple, ndim: int) -> tuple:
    at = next((i for i, part in enumerate(parts) if part is Ellipsis), None)
    if at is None:
        return parts
    taken = sum(_consumed(part) for part in parts if part is not Ellipsis)
    return (*parts[:at], *(slice(None),) * (ndim - taken), *parts[at + 1 :])


def tensors_of(index: Any) -> tuple[Tensor, ...]:
    """The tensors of an index that stand for several elements."""
    parts = index if isinstance(index, (tuple, list)) else (index,)
    return tuple(
        part for part in parts if isinstance(part, Tensor) and (part.array.ndim or part.array.dtype.kind == "b")
    )


def plain_index(index: Any) -> Any:
    """An index with arrays in the place of Tensors and lists."""
    if isinstance(index, tuple):
        return tuple(plain_index(part) for part in index)
    if isinstance(index, Tensor):
        return index.array if index.array.ndim or index.array.dtype.kind == "b" else int(index.array)
    if isinstance(index, (list, range)):
        return np.array([getattr(part, "array", part) for part in index], None if len(index) else np.int64)
    if isinstance(index, (bool, np.bool_)):
        return np.asarray(index)
    if isinstance(index, slice):
        return slice(*(None if i is None else int(i) for i in (index.start, index.stop, index.step)))
    return index


def places(shape: tuple[int, ...], index: Any) -> Any:
    """The index for NumPy that means what `index` means for PyTorch."""
    index = plain_index(index)
    parts = index if isinstance(index, tuple) else (index,)
    arrays = any(isinstance(part, np.ndarray) for part in parts)
    if not (arrays and any(isinstance(part, int) or part is None for part in parts)):
        return index
    numbers = new_tensor(np.arange(int(np.prod(shape))).reshape(shape))
    return np.unravel_index(getitem(numbers, index).array, shape)


def put_back(x: Tensor, shape: tuple, index: Any) -> Tensor:
    """Zeros of `shape`, with `x` added at `index`."""
    return apply(TABLE["put_back"], (x,), (shape, plain_index(index)))


def _index(index: Tensor) -> np.ndarray:
    if index.array.dtype.kind not in "iu":
        raise RuntimeError(f"expected an index of dtype int64, got {index.dtype}")
    return index.array


def _checked_places(
    x: Tensor,
    dim: int,
    index: Tensor,
    said: str = "index {wrong} is out of bounds for dimension {dim} with size {n}",
    error: type[Exception] = RuntimeError,
) -> tuple[int, np.ndarray]:
    """`dim` counted from the front, and the index as an array. Raises RuntimeError for an index outside of x,
    negative ones included, as PyTorch does."""
    dim, array = checked_dim(dim, x.array.ndim), _index(index)
    n = x.array.shape[dim] if x.array.ndim else 1
    if array.size and not (array.min() >= 0 and array.max() < n):
        wrong = array.min() if array.min() < 0 else array.max()
        raise error(said.format(wrong=wrong, dim=dim, n=n))
    return dim, array


def _check_index_dims(x: Tensor, index: Tensor, called: str) -> None:
    """Raise RuntimeError where an index has another number of dimensions than x. `called` is PyTorch's name for x."""
    if index.array.size and x.array.ndim and index.array.ndim and index.array.ndim != x.array.ndim:
        raise RuntimeError(f"Index tensor must have the same number of dimensions as {called} tensor")


def gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """For each element of `index`, the element of x at that index along `dim` and at the same place otherwise.

    The result has the shape of `index`, which is an integer tensor with as many dimensions as x."""
    _check_index_dims(x, index, "input")
    return apply(TABLE["gather"], (x,), _checked_places(x, dim, index), (index,))


def take_along_dim(x: Tensor, indices: Tensor, dim: Any = None) -> Tensor:
    """`gather` of x and `indices`, broadcast to each other. Without `dim` both are flattened."""
    if dim is None:
        return take_along_dim(flatten(x), reshape(indices, -1), 0)
    dim = checked_dim(dim, x.array.ndim)
    a, b = list(x.array.shape), list(indices.array.shape)
    a[dim] = b[dim] = 1
    shape = list(broadcast_shape(a, b))
    full = [[*shape[:dim], t.array.shape[dim], *shape[dim + 1 :]] for t in (x, indices)]
    array = np.broadcast_to(_index(indices), full[1])
    n = full[0][dim]
    return gather(expand(x, *full[0]), dim, new_tensor(np.where(array < 0, array + n, array)))


def _checked_source(key: str, x: Tensor, dim: int, index: Tensor, src: Tensor) -> tuple[int, np.ndarray]:
    """`_checked_places`, for elements that come from `src`. Raises RuntimeError where `src` is too small or of
    another dtype."""
    if src.array.ndim != index.array.ndim:
        raise RuntimeError(f"{key}(): Expected src and index to have the same number of dimensions")
    if src.array.dtype != x.array.dtype:
        raise RuntimeError("scatter(): Expected self.dtype to be equal to src.dtype")
    _check_index_dims(x, index, "self")
    if index.array.size and x.array.ndim and index.array.ndim:
        along = checked_dim(dim, x.array.ndim)
        sizes = zip(index.array.shape, x.array.shape, src.array.shape, strict=True)
        if any(n > theirs or (n > ours and d != along) for d, (n, ours, theirs) in enumerate(sizes)):
            raise RuntimeError(
                f"Expected index {list(index.array.shape)} to be no larger than self {list(x.array.shape)} apart from "
                f"dimension {along} and to be no larger size than src {list(src.array.shape)}"
            )
    return _checked_places(x, dim, index)


def _scatter(key: str) -> Callable:
    def call(x: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: Any = None) -> Tensor:
        if reduce is not None:
            raise NotImplementedError(f"gradviz does not support {key} with reduce={reduce!r}")
        src = value if src is None else src
        if isinstance(src, Tensor):
            return apply(TABLE[key], (x, src), _checked_source(key, x, dim, index, src), (index,))
        places = _checked_places(x, dim, index)
        if key == "scatter":
            _check_index_dims(x, index, "self")
            return apply(TABLE["scatter_number"], (x,), (src, *places), (index,))
        raise TypeError(f"{key}(): src must be a Tensor, not {type(src).__name__}")

    call.__name__ = key
    call.__doc__ = f"{key}: the elements of `src` at the places along `dim` that `index` names."
    return call


scatter, scatter_add = _scatter("scatter"), _scatter("scatter_add")


def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """x, combined with the elements of `src` where `index` names along `dim`: by sum, prod, mean, amax or amin.

    Without `include_self`, the elements of x do not count where others are brought in."""
    if reduce not in REDUCTIONS:
        raise RuntimeError(f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}")
    places = _checked_source("scatter_reduce", x, dim, index, src)
    return apply(TABLE["scatter_reduce"], (x, src), (*places, reduce, include_self), (index,))


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices of x along `dim` at the indices in `index`, which has one dimension."""
    if not x.array.ndim and index.array.size != 1:
        raise RuntimeError(f"index_select(): Index to scalar can have only 1 value, got {index.array.size} value(s)")
    places = _checked_places(x, dim, index, "index out of range in self", IndexError)
    return apply(TABLE["index_select"], (x,), places, (index,))


def _types(*tensors: Tensor) -> list[str]:
    return [scalar_type_name(tensor.array.dtype) for tensor in tensors]


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    """x with slices of `source`, times `alpha`, added at the indices in `index` along `dim`."""
    dim, places = _checked_places(x, dim, index)
    if x.array.ndim and source.array.ndim:
        ours, theirs = list(x.array.shape), list(source.array.shape)
        if ours[:dim] + ours[dim + 1 :] != theirs[:dim] + theirs[dim + 1 :] or len(ours) != len(theirs):
            raise RuntimeError(
                "source tensor shape must match self tensor shape, excluding the specified dimension. Got self.shape = "
                f"{ours} source.shape = {theirs}"
            )
        if places.size != theirs[dim]:
            raise RuntimeError(
                f"index_add_(): Number of indices ({places.size}) should be equal to source.size(dim): "
                f"({theirs[dim]}), for dim: {dim}"
            )
    if x.array.dtype != source.array.dtype:
        own, given = _types(x, source)
        raise RuntimeError(f"index_add_(): self ({own}) and source ({given}) must have the same scalar type")
    return apply(TABLE["index_add"], (x, source), (dim, places, alpha), (index,))


def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """x with slices of `source` at the indices in `index` along `dim`."""
    if x.array.dtype != source.array.dtype:
        own, given = _types(x, source)
        raise RuntimeError(
            f"index_copy_(): self and source expected to have the same dtype, but got (self) {own} and (source) {given}"
        )
    return apply(TABLE["index_copy"], (x, source), _checked_places(x, dim, index), (index,))


def index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """x with `value`, a number or a 0-d tensor, at the indices in `index` along `dim`."""
    places = _checked_places(x, dim, index)
    if isinstance(value, Tensor):
        return apply(TABLE["index_fill"], (x, _scalar(value)), places, (index,))
    return apply(TABLE["index_fill_number"], (x,), (value, *places), (index,))


def _scalar(value: Tensor) -> Tensor:
    if value.array.ndim:
        raise RuntimeError(f"expected a value of 0 dimensions, got a tensor of {value.array.ndim}")
    return value


def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """x with `value`, a number or a 0-d tensor, where the bool tensor `mask` is True."""
    broadcast_shape(mask.array.shape, x.array.shape)
    if isinstance(value, Tensor):
        return apply(TABLE["masked_fill"], (x, _scalar(value)), (_mask(mask),), (mask,))
    return apply(TABLE["masked_fill_number"], (x,), (value, _mask(mask)), (mask,))


def _mask(mask: Tensor) -> np.ndarray:
    if mask.array.dtype.kind != "b":
        raise RuntimeError(f"expected a mask of dtype torch.bool, got {mask.dtype}")
    return mask.array


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """The elements of x where `mask` is True, in one dimension."""
    shape = broadcast_shape(mask.array.shape, x.array.shape)
    return apply(TABLE["masked_select"], (x,), (np.broadcast_to(_mask(mask), shape),), (mask,))


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """x with the elements of `source`, in order, where `mask` is True."""
    shape = broadcast_shape(mask.array.shape, x.array.shape)
    if source.array.size < np.count_nonzero(np.broadcast_to(mask.array, shape)):
        raise RuntimeError("Number of elements of source < number of ones in mask")
    x = x if x.array.shape == shape else expand(x, *shape)
    return apply(TABLE["masked_scatter"], (x, source), (np.broadcast_to(_mask(mask), shape),), (mask,))


def take(x: Tensor, index: Tensor) -> Tensor:
    """The elements of x at flat indices, in the shape of `index`."""
    return apply(TABLE["take"], (x,), (_index(index),), (index,))


def index_put(x: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    """x with `values` put (or with `accumulate` added) at x[indices]."""
    index = places(x.array.shape, tuple(slice(None) if part is None else part for part in indices))
    key = "index_put_added" if accumulate else "index_put"
    return apply(TABLE[key], (x, values), (index,), tensors_of(indices))


def _with_slice(key: str, x: Tensor, source: Tensor, index: tuple) -> Tensor:
    if x.array[index].shape != source.array.shape:
        raise RuntimeError(
            f"expected src to have a size equal to the slice of self. src size = {list(source.shape)}, "
            f"slice size = {list(x.array[index].shape)}"
        )
    return apply(TABLE[key], (x, source), (index,))


def select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """x with `src` as its slice `index` along `dim`."""
    return _with_slice("select_scatter", x, src, at(checked_dim(dim, x.array.ndim), index))


def slice_scatter(x: Tensor, src: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    """x with `src` at the slice start:end:step along `dim`."""
    return _with_slice("slice_scatter", x, src, at(checked_dim(dim, x.array.ndim), slice(start, end, step)))
