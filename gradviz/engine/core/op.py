"""What an entry in the table of derivatives is, and the node class that is made from it.

A rule's parameters say what it needs, and what it needs is what is saved:

- `g`: the upstream gradient (of several outputs: a tuple, None where none came)
- an input's name (`x`): that input, saved
- `out`: the output, saved; `chosen`: of (values, indices) only the indices, which are saved alone
- an argument's name (`dim`): that non-tensor argument
- `x_shape`, `x_dtype`: only the shape or dtype of input `x`

The same rule serves twice: on plain arrays in an ordinary backward, on Tensors under `create_graph`, where the
NumPy functions it calls record themselves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gradviz.engine.basics.errors import backward_twice
from gradviz.engine.core.broadcasting import sum_to
from gradviz.engine.core.node import (
    ManyInputsNode,
    Node,
    OneInputNode,
    Output,
    TwoInputsNode,
    unpack,
    unpack_indices,
    unpack_nth,
    unpack_out,
)
from gradviz.engine.core.packing import properties_of_saved
from gradviz.engine.core.saved import Place, saved_places
from gradviz.engine.core.state import state
from gradviz.engine.core.tensor import new_tensor


@dataclass(frozen=True, slots=True)
class Derivative:
    """One rule: how the gradient of one input comes from the gradient of the output."""

    text: str  # as on paper, for people: "cos(x)"
    rule: Callable
    needs: tuple[str, ...]  # the rule's parameters after `g`


def d(text: str, rule: Callable) -> Derivative:
    """State a derivative: as text, and as a rule `(g, ...) -> gradient` in plain NumPy."""
    return Derivative(text, rule, tuple(inspect.signature(rule).parameters)[1:])


@dataclass(eq=False)
class Op:
    """An operation: what it computes, and the derivative for each of its inputs.

    `kind` tells how the tangent is pushed in forward mode: `elementwise` ops broadcast, and their rule is its
    own transpose; `linear` ops apply themselves to the tangent; for the rest, `jvp` says it or the rule is
    transposed by differentiating it once more.
    """

    name: str
    forward: Callable
    inputs: tuple[str, ...]
    args: tuple[str, ...] = ()
    derivatives: dict[str, Derivative] = field(default_factory=dict)
    node_name: str = ""
    kind: str = ""
    jvp: Callable | None = None
    outputs: int = 1
    view: bool = False
    variadic: bool = False
    kernel: str = ""  # PyTorch's, where it takes floating-point numbers alone
    frees_args: bool = False  # arrays among the arguments are saved tensors, which a pass frees
    node_class: type[Node] = field(init=False)
    saves_out: bool = field(init=False)
    saves_inputs: bool = field(init=False)
    kept_for_first: tuple[bool, ...] = field(
        init=False
    )  # the inputs saved where only the first is differentiated
    of_one: bool = field(init=False)  # one tensor in, one out
    saved: dict[str, Place] = field(init=False)  # by PyTorch's names
    needs_spec: bool = field(init=False)  # whether a rule asks for an input's shape or dtype
    _keeps: dict[tuple[bool, ...], tuple[bool, ...]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if {"n", "g"} & {*self.inputs, *self.args}:
            raise TypeError(f"{self.name}: n and g are the node and the gradient; call an argument otherwise")
        for derivative in self.derivatives.values():
            unknown = set(derivative.needs) - self._nameable()
            if unknown:
                raise TypeError(f"{self.name}: the rule needs {', '.join(unknown)}, which the op has not")
        self.node_name = self.node_name or node_name_for(self.name)
        self.saves_out = bool(self.needs("out") or self.needs("chosen"))
        self.kept_for_first = self.keeps(tuple(nr == 0 for nr in range(len(self.inputs))))
        self.saves_inputs = any(self.needs(name) for name in self.inputs)
        self.needs_spec = self.variadic or any(
            self.needs(f"{name}_{what}") for name in self.inputs for what in ("shape", "dtype")
        )
        self.saved = saved_places(self)
        self.node_class = make_node_class(self)
        self.of_one = self.node_class.arity == 1

    def _nameable(self) -> set[str]:
        specs = {f"{name}_{what}" for name in self.inputs for what in ("shape", "dtype")}
        return {"out", "chosen", *self.inputs, *self.args, *specs}

    def needs(self, what: str) -> tuple[str, ...]:
        """The inputs whose derivative needs `what`."""
        return tuple(name for name, rule in self.derivatives.items() if what in rule.needs)

    def keeps(self, wanted: tuple[bool, ...]) -> tuple[bool, ...]:
        """Which inputs have to be saved where the gradients of those `wanted` will be asked for."""
        known = self._keeps.get(wanted)
        if known is None:
            rules = [self.derivatives[name] for name, asked in zip(self.inputs, wanted, strict=True)
                     if asked and name in self.derivatives]  # fmt: skip
            needs = {need for rule in rules for need in rule.needs}
            known = self._keeps[wanted] = tuple(name in needs for name in self.inputs)
        return known

    @property
    def formula(self) -> str:
        """The derivatives as text, in the order of the inputs: `∂/∂x = y, ∂/∂y = x`."""
        known = [name for name in self.inputs if name in self.derivatives]
        return ", ".join(f"∂/∂{name} = {self.derivatives[name].text}" for name in known)

    def arguments_text(self, args: tuple) -> str:
        """Non-tensor arguments, as a person would write them: `dim=1, keepdim=True`."""
        return ", ".join(
            f"{name}={_short(value)}"
            for name, value in zip(self.args, args, strict=False)
            if value is not None and value is not False
        )

    def __repr__(self) -> str:
        return f"<op {self.name}>"


_of_outputs: dict[tuple[Op, int], Op] = {}


def with_outputs(op: Op, n: int) -> Op:
    """The row of an op whose number of outputs depends on its arguments (`split`, `unbind`), for n of them."""
    if (op, n) not in _of_outputs:
        rule = {name: d.rule for name, d in op.derivatives.items()}
        forward, derivatives = op.forward, op.derivatives
        if n == 1:
            forward = lambda *arguments: op.forward(*arguments)[0]
            derivatives = {
                name: Derivative(d.text, _of_one(rule[name]), d.needs) for name, d in op.derivatives.items()
            }
        _of_outputs[op, n] = replace(op, outputs=n, forward=forward, derivatives=derivatives)
    return _of_outputs[op, n]


_in_place: dict[Op, Op] = {}


def in_place_form(op: Op) -> Op:
    """The row of a view's in-place form (`t_` of `t`), whose node PyTorch counts on from those of the others."""
    if op not in _in_place:
        _in_place[op] = replace(with_next_node(op, 3 if op.name == "squeeze" else 1), name=f"{op.name}_")
    return _in_place[op]


