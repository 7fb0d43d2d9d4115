"""The error messages for names that gradviz does not have. A message names a similar name that it has."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from gradviz.errors import nearest

_ELSEWHERE = ("", ".nn", ".nn.functional", ".optim", ".linalg", ".special", ".func", ".autograd")


def says_what_is_missing(module: str, names: dict[str, Any]) -> Callable[[str], Any]:
    """A `__getattr__` for the module `module` whose globals are `names`. It raises AttributeError with a helpful
    message."""

    def __getattr__(name: str) -> Any:
        message = f"module {module!r} has no attribute {name!r}"
        if not name.startswith("_"):
            message += _advice(name, names)
        raise AttributeError(message, name=None, obj=None)  # else Python adds a guess of its own

    return __getattr__


class Lacking:
    """A descriptor for an attribute that PyTorch's Tensor has and ours does not. Reading it raises AttributeError. Of a
    class, as a replay asks for each method that there may be, no similar name is looked for, which takes long.

    One `__getattr__` could serve all names, but in Python 3.11 it slows down the attributes that a class has."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            message = f"type object {owner.__name__!r} has no attribute {self.name!r} in gradviz"
            raise AttributeError(message, name=None, obj=None)
        message = f"{owner.__name__!r} object has no attribute {self.name!r} in gradviz"
        raise AttributeError(message + _advice(self.name, sorted(set(dir(owner)) - TENSOR_LACKS)), name=None, obj=None)


def _advice(name: str, names: Iterable[str]) -> str:
    for place in _ELSEWHERE:
        elsewhere = vars(sys.modules.get(f"gradviz.engine{place}") or object).get(name)
        if elsewhere is not None:
            return f"; there is gradviz.engine{place}.{name}"
    near = nearest(name, [other for other in names if not other.startswith("_")])
    return f"; the nearest is {near}" if near else ", nor one that is much like it"


TENSOR_LACKS = frozenset(
    (
        "apply_ as_strided_scatter as_subclass bfloat16 cauchy_ ccol_indices cdouble cfloat chalf cholesky "
        "cholesky_inverse cholesky_solve coalesce col_indices const_data_ptr crow_indices cuda dense_dim dequantize "
        "diagonal_scatter dim_order eig frexp geometric_ geqrf grad_dtype hardshrink hash_tensor histogram index "
        "index_reduce index_reduce_ indices int_repr ipu is_coalesced is_set_to istft layout log_normal_ lstsq lu "
        "lu_solve map2_ map_ matrix_exp module_load mtia narrow_copy new new_empty_strided nextafter nextafter_ "
        "nonzero_static orgqr ormqr pin_memory put put_ q_per_channel_axis q_per_channel_scales "
        "q_per_channel_zero_points q_scale q_zero_point qscheme record_stream reinforce renorm renorm_ resize resize_ "
        "resize_as resize_as_ resize_as_sparse_ row_indices set_ share_memory_ slice_inverse smm solve sparse_dim "
        "sparse_mask sparse_resize_ sparse_resize_and_clear_ sspaddmm stft storage storage_type svd symeig to_dense "
        "to_mkldnn to_padded_tensor to_sparse to_sparse_bsc to_sparse_bsr to_sparse_coo to_sparse_csc to_sparse_csr "
        "triangular_solve unsafe_split_with_sizes untyped_storage values volatile xpu"
    ).split()
)  # public names of PyTorch's Tensor
