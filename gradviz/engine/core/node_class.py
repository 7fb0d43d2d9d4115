"""The node class of an op, which is made from its row in the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from gradviz.engine.basics.errors import backward_twice
from gradviz.engine.core.broadcasting import sum_to
from gradviz.engine.core.derivative import AnyDerivative, selection
from gradviz.engine.core.needs import Argument, Need
from gradviz.engine.core.node import (
    ManyInputsNode,
    Node,
    OneInputNode,
    Output,
    TwoInputsNode,
    unchanged,
    unpack,
    unpack_indices,
    unpack_nth,
    unpack_out,
)
from gradviz.engine.core.packing import properties_of_saved
from gradviz.engine.core.state import state
from gradviz.engine.core.tensor import new_tensor

_ARITIES: dict[type[Node], int] = {OneInputNode: 1, TwoInputsNode: 2}


class Row(Protocol):
    """What a node class is made from: the attributes of a row (op.py) that are used here."""

    inputs: tuple[str, ...]
    args: tuple[str, ...]
    derivatives: dict[str, AnyDerivative]
    saved: dict[str, Need]
    node_name: str
    kind: str
    outputs: int
    variadic: bool
    frees_args: bool
    saves_inputs: bool
    saves_out: bool

    def needs_of(self, derivative: AnyDerivative) -> tuple[Need, ...]: ...


def make_node_class(op: Row) -> type[Node]:
    """Make the class of an op's nodes. It has `vjp(g)` on arrays and `vjp_recorded(g)` on Tensors."""
    base: type[Node] = ManyInputsNode
    if not op.variadic and op.outputs == 1 and len(op.inputs) <= 2:
        base = OneInputNode if len(op.inputs) == 1 else TwoInputsNode
    body: dict[str, Any] = {
        "__slots__": (),
        "__module__": "gradviz.engine",
        "op": op,
        "outputs": op.outputs,
        "arity": _ARITIES.get(base, 0),
        "is_of_row": op.outputs == 1,
        "saves": op.saves_inputs or op.saves_out or op.frees_args,
        **properties_of_saved(op.saved),
    }
    if op.frees_args:
        body |= {"__slots__": ("read",), "release": _release_with_args(base), "saved": _saved_with_read(base)}
    made = type(op.node_name, (base,), body)
    for name in ("vjp", "vjp_recorded"):
        setattr(made, name, _compiled_when_called(op, base, made, name))
    return made


def _compiled_when_called(op: Row, base: type[Node], of: type[Node], name: str) -> Callable:
    """Stands in for a compiled method of a class, which takes its place at the first call: a program uses few ops."""

    def first(n: Any, g: Any) -> Any:
        compiled = compile_vjp(op, base, recorded=name == "vjp_recorded")
        setattr(of, name, compiled)
        return compiled(n, g)

    return first


def _release_with_args(base: type[Node]) -> Callable:
    def release(node: Any) -> None:
        base.release(node)
        node.args = None
        node.read = ()

    return release


def _saved_with_read(base: type[Node]) -> Callable:
    def saved(node: Any) -> list[tuple[Any, int]]:
        return [*base.saved(node), *node.read]

    return saved


# --- the derivative, compiled


def compile_vjp(op: Row, base: type[Node], recorded: bool) -> Callable:
    """Compile the method that fetches what each rule needs from a node, and calls the rule.

    The method is written as source, as in `dataclasses`. Calling rules with positional arguments makes backward
    fast."""
    scope: dict[str, Any] = {
        "unpack": unpack,
        "unpack_nth": unpack_nth,
        "unpack_out": unpack_out,
        "unpack_indices": unpack_indices,
        "out_tensor": out_tensor,
        "backward_twice": backward_twice,
        "unchanged": unchanged,
        "reduced": reduced,
        "is_complex": is_complex,
        "conjugated": conjugated,
    }
    body = _of_all_inputs(op, scope, recorded) if op.variadic else _of_each_input(op, base, scope, recorded)
    asked = "is_complex(g)" if recorded or op.outputs > 1 else "g.dtype.kind == 'c'"
    source = "\n".join(
        [
            "def vjp(n, g):",
            f"    if {asked}: return conjugated(of_conjugate, n, g)",
            "    return of_conjugate(n, g)",
            "def of_conjugate(n, g):",
            *(f"    {line}" for line in body),
        ]
    )
    exec(compile(source, "<gradviz>", "exec"), scope)
    return scope["vjp"]


