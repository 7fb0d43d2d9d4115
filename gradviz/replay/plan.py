"""The data that a pass needs to run again: its inputs and its calls, in their order in the run.

The calls are found backwards from the roots of the pass: a call that made a needed tensor needs its own inputs, and a
kept value needs nothing. The kept value of a tensor from an earlier pass (`carried`) is enough if only its elements
are needed; if a gradient flows on, the calls that made the tensor are needed too."""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradviz.errors import GradvizError
from gradviz.events.field_types import Root
from gradviz.events.kinds import CallMade, Kind, OpRan, PassBegan, ValueKept
from gradviz.events.values import GRADIENT, INPUTS
from gradviz.query.passes import left_out, recording
from gradviz.query.query import Query
from gradviz.query.replayable_functions import DETACHING, NAMES, base_name, is_random, is_without_grad
from gradviz.query.writes import writes_by_any_name
from gradviz.tracefile import Snapshot
from gradviz.tracefile.sound import nested
from gradviz.words.escape import clean

GENERATOR, LEAF, CUT, CARRIED, DATA = "generator", "leaf", "cut", "carried", "data"
_PARTS = {"slice": 3, "complex": 2}
_NAMED = ("dtype", "layout", "memory_format", "device")


class ReplayError(GradvizError):
    """A pass cannot run again. The message is one line for the user."""


class Input(NamedTuple):
    """A value that enters the pass. `how` is as in ValueKept; an input with `leaf` or `cut` gets a gradient."""

    event: int
    how: str
    tensor: int
    value: Snapshot

    @property
    def wants_gradient(self) -> bool:
        """Whether the gradient of this input is computed."""
        return self.how in (LEAF, CUT)


class Call(NamedTuple):
    """A call to make. `arguments` is their JSON tree; `generator` the state of the random numbers, None if the call
    uses none; `dtype` the recorded dtype of its first tensor."""

    event: int
    site: int
    function: str
    arguments: Any
    context: str
    generator: np.ndarray | None
    dtype: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    written: tuple[int, ...]

    @property
    def op(self) -> str:
        """The name of the function without its place: `dropout` of `F.dropout_`."""
        return base_name(self.function)


class Plan(NamedTuple):
    """A pass that can run again. `starts` are its initial gradients, None where the program gave none. The calls of a
    plan with a `remedy` were rebuilt from texts: where they fail or give other results, this says what to do."""

    number: int
    began: PassBegan
    steps: tuple[Input | Call, ...]
    roots: tuple[int, ...]
    starts: tuple[np.ndarray | None, ...]
    remedy: str = ""

    @property
    def inputs(self) -> list[Input]:
        """The inputs of the pass."""
        return [step for step in self.steps if isinstance(step, Input)]

    @property
    def calls(self) -> list[Call]:
        """The calls of the pass."""
        return [step for step in self.steps if isinstance(step, Call)]

    @property
    def leaves(self) -> list[int]:
        """The tensors whose gradients are computed, without repetitions."""
        return list(dict.fromkeys(step.tensor for step in self.inputs if step.wants_gradient))

    def first_reader(self, tensor: int) -> Call | None:
        """The first call that reads a tensor; None if there is none."""
        return next((call for call in self.calls if tensor in call.inputs), None)


class Argument(NamedTuple):
    """The meaning of a part of a call's arguments: a `plain` value, the number of a `tensor`, the parts of a `list`,
    `tuple`, `slice` or `complex`, or the name of a `dtype`, `layout`, `memory_format` or `device`."""

    kind: str
    of: Any


def argument_of(tree: Any, call: Call) -> Argument:
    """The meaning of a part of a call's argument tree. Raises ReplayError for a part of unknown form."""
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return Argument("plain", tree)
    if isinstance(tree, list):
        return Argument("list", tree)
    if isinstance(tree, dict) and len(tree) == 1:
        ((kind, of),) = tree.items()
        if kind == "tensor" and type(of) is int and 0 <= of < len(call.inputs):
            return Argument("tensor", call.inputs[of])
        if isinstance(of, list) and (kind == "tuple" or len(of) == _PARTS.get(kind)):
            return Argument(kind, of)
        if kind == "ellipsis":
            return Argument("plain", Ellipsis)
        if kind == "float" and of in ("nan", "inf", "-inf"):
            return Argument("plain", float(of))
        if kind in _NAMED and isinstance(of, str):
            return Argument(kind, of)
    raise ReplayError(f"{clean(call.function)} has arguments of an unknown form: the trace is damaged")


