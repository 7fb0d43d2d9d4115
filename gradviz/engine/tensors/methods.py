"""The methods and operators of Tensor. They are functions of other files, attached under PyTorch's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gradviz.engine.basics import devices
from gradviz.engine.basics.dtypes import BY_NAME
from gradviz.engine.basics.keywords import with_pytorchs_names
from gradviz.engine.basics.memory_format import contiguous_format, lies_in
from gradviz.engine.basics.missing import TENSOR_LACKS, Lacking
from gradviz.engine.core.apply import apply
from gradviz.engine.core.backward import backward_from
from gradviz.engine.core.op import called
from gradviz.engine.core.tensor import Tensor
from gradviz.engine.table import ops
from gradviz.engine.table.derivatives import TABLE
from gradviz.engine.table.kernels import strides_of
from gradviz.engine.tensors import questions
from gradviz.engine.tensors.creation import legacy_tensor
from gradviz.engine.tensors.inplace import in_place, setitem


def flipped(function: Callable) -> Callable:
    """The reflected form of an operator: `2 * x`."""
    return lambda x, y: function(y, x)


def _transposed(name: str) -> Callable:
    def call(x: Tensor) -> Tensor:
        if not x.array.ndim:
            return x
        if x.array.ndim == 1 or (name == "H" and x.array.ndim > 2):
            what = "matrices (2-D tensors)" if name == "H" else "matrices or batches of matrices"
            raise RuntimeError(f"tensor.{name} is only supported on {what}. Got {x.array.ndim}-D tensor.")
        op, args = ops.plan_of_transpose(x, -2, -1)
        return apply(called(op, name, op.args), (x,), args)

    return call


def _reversed(x: Tensor) -> Tensor:
    return apply(called(TABLE["permute"], "T", ("dims",)), (x,), (tuple(reversed(range(x.array.ndim))),))


def _size_like(function: Callable) -> Callable:
    return lambda x, other: function(x, *other.shape)


def _to(
    x: Tensor,
    *args: Any,
    dtype: Any = None,
    device: Any = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """x converted to a dtype (or the dtype of a tensor). The device has to be the CPU."""
    flags = [arg for arg in args if isinstance(arg, bool)]
    for arg in args:
        if isinstance(arg, Tensor):
            dtype = arg.dtype
        elif isinstance(arg, (str, devices.device)):
            device = arg
        elif not isinstance(arg, bool) and arg is not None:
            dtype = arg
    devices.check(device)
    return ops.to(x, x.dtype if dtype is None else dtype, memory_format, flags[1] if flags[1:] else copy)


def _cast(dtype: Any) -> Callable:
    return lambda x, memory_format=None: ops.to(x, dtype, memory_format)


def _rows(x: Tensor) -> Iterator[Tensor]:
    if x.array.ndim == 0:
        raise TypeError("iteration over a 0-d tensor")
    return iter(ops.unbind(x))


def _has(x: Tensor, element: Any) -> bool:
    if not isinstance(element, (Tensor, int, float, complex)):
        raise RuntimeError(f"Tensor.__contains__ only supports Tensor or scalar, but you passed in a {type(element)}.")
    return bool(ops.any(ops.plain["eq"](x, element)).array)


OPERATORS: dict[str, Callable] = {
    "__add__": ops.add,
    "__radd__": ops.add,
    "__sub__": ops.sub,
    "__rsub__": ops.rsub,
    "__mul__": ops.mul,
    "__rmul__": ops.mul,
    "__truediv__": ops.functions["div"],
    "__rtruediv__": ops.rdiv,
    "__pow__": ops.pow,
    "__rpow__": ops.rpow,
    "__matmul__": ops.matmul,
    "__rmatmul__": flipped(ops.matmul),
    "__neg__": ops.neg,
    "__pos__": lambda x: x,
    "__abs__": ops.abs_,
    "__getitem__": ops.getitem,
    "__setitem__": setitem,
    "__iter__": _rows,
    "__iadd__": in_place["add_"],
    "__isub__": in_place["sub_"],
    "__imul__": in_place["mul_"],
    "__itruediv__": in_place["div_"],
    "__ipow__": in_place["pow_"],
    "__ifloordiv__": in_place["floor_divide_"],
    "__imod__": in_place["remainder_"],
    "__iand__": in_place["bitwise_and_"],
    "__ior__": in_place["bitwise_or_"],
    "__ixor__": in_place["bitwise_xor_"],
    "__ilshift__": in_place["bitwise_left_shift_"],
    "__irshift__": in_place["bitwise_right_shift_"],
    "__eq__": ops.plain["eq"],
    "__ne__": ops.plain["ne"],
    "__lt__": ops.plain["lt"],
    "__le__": ops.plain["le"],
    "__gt__": ops.plain["gt"],
    "__ge__": ops.plain["ge"],
    "__and__": ops.plain["bitwise_and"],
    "__or__": ops.plain["bitwise_or"],
    "__xor__": ops.plain["bitwise_xor"],
    "__invert__": ops.plain["bitwise_not"],
    "__floordiv__": ops.floor_divide,
    "__mod__": ops.functions["remainder"],
    "__rmod__": flipped(ops.functions["remainder"]),
    "__rfloordiv__": flipped(ops.floor_divide),
    "__rand__": ops.plain["bitwise_and"],
    "__ror__": ops.plain["bitwise_or"],
    "__rxor__": ops.plain["bitwise_xor"],
    "__lshift__": ops.plain["bitwise_left_shift"],
    "__rshift__": ops.plain["bitwise_right_shift"],
    "__rlshift__": flipped(ops.plain["bitwise_left_shift"]),
    "__rrshift__": flipped(ops.plain["bitwise_right_shift"]),
    "__contains__": _has,
    "__reversed__": lambda x: ops.flip(x, 0) if x.array.ndim else x,
}

# Functions that are methods too: `torch.f(x, ...)` and `x.f(...)`.
_SHARED = """
    addcdiv addcmul clamp clamp_max clamp_min div float_power ldexp lerp logit mvlgamma nan_to_num pow round square
    true_divide positive conj conj_physical resolve_conj resolve_neg view_as_real
    all amax amin aminmax any argmax argmin argsort count_nonzero cummax cummin cumprod cumsum dist kthvalue
    log_softmax logcumsumexp logsumexp max mean median min msort nanmean nansum norm prod softmax sort std sum topk
    unique var
    addbmm addmm addmv addr baddbmm bmm cross det dot ger inner inverse kron logdet matmul matrix_power mm mv outer
    qr slogdet tensordot trace vdot
    as_strided broadcast_to chunk clone diag diag_embed diagflat diagonal dsplit expand flatten flip fliplr flipud
    hsplit
    moveaxis movedim narrow permute ravel repeat_interleave reshape roll rot90 select split split_with_sizes squeeze
    swapaxes swapdims t tensor_split tile transpose tril triu unbind unflatten unsafe_chunk unsafe_split unsqueeze
    vsplit
    gather index_add index_copy index_fill index_put index_select masked_fill masked_scatter masked_select
    scatter scatter_add scatter_reduce select_scatter slice_scatter take take_along_dim
    allclose argwhere bincount diff equal isclose isin nonzero
