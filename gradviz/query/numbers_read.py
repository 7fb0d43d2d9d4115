"""The tensors whose numbers a program gives to an op, as in `loss = fit + 0.1 * amount` with `amount = rough.item()`.

An event records each read of a number, with its place. It goes into an op if it stands in the op's expression, or if
the numbers that are read at a line and those that the op gets keep one proportion from run to run."""

import ast
import re
from collections.abc import Container
from functools import cache
from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import Kind, NumberRead, TensorMade
from gradviz.query.flow import op_of
from gradviz.query.functions_of_source import ends_of, nodes_of
from gradviz.query.ops import CONVERTING, COPYING
from gradviz.query.query import Query
from gradviz.query.source_trees import trees
from gradviz.sets import contained, distinct
from gradviz.tracefile import Site

_FAR = 8  # the most copies between a tensor with a graph and the one that is read
_MOST = 256  # the most reads before an op that are followed
_CALLS = 32  # the most ops of a line before a pass that are looked at
_CLOSE = 1e-5  # how far two equal numbers may differ, relative to the larger: one may be rounded to float32
_RUNS = 3  # the fewest runs of an op whose numbers are compared with what was read
_VARIES = 1e-3  # the least change of numbers that are compared, relative to the largest
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d*)?(?:e[+-]?\d+)?(?![\w.])")


class Reading(NamedTuple):
    """A read of a plain number: its event, the tensor with a graph whose number it is, and the expression that reads
    it: `rough.item()`. `is_here` says that it stands in the expression of the op that gets the number."""

    event: int
    tensor: int
    text: str
    is_here: bool


class NumbersRead:
    """The reads of one trace. Use `query.of(NumbersRead)`."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.reads = query.trace.table(Kind.NUMBER_READ).events
        begun = query.trace.table(Kind.PASS_BEGAN)
        self._begins = begun.events[~query.trace.named(begun["how"], ("grad",))]
        self.of_op = cache(self._of_op)
        self._spans = cache(self._spans_of)

    def _of_op(self, event: int) -> list[Reading]:
        """The reads since the last backward() that an op has its numbers from."""
        first, last = np.searchsorted(self.reads, ([0, *self._begins[self._begins < event]][-1], event))
        op = self.query.tensors.op(event)
        site, numbers = self.query.places.site(op.site), [*map(float, _NUMBER.findall(op.args))]
        node = self._node(site)
        if node is None or site is None or not numbers or first == last:
            return []
        readings: list[Reading] = []
        for operand in _operands(node):
            parts = set(ast.walk(operand))
            for read in map(self._read, self.reads[max(first, last - _MOST) : last].tolist()):
                part = self._node(self.query.places.site(read.site))
                if part is not None and part in parts and self._is_in(parts, part, read.index, event):
                    readings += self._reading(read.index, True)
        return readings

    def in_proportion(self, events: np.ndarray) -> list[Reading]:
        """The last read of each line whose numbers, summed since the run before, are in one proportion to a number that
        the op of a line gets in its last runs, at these events. It proves where the number is from, whatever the
        program does with it on the way."""
        runs, numbers = list[int](), list[float]()
        for op in map(self.query.tensors.op, events[-_CALLS:].tolist()):
            if number := float([*_NUMBER.findall(op.args), 0][0]):  # `sum()` begins with 0
                runs, numbers = [*runs, op.index], [*numbers, number]
        before = [0, *self._begins[self._begins < events[0]], *events[:-_CALLS]][-1]
        bounds = np.searchsorted(self.reads, [before, *runs])
        if len(runs) < _RUNS or not (np.diff(bounds) > 0).all() or (np.diff(bounds) > _MOST).any():
            return []
        own = self.reads[bounds[0] : bounds[-1]]
        turns, sites = np.searchsorted(runs, own), self.query.places.of_events[own]
        found: list[Reading] = []
        for site in distinct(sites).tolist():
            reads, sums = own[sites == site].tolist(), np.zeros(len(runs))
            for turn, event in zip(turns[sites == site].tolist(), reads, strict=True):
                array = getattr(self.query.memory.value(self._read(event).tensor, event), "array", None)
                sums[turn] += array.item() if array is not None and array.size == 1 else np.nan
            if any(_are_in_proportion(sums[-n:], numbers[-n:]) for n in (_RUNS, len(runs))):
                found += self._reading(reads[-1], False)
        return found

    def _reading(self, event: int, is_here: bool) -> list[Reading]:
        """The reading at an event, if it is of a tensor with a graph."""
        read = self._read(event)
        tensor, text = self._with_graph(read.tensor, event), self.query.places.whole_expression(read.site)
        return [Reading(event, tensor, text, is_here)] if tensor else []

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
            first = events[rounds == rounds[0]][:_CALLS].tolist()  # each layer of a class has its own numbers
            pairs = [(event, reading) for event in first for reading in self.of_op(event)]
            for event, reading in (*pairs, *((first[0], reading) for reading in self.in_proportion(events))):
                if reading.tensor in tensors:
                    return [*made.events[made["op"] == event].tolist(), event][0], reading
        return None

    def _is_in(self, parts: set[ast.AST], part: ast.AST, read: int, event: int) -> bool:
        """Whether the number that one of the parts of an operand reads is in the number that the op at an event gets:
        nothing compares it, and no op computes with it inside the operand."""
        compared: list[ast.AST] = [one for one in parts if isinstance(one, ast.Compare)]
        compared += [one.slice for one in parts if isinstance(one, ast.Subscript)]
        table = self.query.trace.table(Kind.OP)
        between = distinct(table.sites[(table.events > read) & (table.events < event)]).tolist()
        nodes = map(self._node, map(self.query.places.site, between))
        return not any(part in ast.walk(one) for one in compared) and parts.isdisjoint(filter(None, nodes))

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

    def _node(self, site: Site | None) -> ast.AST | None:
        """The expression at a site, or the statement; None if its source was not kept."""
        place = site.place if site is not None else None
        ends = (place.line, place.col, place.end_line, place.end_col) if place is not None else ()
        return self._spans(place.file).get(ends) if place is not None else None

    def _spans_of(self, file: str) -> dict[tuple[int, ...], ast.AST]:
        """The nodes of a file by their ends. The expression of a statement comes later than the statement, and
        stays."""
        nodes, lines = nodes_of(self.query.of(trees).get(file)), self.query.trace.source(file)
        return {ends_of(node, lines): node for node in nodes if isinstance(node, ast.expr | ast.stmt)}


def _are_in_proportion(sums: np.ndarray, numbers: list[float]) -> bool:
    varies = np.isfinite(sums).all() and np.ptp(sums) > _VARIES * np.abs(sums).max() and sums[-1]
    return bool(varies and np.allclose(numbers, sums * (numbers[-1] / sums[-1]), rtol=_CLOSE, atol=0))


def _operands(node: ast.AST) -> list[ast.AST]:
    """The expressions that an op's expression has its numbers from."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.Call):
        return [*node.args, *(keyword.value for keyword in node.keywords)]
    return [node.value] if isinstance(node, ast.AugAssign) else [node]
