"""A row of the table: what an operation computes, and its derivatives.

A rule serves twice. In an ordinary backward it runs on arrays. Under `create_graph` it runs on Tensors, and the NumPy
functions that it calls record themselves. What the parameters of a rule mean is stated in `needs.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from gradviz.engine.core.derivative import AnyDerivative, Derivative
from gradviz.engine.core.needs import Dtype, Indices, Input, Need, Output, Shape, needs_by_name
from gradviz.engine.core.node import Node
from gradviz.engine.core.node_class import make_node_class
from gradviz.engine.core.saved import shown_names
from gradviz.events.field_types import Rule
from gradviz.events.filled_formula import with_values

_MOST_RULES = 1000  # how many of them are cached for a row


@dataclass(eq=False)
class Op:
    """An operation: what it computes, and the derivative for each input.

    `kind` says how a tangent is pushed in forward mode. An `elementwise` op broadcasts, and its rule is its own
    transpose. A `linear` op is applied to the tangents. For any other op either `jvp` is given, or the rule is
    transposed by differentiating it in `g`."""

    name: str
    forward: Callable
    inputs: tuple[str, ...]
    args: tuple[str, ...] = ()
    derivatives: dict[str, AnyDerivative] = field(default_factory=dict)
    node_name: str = ""
    kind: str = ""
    jvp: Callable | None = None
    outputs: int = 1
    view: bool = False
    variadic: bool = False
    kernel: str = ""  # the name of PyTorch's kernel, where that takes floating-point numbers only
    frees_args: bool = False  # arrays among the arguments are saved tensors: a pass frees them
    internal: tuple[str, ...] = ()  # arguments that a caller does not write, so that nobody is shown them
    elementwise: bool = False  # the gradient is upstream × local derivative, element by element
    need: dict[str, Need] = field(init=False)  # what each name stands for that a rule may have as a parameter
    node_class: type[Node] = field(init=False)
    saves_out: bool = field(init=False)
    saves_all_outputs: bool = field(init=False)  # and not only the indices
    saves_inputs: bool = field(init=False)
    kept_for_first: tuple[bool, ...] = field(init=False)  # `keeps` where only the first is differentiated
    of_one: bool = field(init=False)  # one tensor in, one out
    saved: dict[str, Need] = field(init=False)  # what its nodes show, by PyTorch's names
    differentiable: int = field(init=False)  # how many outputs have gradients: indices have not
    needs_spec: bool = field(init=False)  # whether a rule asks for an input's shape or dtype
    _keeps: dict[tuple[bool, ...], tuple[bool, ...]] = field(init=False, default_factory=dict)
    _rules: dict[tuple, Rule] = field(init=False, default_factory=dict)
    fixed_rule: Rule | None = field(init=False)  # where it does not depend on the arguments

    def __post_init__(self) -> None:
        if {"n", "g"} & {*self.inputs, *self.args}:
            raise TypeError(f"{self.name}: n and g are the node and the gradient; call an argument otherwise")
        self.node_name = self.node_name or node_name_for(self.name)
        self.elementwise = self.elementwise or self.kind == "elementwise"
        self.need = needs_by_name(self.inputs, self.args, self.variadic)
        for name, derivative in self.derivatives.items():
            if unknown := set(derivative.parameters) - set(self.need):
                raise TypeError(f"{self.name}: the rule for {name} needs {', '.join(unknown)}, which the op has not")
        needed = {need for derivative in self.derivatives.values() for need in self.needs_of(derivative)}
        kinds = {type(need) for need in needed}
        self.saves_all_outputs = Output in kinds
        self.saves_out = self.saves_all_outputs or Indices in kinds
        self.differentiable = 1 if Indices in kinds or "indices" in self.args else self.outputs
        self.saves_inputs = any(self.need[name] in needed for name in self.inputs)
        self.needs_spec = self.variadic or Shape in kinds or Dtype in kinds
        self.kept_for_first = self.keeps(tuple(nr == 0 for nr in range(len(self.inputs))))
        self.saved = shown_names(self.node_name, needed, self.inputs, self.args, self.frees_args)
        self.fixed_rule = None if self._has_formulas_by_arguments() else self._rule_of(())
        self.node_class = make_node_class(self)
        self.of_one = self.node_class.arity == 1

    def _has_formulas_by_arguments(self) -> bool:
        variants = [derivative.variants for derivative in self.derivatives.values()]
        words = {word for several in variants for word in re.findall(r"[A-Za-z_]+", several[0].text)}
        return any(len(several) > 1 for several in variants) or not words.isdisjoint(self.args)

    def needs_of(self, derivative: AnyDerivative) -> tuple[Need, ...]:
        """What a rule of this op needs, in the order of its parameters."""
        return tuple(self.need[parameter] for parameter in derivative.parameters)

    def derivative(self, name: str, args: tuple) -> Derivative:
        """The derivative for the input `name`, for a run with these arguments."""
        return self.derivatives[name].among(self.args, args)

    def keeps(self, wanted: tuple[bool, ...]) -> tuple[bool, ...]:
        """Which inputs a node has to save so that the gradients of the `wanted` inputs can be computed."""
        known = self._keeps.get(wanted)
        if known is None:
            pairs = zip(self.inputs, wanted, strict=True)
            asked = [name for name, is_asked in pairs if is_asked and name in self.derivatives]
            needed = {need for name in asked for need in self.needs_of(self.derivatives[name])}
            known = tuple(Input(name, nr) in needed for nr, name in enumerate(self.inputs))
            self._keeps[wanted] = known
        return known

    def rule(self, args: tuple) -> Rule:
        """The derivatives as text, for a run with these arguments: a pair (input, formula) for each input.

        The formula is "" where there is no derivative. An op of any number of tensors has one pair for all of them.
        `derivative.py` says how a formula is read. Numbers among the arguments stand in the place of their names."""
        if self.fixed_rule is not None:
            return self.fixed_rule
        try:
            known = self._rules.get(args)
        except TypeError:  # an array among the arguments is not hashable
            return self._rule_of(args)
        if known is None:
            if len(self._rules) > _MOST_RULES:
                self._rules.clear()
            known = self._rules[args] = self._rule_of(args)
        return known

    def _rule_of(self, args: tuple) -> Rule:
        values = dict(zip(self.args, args, strict=False))
        formulas = [
            (name, with_values(self.derivative(name, args).text, values) if name in self.derivatives else "")
            for name in self.inputs
        ]
        return Rule(tuple(formulas), self.elementwise)

    @property
    def formula(self) -> str:
        """The derivatives as text, in the order of the inputs and for no arguments in particular: `∂/∂x = y, ∂/∂y =
        x`."""
        texts = {name: choice.variants[-1].text for name, choice in self.derivatives.items()}
        known = [name for name in self.inputs if texts.get(name)]
        return ", ".join(f"∂/∂{name} = {texts[name]}" for name in known)

    def arguments_text(self, args: tuple) -> str:
        """The arguments that are no tensors, as one would write them: `dim=1, keepdim=True`. Where a node frees its
        arguments, arrays among them are what a tensor held: they are no text."""
        shown = []
        for name, value in zip(self.args, args):  # noqa: B905
            if value is None or value is False or name in self.internal:
                continue
            if self.frees_args and isinstance(value[0] if _is_index_alone(value) else value, np.ndarray):
                continue
            shown.append(f"{name}={_short(value)}")
        return ", ".join(shown)

    def __repr__(self) -> str:
        return f"<op {self.name}>"


def _is_index_alone(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 1


def _short(value: Any) -> str:
    """An argument as text. Of an array only the dtype and shape are shown, and beside parts of an index nothing."""
    if isinstance(value, tuple) and any(isinstance(part, np.ndarray) for part in value):
        return f"({', '.join('a tensor' if isinstance(part, np.ndarray) else _short(part) for part in value)})"
    if isinstance(value, tuple) and any(isinstance(part, slice) for part in value):
        return _short(value[0]) if len(value) == 1 else f"({', '.join(map(_short, value))})"
    if isinstance(value, slice):
        ends = ["" if end is None else str(end) for end in (value.start, value.stop, value.step)]
        return ":".join(ends[: 2 if value.step is None else 3])
    if value is Ellipsis:
        return "..."
    if isinstance(value, np.generic):
        return repr(value.item())
    if isinstance(value, np.dtype):
        return value.name
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else repr(value)


def node_name_for(op_name: str) -> str:
    """PyTorch's name for the node of an op: `index_select` gives `IndexSelectBackward0`."""
    return "".join(part[:1].upper() + part[1:] for part in op_name.split("_")) + "Backward0"


