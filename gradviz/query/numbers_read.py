"""The tensors whose numbers a program gives to an op, as in `loss = fit + 0.1 * amount` with `amount = rough.item()`.

An event records each read of a number, with its place. From there the syntax tree says where the number goes: into an
expression, a variable, an attribute, an element of a dict or a list, the result of a function. The number of the op
proves it: the expression there has the same value."""

import ast
import math
import operator
import re
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from functools import cache
from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import Kind, NumberRead, TensorMade
from gradviz.query.flow import op_of
from gradviz.query.functions_of_source import called, ends_of, nodes_of, parents_of
from gradviz.query.ops import CONVERTING, COPYING
from gradviz.query.query import Query
from gradviz.query.source_trees import assigned_before, trees
from gradviz.sets import contained, distinct
from gradviz.tracefile import Site

_FAR = 8  # the most copies between a tensor with a graph and the one that is read
_MOST = 256  # the most reads before an op that are followed
_CALLS = 32  # the most ops of a line before a pass that are looked at
_CLOSE = 1e-5  # how far two equal numbers may differ, relative to the larger: one may be rounded to float32
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d*)?(?:e[+-]?\d+)?(?![\w.])")
_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: math.pow,
}  # fmt: skip
_CONVERSIONS: dict[str, Callable[[float], float]] = {"float": float, "int": int, "abs": abs}
_CONVERSIONS |= {f"math.{one}": getattr(math, one) for one in ("exp", "log", "sqrt", "tanh", "sin", "cos", "log1p")}
_Values = dict[ast.AST, float | None]


class Reading(NamedTuple):
    """A read of a plain number: its event, the tensor with a graph whose number it is, and the expression that reads
    it: `rough.item()`. `is_here` says that it stands in the expression of the op that gets the number."""

    event: int
    tensor: int
    text: str
    is_here: bool


class _Stop(NamedTuple):
    """A place that a number passes: an expression that is the number; or, with a `name`, a statement that gives the
    number to a variable. The number is None if it is not known, NaN if it is a part of a sum."""

    node: ast.AST
    value: float | None
    site: Site
    name: str = ""