def plan_of(
    query: Query,
    number: int | None = None,
    without_grad: Sequence[CallMade] = (),
    also: tuple[int, ...] = (),
    rebuilds: bool = False,
) -> Plan:
    """The plan of pass `number` (None: the last that was recorded in detail and ran inside no other), with which the
    tensors of `also` can be computed, too. The calls of `without_grad`, which were made without grad mode, are made
    again; the results of other such calls enter the pass as recorded. With `rebuilds` the calls may be rebuilt from the
    ops. Raises ReplayError if the trace does not have the data."""
    trace = query.trace
    if "redacted" in trace.meta:
        raise ReplayError("a redacted trace has no elements: no pass of it can run again")
    remedy = "" if trace.meta.get("values") == INPUTS else f"record it with {recording(trace, '--values inputs')}"
    if remedy and not rebuilds:
        raise ReplayError(f"this trace has no calls that can be made again: {remedy}")
    if number is None:
        known = [backward_pass for backward_pass in query.trace.passes if backward_pass.is_in_detail]
        if not known:
            raise ReplayError("no backward pass was recorded in detail: there is none that could run again")
        number = next((one.number for one in reversed(known) if query.passes.is_outer(one)), known[-1].number)
    if trace.find_pass(number) is None:
        raise ReplayError(f"there is no pass {number}: the trace has {len(trace.passes)}")
    if unrecorded := left_out(trace, number):
        raise ReplayError(unrecorded)
    trace.reach_all()
    began = query.passes.began(number)
    if not began.roots or not all(root.tensor for root in began.roots):
        raise ReplayError(f"pass {number} begins at a node, not at a tensor: it cannot run again")
    roots = tuple(root.tensor for root in began.roots)
    if remedy:
        steps = list(_rebuilt(query, (*roots, *also), began.index, remedy))
    else:
        steps = [step_of(query, event) for event in _needed(query, began, without_grad, also)]
    starts = tuple(_start(query, root, began.index) for root in began.roots)
    return Plan(number, began, tuple(reversed(steps)), roots, starts, remedy)


def _rebuilt(query: Query, roots: Sequence[int], began: int, remedy: str) -> Iterator[Input | Call]:
    """The steps of a pass that began at an event, the newest first, as far as ops and the values of small tensors give
    them. Raises ReplayError."""
    needed = dict.fromkeys(roots, began)  # the tensors that are needed, with the event of their first use
    since: dict[int, int] = {}  # the tensors that calls make, with the event of the first of these calls
    calls: set[int] = set()
    ops = query.tensors.ops
    for event in ops[: np.searchsorted(ops, began)][::-1].tolist():
        op = query.tensors.op(event)
        outputs = [tensor for tensor in op.outputs if tensor in needed]
        if not outputs or not op.grad_enabled or op.in_pass or not any(op.inputs):
            continue
        if any(query.tensors.is_leaf_that_requires_grad(one, needed[one]) for one in outputs):
            continue  # made without a node, and then made a leaf
        inputs = tuple(dict.fromkeys(filter(None, op.inputs)))
        if (made := called(op, inputs)) is None:
            if any(query.tensors.requires_grad(one, event) for one in outputs):
                reason = f"a call of {clean(op.op)} cannot be told from its recorded arguments"
                raise ReplayError(f"{reason}: {remedy}")
            continue
        written = tuple(one for one in op.outputs if one in inputs)
        dtype = query.trace.states.dtype_of(inputs[0])
        yield Call(event, op.site, *made, "", None, dtype, inputs, op.outputs, written)
        calls.add(event)
        for one in op.outputs:
            needed.pop(one, None)
            since[one] = event + 1
        needed.update(dict.fromkeys(inputs, event))
    for one, first_use in needed.items():
        is_written = first_use in calls and query.tensors.is_written(one, first_use)
        value = query.memory.value(one, first_use - is_written)
        if value is None or value.array is None:
            raise ReplayError(f"the elements of {clean(query.labels.of(one))} were not kept: {remedy}")
        is_leaf = query.tensors.is_leaf_that_requires_grad(one, first_use)
        yield Input(first_use - 1, LEAF if is_leaf else DATA, one, value)
    for one, event in {**since, **needed}.items():
        if set(writes_by_any_name(query, one, event, began)) - calls:
            raise ReplayError(f"{clean(query.labels.of(one))} was changed in place: {remedy}")


