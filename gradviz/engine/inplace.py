"""Operations that write over a tensor's memory: `add_`, `zero_`, `x[i] = v`.

Each bumps the version that saved tensors are checked against. One that is differentiated gives the tensor the
node of the op that it is: after `y.mul_(2)`, y's `grad_fn` is MulBackward0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradviz.engine import errors, ops
from gradviz.engine.apply import apply, as_tensor
from gradviz.engine.derivatives import TABLE
from gradviz.engine.node import edge_node
from gradviz.engine.state import is_grad_enabled, state
from gradviz.engine.tensor import LEAF_EDGE, Tensor, counter_of, flags_of, new_tensor, number_of


def check_writable(x: Tensor, *others: Tensor) -> None:
    """Raise RuntimeError where autograd forbids writing over `x`; have its versions counted from here on."""
    counter_of(x)  # before its node changes: the node that made it is to learn of the change
    if not is_grad_enabled():
        return
    if x._edge is LEAF_EDGE:
        raise errors.leaf_in_place()
    base = x._base
    differentiable = x.requires_grad or any(other.requires_grad for other in others)
    if base is not None and differentiable:
        if base._edge is LEAF_EDGE:
            raise RuntimeError(
                "a view of a leaf Variable that requires grad is being used in an in-place operation. "
                "Wrap the update in `with no_grad():`, or compute a new tensor instead."
            )
        raise RuntimeError(
            "gradviz does not differentiate in-place operations on views yet. "
            "Compute a new tensor instead: torch.where, cat or stack."
        )


def overwrite(x: Tensor, array: Any, how: str, source: Tensor | None = None) -> Tensor:
    """Write `array` (the value of `source`, if one is told of) into the tensor's memory; count a version."""
    if array is not x.array:
        x.array[...] = array
    counter_of(x).n += 1
    if state.listener is not None:
        number = 0 if source is None else number_of(source)
        state.listener.mutated(number_of(x), x.array, flags_of(x), x._version, how, number)
    return x


def keep_original(node: Any, x: Tensor) -> None:
    """Let a node that saved x keep a copy of what x is now, before x is written over."""
    copy = None
    for slot in ("x", "y"):
        if getattr(node, slot, None) is x:
            copy = copy or new_tensor(x.array.copy(), x._edge)
            setattr(node, slot, copy)
            if hasattr(node, f"{slot}_version"):
                setattr(node, f"{slot}_version", 0)
    tensors = getattr(node, "tensors", None)
    if tensors is not None and any(tensor is x for tensor in tensors):
        copy = new_tensor(x.array.copy(), x._edge)
        node.versions = tuple(
            0 if tensor is x else version for tensor, version in zip(tensors, node.versions, strict=True)
        )
        node.tensors = tuple(copy if tensor is x else tensor for tensor in tensors)


def take_tangent(x: Tensor, result: Tensor | None, how: str) -> None:
    """Give x, which was written over, the tangent of the result; none if that has none."""
    if not state.dual_level:
        return
    from gradviz.engine.forward_mode import set_tangent, tangent_of

    tangent = None if result is None else tangent_of(result)
    if tangent is not None:
        set_tangent(x, tangent, how)
    elif x._rare is not None:
        x._rare.tangent = None


