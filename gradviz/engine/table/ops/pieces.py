"""Parts of a tensor: slices and pieces along a dimension."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from gradviz.engine.core.apply import apply
from gradviz.engine.core.op import called, with_outputs
from gradviz.engine.core.tensor import Tensor
from gradviz.engine.table.derivatives import TABLE
from gradviz.engine.table.kernels import at
from gradviz.engine.table.ops.reductions import checked_dim


def narrow(x: Tensor, dim: int, start: Any, length: int) -> Tensor:
    """`length` slices of x along `dim`, from index `start` on."""
    if not x.array.ndim:
        raise RuntimeError("narrow() cannot be applied to a 0-dim tensor.")
    dim = checked_dim(dim, x.array.ndim)
    n = x.array.shape[dim]
    start = int(start)
    start = start + n if start < 0 else start
    if start + length > n:
        raise RuntimeError(f"start ({start}) + length ({length}) exceeds dimension size ({n}).")
    return apply(TABLE["index"], (x,), (at(dim, slice(start, start + length)),))


def select(x: Tensor, dim: int, index: Any) -> Tensor:
    """The slice of x at `index` along `dim`. The dimension goes away."""
    dim = checked_dim(dim, x.array.ndim)
    n, index = x.array.shape[dim], int(index)
    if not -n <= index < n:
        raise IndexError(f"select(): index {index} out of range for tensor of size {list(x.shape)} at dimension {dim}")
    return apply(TABLE["select"], (x,), (dim, index % n))


def _check_has_dims(name: str, x: Tensor) -> None:
    if not x.array.ndim:
        raise RuntimeError(f"{name} expects at least a 1-dimensional tensor")


def split(x: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """x split along `dim` into pieces of a given size, or of the given sizes."""
    if isinstance(split_size_or_sections, (tuple, list)):
        return _given_pieces("split", x, split_size_or_sections, dim)
    return _equal_pieces("split", x, split_size_or_sections, dim)


def unsafe_split(x: Tensor, split_size_or_sections: int, dim: int = 0) -> tuple[Tensor, ...]:
    """`split` whose pieces are no views for autograd."""
    return _equal_pieces("unsafe_split", x, split_size_or_sections, dim)


def _equal_pieces(key: str, x: Tensor, size: int, dim: int, name: str = "") -> tuple[Tensor, ...]:
    _check_has_dims("split", x)
    dim = checked_dim(dim, x.array.ndim)
    n = x.array.shape[dim]
    if size == 0 and n:
        raise RuntimeError(f"split_size can only be 0 if dimension size is 0, but got dimension size of {n}")
    parts = tuple(min(size, n - start) for start in range(0, n, size)) if n else (0,)
    op = with_outputs(TABLE[key], len(parts))
    return _pieces(apply(called(op, name, ("sizes",)) if name else op, (x,), (parts, dim)))


def split_with_sizes(x: Tensor, split_sizes: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """x split along `dim` into pieces of the given sizes."""
    return _given_pieces("split_with_sizes", x, split_sizes, dim)


def _given_pieces(name: str, x: Tensor, split_sizes: Any, dim: int) -> tuple[Tensor, ...]:
    parts, dim = tuple(split_sizes), checked_dim(dim, x.array.ndim)
    if sum(parts) != x.array.shape[dim]:
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {x.array.shape[dim]} "
            f"(input tensor's size at dimension {dim}), but got split_sizes={list(parts)}"
        )
    op = with_outputs(TABLE["split_with_sizes"], len(parts))
    return _pieces(apply(called(op, name), (x,), (parts, dim)))


def _pieces(outputs: Any) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """x split along `dim` into at most `chunks` pieces. The last piece may be smaller."""
    return _chunked("split", "chunk", x, chunks, dim)


def unsafe_chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """`chunk` whose pieces are no views for autograd."""
    return _chunked("unsafe_split", "unsafe_chunk", x, chunks, dim)


def _chunked(key: str, name: str, x: Tensor, chunks: int, dim: int) -> tuple[Tensor, ...]:
    _check_has_dims("chunk", x)
    n = x.array.shape[checked_dim(dim, x.array.ndim)]
    if chunks <= 0:
        raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    if not n:
        return _given_pieces(name, x, (0,) * chunks, dim)
    return _equal_pieces(key, x, -(-n // chunks), dim, name)


def tensor_split(x: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """x split along `dim` at the given indices, or into a number of pieces that are as equal as possible."""
    if not x.array.ndim:
        raise RuntimeError("tensor_split expected at least a 1-dimensional tensor, but got a tensor with 0 dims")
    dim = checked_dim(dim, x.array.ndim)
    n, where = x.array.shape[dim], indices_or_sections
    if isinstance(where, Tensor):
        where = where.array.tolist()
    if isinstance(where, int):
        where = [i * (n // where) + min(i, n % where) for i in range(1, where)]
    cuts = [0, *where, n]
    return tuple(apply(TABLE["index"], (x,), (at(dim, slice(start, end)),)) for start, end in pairwise(cuts))


def _split_along(name: str, dim: int, least: int) -> Any:
    def call(x: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
        if x.array.ndim < least:
            raise RuntimeError(f"torch.{name} requires a tensor with at least {least} dimension")
        return tensor_split(x, indices_or_sections, 0 if x.array.ndim == 1 else dim)

    call.__name__ = name
    call.__doc__ = f"x cut along dimension {dim}."
    return call


hsplit, vsplit, dsplit = (
    _split_along(name, dim, least) for name, dim, least in [("hsplit", 1, 1), ("vsplit", 0, 2), ("dsplit", 2, 3)]
)


def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The slices of x along `dim`, as a tuple. The dimension goes away."""
    if not x.array.ndim:
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    dim = checked_dim(dim, x.array.ndim)
    n = x.array.shape[dim]
    return _pieces(apply(with_outputs(TABLE["unbind"], n), (x,), (dim,))) if n else ()
