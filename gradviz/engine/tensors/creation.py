"""Creating tensors: from data, filled, random.

`dtype=None` takes the dtype from the data, or the default dtype. `device` has to be the CPU: RuntimeError is raised
for another device. `requires_grad=True` raises RuntimeError for a dtype that is not floating point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradviz.engine.basics.devices import on_the_cpu
from gradviz.engine.basics.dtypes import complex_of, default_dtype, float64, to_numpy
from gradviz.engine.core.tensor import LEAF_EDGE, Tensor, announce, new_tensor
from gradviz.engine.rng import distributions
from gradviz.engine.rng.generator import drawing_from
from gradviz.engine.table.ops import sizes, to


def made(array: Any, how: str, requires_grad: bool = False) -> Tensor:
    """A new leaf on the memory of `array`. The listener hears of it; `how` says what made it."""
    tensor = new_tensor(np.asarray(array))
    if requires_grad:
        if tensor.array.dtype.kind not in "fc":
            raise RuntimeError(
                "Only Tensors of floating point and complex dtype can require gradients. "
                f"This one is {tensor.dtype}: write 1.0 for 1, or give dtype=."
            )
        tensor._edge = LEAF_EDGE
    announce(tensor, how)
    return tensor


def array_of(data: Any, dtype: Any = None) -> np.ndarray:
    """A new array of `data`. Python floats get the default dtype. Raises ValueError for what is not numbers of equal
    shape."""
    if isinstance(data, Tensor):
        data = data.array
    _check_equal_lengths(data)
    if dtype is not None:
        return np.array(_without_tensors(data), to_numpy(dtype))
    if isinstance(data, (np.ndarray, np.generic)):
        return np.array(data)
    array = np.array(_without_tensors(data))
    if array.dtype.kind not in "fciub":
        raise ValueError(f"could not make a tensor of {data!r}: its elements are not numbers of equal shape")
    if array.dtype.kind == "c":
        return array.astype(complex_of(default_dtype()))
    return array.astype(default_dtype()) if array.dtype == float64 or array.size == 0 else array


def _check_equal_lengths(data: Any) -> None:
    """Raise ValueError where nested lists differ in length."""
    level, dim = [data], 0
    while level and all(isinstance(part, (list, tuple)) for part in level):
        if (wrong := next((part for part in level if len(part) != len(level[0])), None)) is not None:
            raise ValueError(f"expected sequence of length {len(level[0])} at dim {dim} (got {len(wrong)})")
        level, dim = [part for parts in level for part in parts], dim + 1


def _without_tensors(data: Any) -> Any:
    if isinstance(data, Tensor):
        return data.array
    return [_without_tensors(part) for part in data] if isinstance(data, (list, tuple)) else data


def tensor(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A leaf with a copy of `data`: a number, nested lists, an array or a tensor."""
    return made(array_of(data, dtype), "tensor", requires_grad)


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """`data` as a tensor. Where it is a tensor or an array of that dtype, memory is shared."""
    if isinstance(data, Tensor):
        return data if dtype is None else to(data, dtype)
    if isinstance(data, np.ndarray) and (dtype is None or to_numpy(dtype) == data.dtype):
        return from_numpy(data)
    return tensor(data, dtype=dtype)


def from_numpy(array: np.ndarray) -> Tensor:
    """A tensor on the memory of an array. Raises TypeError for anything else."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
    return made(array, "from_numpy")


def legacy_tensor(*args: Any) -> Tensor:
    """`torch.Tensor(...)`: data in the default dtype, or zeros of the given sizes (uninitialized in PyTorch)."""
    if args and all(isinstance(arg, int) for arg in args):
        return made(np.zeros(args, default_dtype()), "Tensor")
    if len(args) > 1:
        raise TypeError("Tensor() takes sizes, or one sequence of data")
    return made(array_of(args[0] if args else [], default_dtype()), "Tensor")


def _full(name: str, fill: Callable[[tuple, np.dtype], np.ndarray]) -> Callable:
    def create(
        *size: Any, generator: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False
    ) -> Tensor:
        kind = default_dtype() if dtype is None else to_numpy(dtype)
        shape = sizes(size)
        if min(shape, default=0) < 0:
            wrong = f"Trying to create tensor with negative dimension {min(shape)}: {list(shape)}"
            raise RuntimeError("zeros: Dimension size must be non-negative." if name == "zeros" else wrong)
        with drawing_from(generator):
            return made(fill(shape, kind), name, requires_grad)

    create.__name__ = name
    create.__doc__ = f"A tensor of the given sizes: {name}."
    return create


def _like(name: str, fill: Callable[[tuple, np.dtype], np.ndarray]) -> Callable:
    def create(x: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        kind = x.array.dtype if dtype is None else to_numpy(dtype)
        return made(fill(x.array.shape, kind), f"{name}_like", requires_grad)

    create.__name__ = f"{name}_like"
    create.__doc__ = f"A tensor of the sizes and dtype of x: {name}."
    return create


_FILLS: dict[str, Callable[[tuple, np.dtype], np.ndarray]] = {
    "ones": lambda size, kind: np.ones(size, kind),
    "zeros": lambda size, kind: np.zeros(size, kind),
    "empty": lambda size, kind: np.zeros(size, kind),
    "rand": lambda size, kind: distributions.uniform(size, kind),
    "randn": lambda size, kind: distributions.normal(size, kind),
}

ones, zeros, empty, rand, randn = (_full(name, fill) for name, fill in _FILLS.items())
ones_like, zeros_like, empty_like, rand_like, randn_like = (_like(n, fill) for n, fill in _FILLS.items())


def full(size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of the given sizes, filled with one value."""
    array = np.full(sizes((size,)), fill_value, None if dtype is None else to_numpy(dtype))
    return made(array_of(array.tolist(), dtype) if dtype is None else array, "full", requires_grad)


