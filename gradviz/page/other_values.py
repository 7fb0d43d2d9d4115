"""The data with which a page computes a pass again with other values: the inputs of the pass, its calls, and their
recorded values. If a call fits no row of `op_rows.js` (call_signatures.py), values cannot be changed on the page."""

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from gradviz.errors import GradvizError
from gradviz.events.kinds import Accumulated, Kind, OpRan, PassBegan, Produced, Retained
from gradviz.graph.model import GRAD, GROUP, OP, Graph
from gradviz.query.query import Query
from gradviz.query.writes import writes_by_any_name
from gradviz.replay.outcome import has_hooks
from gradviz.replay.plan import TAKES, written_arguments
from gradviz.sets import grouped
from gradviz.tracefile import PassInfo, Snapshot
from gradviz.words import Words
from gradviz.words.escape import clean, plain

MOST_CALLS = 40  # of a pass: a learner cannot read larger graphs
_MOST_ELEMENTS = 4096  # elements of a computed tensor
_MOST_ENTERED = 64  # elements of a tensor that enters the pass
_TRUTH = "bool"
_KNOWN = ("float32", "float64", "int64", _TRUTH)  # dtypes


class _Refused(GradvizError):
    """The reason why the values of a pass cannot be changed on a page."""


def other_values(words: Words, graph: Graph, backward_pass: PassInfo | None) -> dict[str, Any]:
    """A pass as data for the page's computation; if it cannot be computed, only a `reason`."""
    try:
        return _Pass(words, graph, backward_pass).data()
    except _Refused as refused:
        return {"reason": words.say(refused.text, **refused.parts)}