def with_next_node(op: Op, by: int = 1) -> Op:
    """The row with a node of the same stem and a higher number: AcoshBackward1 for AcoshBackward0."""
    stem, number = op.node_name.split("Backward")
    return replace(op, node_name=f"{stem}Backward{int(number) + by}")


def _of_one(rule: Callable) -> Callable:
    return lambda g, *needed: rule((g,), *needed)


def _short(value: Any) -> str:
    """An argument as text; an array by its shape."""
    return f"array of shape {value.shape}" if isinstance(value, np.ndarray) else repr(value)


def node_name_for(op_name: str) -> str:
    """PyTorch's name for the node of an op: `index_select` gives `IndexSelectBackward0`."""
    return "".join(part[:1].upper() + part[1:] for part in op_name.split("_")) + "Backward0"


_ARITIES: dict[type[Node], int] = {OneInputNode: 1, TwoInputsNode: 2}


def make_node_class(op: Op) -> type[Node]:
    """The class of the op's nodes, with `vjp(g)` on arrays and `vjp_recorded(g)` on Tensors."""
    base: type[Node] = ManyInputsNode
    if not op.variadic and op.outputs == 1 and len(op.inputs) <= 2:
        base = OneInputNode if len(op.inputs) == 1 else TwoInputsNode
    body: dict[str, Any] = {
        "__slots__": (),
        "__module__": "gradviz.engine",
        "op": op,
        "outputs": op.outputs,
        "arity": _ARITIES.get(base, 0),
        "saves": op.saves_inputs or op.saves_out or op.frees_args,
        "vjp": compile_vjp(op, base, recorded=False),
        "vjp_recorded": compile_vjp(op, base, recorded=True),
        **properties_of_saved(op),
    }
    if op.frees_args:
        body["release"] = _release_with_args(base)
    return type(op.node_name, (base,), body)


def _release_with_args(base: type[Node]) -> Callable:
    def release(node: Any) -> None:
        base.release(node)
        node.args = None

    return release