def _needed(
    query: Query, began: PassBegan, without_grad: Sequence[CallMade], also: tuple[int, ...]
) -> Iterator[ValueKept | CallMade]:
    """The events that a pass needs, the newest first."""
    trace = query.trace
    events = trace.indices(Kind.KEPT, Kind.CALLED)
    given_again = {tensor for call in without_grad for tensor in call.outputs}
    # The needed tensors, with whether a gradient flows on from there.
    needed = dict.fromkeys((*(root.tensor for root in began.roots), *also), True)
    for index in events[events < began.index][::-1].tolist():
        event = trace.event(index)
        if isinstance(event, ValueKept):
            if event.how in (GRADIENT, GENERATOR) or event.original not in needed:
                continue
            if event.original in given_again:  # a call that is made again gives its value
                continue
            if event.how == CARRIED and needed[event.original]:
                continue
            del needed[event.original]
            yield event
        elif isinstance(event, CallMade) and not needed.keys().isdisjoint((*event.outputs, *event.written)):
            if is_without_grad(event.context) and not without_grad:
                continue
            _go_back(event, needed)
            yield event
        if not needed:
            return
    named = query.labels.of(next(iter(needed)))
    raise ReplayError(
        f"pass {began.number} cannot run again: no call was recorded that made {clean(named)} and can be made again"
    )


def _go_back(call: CallMade, needed: dict[int, bool]) -> None:
    """Replace the tensors that are needed after a call by those that are needed before it."""
    flows = any(needed.get(tensor, False) for tensor in (*call.outputs, *call.written))
    for tensor in call.outputs:
        if tensor not in call.inputs and tensor not in call.written:
            needed.pop(tensor, None)
    flows_on = flows and call.function not in DETACHING
    for tensor in call.inputs:
        needed[tensor] = needed.get(tensor, False) or flows_on
    for tensor in call.written:
        needed[tensor] = needed.get(tensor, False) or flows


def step_of(query: Query, event: ValueKept | CallMade) -> Input | Call:
    """The step of a plan that an event is. Raises ReplayError if its data was not kept, or is damaged."""
    if isinstance(event, CallMade):
        dtype = query.trace.states.dtype_of(event.inputs[0]) if event.inputs else ""
        generator = _elements(query, event.generator, event.index) if event.generator else None
        return Call(
            event.index, event.site, event.function, _tree(event), event.context, generator, dtype,
            event.inputs, event.outputs, event.written,
        )  # fmt: skip
    value = query.trace.snapshot(event.copy, event.index)
    if value is None or value.array is None:
        raise ReplayError(
            f"the elements of t{event.original} were not kept: it is too large, or has none that can be read"
        )
    return Input(event.index, event.how, event.original, value)


def _tree(call: CallMade) -> Any:
    try:
        tree = nested(call.arguments)
    except ValueError as error:
        raise ReplayError(f"the arguments of {call.function} are damaged: {error}") from error
    if not (isinstance(tree, list) and len(tree) == 2 and isinstance(tree[0], list) and isinstance(tree[1], dict)):
        raise ReplayError(f"the arguments of {call.function} are damaged")
    return tree


def _elements(query: Query, copy: int, event: int) -> np.ndarray:
    value = query.trace.snapshot(copy, event)
    if value is None or value.array is None:
        raise ReplayError("the state of the random numbers was not kept")
    return value.array


def _start(query: Query, root: Root, event: int) -> np.ndarray | None:
    """The gradient with which a pass begins at a root; None if PyTorch makes it, which is 1."""
    if not root.gradient:
        return None
    value = query.memory.value(root.gradient, event)
    if value is None or value.array is None:
        shape = query.trace.shape(root.gradient)
        if shape is not None and shape[0] == ():
            return None
        raise ReplayError("the gradient that backward() was given has too many elements: they were not kept")
    return value.array


# The call that an op was, rebuilt from the text of its arguments: for traces that recorded no calls.