def _of_each_input(op: Row, base: type[Node], scope: dict[str, Any], recorded: bool) -> list[str]:
    """The lines that call a rule for each input whose gradient is wanted."""
    lines: list[str] = []
    for i, name in enumerate(op.inputs):
        if name not in op.derivatives:
            lines.append(f"g_{name} = None")
            continue
        edge = f"n._edges[{i}]" if base is ManyInputsNode else ("n.a", "n.b")[i]
        lines += [f"if {edge} is None:", f"    g_{name} = None", "else:"]
        lines += [f"    {line}" for line in _call(op, name, scope, base is ManyInputsNode, recorded)]
        if op.kind == "elementwise":
            lines.append(f"    if n.spec is not None: g_{name} = reduced(g_{name}, n.spec[{i}])")
    names = ", ".join(f"g_{name}" for name in op.inputs)
    return [*lines, f"return {names}" if base is OneInputNode else f"return ({names},)"]


def _of_all_inputs(op: Row, scope: dict[str, Any], recorded: bool) -> list[str]:
    """The lines for an op of any number of tensors (`cat`). Its one rule gives all gradients."""
    (name,) = op.derivatives
    return [
        *_call(op, name, scope, True, recorded),
        f"return tuple([None if edge is None else x for edge, x in zip(n._edges, g_{name}, strict=True)])",
    ]


_CHECKS_OF_ARGUMENTS = [
    "if n.args is None: raise backward_twice(n.name())",
    "for tensor, version in n.read: unchanged(n, tensor, version)",
]


def _call(op: Row, name: str, scope: dict[str, Any], many: bool, recorded: bool) -> list[str]:
    """The lines that fetch what the rule for an input needs, and call it. The arguments may choose among several
    rules."""
    choice = op.derivatives[name]
    asks_args = any(isinstance(need, Argument) for need in op.needs_of(choice)) or len(choice.variants) > 1
    lines = _CHECKS_OF_ARGUMENTS if op.frees_args and asks_args else []
    calls = []
    for i, variant in enumerate(choice.variants):
        needs = op.needs_of(variant)
        scope[rule := f"rule_{name}_{i}"] = variant.rule
        fetched = [line for need in needs for line in need.fetch(many, recorded)]
        calls.append([*fetched, f"g_{name} = {rule}({', '.join(['g', *(need.name for need in needs)])})"])
    if len(calls) == 1:
        return [*lines, *calls[0]]
    lines = [*lines, f"which = {selection(choice, op.args, 'n.args', scope)}"]
    for i, call in enumerate(calls):
        lines.append("else:" if i == len(calls) - 1 else f"{'el' if i else ''}if which == {i}:")
        lines += [f"    {line}" for line in call]
    return lines


# --- what the compiled derivative calls


def reduced(gradient: Any, spec: tuple) -> Any:
    """The gradient of an input that was broadcast or cast: summed to its shape, and in its dtype."""
    shape, dtype = spec
    gradient = sum_to(gradient, shape)
    return gradient if gradient.dtype == dtype else gradient.astype(dtype)


def is_complex(g: Any) -> bool:
    """Whether upstream gradients, arrays or Tensors, one or several, are complex."""
    arrays: list[Any] = [getattr(part, "array", part) for part in (g if isinstance(g, (tuple, list)) else (g,))]
    return any(array is not None and array.dtype.kind == "c" for array in arrays)


def conjugated(vjp: Callable[[Any, Any], Any], node: Any, g: Any) -> Any:
    """What `vjp` gives for a complex gradient. Rules are written as for real numbers: g · f′. PyTorch's gradient of a
    complex function is g · conj(f′), which is the conjugate of the rule's for conj(g)."""
    return _conjugate(vjp(node, _conjugate(g)))


def _conjugate(x: Any) -> Any:
    if isinstance(x, (tuple, list)):
        return tuple(map(_conjugate, x))
    return None if x is None else np.conjugate(x)


def out_tensor(node: Any, saved: Any) -> Any:
    """The saved output as a Tensor, whose grad_fn is the node. Of several outputs: a tuple of Tensors."""
    if isinstance(saved, tuple):
        return tuple(
            new_tensor(array, Output(node, nr) if array.dtype.kind in "fc" else None) for nr, array in enumerate(saved)
        )
    out = new_tensor(saved, node)
    if state.forward_mode is not None:
        state.forward_mode.restore(out, node)
    return out