class _Pass:
    """A pass that a page can compute."""

    def __init__(self, words: Words, graph: Graph, backward_pass: PassInfo | None) -> None:
        self.words, self.query, self.graph = words, words.query, graph
        if backward_pass is None or backward_pass.last is None or not backward_pass.is_in_detail:
            raise _Refused("no backward pass was recorded here to its end")
        kinds = Counter(node.kind for node in graph.nodes.values())
        if kinds[GROUP] or kinds[OP] > MOST_CALLS:
            raise _Refused("the graph has more than {count} operations", count=str(MOST_CALLS))
        self.end = backward_pass.last
        self.began = self.query.passes.began(backward_pass.number)
        _check(self.query, graph, self.began)
        self.edges = _places_of_edges(graph)
        self.gradients = _produced(self.query, backward_pass.number)

    def data(self) -> dict[str, Any]:
        """The pass as plain data."""
        calls, first = self._walk()
        made = {call.index for call in calls}
        for call in calls:
            for tensor in self._used(call, first):
                self._check_unchanged(tensor, call.index, made)
        return {
            "began": self.began.index,
            "end": self.end,
            "leaves": [
                self._leaf(one, event)
                for one, event in first.items()
                if one > 0 and not any(one in call.outputs for call in calls)
            ],
            "calls": [self._call(call, self._used(call, first)) for call in calls],
            "versions": self._versions(calls),
            "roots": [
                [
                    self._version(root.tensor, self.began.index),
                    _numbers(self._elements(root.gradient, self.began.index)),
                ]
                for root in self.began.roots
            ],
            "grads": list(self._grads()),
        }

    def _walk(self) -> tuple[list[OpRan], dict[int, int]]:
        """The calls behind the roots in the order of the run, and the event at which each version of a tensor was
        first used."""
        calls: dict[int, OpRan] = {}
        first: dict[int, int] = {}
        waiting = [(root.tensor, self.began.index) for root in self.began.roots]
        while waiting:
            tensor, event = waiting.pop()
            version = self._version(tensor, event)
            first[version] = min(event, first.get(version, event))
            made = self._made(tensor, event)
            if made is None or made.index in calls:
                continue
            if len(calls) == MOST_CALLS:
                raise _Refused("the pass has more than {count} operations", count=str(MOST_CALLS))
            if made.in_pass:
                raise _Refused("{name} was made in a backward pass", name=self._called(tensor))
            calls[made.index] = made
            waiting += [(one, made.index) for one in read_inputs(made) if one]
        return [calls[event] for event in sorted(calls)], first

    def _made(self, tensor: int, event: int) -> OpRan | None:
        """The op that gave a tensor the value that it had before an event; None for one that entered."""
        made = self.query.tensors.made(tensor)
        if not isinstance(made, OpRan) or not any(made.inputs):
            return None
        if written := writes_by_any_name(self.query, tensor, made.index + 1, event):
            made = self.query.tensors.op(written[-1]) if self.query.tensors.is_op(written[-1]) else None
            if made is None or not made.grad_enabled or not _is_in_place(made, tensor):
                raise _Refused("{name} was changed in place", name=self._called(tensor))
        return made

    def _version(self, tensor: int, event: int) -> int:
        """The number of what a tensor was before an event: its own, or, after an op in place, one below 0."""
        made = self._made(tensor, event)
        return -made.index - 1 if made is not None and _is_in_place(made, tensor) else tensor

    def _versions(self, calls: Sequence[OpRan]) -> dict[int, list[list[int]]]:
        """For each tensor that ops in place change: the event of each op, and the version from there on."""
        return grouped(
            (call.outputs[0], [call.index, -call.index - 1]) for call in calls if _is_in_place(call, call.outputs[0])
        )

    @staticmethod
    def _used(call: OpRan, first: dict[int, int]) -> list[int]:
        """The results of a call that the pass uses."""
        if _is_in_place(call, call.outputs[0]):
            return list(call.outputs[:1])
        return [tensor for tensor in call.outputs if tensor in first]

    def _check_unchanged(self, tensor: int, since: int, made: Set[int] = frozenset()) -> None:
        """Raise _Refused if a tensor was changed since an event, but by ops in place that the page computes."""
        if set(writes_by_any_name(self.query, tensor, since + 1, self.end + 1)) - made:
            raise _Refused("{name} was changed in place", name=self._called(tensor))

    def _called(self, tensor: int) -> str:
        return self.words.called(tensor)

    def _elements(self, tensor: int, event: int) -> np.ndarray:
        value, name = self.query.memory.value(tensor, event), self._called(tensor)
        if value is None or value.array is None:
            raise _Refused("the elements of {name} are not in the trace", name=name)
        if value.array.size > _MOST_ENTERED:
            raise _Refused("{name} has more than {count} elements", name=name, count=str(_MOST_ENTERED))
        self._check_dtype(value, name)
        return value.array

    def _leaf(self, tensor: int, first: int) -> dict[str, Any]:
        """A tensor that enters the pass, with its value at its first use."""
        self._check_unchanged(tensor, first - 1)
        elements = self._elements(tensor, first)
        return {
            "t": tensor,
            "first": first,
            "shape": list(elements.shape),
            "x": _numbers(elements),
            "dtype": _TRUTH if elements.dtype == bool else elements.dtype.name,
        }

    def _check_dtype(self, value: Snapshot | None, name: str) -> None:
        dtype = "?" if value is None else value.dtype
        if dtype not in _KNOWN:
            raise _Refused("{name} is of dtype {dtype}", name=name, dtype=clean(dtype))

    def _call(self, call: OpRan, used: Sequence[int]) -> dict[str, Any]:
        name = row_of(call)
        row = rows().get(name)
        if name == "where":
            call = self._with_number_placed(call)
        if row is None:
            raise _Refused("{op} is no operation that the page can compute", op=clean(call.op))
        shape = self.query.trace.shape(call.inputs[0])
        fitting = bound(call, row, () if shape is None else shape[0])
        if fitting is None and name == "taken_at":  # what stands beside the tensors of an index is not data
            raise self._of_unknown_elements(call)
        if fitting is None or not (row.every or used == [call.outputs[0]]):
            raise _Refused(
                "{op}({args}) is no call that the page can compute", op=plain(call.op, 40), args=plain(call.args, 60)
            )
        inputs, others = fitting
        if name == "taken_at":
            self._check_index(call)
        if name == "dropout" and others["training"] and others["p"]:
            others["factors"] = self._factors(call, others["p"])
        return {
            "op": name,
            "in": [
                _numbers(np.asarray(one)) if isinstance(one, list) else self._version(one, call.index) for one in inputs
            ],
            "o": others,
            "outs": [self._result(tensor, call) for tensor in used],
            "flows": self._flows(call, inputs),
        }

    def _check_index(self, call: OpRan) -> None:
        indices = [self._elements(one, call.index) for one in call.inputs[1:]]
        shape, result = (self.query.trace.shape(one) for one in (call.inputs[0], call.outputs[0]))
        is_mask = any(index.dtype == bool for index in indices)
        shapes = [index.shape for index in indices]
        if is_mask or shape is None or result is None or not takes_first(shape[0], shapes, result[0]):
            raise self._of_unknown_elements(call)

    def _of_unknown_elements(self, call: OpRan) -> _Refused:
        return _Refused("the trace does not tell which elements {name} takes", name=self._called(call.outputs[0]))

    def _with_number_placed(self, call: OpRan) -> OpRan:
        """A `where`; if one of its sides is a number, with a 0 in its place: the edges of its node tell which."""
        if len(call.inputs) != 2:
            return call
        condition, tensor = call.inputs
        for node in self.query.nodes.of_op(call.index):
            is_flowing = [bool(edge.node) for edge in self.query.nodes.edges(node)]
            return replace(
                call, inputs=(condition, 0, tensor) if is_flowing == [False, True] else (condition, tensor, 0)
            )
        return call

    def _factors(self, call: OpRan, p: float) -> list[float]:
        """The factor of each element in a dropout. What an element of 0 was multiplied by is seen in its gradient."""
        given = self._elements(call.inputs[0], call.index - 1)
        result = self._elements(call.outputs[0], call.index)
        is_kept, is_known = result != 0, given != 0
        for node in self.query.nodes.of_op(call.index):
            received = self.query.at(self.end).received(node)
            produced = self.gradients.get(node, [None])[0]
            if received is not None and isinstance(produced, list):
                came = self._elements(received.gradients[0], received.index)
                is_kept |= np.reshape(np.asarray(produced, np.float64), given.shape) != 0
                is_known |= came != 0
        if not np.all(is_known):
            name = self._called(call.outputs[0])
            raise _Refused("the trace does not tell which elements of {name} were dropped", name=name)
        return list((is_kept / (1 - p)).ravel().tolist())

    def _result(self, tensor: int, call: OpRan) -> dict[str, Any]:
        value, name = self.query.memory.value(tensor, call.index), self._called(tensor)
        self._check_dtype(value, name)
        assert value is not None
        if int(np.prod(value.shape)) > _MOST_ELEMENTS:
            raise _Refused("{name} has more than {count} elements", name=name, count=str(_MOST_ELEMENTS))
        shape, expected = list(value.shape), _expected(value)
        version = self._version(tensor, call.index + 1)
        nth = call.outputs.index(tensor)
        return {"t": version, "nth": nth, "shape": shape, "dtype": value.dtype, "is": expected}

    def _flows(self, call: OpRan, inputs: Sequence[Any]) -> list[Any]:
        """For each input of a call, the page's edges along which its gradient flows, with the recorded gradients;
        None if there are none."""
        outside: dict[int, list[Any]] = {}
        for node in self.query.nodes.of_op(call.index):
            edges = [edge for edge in self.query.nodes.edges(node) if edge.node]
            places = self.edges.get(node, [])
            known = places if len(places) == len(edges) else [None] * len(edges)
            gradients = self.gradients.get(node, [None] * len(edges))
            for edge, place, gradient in zip(edges, known, gradients, strict=False):
                if edge.tensor:
                    outside.setdefault(edge.tensor, []).append([place, gradient])
        if outside.keys() - set(call.inputs):
            raise _Refused("the gradients of {op} cannot be told apart", op=clean(call.op))
        # An op of several nodes may reach an input on several edges: what flows along each of them is not computed.
        several = {one for one, edges in outside.items() if len(edges) > call.inputs.count(one)}
        return [
            None
            if not isinstance(one, int) or not outside.get(one)
            else [None, None]
            if one in several
            else outside[one].pop(0)
            for one in inputs
        ]

    def _grads(self) -> Iterator[dict[str, Any]]:
        """The tensors that keep a gradient, with their `.grad` before the pass, and the recorded gradient."""
        trace = self.query.trace
        before = self.query.at(self.began.index)
        for kind in (Kind.ACCUMULATED, Kind.RETAINED):
            table = trace.table(kind)
            for event in table.events[table["in_pass"] == self.began.number].tolist():
                kept = trace.event(event)
                assert isinstance(kept, (Accumulated, Retained))
                earlier = before.grad(kept.tensor)
                if earlier and isinstance(kept, Retained):
                    raise _Refused("{name} kept a gradient before", name=self._called(kept.tensor))
                gradient = kept.gradient if isinstance(kept, Accumulated) else kept.grad
                yield {
                    "t": self._version(kept.tensor, self.began.index),
                    "before": _numbers(self._elements(earlier, self.began.index)) if earlier else None,
                    "is": _expected(trace.snapshot(gradient, event)),
                }


