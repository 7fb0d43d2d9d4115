"""The entries of the inline cache: what is kept of a call for the next call at its place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any, NamedTuple

import torch

from gradviz.events.field_types import Rule
from gradviz.events.listener import NO_RULE
from gradviz.sources.torch_recorder import calls
from gradviz.sources.torch_recorder.arguments import CONSTANTS, OPERANDS
from gradviz.sources.torch_recorder.described import described
from gradviz.sources.torch_recorder.identity import Identity
from gradviz.sources.torch_recorder.known_things import grad_fn_of
from gradviz.sources.torch_recorder.linear import saves_inner
from gradviz.sources.torch_recorder.node_formulas import rule_of_node
from gradviz.sources.torch_recorder.pytorchs_own import is_floating_point
from gradviz.sources.torch_recorder.saved import RAW, saved_as_is
from gradviz.sources.torch_recorder.saved_again import Plan, plan_of

_MOST_NODES = 8  # the most nodes of one call
_INNER = re.compile(f"{RAW}result[1-9][0-9]*")
TENSOR: Any = object()  # marks a tensor among the arguments of an entry


class Made(NamedTuple):
    """A node that a call made: its type, its name, the number of its edges, its rule, and the attributes that hold
    its saved tensors."""

    type: type
    name: str
    edges: int
    rule: Rule
    saved: tuple[str, ...]


class Entry(NamedTuple):
    """The results of the last call at a place. `given` are its arguments, with `TENSOR` in place of tensors; `labels`
    are the names of the last of them. `absent` is the position among the inputs of an operand that is not a tensor.
    `node` is the type of the node that the call made, `edges` the number of its edges. If the call did not return one
    tensor but `returned`, or made several nodes, `nodes` has all of them, the oldest first. If it `saves_inner`, they
    saved tensors inside the op alone (`linear.saves_inner`). A call that `is_in_place` wrote to its first input and
    made no node. `plan` gives the tensors that its node saved, if they are certain.
    `code` is kept alive because places are known by its address."""

    code: CodeType
    given: tuple[Any, ...]
    labels: tuple[str, ...]
    op: str
    text: str
    rule: Rule
    absent: int | None
    dtypes: tuple[torch.dtype, torch.dtype]  # of the first input and of the result
    dimensions: tuple[int, ...] | None  # of the inputs of a product, which is computed according to them
    node: type
    node_name: str
    edges: int
    saved: tuple[str, ...]  # the attributes of the node that hold its saved tensors
    returned: type
    nodes: tuple[Made, ...] | None
    saves_inner: bool
    is_in_place: bool
    plan: Plan | None


_NO_NODE = Made(type(None), "", 0, NO_RULE, ())


class Entries:
    """Makes entries of calls that have been emitted."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity

    def of(
        self, func: Any, name: str, args: Any, kwargs: Any, inputs: Sequence[torch.Tensor], result: Any,
        code: CodeType,
    ) -> Entry | None:  # fmt: skip
        """The entry for a call; None if the next call at its place has to go the long way in any case."""
        given, outputs, op = _given(args, kwargs), plain_outputs(result), name
        if given is None or not inputs or not outputs or len(inputs) != given.count(TENSOR):
            return None
        is_in_place = result is inputs[0] and calls.writes(op) and grad_fn_of(result) is None
        if not is_in_place and len({*map(id, inputs), *map(id, outputs)}) < len(set(map(id, inputs))) + len(
            outputs
        ):
            return None  # it returns one of its arguments, or one tensor twice
        dimensions = None
        if op in ("matmul", "linear"):
            dimensions = tuple([tensor.ndim for tensor in inputs])
        if op == "matmul" and len(inputs) == 2:
            op = calls.PRODUCTS.get((inputs[0].ndim, inputs[1].ndim), op)
        absent = None
        if op in OPERANDS and len(inputs) == 1 and len(args) == 2:
            absent = 0 if args[0] is not inputs[0] else 1
        floating = is_floating_point(outputs[0]) or is_floating_point(inputs[0])
        text, rule = described(op, args, kwargs, floating, len(inputs) + (absent is not None))
        nodes = () if is_in_place else self._made(outputs, inputs, rule)
        if nodes is None:
            return None
        is_one = type(result) is torch.Tensor and len(nodes) < 2
        inner = (
            not is_one and op == "linear" and saves_inner(inputs, [made.name for made in nodes if made.saved])
        )
        if inner:
            nodes = tuple([made._replace(saved=()) for made in nodes])
        node, node_name, edges, rule_of_it, saved = nodes[0] if is_one and nodes else _NO_NODE
        plan = self._plan(func, name, inputs, result, saved) if saved else None
        return Entry(
            code, given, tuple(kwargs), op, text, rule_of_it if is_one and nodes else rule, absent,
            (inputs[0].dtype, outputs[0].dtype), dimensions, node, node_name, edges, saved, type(result),
            None if is_one else nodes, inner, is_in_place, plan,
        )  # fmt: skip

    def _plan(
        self, func: Any, name: str, inputs: Sequence[torch.Tensor], result: Any, names: Sequence[str]
    ) -> Plan | None:
        """The plan of the tensors that the one node of a call saved; None if the next call may save others."""
        fn, tensors = grad_fn_of(result), (*inputs, result)
        numbers = [self.identity.number_of(tensor) for tensor in tensors]
        return plan_of(func, name, inputs, numbers, fn, self.identity.saved.flat(fn, names, tensors))

    def _made(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], rule: Rule
    ) -> tuple[Made, ...] | None:
        """The nodes that an op with this rule has made, the oldest first; None if they cannot be recognised again."""
        before = {fn for tensor in inputs if (fn := grad_fn_of(tensor)) is not None}
        stack = [fn for output in outputs if (fn := grad_fn_of(output)) is not None]
        nodes: set[Any] = set()
        while stack and len(nodes) <= _MOST_NODES:
            fn = stack.pop()
            if fn in before or fn in nodes or hasattr(fn, "variable"):
                continue
            nodes.add(fn)
            stack += [target for target, _ in fn.next_functions if target is not None]
        records = {fn: fn.metadata.get(self.identity.key) for fn in nodes}
        if len(nodes) > _MOST_NODES or not all(
            record is not None and record.name == type(fn).__name__ for fn, record in records.items()
        ):  # one type stands for nodes with several names
            return None
        made = []
        for fn in sorted(nodes, key=lambda fn: records[fn].number):
            edges = len(fn.next_functions)
            node_rule = rule if len(nodes) == 1 and rule.inputs else rule_of_node(fn, records[fn].name, edges)
            saved = self._names_of_saved(fn, (*inputs, *outputs))
            made.append(Made(type(fn), records[fn].name, edges, node_rule, saved))
        return tuple(made)

    def _names_of_saved(self, fn: Any, candidates: Sequence[torch.Tensor]) -> tuple[str, ...]:
        """The attributes of a node of an op with one result that hold saved tensors with numbers. Inner results, such
        as the mean of a `layer_norm`, are left out: the program never receives them."""
        saved = self.identity.saved
        names = []
        for name in saved.names(fn):
            if _INNER.fullmatch(name):
                try:
                    if not saved.of(saved_as_is(fn, name, True), candidates):
                        continue
                except (RuntimeError, AttributeError):  # nothing was saved
                    continue
            names.append(name)
        return tuple(names)


def plain_outputs(result: Any) -> list[torch.Tensor]:
    """The tensors that a call returned, one or several in a tuple; empty if it also returned something else."""
    if type(result) is torch.Tensor:
        return [result]
    if not isinstance(result, (tuple, list)) or any(type(part) is not torch.Tensor for part in result):
        return []
    return list(result)


def _given(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """The arguments of a call with `TENSOR` for each tensor; None if an argument cannot be compared."""
    arguments = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            arguments.append(TENSOR)
        elif type(value) in CONSTANTS or is_shape(value):
            arguments.append(value)
        else:
            return None
    return tuple(arguments)


def is_shape(value: Any) -> bool:
    """Whether a value is a tuple of ints, which is immutable."""
    return type(value) in (tuple, torch.Size) and all(type(part) is int for part in value)