def full_like(
    x: Tensor, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of the sizes and dtype of x, filled with one value."""
    kind = x.array.dtype if dtype is None else to_numpy(dtype)
    return made(np.full(x.array.shape, fill_value, kind), "full_like", requires_grad)


def arange(
    *bounds: Any,
    start: Any = 0,
    end: Any = None,
    step: Any = 1,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """The numbers start, start + step, ... below end, in one dimension. Raises RuntimeError for a step of 0."""
    if len(bounds) == 1:
        start, end = (start, bounds[0]) if end is None else (bounds[0], end)
    elif bounds:
        start, end, step = (*bounds, step)[:3]
    if end is None:
        raise TypeError("arange() needs an end")
    start, end, step = (value.item() if isinstance(value, Tensor) else value for value in (start, end, step))
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if (end - start) * step < 0:
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    n = int(np.ceil((end - start) / step))
    array = start + np.arange(n) * step
    if dtype is not None:
        array = array.astype(to_numpy(dtype))
    elif any(isinstance(value, float) for value in (start, end, step)):
        array = array.astype(default_dtype())
    return made(array, "arange", requires_grad)


def _between(name: str, start: Any, end: Any, steps: int, make: Callable, dtype: Any, requires_grad: bool) -> Tensor:
    if any(isinstance(bound, Tensor) and bound.array.ndim for bound in (start, end)):
        raise RuntimeError(f"{name} only supports 0-dimensional start and end tensors")
    if steps < 0:
        raise RuntimeError("number of steps must be non-negative")
    kind = default_dtype() if dtype is None else to_numpy(dtype)
    array = make(float(start), float(end), steps)
    return made((np.trunc(array) if kind.kind in "iu" else array).astype(kind), name, requires_grad)


def linspace(
    start: Any, end: Any, steps: int, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """`steps` evenly spaced numbers from start to end, both included."""
    return _between("linspace", start, end, steps, np.linspace, dtype, requires_grad)


def logspace(
    start: Any,
    end: Any,
    steps: int,
    base: float = 10.0,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """base to the power of `steps` evenly spaced numbers from start to end, both included."""
    make = lambda low, high, n: float(base) ** np.linspace(low, high, n)
    return _between("logspace", start, end, steps, make, dtype, requires_grad)


def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A matrix (n, m) with 1 on the diagonal and 0 elsewhere. m is n by default."""
    kind = default_dtype() if dtype is None else to_numpy(dtype)
    return made(np.eye(n, m, dtype=kind), "eye", requires_grad)


def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """The row and column indices of the lower triangle of a matrix, of shape (2, n)."""
    array = np.stack(np.tril_indices(row, offset, col))
    return made(array.astype(np.int64 if dtype is None else to_numpy(dtype)), "tril_indices")


def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """The row and column indices of the upper triangle of a matrix, of shape (2, n)."""
    array = np.stack(np.triu_indices(row, offset, col))
    return made(array.astype(np.int64 if dtype is None else to_numpy(dtype)), "triu_indices")


def scalar_tensor(value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of no dimensions."""
    return made(
        np.asarray(value, default_dtype() if dtype is None else to_numpy(dtype)), "scalar_tensor", requires_grad
    )


def randint(
    low: int,
    high: Any = None,
    size: Any = None,
    *,
    generator: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Random integers from low (default 0) to high − 1, of the given size."""
    if size is None:
        low, high, size = 0, low, high
    with drawing_from(generator):
        array = distributions.integers(low, high, sizes((size,)))
    return made(array if dtype is None else array.astype(to_numpy(dtype)), "randint", requires_grad)


def randperm(n: int, *, generator: Any = None, dtype: Any = None, device: Any = None) -> Tensor:
    """A random permutation of the integers from 0 to n − 1."""
    with drawing_from(generator):
        order = distributions.permutation(n)
    return made(order if dtype is None else order.astype(to_numpy(dtype)), "randperm")


def Variable(data: Tensor, requires_grad: bool = False) -> Tensor:
    """The old form of a tensor with `requires_grad`: a leaf on the memory of `data`."""
    twin = new_tensor(data.array)
    twin._edge = LEAF_EDGE if requires_grad else None
    announce(twin, "Variable", data)
    return twin


def _new(name: str, create: Callable) -> Callable:
    """`x.new_zeros(...)` and the like: a tensor in the dtype of x."""

    def call(x: Tensor, *args: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        kind = x.array.dtype if dtype is None else dtype
        return create(*args, dtype=kind, requires_grad=requires_grad)

    call.__name__ = name
    call.__doc__ = f"A tensor in the dtype of x: {name}."
    return call


NEW_METHODS: dict[str, Callable] = {
    "new_zeros": _new("new_zeros", zeros),
    "new_ones": _new("new_ones", ones),
    "new_empty": _new("new_empty", empty),
    "new_full": _new("new_full", full),
    "new_tensor": _new("new_tensor", tensor),
}
for _name, _function in NEW_METHODS.items():
    setattr(Tensor, _name, _function)

for _name in (
    "tensor as_tensor ones zeros empty rand randn ones_like zeros_like empty_like rand_like randn_like full full_like "
    "arange linspace logspace eye tril_indices triu_indices scalar_tensor randperm randint"
).split():
    globals()[_name] = on_the_cpu(globals()[_name])