def _is_in_place(call: OpRan, tensor: int) -> bool:
    return tensor in call.inputs and tensor in call.outputs


def _check(query: Query, graph: Graph, began: PassBegan) -> None:
    """Raise _Refused for a pass that does more than compute the gradients of leaves."""
    if began.how != "backward" or began.inputs or began.create_graph:
        raise _Refused("the pass does more than to fill the .grad of leaves")
    if not began.roots or not all(root.tensor and root.gradient for root in began.roots):
        raise _Refused("the pass begins at a node, not at a tensor")
    if graph.error or any(node.error for node in graph.nodes.values()):
        raise _Refused("an error ended it")
    if any(node.tangent is not None for node in graph.nodes.values()):
        raise _Refused("its tensors have tangents")
    if has_hooks(query, began.number):
        raise _Refused("hooks change its gradients")
    if len(query.trace.indices(Kind.COLLECTIVE)):
        raise _Refused("several ranks took part in it")


def _places_of_edges(graph: Graph) -> dict[int, list[int | None]]:
    """The positions of each node's edges among the edges of a graph, in order."""
    of_nodes = ((at, one) for at, one in enumerate(graph.edges) if one.kind == GRAD and one.source.startswith("n"))
    return grouped((int(edge.source[1:]), place) for place, edge in of_nodes)