class NumbersRead:
    """The reads of one trace. Use `query.of(NumbersRead)`."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.reads = query.trace.table(Kind.NUMBER_READ).events
        begun = query.trace.table(Kind.PASS_BEGAN)
        self._begins = begun.events[~query.trace.named(begun["how"], ("grad",))]
        self.of_op = cache(self._of_op)
        self._spans, self._way = cache(self._spans_of), cache(lambda event: list(self._followed(event)))
        self._return = cache(self._returned)

    def _of_op(self, event: int) -> list[Reading]:
        """The reads since the last backward() that an op has its numbers from."""
        begins = self._begins[self._begins < event]
        first, last = np.searchsorted(self.reads, (begins[-1] if len(begins) else 0, event))
        op = self.query.tensors.op(event)
        site, numbers = self.query.places.site(op.site), [*map(float, _NUMBER.findall(op.args))]
        node = self._node(site)
        if node is None or site is None or not numbers or first == last:
            return []
        readings: list[Reading] = []
        for operand in _operands(node):
            known = self._known_in(operand, site, self.reads[max(first, last - _MOST) : last].tolist())
            value = self._value(operand, {part: value for part, (value, _) in known.items()}, site)
            is_proved = value is not None and any(math.isclose(value, n, rel_tol=_CLOSE) for n in numbers)
            is_proved |= value is not None and math.isnan(value)  # computed with a sum that the read is a part of
            readings += (
                reading
                for part, (_, reading) in known.items()
                if is_proved or (value is None and reading.is_here and self._is_in(operand, part, reading, event))
            )
            readings += self._in_container(operand, site, numbers, self.reads[max(first, last - _MOST) : last].tolist())
        return readings

    def _in_container(self, operand: ast.AST, site: Site, numbers: list[float], events: list[int]) -> Iterator[Reading]:
        """The reads at these events of elements of a list or dict that an operand takes whole, as in `sum(terms)`, and
        whose values are among the numbers."""
        names = {ast.unparse(part) for part in ast.walk(operand) if isinstance(getattr(part, "ctx", None), ast.Load)}
        for event in events:
            for stop in self._way(event):
                is_element = stop.name.endswith("]") and stop.name.rpartition("[")[0] in names and _is_seen(stop, site)
                is_same = stop.value is not None and any(math.isclose(stop.value, n, rel_tol=_CLOSE) for n in numbers)
                if is_element and is_same and (tensor := self._with_graph(self._read(event).tensor, event)):
                    yield Reading(event, tensor, self.query.places.whole_expression(self._read(event).site), False)

    def first_use(self, tensors: Container[int], since: int) -> tuple[int, Reading] | None:
        """The first node on the way to a root, made after the event `since`, whose op has its numbers from one of these
        tensors, or the first op that gives such a node a result without a graph; and the read. None if there is
        none."""
        made, ops = self.query.trace.table(Kind.NODE), self.query.trace.table(Kind.OP)
        ran = self.query.nodes.have_run & (made.events > since) & (made["op"] >= 0)
        own, inputs = contained(ops.events, made["op"][ran]), ops.lists("inputs")
        given = contained(ops.lists("outputs").firsts, inputs.values[own[inputs.owners]])
        own |= given & (ops.events > since) & ~contained(ops.events, made["op"])
        for site in distinct(ops.sites[own]).tolist() if len(self.reads) else ():
            events = ops.events[own & (ops.sites == site)]
            rounds = np.searchsorted(self._begins, events)
            for event in events[rounds == rounds[0]][:_CALLS].tolist():  # each layer of a class has its own numbers
                for reading in self.of_op(event):
                    if reading.tensor in tensors:
                        nodes = made.events[made["op"] == event].tolist()
                        return [*nodes, event][0], reading
        return None

    # --- where a number goes

    def _known_in(self, operand: ast.AST, site: Site, events: list[int]) -> dict[ast.AST, tuple[float | None, Reading]]:
        """The parts of an expression at a site that are numbers read at these events, each with its value. Of a
        variable the last number counts."""
        parts = set(ast.walk(operand))
        variables = {ast.unparse(part): part for part in parts if isinstance(getattr(part, "ctx", None), ast.Load)}
        known: dict[ast.AST, tuple[float | None, Reading]] = {}
        for event in events:
            for stop in self._way(event):
                part = variables.get(stop.name) if stop.name and _is_seen(stop, site) else stop.node
                if part in parts and (tensor := self._with_graph(self._read(event).tensor, event)):
                    text = self.query.places.whole_expression(self._read(event).site)
                    reading = Reading(event, tensor, text, part is self._way(event)[0].node)
                    known[part] = stop.value, reading
        return known

    def _is_in(self, operand: ast.AST, part: ast.AST, reading: Reading, event: int) -> bool:
        """Whether the number that a part of an operand reads is in the number that the op at an event gets, although
        the value of the operand is not known: nothing compares it, and no op computes with it inside the operand."""
        parts = [*ast.walk(operand)]
        compared: list[ast.AST] = [one for one in parts if isinstance(one, ast.Compare)]
        compared += [one.slice for one in parts if isinstance(one, ast.Subscript)]
        table, inside = self.query.trace.table(Kind.OP), set(parts)
        between = table.sites[(table.events > reading.event) & (table.events < event)]
        return not any(part in ast.walk(one) for one in compared) and inside.isdisjoint(
            node for number in between.tolist() if (node := self._node(self.query.places.site(number)))
        )

    def _followed(self, event: int) -> Iterator[_Stop]:
        """The places that the number of a read passes, from the read outwards."""
        read = self._read(event)
        content = self.query.memory.value(read.tensor, event)
        array = content.array if content is not None else None
        is_number = array is not None and array.size == 1 and array.dtype.kind in "fiu"
        value, key = float(array.item()) if array is not None and is_number else None, ""
        for site in self.query.places.callers(read.site):
            node: ast.AST | None = self._node(site)
            if node is None:
                return
            if site.number == read.site and not (isinstance(node, ast.Call) and called(node) == read.how):
                first = node.args[0] if isinstance(node, ast.Call) and len(node.args) == 1 else None
                # of a function, as `math.sin(x)`
                value = self._value(node, {first: value}, site) if first else None
            if not key:
                yield _Stop(node, value, site)
            parents = self._parents(site.place.file)
            outer, key, value = self._around(node, value, site, key)
            parent = parents.get(outer)
            if isinstance(parent, ast.Assign):
                for target in parent.targets:
                    names = target.elts if isinstance(target, ast.Tuple) and key else []
                    yield from (
                        _Stop(parent, value, site, ast.unparse(name))
                        for number, name in enumerate(names)
                        if key == f"[{number}]"
                    )
                    yield _Stop(parent, value, site, ast.unparse(target) + key)
            elif name := _list_with(parent):
                yield _Stop(outer, value, site, f"{name}[-1]")
            elif name := _sum_with(parent, parents):
                value = math.nan
                yield _Stop(outer, value, site, name)
            inner = self._return(site.place.file, parent) if not key and parent is not None else None
            if inner is not None:
                outer, key, value = self._around(inner, value, site)
                parent = parents.get(outer)
            if not isinstance(parent, ast.Return | ast.Lambda):
                return

    def _returned(self, file: str, node: ast.AST) -> ast.AST | None:
        """The variable that a statement gives a value to, in the first `return` of its function that reads it."""
        parents = self._parents(file)
        name = _sum_with(node, parents) or (ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else "")
        function: ast.AST | None = node
        while name and function is not None and not isinstance(function, ast.FunctionDef):
            function = parents.get(function)
        results = [part for part in ast.walk(function) if isinstance(part, ast.Return)] if name and function else []
        parts = (part for result in results for part in ast.walk(result))
        return next((part for part in parts if isinstance(part, ast.Name) and part.id == name), None)

    def _around(
        self, node: ast.AST, value: float | None, site: Site, key: str = ""
    ) -> tuple[ast.AST, str, float | None]:
        """The largest expression around a number that has it alone, or in a dict or list; the key there; its value."""
        parents = self._parents(site.place.file)
        while (parent := parents.get(node)) is not None:
            if isinstance(parent, ast.Dict) and node in parent.values:
                name = parent.keys[parent.values.index(node)]
                key = f"[{ast.unparse(name)}]{key}" if name is not None else key
            elif isinstance(parent, ast.List | ast.Tuple) and node in parent.elts:
                key = f"[{parent.elts.index(node)}]{key}"
            else:
                is_sum = bool(_sum_with(parent, parents))
                around = self._value(parent, {node: value}, site) if not key and not is_sum else None
                if around is None:
                    break
                value = around
            node = parent
        return node, key, value

    def _with_graph(self, tensor: int, at: int) -> int:
        """The tensor with a graph whose elements a tensor has: itself, or what it was detached from; 0 if there is
        none."""
        for _ in range(_FAR):
            if not tensor or self.query.tensors.requires_grad(tensor, at):
                break
            op, made = op_of(self.query, tensor), self.query.tensors.made(tensor)
            base = self.query.tensors.base(self.query.tensors.before(tensor, at))
            if isinstance(made, TensorMade) and made.how in COPYING and base is not None:
                tensor = base.tensor
            else:
                tensor = op.inputs[0] if op is not None and op.op in COPYING | CONVERTING and op.inputs else 0
        return tensor

    def _read(self, event: int) -> NumberRead:
        read = self.query.trace.event(event)
        assert isinstance(read, NumberRead)
        return read

    # --- expressions

    def _value(self, node: ast.AST, values: _Values, site: Site) -> float | None:
        """The value of an expression of numbers, from the values of some parts; None if it is not known. A variable
        counts that was assigned a constant above."""
        if node in values:
            return values[node]
        if isinstance(node, ast.Constant):
            number = node.value
            return float(number) if isinstance(number, int | float) and not isinstance(number, bool) else None
        if isinstance(node, ast.Name):
            assigned = assigned_before(self.query, site, node.id)
            is_constant = assigned is not None and isinstance(assigned.value, ast.Constant)
            return self._value(assigned.value, {}, site) if assigned is not None and is_constant else None
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._value(node.operand, values, site)
            return -inner if inner is not None else None
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            left, right = self._value(node.left, values, site), self._value(node.right, values, site)
            if (left or right) is not None and math.isnan(left or 0) | math.isnan(right or 0):
                return math.nan
            if left is not None and right is not None:
                with suppress(ArithmeticError, ValueError):
                    return _BINARY[type(node.op)](left, right)
        if isinstance(node, ast.Call) and len(node.args) == 1:
            convert, inner = _CONVERSIONS.get(ast.unparse(node.func)), self._value(node.args[0], values, site)
            if convert and inner is not None and math.isfinite(inner):
                with suppress(ArithmeticError, ValueError):
                    return float(convert(inner))
        return None

    def _node(self, site: Site | None) -> ast.AST | None:
        """The expression at a site, or the statement; None if its source was not kept."""
        place = site.place if site is not None else None
        ends = (place.line, place.col, place.end_line, place.end_col) if place is not None else ()
        return self._spans(place.file).get(ends) if place is not None else None

    def _parents(self, file: str) -> dict[ast.AST, ast.AST]:
        return parents_of(self.query.of(trees).get(file))

    def _spans_of(self, file: str) -> dict[tuple[int, ...], ast.AST]:
        """The nodes of a file by their ends. The expression of a statement comes later than the statement, and
        stays."""
        nodes, lines = nodes_of(self.query.of(trees).get(file)), self.query.trace.source(file)
        return {ends_of(node, lines): node for node in nodes if isinstance(node, ast.expr | ast.stmt)}


def _list_with(node: ast.AST | None) -> str:
    """The list that a call appends a number to; empty if it is no such call."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
        return ast.unparse(node.func.value)
    return ""