_LONGEST = 200  # characters of the arguments of a call
_NUMBERS = {"inf": float("inf"), "nan": float("nan")}
# A number that stands for an input, which gradviz's engine writes behind arguments with names: `groups=1, 0.0`.
_NUMBER_BEHIND = re.compile(r"^(.*\w=.*), (-?[0-9.e+-]+)$")
TAKES = ("getitem", "index")
_OF_LISTS = frozenset("cat concat concatenate stack hstack vstack dstack column_stack row_stack".split())
_METHODS = {"rdiv": "rtruediv"}  # by the name of an op
_WITH_WEIGHTS = ("layer_norm", "group_norm", "rms_norm")  # their weight and bias stand behind other arguments


def called(op: OpRan, inputs: Sequence[int]) -> tuple[str, Any] | None:
    """The function that an op called, with its arguments as a tree as CallMade has them, given its tensors; None if
    that is not known."""
    try:
        # as the engine says
        written, named = written_arguments(op.args.removeprefix("shape=").removeprefix("axes="))
        places, keywords = [_as_tree(one) for one in written], {name: _as_tree(one) for name, one in named.items()}
    except (ValueError, SyntaxError, RecursionError, MemoryError, OverflowError):
        return None
    positional: list[Any] = [
        {"tensor": inputs.index(one)} if one else places.pop(0) for one in op.inputs if one or places
    ]
    if op.op in TAKES:
        index = keywords.pop("index", None)
        if len(op.inputs) > 1 or index is None:
            return None
        return "Tensor.__getitem__", [[*positional, {"tuple": index}], {}]
    if op.op in _OF_LISTS:
        positional = [positional]
    elif op.op in _WITH_WEIGHTS:
        keywords.update(zip(("weight", "bias"), positional[1:], strict=False))
        positional = positional[:1]
    is_method = op.inputs[0] and op.op != "where"  # the method begins with the second operand
    owners = ("Tensor", "torch", "F") if is_method else ("torch", "F")
    names = (f"{owner}.{name}" for name in (op.op, f"__{_METHODS.get(op.op, op.op.strip('_'))}__") for owner in owners)
    function = next((name for name in names if name in NAMES), None)
    if function is None or is_random(function):
        return None
    return function, [[*positional, *places], keywords]


def _as_tree(value: Any) -> Any:
    """An argument as CallMade has it. Raises ValueError for one of another kind."""
    if isinstance(value, float) and not np.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if value is ...:
        return {"ellipsis": None}
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop, value.step]}
    if isinstance(value, list):
        return [_as_tree(one) for one in value]
    if isinstance(value, tuple):
        return {"tuple": [_as_tree(one) for one in value]}
    raise ValueError("no argument of a call that can be made again")


def written_arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments in a text, by position and by name. Raises ValueError or SyntaxError for a text that is not a
    list of literals."""
    if len(text) > _LONGEST:
        raise ValueError("too long")
    if text.startswith("index="):
        inside = text.removeprefix("index=")
        if inside.startswith("("):
            inside = inside[1:-1]
        taken = ast.parse(f"x[{inside}]", mode="eval").body
        if not isinstance(taken, ast.Subscript):
            raise ValueError("no index")
        parts = taken.slice.elts if isinstance(taken.slice, ast.Tuple) else [taken.slice]
        return [], {"index": [_part(part) for part in parts]}
    written = _NUMBER_BEHIND.sub(r"\2, \1", text)
    call = ast.parse(f"f({written})", mode="eval").body
    if not isinstance(call, ast.Call):
        raise ValueError("no arguments")
    named = {one.arg: _literal(one.value) for one in call.keywords if one.arg}
    if len(named) < len(call.keywords):
        raise ValueError("no names")
    return [_literal(one) for one in call.args], named


def _literal(tree: ast.expr) -> Any:
    """The value of a literal, or of inf and nan with or without a sign."""
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub) and isinstance(tree.operand, ast.Name):
        return -_literal(tree.operand)
    if isinstance(tree, ast.Name) and tree.id in _NUMBERS:
        return _NUMBERS[tree.id]
    return ast.literal_eval(tree)


def _part(tree: ast.expr) -> Any:
    if isinstance(tree, ast.Slice):
        ends = (tree.lower, tree.upper, tree.step)
        return _slice([None if end is None else ast.literal_eval(end) for end in ends])
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "slice":
        return _slice([ast.literal_eval(one) for one in tree.args])
    return ast.literal_eval(tree)


def _slice(ends: list[Any]) -> slice:
    if not 1 <= len(ends) <= 3 or not all(end is None or type(end) is int for end in ends) or ends[2:] == [0]:
        raise ValueError("no slice")
    return slice(*ends)