def _produced(query: Query, number: int) -> dict[int, list[Any]]:
    """The recorded gradients that each node of a pass gave, one for each of its edges that lead on."""
    table = query.trace.table(Kind.PRODUCED)
    gradients: dict[int, list[Any]] = {}
    for event in table.events[table["in_pass"] == number].tolist():
        produced = query.trace.event(event)
        assert isinstance(produced, Produced)
        gradients[produced.node] = [
            _expected(query.trace.snapshot(flow.gradient, event)) if flow.gradient else None
            for flow in produced.flows
            if flow.node
        ]
    return gradients


def _expected(value: Snapshot | None) -> Any:
    """The recorded part of a value: the list of its elements, or their root mean square; None if nothing was
    recorded."""
    if value is None or value.stats is None:
        return None
    return _numbers(np.asarray(value.stats.rms))[0] if value.array is None else _numbers(value.array)


def _numbers(array: np.ndarray) -> list[Any]:
    """The elements of an array; NaN and infinities by their names in JavaScript, since JSON has no numbers for them."""
    names = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    return [names.get(str(one), one) for one in np.asarray(array, np.float64).ravel().tolist()]


# The calls that a page can compute, and their arguments.
#
# The rows of `op_rows.js` compute. Each row begins with the signature of an op: its inputs, with `#` after an input
# that may be a number among the arguments, `?` after an input that may be missing, and then perhaps the number that
# stands for it (`?=1`), `*` before any number of inputs; then, after a semicolon, its other arguments with their
# defaults, and `nth` if each of the op's results can be computed.

_TRUE_TRAINING = "training=True"
# gradviz's engine gives it to a transposed convolution, whose result may have several sizes
_GIVEN_SIZE = "size="
_ROW = re.compile(r'^  (\w+): \["([^"]*)"', re.MULTILINE)


class Row(NamedTuple):
    """The signature of an op: the names of its inputs, and its other arguments with their defaults."""

    inputs: tuple[str, ...]
    others: dict[str, Any]
    every: bool  # whether each of its results can be computed, not only the first


@cache
def rows() -> dict[str, Row]:
    """The signatures of the ops that a page can compute, by the name of the op."""
    text = files("gradviz.page").joinpath("op_rows.js").read_text(encoding="utf-8")
    return {name: _row(signature) for name, signature in _ROW.findall(text)}


def only_rows(script: str, ops: Collection[str]) -> str:
    """A script without the rows of ops that are not in `ops`."""
    lines = script.splitlines(keepends=True)
    return "".join(line for line in lines if not (found := _ROW.match(line)) or found[1] in ops)


def _row(signature: str) -> Row:
    inputs, _, others = signature.partition(";")
    pairs = (part.partition("=") for part in others.split() if part != "nth")
    return Row(
        tuple(inputs.split()),
        {name: ast.literal_eval(default) if default else ... for name, _, default in pairs},
        "nth" in others.split(),
    )


def row_of(call: OpRan) -> str:
    """The name of the row that may compute a call."""
    if call.op in TAKES and len(call.inputs) > 1:
        return "taken_at"
    if call.op in TAKES and not call.args:
        return "clone"  # x[None] has the elements of x
    if call.op == "batch_norm" and _TRUE_TRAINING not in call.args:
        return "batch_norm_fixed"
    if call.op == "convolution" and call.args.startswith(_GIVEN_SIZE):
        return "convolution_transposed"
    return call.op.strip("_")  # `__eq__`, `mul_`


def read_inputs(call: OpRan) -> tuple[int, ...]:
    """The inputs that a call computes with: a batch norm that trains does not read its running statistics."""
    is_training = call.op == "batch_norm" and _TRUE_TRAINING in call.args
    return (call.inputs[0], *call.inputs[3:]) if is_training and len(call.inputs) == 5 else call.inputs