def _in_place(name: str, function: Callable) -> Callable:
    """The in-place form of a function: the same op, written over its first tensor."""

    def call(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        check_writable(x, *tensors)
        with_graph = is_grad_enabled() and (x.requires_grad or any(t.requires_grad for t in tensors))
        result = function(x, *args, **kwargs)
        if result is NotImplemented:
            raise TypeError(f"{name}(): unsupported operand {args[0]!r}")
        if result.array.shape != x.array.shape:
            raise RuntimeError(
                f"output with shape {list(x.array.shape)} doesn't match the broadcast shape "
                f"{list(result.array.shape)}"
            )
        if not np.can_cast(result.array.dtype, x.array.dtype, "same_kind"):
            raise RuntimeError(
                f"result type {result.dtype} can't be cast to the desired output type {x.dtype}"
            )
        if with_graph:
            node = edge_node(result._edge)
            keep_original(node, x)
            x._edge = result._edge
            if node is not None and getattr(node, "out", None) is result.array:
                node.out = x.array  # type: ignore[attr-defined]
                node.out_counter = counter_of(x)  # type: ignore[attr-defined]
                node.out_version = x._version + 1  # type: ignore[attr-defined]
        overwrite(x, result.array, name, result)
        take_tangent(x, result, name)
        return x

    call.__name__ = name
    return call


def _filled(name: str, value: Callable) -> Callable:
    def call(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        check_writable(x)
        source = None
        if is_grad_enabled() and x.requires_grad:
            source = ops.mul(x, 0)
            x._edge = source._edge
        take_tangent(x, None, name)
        return overwrite(x, value(x, *args, **kwargs), name, source)

    call.__name__ = name
    return call


def copy_(x: Tensor, source: Any) -> Tensor:
    """Write the values of `source` over x; gradients flow to `source`."""
    source = as_tensor(source)
    check_writable(x, source)
    result = source
    if (is_grad_enabled() and (x.requires_grad or source.requires_grad)) or state.dual_level:
        result = ops.copy(ops.to(ops.expand(source, *x.array.shape), x.array.dtype))
    if is_grad_enabled() and (x.requires_grad or source.requires_grad):
        x._edge = result._edge
    take_tangent(x, result, "copy_")
    return overwrite(x, source.array, "copy_", result)


def setitem(x: Tensor, index: Any, value: Any) -> None:
    """x[index] = value. Gradients flow to the value, and to what x was where it is not written over."""
    value = value if isinstance(value, Tensor) else as_tensor(np.asarray(value, x.array.dtype))
    check_writable(x, value)
    place = ops.places(x.array.shape, index)
    with_graph = is_grad_enabled() and (x.requires_grad or value.requires_grad)
    if with_graph or state.dual_level:
        after = apply(TABLE["set_index"], (x, _fitting(value, x.array[place])), (place,))
        if with_graph:
            x._edge = after._edge
        take_tangent(x, after, "setitem")
        overwrite(x, after.array, "setitem", after)
        return
    x.array[place] = value.array
    overwrite(x, x.array, "setitem")


def _fitting(value: Tensor, there: np.ndarray) -> Tensor:
    """A value in x's dtype, without dimensions of size 1 that the place has not."""
    extra = value.array.ndim - there.ndim
    if extra > 0:
        value = ops.reshape(value, *value.array.shape[extra:])
    return ops.to(value, there.dtype)


def scaled(function: Callable) -> Callable:
    """`add` and `sub` with PyTorch's `alpha=`: y is multiplied by it first."""

    def call(x: Any, y: Any, *, alpha: Any = 1) -> Any:
        return function(x, y if alpha == 1 else ops.mul(y, alpha))

    call.__name__ = function.__name__
    return call


_ELEMENTWISE = """
    abs acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1
    floor fmod frac hypot i0 lgamma log log10 log1p log2 mul neg rad2deg reciprocal relu remainder rsqrt sgn sigmoid
    sign sin sinc sinh sqrt tan tanh trunc xlogy
""".split()
_CHOSEN = """
    addbmm addcdiv addcmul addmm addmv addr baddbmm clamp clamp_max clamp_min cumprod cumsum div float_power
    index_add index_copy index_fill index_put ldexp lerp logit masked_fill masked_scatter nan_to_num pow round
    scatter scatter_add square tril triu true_divide
""".split()

_FUNCTIONS: dict[str, Callable] = {
    **{name: ops.functions[name] for name in _ELEMENTWISE},
    **{name: getattr(ops, name) for name in _CHOSEN},
    "add": scaled(ops.add),
    "sub": scaled(ops.sub),
}

in_place: dict[str, Callable] = {f"{name}_": _in_place(f"{name}_", fn) for name, fn in _FUNCTIONS.items()}
in_place["zero_"] = _filled("zero_", lambda x: 0)
in_place["fill_"] = _filled("fill_", lambda x, value: getattr(value, "array", value))
in_place["copy_"] = copy_