def _sum_with(node: ast.AST | None, parents: dict[ast.AST, ast.AST]) -> str:
    """The variable that a statement adds a number to: `total += n`, or `total = total + n`, of which `node` is the sum.
    Empty if it is no such statement."""
    if isinstance(node, ast.AugAssign):
        return ast.unparse(node.target) if isinstance(node.op, ast.Add | ast.Sub) else ""
    outer = parents.get(node) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) else None
    name = ast.unparse(outer.targets[0]) if isinstance(outer, ast.Assign) else ""
    return name if name in (ast.unparse(part) for part in ast.iter_child_nodes(node or ast.Pass())) else ""


def _operands(node: ast.AST) -> list[ast.AST]:
    """The expressions that an op's expression has its numbers from."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.Call):
        return [*node.args, *(keyword.value for keyword in node.keywords)]
    return [node.value] if isinstance(node, ast.AugAssign) else [node]


def _is_seen(stop: _Stop, site: Site) -> bool:
    """Whether a name at a site may be the variable of a stop: an attribute of an object, a variable of the same
    function or of one around it."""
    here, there = site.place, stop.site.place
    is_of_object = "." in stop.name.partition("[")[0]
    is_around = there.function == "<module>" or f"{here.function}.".startswith(f"{there.function}.")
    return here.file == there.file and (is_of_object or is_around)