def takes_first(shape: Sequence[int], indices: Sequence[Sequence[int]], result: Sequence[int]) -> bool:
    """Whether tensors of these shapes, which index one of `shape`, must be indices of its first dimensions, as the
    result has its shape. Of what stands beside them, `x[:, i]`, older traces say nothing."""
    if len(indices) == len(shape):
        return True
    wanted = [size for size in result if size > 1]
    results = [[*shape[:dim], *indices[0], *shape[dim + 1 :]] for dim in range(len(shape))]
    fitting = [dim for dim, one in enumerate(results) if [size for size in one if size > 1] == wanted]
    return len(indices) == 1 and fitting == [0]


def bound(call: OpRan, row: Row, shape: Sequence[int]) -> tuple[list[int | list[float]], dict[str, Any]] | None:
    """The inputs of a call, tensors by number and numbers as `[number]`, and its other arguments; None if they do not
    fit the row. `shape` is that of the first input."""
    try:
        places, named = written_arguments(call.args)
    except (ValueError, SyntaxError, RecursionError, MemoryError, OverflowError):
        return None
    inputs = _inputs(call, row, places, named)
    others = _others(row, places, named)
    if inputs is None or others is None:
        return None
    if row.others.keys() == {"index"}:
        others["index"] = _steps(others["index"], shape)
    for name in others.keys() & {"p", "ord"}:
        others[name] = "inf" if others[name] == float("inf") else others[name]
    if "approximate" in others and call.rule and any("tanh" in formula for _, formula in call.rule.inputs):
        others["approximate"] = "tanh"  # the engine names the formula, not the argument
    if others.get("index", ()) is None or not all(map(_is_plain, others.values())):
        return None
    return inputs, others


def _inputs(call: OpRan, row: Row, places: list[Any], named: dict[str, Any]) -> list[int | list[float]] | None:
    """The inputs of a call, together with the numbers among its arguments, which are removed from the arguments; None
    if they do not fit the row."""
    inputs: list[Any] = [tensor or [places.pop(0) if places else None] for tensor in read_inputs(call)]
    is_any = row.inputs[0].startswith("*")
    for name in () if is_any else row.inputs[len(inputs) :]:
        plain, is_number, _ = name.partition("#")
        _, has_default, default = name.partition("=")
        if is_number and (places or plain in named):
            inputs.append([places.pop(0) if places else named.pop(plain)])
        elif has_default:
            inputs.append([float(default)])
    least = 1 if is_any else sum("?" not in name for name in row.inputs)
    most = len(inputs) if is_any else len(row.inputs)
    numbers = [one[0] for one in inputs if isinstance(one, list)]
    are_numbers = all(type(one) in (int, float) for one in numbers)
    return inputs if least <= len(inputs) <= most and are_numbers else None


def _others(row: Row, places: list[Any], named: dict[str, Any]) -> dict[str, Any] | None:
    """The other arguments of a call, by name; None if they do not fit the row."""
    rest = [name for name in row.others if name not in named]
    if len(rest) == 1 and len(places) > 1:
        places = [tuple(places)]  # as in reshape(2, 3)
    if len(places) > len(rest) or named.keys() - row.others.keys():
        return None
    return {**row.others, **named, **dict(zip(rest, places, strict=False))}


def _is_plain(value: Any) -> bool:
    """Whether a value can be written in JSON unchanged."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, float):
        return bool(np.isfinite(value))
    return value is None or isinstance(value, (bool, str)) or (type(value) is int and abs(value) < 2**53)


def _steps(parts: Any, shape: Sequence[int]) -> list[list[int]] | None:
    """For each dimension of an index: its start, its step and its length, with length 0 for a single integer. None
    for an index with other parts than integers, slices and None."""
    if not isinstance(parts, list) or not all(part in (None, ...) or type(part) in (int, slice) for part in parts):
        return None
    parts = [part for part in parts if part is not None]  # a dimension of 1 moves no element
    if ... in parts:
        place = parts.index(...)
        missing = len(shape) - len(parts) + 1
        parts = [*parts[:place], *[slice(None)] * missing, *parts[place + 1 :]]
    parts = [*parts, *[slice(None)] * (len(shape) - len(parts))]
    if len(parts) != len(shape) or ... in parts:
        return None
    return [_step(part, size) for part, size in zip(parts, shape, strict=True)]


def _step(part: int | slice, size: int) -> list[int]:
    if isinstance(part, int):
        return [part % max(size, 1), 1, 0]
    start, stop, step = part.indices(size)
    return [start, step, len(range(start, stop, step))]