def compile_vjp(op: Op, base: type[Node], recorded: bool) -> Callable:
    """Write the method that fetches what each rule needs from a node and calls it.

    Written as source, as `dataclasses` does, because a call by position is what makes backward fast."""
    if op.variadic:
        return _variadic_vjp(op, recorded)
    scope: dict[str, Any] = {
        "unpack": unpack,
        "unpack_nth": unpack_nth,
        "unpack_out": unpack_out,
        "unpack_indices": unpack_indices,
        "out_tensor": out_tensor,
        "backward_twice": backward_twice,
        "reduced": reduced,
    }
    lines = ["def vjp(n, g):"]
    for i, name in enumerate(op.inputs):
        derivative = op.derivatives.get(name)
        edge = _edge_source(base, i)
        result = f"g_{name}"
        if derivative is None:
            lines.append(f"    {result} = None")
            continue
        scope[f"rule_{name}"] = derivative.rule
        lines += [f"    if {edge} is None:", f"        {result} = None", "    else:"]
        if op.frees_args and any(need in op.args for need in derivative.needs):
            lines.append("        if n.args is None: raise backward_twice(n.name())")
        lines += [f"        {line}" for need in derivative.needs for line in _fetch(op, base, need, recorded)]
        lines.append(f"        {result} = rule_{name}({', '.join(['g', *derivative.needs])})")
        if op.kind == "elementwise":
            lines.append(f"        if n.spec is not None: {result} = reduced({result}, n.spec[{i}])")
    names = ", ".join(f"g_{name}" for name in op.inputs)
    lines.append(f"    return {names}" if base is OneInputNode else f"    return ({names},)")
    exec(compile("\n".join(lines), "<gradviz>", "exec"), scope)
    return scope["vjp"]


def _edge_source(base: type[Node], i: int) -> str:
    return f"n._edges[{i}]" if base is ManyInputsNode else ("n.a", "n.b")[i]


def _fetch(op: Op, base: type[Node], need: str, recorded: bool) -> list[str]:
    if need in op.args:
        return [f"{need} = n.args[{op.args.index(need)}]"]
    if need == "out":
        if recorded:
            return ["out = out_tensor(n, unpack_out(n))"]
        return ["out = n.out if n.out is not None and n.out_counter is None else unpack_out(n)"]
    if need == "chosen":
        return ["chosen = unpack_indices(n)"]
    for position, suffix in enumerate(("_shape", "_dtype")):
        if need.endswith(suffix):
            return [f"{need} = n.spec[{op.inputs.index(need.removesuffix(suffix))}][{position}]"]
    i = op.inputs.index(need)
    if base is ManyInputsNode:
        return [f"{need} = unpack_nth(n, {i})" + ("" if recorded else ".array")]
    slot = ("x", "y")[i]
    if recorded:
        return [f"{need} = unpack(n, '{slot}')"]
    return [
        f"{need} = n.{slot}",
        f"{need} = {need}.array if {need} is not None and "
        f"({need}._rare is None or {need}._rare.counter is None) else unpack(n, '{slot}').array",
    ]


def _variadic_vjp(op: Op, recorded: bool) -> Callable:
    """For ops of any number of tensors (`cat`): one rule gives the gradients of all."""
    (derivative,) = op.derivatives.values()

    def vjp(n: Any, g: Any) -> tuple:
        shapes = [spec[0] for spec in n.spec]
        named = {name: n.args[i] for i, name in enumerate(op.args)} | {f"{op.inputs[0]}_shape": shapes}
        if op.inputs[0] in derivative.needs:
            tensors = [unpack_nth(n, i) for i in range(len(shapes))]
            named[op.inputs[0]] = tensors if recorded else [tensor.array for tensor in tensors]
        if "out" in derivative.needs:
            named["out"] = out_tensor(n, unpack_out(n)) if recorded else unpack_out(n)
        gradients = derivative.rule(g, *(named[need] for need in derivative.needs))
        return tuple(
            None if edge is None else gradient for edge, gradient in zip(n._edges, gradients, strict=True)
        )

    return vjp


def reduced(gradient: Any, spec: tuple) -> Any:
    """The gradient of an input that was broadcast or cast: summed over what broadcasting repeated."""
    shape, dtype = spec
    gradient = sum_to(gradient, shape)
    return gradient if gradient.dtype == dtype else gradient.astype(dtype)


def out_tensor(node: Any, saved: Any) -> Any:
    """The saved output as the Tensor it was: the node is its grad_fn. Of several outputs: all, as a tuple."""
    if isinstance(saved, tuple):
        return tuple(
            new_tensor(array, Output(node, nr) if array.dtype.kind in "fc" else None)
            for nr, array in enumerate(saved)
        )
    out = new_tensor(saved, node)
    if state.forward_mode is not None:
        state.forward_mode.restore(out, node)
    return out