# --- rows that are made from others


_of_outputs: dict[tuple[Op, int], Op] = {}


def with_outputs(op: Op, n: int) -> Op:
    """The row for n outputs of an op whose number of outputs depends on its arguments (`split`, `unbind`)."""
    if (op, n) not in _of_outputs:
        forward, derivatives = op.forward, op.derivatives
        if n == 1:
            forward = lambda *arguments: op.forward(*arguments)[0]
            derivatives = {name: d.mapped(_of_one) for name, d in op.derivatives.items()}
        _of_outputs[op, n] = replace(op, outputs=n, forward=forward, derivatives=derivatives)
    return _of_outputs[op, n]


def _of_one(rule: Callable) -> Callable:
    return lambda g, *needed: rule((g,), *needed)


_in_place: dict[Op, Op] = {}


def in_place_form(op: Op) -> Op:
    """The row of the in-place form of a view (`t_` of `t`). Its node has a higher number than the nodes of the other
    forms."""
    if op not in _in_place:
        _in_place[op] = replace(with_next_node(op, 3 if op.name == "squeeze" else 1), name=f"{op.name}_")
    return _in_place[op]


_called: dict[tuple[Op, str], Op] = {}


class Item(Op):
    """The row of `x[0]` and `x[:, 0]`. Its arguments are those of `select`, shown as the index that one writes."""

    def arguments_text(self, args: tuple) -> str:
        """The index, with a `:` for each dimension before it."""
        dim, index = args
        return f"index=({':, ' * dim}{index})" if dim else f"index={index}"


def called(op: Op, name: str, hidden: tuple[str, ...] = ()) -> Op:
    """The row under the name by which the program calls it (`view` of `reshape`), without the arguments that are not
    written there."""
    if op.name == name and not hidden:
        return op
    if (op, name) not in _called:
        settings = {one.name: getattr(op, one.name) for one in fields(op) if one.init}
        settings |= {"name": name, "internal": (*op.internal, *hidden)}
        _called[op, name] = (Item if (op.name, name) == ("select", "getitem") else Op)(**settings)
    return _called[op, name]


def with_next_node(op: Op, by: int = 1) -> Op:
    """The row with a node of the same stem and a higher number: AcoshBackward1 for AcoshBackward0."""
    stem, number = op.node_name.split("Backward")
    return replace(op, node_name=f"{stem}Backward{int(number) + by}")
