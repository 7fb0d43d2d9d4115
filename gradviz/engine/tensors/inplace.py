"""In-place operations: `add_`, `zero_`, `x[i] = v`.

Each increments the version of the tensor. The node of an in-place operation is that of the op: after `y.mul_(2)` the
`grad_fn` of y is MulBackward0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradviz.engine.basics import errors
from gradviz.engine.basics.dtypes import can_write, scalar_type_name
from gradviz.engine.basics.shape_errors import broadcast_shape, check_fits
from gradviz.engine.core.apply import apply, as_tensor, unary
from gradviz.engine.core.node import edge_node
from gradviz.engine.core.op import in_place_form, with_next_node
from gradviz.engine.core.packing import nodes_held
from gradviz.engine.core.state import is_grad_enabled, state
from gradviz.engine.core.tell_in_place import InPlace
from gradviz.engine.core.tensor import LEAF_EDGE, Tensor, counter_of
from gradviz.engine.table import ops
from gradviz.engine.table.derivatives import TABLE
from gradviz.engine.table.kernels import takes_each_once
from gradviz.engine.tensors.writing import check_writable, keep_original, move_to, rebase, take_tangent, write


def _check_result_fits(x: Tensor, shape: tuple[int, ...]) -> None:
    """Raise RuntimeError where the result has another shape than x, which it would be written to."""
    if shape != x.array.shape:
        raise RuntimeError(f"output with shape {list(x.array.shape)} doesn't match the broadcast shape {list(shape)}")


def in_place_of(name: str, function: Callable) -> Callable:
    """The in-place form of a function. The same op runs, and its result is written to its first tensor."""

    def call(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if state.special and state.modes.saved_tensors_hooks and state.modes.held_nodes is None:
            with nodes_held():
                return run(x, *args, **kwargs)
        return run(x, *args, **kwargs)

    def run(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        with InPlace(x, name, (x, *args)) as told:
            return compute(told, x, *args, **kwargs)

    def compute(told: InPlace, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
        check_writable(x, *tensors)
        with_graph = is_grad_enabled() and (x.requires_grad or any(t.requires_grad for t in tensors))
        result = function(x, *args, **kwargs)
        if result is NotImplemented:
            raise TypeError(f"{name}(): unsupported operand {args[0]!r}")
        _check_result_fits(x, result.array.shape)
        if not can_write(result.array.dtype, x.array.dtype):
            raise RuntimeError(f"result type {result.dtype} can't be cast to the desired output type {x.dtype}")
        if with_graph:
            node = edge_node(result._edge)
            keep_original(node, x)
            if node is not None and getattr(node, "out", None) is result.array:
                node.out = x.array  # type: ignore[attr-defined]
                node.out_counter = counter_of(x)  # type: ignore[attr-defined]
                node.out_version = x._writes + 1  # type: ignore[attr-defined]
        write(x, result.array)
        told.result = result
        if with_graph or state.dual_level:
            rebase(x, result, name, told)
        return x

    call.__name__ = name
    return call


def _plain_in_place(name: str, function: Callable) -> Callable:
    """The in-place form of an op without a derivative. It raises NotImplementedError where the tensor requires
    grad."""
    call = in_place_of(name, function)

    def checked(x: Tensor, *args: Any) -> Tensor:
        if is_grad_enabled() and x.requires_grad:
            raise NotImplementedError(
                f"gradviz does not differentiate {name}: its gradient would be 0. Write it without the underscore."
            )
        return call(x, *args)

    checked.__name__ = name
    return checked


def _reshaping(name: str, plan: Callable) -> Callable:
    """The in-place form of a view: x gets the other shape.

    Raises NotImplementedError for a view that requires grad, because its base would have to follow."""

    def call(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        check_writable(x)
        with_graph = is_grad_enabled() and (x.requires_grad or (x._base is not None and x._base.requires_grad))
        if with_graph and x._base is not None:
            raise NotImplementedError(
                f"gradviz does not differentiate {name} of a view: write it without the underscore"
            )
        op, arguments = plan(x, *args, **kwargs)
        with InPlace(x, name, (x,)) as told:
            told.result = result = apply(in_place_form(op), (x,), arguments)
            x.array = result.array
            counter_of(x).n += 1
            if with_graph or state.dual_level:
                move_to(x, result._edge)
                take_tangent(x, result, name)
        return x

    call.__name__ = name
    return call


def zero_(x: Tensor) -> Tensor:
    """Set all elements of x to 0. No gradient flows to its former value."""
    check_writable(x)
    return _filled(x, 0, "zero_", lambda: apply(TABLE["zero"], (x,)))


def fill_(x: Tensor, value: Any) -> Tensor:
    """Set all elements of x to a value: a number, or a 0-d tensor that gradients flow to.

    Raises RuntimeError for a tensor with dimensions."""
    if not isinstance(value, Tensor):
        check_writable(x)
        return _filled(x, value, "fill_", lambda: apply(TABLE["fill"], (x,), (value,)))
    check_writable(x, value)
    if value.array.ndim:
        raise RuntimeError(
            f"fill_ only supports 0-dimension value tensor but got tensor with {value.array.ndim} dimensions."
        )
    return _filled(x, value.array, "fill_", lambda: apply(TABLE["fill_tensor"], (x, value)), value)


def _filled(x: Tensor, value: Any, name: str, record: Callable, *others: Tensor) -> Tensor:
    requires_grad = x.requires_grad or any(other.requires_grad for other in others)
    args = "" if others or name == "zero_" else f"value={value!r}"
    with InPlace(x, name, (x, *others), args) as told:
        told.result = x
        if not ((is_grad_enabled() and requires_grad) or state.dual_level):
            write(x, value)
            return x
        told.result = result = record()
        write(x, result.array)
        rebase(x, result, name, told)
    return x


def copy_(x: Tensor, source: Any) -> Tensor:
    """Copy the values of `source`, which broadcasts, into x. Gradients flow to `source`."""
    source = as_tensor(source)
    check_writable(x, source)
    with_graph = (is_grad_enabled() and (x.requires_grad or source.requires_grad)) or state.dual_level
    _check_result_fits(x, broadcast_shape(x.array.shape, source.array.shape))
    with InPlace(x, "copy_", (x, source)) as told:
        told.result = x
        if not with_graph:
            write(x, source.array)
            return x
        told.result = result = apply(TABLE["copy_over"], (x, source))
        write(x, result.array)
        rebase(x, result, "copy_", told)
    return x


def setitem(x: Tensor, index: Any, value: Any) -> None:
    """x[index] = value. Gradients flow to the value, and to the elements of x that are kept.

    Raises IndexError where the index does not fit x, RuntimeError where the value does not fit, or autograd forbids
    it."""
    value = value if isinstance(value, Tensor) else _put(value, x)
    place = ops.places(x.array.shape, index)
    in_view = takes_each_once(place)
    if not in_view:
        _check_dtype_to_put(x, value, place)
    if not x.array.ndim and isinstance(place, int):
        raise IndexError(ops.OF_A_NUMBER)
    try:
        part = x.array[place]
    except IndexError as error:
        raise ops.out_of_place(error, x.array.ndim) from None
    check_fits(value.array, part.shape, in_view)
    if x._edge is LEAF_EDGE and is_grad_enabled() and in_view:
        raise errors.leaf_view_in_place()
    with_graph = (is_grad_enabled() and (x.requires_grad or value.requires_grad)) or state.dual_level
    if with_graph and in_view and x._base is not None:
        copy_(ops.getitem(x, index), _fitting(value, part, cast=False))
        return
    check_writable(x, value, part=np.asarray(part) if in_view else None)
    with InPlace(x, "setitem", (x, value)) as told:
        told.result = x
        if not with_graph:
            x.array[place] = value.array
            write(x, x.array)
            return
        row, fitting = ("set_index", _fitting(value, part)) if in_view else ("index_put", _for_index(value, part))
        told.result = after = apply(TABLE[row], (x, fitting), (place,), ops.tensors_of(index))
        write(x, after.array)
        rebase(x, after, "setitem", told)


def _put(value: Any, x: Tensor) -> Tensor:
    """What is put into x and is no tensor; of a number no listener hears."""
    tensor = as_tensor(np.asarray(value, x.array.dtype))
    if isinstance(value, (int, float, complex)):
        tensor._number = 0
    return tensor


def _check_dtype_to_put(x: Tensor, value: Tensor, place: Any) -> None:
    """Raise RuntimeError where elements of another dtype are put at indices. A single number at a mask is
    converted."""
    filled = not value.array.ndim and isinstance(place, np.ndarray) and place.dtype.kind == "b"
    if value.array.dtype != x.array.dtype and not filled:
        there, given = (scalar_type_name(tensor.array.dtype) for tensor in (x, value))
        raise RuntimeError(
            f"Index put requires the source and destination dtypes match, got {there} for the destination and {given} "
            "for the source."
        )


def _for_index(value: Tensor, there: np.ndarray) -> Tensor:
    """A value for elements at indices, without its leading dimensions of size 1, as PyTorch views it."""
    shape = value.array.shape
    front = next((i for i, n in enumerate(shape) if n != 1), len(shape))
    return _fitting(ops.view(value, *shape[front:]) if front else value, there)


def _fitting(value: Tensor, there: np.ndarray, cast: bool = True) -> Tensor:
    """A value in the dtype of x, without leading dimensions that its place does not have."""
    extra = value.array.ndim - there.ndim
    if extra > 0:
        value = ops.reshape(value, *value.array.shape[extra:])
    return ops.to(value, there.dtype) if cast else value


_ELEMENTWISE = """
    abs acos asin atan atan2 ceil copysign cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1
    floor fmod frac hypot i0 lgamma log log10 log1p log2 mul neg rad2deg reciprocal relu remainder rsqrt sgn sigmoid
    sign sin sinc sinh sqrt tan tanh trunc xlogy