""".split()

# Functions that are no methods, or are methods with other arguments.
FUNCTIONS: dict[str, Callable] = {
    name: with_pytorchs_names(getattr(ops, name))
    for name in """
    cat concat concatenate stack hstack vstack row_stack dstack column_stack block_diag atleast_1d atleast_2d
    atleast_3d meshgrid broadcast_tensors einsum where std_mean var_mean trapezoid trapz polygamma bucketize
    real imag searchsorted rsub constant_pad_nd cdist cumulative_trapezoid cartesian_prod combinations
    """.split()
}

_ALIASES = {
    "absolute": "abs", "negative": "neg", "multiply": "mul", "divide": "div", "arccos": "acos", "arccosh": "acosh",
    "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh", "clip": "clamp",
    "fix": "trunc", "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne",
    "special_expit": "sigmoid",
}  # fmt: skip

METHODS: dict[str, Callable] = {
    **{name: f for name, f in ops.functions.items() if not name.startswith("special_")},
    **ops.plain,
    **in_place,
    **{name: getattr(ops, name) for name in _SHARED},
    "add": ops.add_with_alpha,
    "sub": ops.sub_with_alpha,
    "subtract": ops.sub_with_alpha,
    "view": ops.view,
    "repeat": ops.repeat,
    "unfold": ops.unfold,
    "sum_to_size": ops.sum_to_size,
    "contiguous": ops.contiguous,
    "view_as": _size_like(ops.view),
    "reshape_as": _size_like(ops.reshape),
    "expand_as": _size_like(ops.expand),
    "astype": ops.to,  # rules use NumPy's name
    "to": _to,
    "cpu": lambda x: x,
    "type_as": lambda x, other: ops.to(x, other.dtype),
    "where": lambda x, condition, other: ops.where(condition, x, other),
    "quantile": ops.quantile,
    "nanquantile": ops.nanquantile,
    "mode": ops.mode,
    "histc": ops.histc,
    "unique_consecutive": ops.unique_consecutive,
    "cov": ops.cov,
    "corrcoef": ops.corrcoef,
    "nanmedian": ops.nanmedian,
    "pinverse": lambda x, rcond=1e-15: ops.pinv(x, rtol=rcond),
    "element_size": lambda x: x.array.itemsize,
    "ndimension": lambda x: x.array.ndim,
    "stride": lambda x, dim=None: strides_of(x.array) if dim is None else strides_of(x.array)[dim],
    "polygamma": lambda x, n: ops.polygamma(n, x),
    "adjoint": lambda x: ops.transpose(x, -2, -1),
    "is_floating_point": lambda x: x.array.dtype.kind == "f",
    "is_contiguous": lambda x, memory_format=contiguous_format: lies_in(x.array, memory_format),
    "data_ptr": lambda x: x.array.ctypes.data,
    **questions.METHODS,
    **{name: _cast(BY_NAME[name]) for name in ("float", "double", "half", "long", "int", "bool", "short")},
    "char": _cast(BY_NAME["int8"]),
    "byte": _cast(BY_NAME["uint8"]),
}
METHODS = {name: with_pytorchs_names(function) for name, function in METHODS.items()}
METHODS |= {alias: METHODS[name] for alias, name in _ALIASES.items() if name in METHODS}
METHODS |= {f"{alias}_": in_place[f"{name}_"] for alias, name in _ALIASES.items() if f"{name}_" in in_place}

KINDS_THERE_ARE_NOT = "cuda ipu maia meta mkldnn mps mtia nested quantized sparse sparse_csr vulkan xla xpu"
PROPERTIES: dict[str, Callable] = {
    "T": _reversed,
    "H": _transposed("H"),
    "mH": _transposed("mH"),
    "mT": _transposed("mT"),
    "real": ops.real,
    "imag": ops.imag,
    "is_cpu": lambda x: True,
    **{f"is_{kind}": lambda x: False for kind in KINDS_THERE_ARE_NOT.split()},
    "itemsize": lambda x: x.array.itemsize,
    "nbytes": lambda x: x.array.nbytes,
}


def attach() -> None:
    """Give Tensor its methods."""
    for name, function in {**METHODS, **OPERATORS}.items():
        setattr(Tensor, name, function)
    for name, getter in PROPERTIES.items():
        setattr(Tensor, name, property(getter))
    Tensor.__new__ = staticmethod(lambda cls, *args, **kwargs: legacy_tensor(*args, **kwargs))  # type: ignore[assignment]
    Tensor.backward = backward_from  # type: ignore[assignment, method-assign]
    Tensor.detach = ops.detach  # type: ignore[assignment]
    for name in TENSOR_LACKS:
        setattr(Tensor, name, Lacking(name))


attach()
