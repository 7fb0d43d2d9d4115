"""A function of one element as a function of a batch. See PyTorch's `torch.vmap`.

The function runs once for each element, and the results are stacked. This is right for any function, but as slow as a
loop. Where speed matters, write operations on batches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from gradviz.engine.core.tensor import Tensor
from gradviz.engine.func.trees import leaves, rebuilt
from gradviz.engine.rng.generator import default_generator, refusing_to_draw
from gradviz.engine.table import ops

_NO_DRAWS = (
    "vmap: called random operation while in randomness error mode. Please either use the 'same' or 'different' "
    "randomness flags on vmap or perform the randomness operation out of vmap"
)


def vmap(
    func: Callable, in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error", *, chunk_size: int | None = None
) -> Callable:
    """Run `func` on the slices of its tensors along `in_dims`, and stack the results along `out_dims`.

    An argument whose entry in `in_dims` is None is passed as it is. With randomness "different" each element draws
    random numbers of its own, with "same" all draw the same, with "error" draws raise RuntimeError. Raises ValueError
    where dimensions do not fit the arguments."""
    name = getattr(func, "__name__", repr(func))

    @wraps(func)
    def over_batches(*args: Any, **kwargs: Any) -> Any:
        if randomness not in ("error", "different", "same"):
            raise RuntimeError(
                f"Only allowed values for randomness are 'error', 'different', or 'same'. Got {randomness}"
            )
        said = f"vmap({name}, in_dims={in_dims}, ...)(<inputs>)"
        if not isinstance(in_dims, (int, tuple, list)) or isinstance(in_dims, bool):
            raise ValueError(
                f"{said}: expected `in_dims` to be int or a (potentially nested) tuple matching the structure of "
                f"inputs, got: {type(in_dims)}."
            )
        inputs = (args, kwargs)
        tensors = leaves(inputs)
        dims = [*_spread(in_dims, args, f"{said}: in_dims is not compatible with the structure of `inputs`")]
        dims += [None] * (len(tensors) - len(dims))  # keyword arguments are passed as they are
        n = _size(tensors, dims, said)
        generator = default_generator
        start = (generator.bits.state, generator.next_normal)
        results = []
        with refusing_to_draw(_NO_DRAWS if randomness == "error" else ""):
            for i in range(n):
                if randomness == "same":
                    generator.bits.state, generator.next_normal = start
                part, words = _slices(inputs, tensors, dims, i)
                results.append(func(*part, **words))
        return _stacked(results, out_dims, name)

    return over_batches


def _spread(dims: Any, tree: Any, said: str) -> list[Any]:
    """A dimension for each leaf of a tree, from one dimension for all or from a tree that is a prefix of it."""
    if isinstance(dims, int) or dims is None:
        return [dims] * len(leaves(tree))
    if isinstance(dims, dict) and isinstance(tree, dict) and dims.keys() == tree.keys():
        return [dim for key in tree for dim in _spread(dims[key], tree[key], said)]
    if isinstance(dims, (tuple, list)) and isinstance(tree, (tuple, list)) and len(dims) == len(tree):
        return [dim for part, branch in zip(dims, tree, strict=True) for dim in _spread(part, branch, said)]
    raise ValueError(said)


def _size(tensors: list[Any], dims: list[Any], said: str) -> int:
    """The number of slices."""
    sizes = []
    for tensor, dim in zip(tensors, dims, strict=True):
        if dim is None:
            continue
        if not isinstance(tensor, Tensor):
            raise ValueError(
                f"{said}: Got in_dim={dim} for an input but the input is of type {type(tensor)}. We cannot vmap over "
                "non-Tensor arguments, please use None as the respective in_dim"
            )
        ndim = tensor.array.ndim
        if not -ndim <= dim < ndim:
            raise ValueError(
                f"{said}: Got in_dim={dim} for some input, but that input is a Tensor of dimensionality {ndim} so "
                f"expected in_dim to satisfy -{ndim} <= in_dim < {ndim}."
            )
        sizes.append(tensor.array.shape[dim])
    if not sizes:
        raise ValueError(f"{said}: at least one input must be mapped over")
    if len(set(sizes)) > 1:
        raise ValueError(
            f"vmap: Expected all tensors to have the same size in the mapped dimension, got sizes {sizes} for the "
            "mapped dimension"
        )
    return sizes[0]


def _slices(inputs: Any, tensors: list[Any], dims: list[Any], i: int) -> Any:
    taken = [x if dim is None else ops.select(x, dim, i) for x, dim in zip(tensors, dims, strict=True)]
    return rebuilt(inputs, taken)


def _stacked(results: list[Any], out_dims: Any, name: str) -> Any:
    """The results as one result: tensors are stacked along their dimension. Where that is None, the first stands for
    all."""
    if not results:
        raise ValueError(f"vmap({name}, ...): a batch without elements says nothing of what the results are like")
    said = f"vmap({name}, ..., out_dims={out_dims})(<inputs>)"
    dims = _spread(out_dims, results[0], f"{said}: out_dims is not compatible with the structure of `outputs`")
    columns = zip(*(leaves(result) for result in results), strict=True)
    stacked = []
    for dim, column in zip(dims, columns, strict=True):
        if dim is not None and not all(isinstance(each, Tensor) for each in column):
            raise ValueError(
                f"vmap({name}, ...): `{name}` must only return Tensors, got type {type(column[0])}. Did you mean to "
                "set out_dims= to None for output?"
            )
        stacked.append(column[0] if dim is None else ops.stack(list(column), dim))
    return rebuilt(results[0], stacked)