""".split()
# Functions whose in-place form has a node with a higher number: after `x.acosh_()` it is AcoshBackward1.
_OF_THEIR_OWN = {"acosh": "arccosh", "asinh": "arcsinh", "atanh": "arctanh"}
_polygamma = with_next_node(TABLE["polygamma"])
_CHOSEN = """
    addbmm addcdiv addcmul addmm addmv addr baddbmm clamp clamp_max clamp_min cumprod cumsum div float_power
    index_add index_copy index_fill index_put ldexp lerp logit masked_fill masked_scatter mvlgamma nan_to_num pow
    round scatter scatter_add scatter_reduce square tril triu true_divide
""".split()

_PLAIN = """
    bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor eq gcd ge gt
    heaviside igamma igammac lcm le logical_and logical_not logical_or logical_xor lt ne
""".split()
_SHAPES: dict[str, Callable] = {
    "as_strided": ops.plan_of_as_strided,
    "squeeze": ops.plan_of_squeeze,
    "swapaxes": ops.plan_of_transpose,
    "swapdims": ops.plan_of_transpose,
    "t": ops.plan_of_t,
    "transpose": ops.plan_of_transpose,
    "unsqueeze": ops.plan_of_unsqueeze,
}

_FUNCTIONS: dict[str, Callable] = {
    **{name: ops.functions[name] for name in _ELEMENTWISE},
    **{name: unary(with_next_node(TABLE[key])) for name, key in _OF_THEIR_OWN.items()},
    **{name: getattr(ops, name) for name in _CHOSEN},
    "polygamma": lambda x, n: apply(_polygamma, (x,), (n,)),
    "conj_physical": ops.conj_physical,
    "add": ops.add_with_alpha,
    "sub": ops.sub_with_alpha,
    "subtract": ops.sub_with_alpha,
}

in_place: dict[str, Callable] = {f"{name}_": in_place_of(f"{name}_", fn) for name, fn in _FUNCTIONS.items()}
in_place |= {f"{name}_": _plain_in_place(f"{name}_", ops.plain[name]) for name in _PLAIN}
in_place["floor_divide_"] = _plain_in_place("floor_divide_", ops.floor_divide)
in_place |= {f"{name}_": _reshaping(f"{name}_", plan) for name, plan in _SHAPES.items()}
# In-place operations that are functions too: `torch.relu_(x)`.
FUNCTIONS = """
    abs_ acos_ acosh_ addmv_ arccos_ arccosh_ arcsin_ arcsinh_ arctan_ arctanh_ asin_ asinh_ atan_ atanh_ ceil_ clamp_
    clamp_max_ clamp_min_ clip_ cos_ cosh_ deg2rad_ erf_ erfc_ exp2_ exp_ expm1_ fill_ fix_ floor_ frac_ gcd_ i0_
    index_put_ lcm_ ldexp_ log10_ log1p_ log2_ log_ logit_ nan_to_num_ neg_ negative_ rad2deg_ reciprocal_ relu_
    round_ rsqrt_ sigmoid_ sin_ sinc_ sinh_ sqrt_ square_ tan_ tanh_ trunc_ xlogy_ zero_
""".split()

in_place |= {"zero_": zero_, "fill_": fill_, "copy_": copy_}
