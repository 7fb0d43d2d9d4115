"""Forward accumulation with dual numbers: tangents are pushed through each op as it runs.

The tangent comes from the op's row in the table. The rule of an elementwise op is its own transpose. A linear op is
applied to the tangents. Any other rule is linear in the upstream gradient `g`, so its transpose is its derivative in
`g`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from gradviz.engine.core.apply import apply
from gradviz.engine.core.backward import grad
from gradviz.engine.core.node import Node
from gradviz.engine.core.op import Op
from gradviz.engine.core.registry import TABLE
from gradviz.engine.core.state import enable_grad, next_tensor_number, note_special, state
from gradviz.engine.core.tell import tell_tangent
from gradviz.engine.core.tensor import LEAF_EDGE, Tensor, new_tensor, node_of, tensor_rare

_epoch = [1]  # tangents of an earlier level do not count any more


def enter_dual_level() -> int:
    """Open a level of forward mode. Returns its number. Raises RuntimeError inside another level."""
    if state.dual_level:
        raise RuntimeError("Nested forward mode AD is not supported at the moment")
    note_special("dual_level", True)
    state.dual_level, state.forward_mode = 1, _forward_mode
    return 1


def exit_dual_level(level: int | None = None) -> None:
    """Close the level. Its tangents are gone. Raises RuntimeError where no level is open."""
    if not state.dual_level:
        raise RuntimeError("Trying to exit a forward AD level that was never entered.")
    state.dual_level, state.forward_mode = 0, None
    note_special("dual_level", False)
    _epoch[0] += 1


class dual_level:
    """`with dual_level():` opens a level of forward mode."""

    def __enter__(self) -> int:
        return enter_dual_level()

    def __exit__(self, *_: object) -> None:
        exit_dual_level()


class UnpackedDualTensor(NamedTuple):
    """A value and its tangent. The tangent is None where there is none."""

    primal: Tensor
    tangent: Tensor | None


def tangent_of(tensor: Tensor) -> Tensor | None:
    """The tensor's tangent in the open level, or None."""
    rare = tensor._rare
    if rare is None or rare.tangent is None or not state.dual_level or rare.tangent[0] != _epoch[0]:
        return None
    return rare.tangent[1]


def make_dual(tensor: Tensor, tangent: Tensor, *, level: int | None = None) -> Tensor:
    """A view of `tensor` that carries `tangent`.

    Raises RuntimeError outside of a level and where shape or dtype differ, and ValueError for an integer tensor."""
    if not state.dual_level:
        raise RuntimeError(
            "Trying to create a dual Tensor for forward AD but no level exists, make sure to enter_dual_level() first."
        )
    if tensor.array.dtype.kind not in "fc":
        raise ValueError(f"Expected primal to be floating point or complex, but got: {tensor.dtype}")
    if tensor.array.shape != tangent.array.shape or tensor.array.dtype != tangent.array.dtype:
        raise RuntimeError(
            "Expected tangent to have the same shape and dtype as the primal, "
            f"got {list(tangent.shape)} {tangent.dtype} for {list(tensor.shape)} {tensor.dtype}."
        )
    dual = apply(TABLE["make_dual"], (tensor,))
    set_tangent(dual, tangent, "make_dual")
    return dual


def unpack_dual(tensor: Tensor, *, level: int | None = None) -> UnpackedDualTensor:
    """The value and the tangent of a dual tensor."""
    if not state.dual_level:
        return UnpackedDualTensor(tensor, None)
    return UnpackedDualTensor(tensor, tangent_of(tensor))


def set_tangent(tensor: Tensor, tangent: Tensor, how: str) -> None:
    """Give a tensor a tangent, and tell the listener. `how` says what made it. An operation in place tells it when
    it is over."""
    tensor_rare(tensor).tangent = (_epoch[0], tangent)
    if state.listener is not None and state.modes.held_ops is None:
        tell_tangent(tensor, tangent, how, sys._getframe(1))


def push_tangents(
    op: Op, inputs: Sequence[Tensor], outputs: Sequence[Tensor], args: tuple
) -> list[tuple[Tensor, Tensor]]:
    """Give the outputs of an op their tangents. Returns the pairs of output and tangent.

    Raises NotImplementedError where the op has no derivative."""
    tangents = [tangent_of(tensor) for tensor in inputs]
    if all(tangent is None for tangent in tangents) or outputs[0].array.dtype.kind not in "fc":
        return []
    if op.name == "detach":
        return []
    if not op.derivatives:
        raise NotImplementedError(f"gradviz has no derivative for {op.name}, so no tangent can be pushed")
    results = _pushed(op, inputs, outputs, args, tangents)
    pairs = []
    for output, tangent in zip(outputs, results, strict=True):
        if output.array.dtype.kind not in "fc":
            continue
        if getattr(tangent, "_number", 0) <= 0:
            tangent._number = next_tensor_number()
        tensor_rare(output).tangent = (_epoch[0], tangent)
        pairs.append((output, tangent))
    if op.saves_out and op.outputs == 1:
        keep_tangent(outputs[0])
    return pairs


_of_saved_outputs: WeakKeyDictionary[Node, dict[int, tuple[int, Tensor]]] = WeakKeyDictionary()


