"""The sorts of calls that a program makes of PyTorch, by name: ops, makers of tensors, and all others."""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

import torch

# The recorder's work for a call: it runs up to its `yield` before the call, and receives the result there. So a fault
# of ours, before or after the call, cannot be confused with an exception of the call, and the call runs exactly once.
Steps = Generator[None, Any, None]
# the function, its name, its arguments, the calling frame
Way = Callable[[Any, str, Any, Any, FrameType], Steps]

OP, PASS, MAKER, DATA, SET_DATA, SET_GRAD, SET_REQUIRES_GRAD = (
    "op", "pass", "maker", "data", "set data", "set grad", "set requires grad",
)  # fmt: skip
REQUIRE, RETAIN, HOOK, MAKE_DUAL, LINEAR, FILL, GET_GRAD, EXCHANGE, READ = (
    "require", "retain", "hook", "make dual", "linear", "fill", "get grad", "exchange", "read",
)  # fmt: skip

# Attributes whose value is the result of an op; all others only describe the tensor.
_COMPUTED = {"T", "mT", "H", "mH", "real", "imag"}
_GETTERS = {"data": DATA, "grad": GET_GRAD}
_SETTERS = {"data": SET_DATA, "grad": SET_GRAD, "requires_grad": SET_REQUIRES_GRAD}

_NO_OPS = """
    __complex__ __contains__ __dlpack__ __dlpack_device__ __format__ __hash__ __len__ __reduce_ex__ __repr__
    __setstate__ _is_view _record_function_enter_new _record_function_exit
    _set_grad_enabled _unpack_dual _version allclose backward data_ptr dense_dim device dim dim_order dtype element_size
    equal get_device grad has_names is_coalesced is_complex is_conj is_contiguous is_distributed is_floating_point
    is_inference is_neg is_nonzero is_pinned is_same_size is_set_to is_shared is_signed is_sparse is_storage is_tensor
    layout ndimension nelement new_empty_strided numel offset q_scale q_zero_point record_stream
    register_post_accumulate_grad_hook result_type share_memory_ size sparse_dim storage storage_offset
    storage_type stride type_as_storage unsafe_storage untyped_storage
""".split()
_MAKERS = """
    arange as_tensor bartlett_window blackman_window complex32 empty empty_like empty_permuted empty_strided eye
    from_dlpack from_file frombuffer full full_like hamming_window hann_window kaiser_window linspace logspace new_empty
    new_full new_ones new_tensor new_zeros normal ones ones_like rand rand_like randint randint_like randn randn_like
    randperm scalar_tensor tensor tril_indices triu_indices zeros zeros_like __deepcopy__
""".split()
_FILLERS = """
    constant_ dirac_ eye_ kaiming_normal_ kaiming_uniform_ normal_ ones_ orthogonal_ sparse_ trunc_normal_ uniform_
    xavier_normal_ xavier_uniform_ zeros_
""".split()
# The functions that read numbers out of a tensor, with the names that the program has for them.
READS = {
    "item": "item", "tolist": "tolist", "numpy": "numpy", "__array__": "numpy", "__float__": "float", "__int__": "int",
    "__index__": "int", "__bool__": "bool",
}  # fmt: skip
_EXCHANGES = {"isend": "send", "irecv": "recv"}  # what they begin
_SORTS: dict[str, str] = {
    **dict.fromkeys(_NO_OPS, PASS),
    **dict.fromkeys(_MAKERS, MAKER),
    **dict.fromkeys(READS, READ),
    "requires_grad_": REQUIRE,
    "detach_": REQUIRE,
    "retain_grad": RETAIN,
    "register_hook": HOOK,
    "_make_dual": MAKE_DUAL,
    "linear": LINEAR,
}


def finish(steps: Steps, result: Any) -> None:
    """Run the steps after the call."""
    with suppress(StopIteration):
        steps.send(result)


# The names of ops where PyTorch's function has another name.
NAMES = {
    "__getitem__": "getitem", "__setitem__": "setitem", "__rsub__": "rsub", "__rdiv__": "rdiv", "__rtruediv__": "rdiv",
    "__rpow__": "rpow", "__rmatmul__": "matmul", "__matmul__": "matmul", "__radd__": "add", "__rmul__": "mul",
    "__and__": "bitwise_and", "__or__": "bitwise_or", "__xor__": "bitwise_xor", "__invert__": "bitwise_not",
    "norm": "vector_norm",
}  # fmt: skip
# Ops that write to the tensors of their first argument, return nothing, and count no version.
UNCOUNTED = {"_amp_foreach_non_finite_check_and_unscale_"}
# Functions of several tensors that return each tensor as it is, if there is nothing to do.
PASSING_ON = {"broadcast_tensors", "atleast_1d", "atleast_2d", "atleast_3d", "align_tensors"}
# Ops whose result shares the memory of their input without being a view known to autograd.
ALIASES = {"detach", "data", "view_as_real", "_make_dual"}


def sort_of(func: Any) -> tuple[str, str]:
    """The sort of a call, and the name of its op."""
    name = getattr(func, "__name__", type(func).__name__).partition(".")[0]  # aten's are `softmax.int`
    if name in ("__get__", "__set__", "__delete__"):
        attribute = getattr(getattr(func, "__self__", None), "__name__", "")
        if name != "__get__":
            return _SETTERS.get(attribute, OP), attribute
        if attribute in _GETTERS:
            return _GETTERS[attribute], attribute
        return OP if attribute in _COMPUTED else PASS, attribute
    if name in _FILLERS and getattr(func, "__module__", "") == "torch.nn.init":
        return FILL, name
    if name in _EXCHANGES and getattr(func, "__module__", "") == "torch.distributed.distributed_c10d":
        return EXCHANGE, _EXCHANGES[name]
    return _SORTS.get(name, OP), NAMES.get(name, name)


# The position of the running statistics among the arguments of the normalisations that write to them and count no
# version. The flag `training` is the sixth argument of both.
RUNNING: dict[Any, int] = {torch.nn.functional.batch_norm: 1, torch.batch_norm: 3}
_TRAINING = 5
# The op that `matmul` is, by the dimensions of its two factors.
PRODUCTS = {(1, 1): "dot", (2, 1): "mv", (2, 2): "mm"}


def running_statistics(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The running mean and variance that a call of a normalisation writes to; empty if it writes to none."""
    first = RUNNING[func]
    if not (args[_TRAINING] if len(args) > _TRAINING else kwargs.get("training", False)):
        return []
    statistics = [*args[first : first + 2], kwargs.get("running_mean"), kwargs.get("running_var")]
    return [tensor for tensor in statistics if isinstance(tensor, torch.Tensor)]


def op_of_node(name: str) -> str:
    """The name of an op that is known only by its node: `index_select` for IndexSelectBackward0."""
    stem = name.partition("Backward")[0]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()


def writes(name: str) -> bool:
    """Whether an op of that name writes to its first tensor."""
    if name.startswith("__"):
        return name.startswith("__i") and name not in ("__invert__", "__int__", "__index__", "__iter__")
    return (name.endswith("_") and not name.endswith("__")) or name == "setitem"