def keep_tangent(output: Tensor) -> None:
    """Remember the tangent of an output that its node saves."""
    node, tangent = node_of(output), tangent_of(output)
    if node is not None and tangent is not None:
        _of_saved_outputs.setdefault(node, {})[output.output_nr] = (_epoch[0], tangent)


def restore_tangent(output: Tensor, node: Node, nr: int = 0) -> None:
    """Give the tensor of a saved output the tangent that the output had. Forward over reverse needs it."""
    epoch, tangent = _of_saved_outputs.get(node, {}).get(nr, (0, None))
    if tangent is not None and epoch == _epoch[0]:
        tensor_rare(output).tangent = (epoch, tangent)


def _pushed(op: Op, inputs: Any, outputs: Any, args: tuple, tangents: list[Tensor | None]) -> list[Tensor]:
    """The tangents of the outputs. They are computed on arrays, unless a graph of them has to be recorded."""
    recorded = state.modes.grad_enabled and any(
        tensor.requires_grad for tensor in (*inputs, *tangents) if tensor is not None
    )
    listener, level, forward_mode = state.listener, state.dual_level, state.forward_mode
    # The ops of the rule itself are not told, and have no tangents.
    state.listener, state.dual_level, state.forward_mode = None, 0, None
    try:
        values: list[Any] = list(inputs if recorded else (tensor.array for tensor in inputs))
        made: list[Any] = list(outputs if recorded else (tensor.array for tensor in outputs))
        pushed: list[Any] = [
            None if tangent is None else tangent if recorded else tangent.array for tangent in tangents
        ]
        if op.jvp is not None:
            result = op.jvp(pushed, values, made, args)
        elif op.kind == "elementwise":
            result = _elementwise(op, values, made[0], args, pushed)
        elif op.kind == "linear":
            result = _linear(op, values, args, pushed)
        else:
            result = _transposed(op, values, made, args, pushed, recorded)
    finally:
        state.listener, state.dual_level, state.forward_mode = listener, level, forward_mode
    results = result if op.outputs > 1 else [result]
    return [
        tangent if isinstance(tangent, Tensor) else new_tensor(np.asarray(tangent, output.array.dtype))
        for tangent, output in zip(results, outputs, strict=True)
    ]


def _elementwise(op: Op, values: Any, out: Any, args: tuple, tangents: Sequence[Any]) -> Any:
    total = None
    for name, tangent in zip(op.inputs, tangents, strict=True):
        if tangent is None or name not in op.derivatives:
            continue
        derivative = op.derivative(name, args)
        part = derivative.rule(tangent, *(need.of_run(values, out, args) for need in op.needs_of(derivative)))
        total = part if total is None else total + part
    if total.shape != out.shape:  # type: ignore[union-attr]
        total = np.broadcast_to(total, out.shape)  # type: ignore[arg-type]
    return total


def _linear(op: Op, values: Any, args: tuple, tangents: Sequence[Any]) -> Any:
    filled = [
        np.zeros_like(value.array if isinstance(value, Tensor) else value) if tangent is None else tangent
        for value, tangent in zip(values, tangents, strict=True)
    ]
    if any(isinstance(value, Tensor) for value in filled):
        return apply(op, [t if isinstance(t, Tensor) else new_tensor(t) for t in filled], args)
    return op.forward(filled, *args) if op.variadic else op.forward(*filled, *args)


def _transposed(op: Op, values: Any, outputs: Any, args: tuple, tangents: Sequence[Any], recorded: bool) -> Any:
    """The transpose of the rule, applied to the tangents: the derivative of Σ rule(g) · tangent in the cotangent g."""
    as_tensors = [value if recorded else new_tensor(value) for value in values]
    made = [output if recorded else new_tensor(output) for output in outputs]
    smooth = [output.array.dtype.kind in "fc" for output in made]
    slots = [new_tensor(np.zeros_like(output.array), LEAF_EDGE) for output in made]
    cotangents = [slot for slot, has in zip(slots, smooth, strict=True) if has]
    upstream: Any = (
        slots[0] if op.outputs == 1 else tuple(s if has else None for s, has in zip(slots, smooth, strict=True))
    )
    with enable_grad():
        parts, weights = [], []
        for name, tangent in zip(op.inputs, tangents, strict=True):
            if tangent is None or name not in op.derivatives:
                continue
            out = made[0] if op.outputs == 1 else tuple(made)
            derivative = op.derivative(name, args)
            needed = (need.of_run(as_tensors, out, args) for need in op.needs_of(derivative))
            parts.append(derivative.rule(upstream, *needed))
            weights.append(tangent if isinstance(tangent, Tensor) else new_tensor(tangent))
        found = iter(grad(parts, cotangents, weights, create_graph=recorded, allow_unused=True))
    results = [next(found) if has else None for has in smooth]
    zeros = [np.zeros_like(output.array) for output in made]
    filled = [zero if r is None else r if recorded else r.array for r, zero in zip(results, zeros, strict=True)]
    return filled if op.outputs > 1 else filled[0]


class _ForwardMode:
    """What ops know of forward mode while a dual level is open (state.py)."""

    push = staticmethod(push_tangents)
    restore = staticmethod(restore_tangent)


_forward_mode = _ForwardMode()
