"""An inline cache of calls, as interpreters have: it remembers what followed the last call at a place.

A training loop makes the same calls at the same places. The first call at a place goes the long way (`forward.py`)
and leaves an entry here. The next call is compared: are the arguments of the same sort, is the result of the same
dtype, is its node of the same type, were all nodes that it leads to emitted before? If so, the entry has all that the
long way would find out. Otherwise the call goes the long way, and nothing was emitted here. More:
`docs/recording.md`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import is_grad_enabled
from torch.autograd import forward_ad

from gradviz.events.counters import next_node_number
from gradviz.events.field_types import Rule
from gradviz.events.kinds import LEAF, REQUIRES_GRAD
from gradviz.events.listener import NO_RULE
from gradviz.sources.torch_recorder import calls
from gradviz.sources.torch_recorder.arguments import CONSTANTS, OPERANDS
from gradviz.sources.torch_recorder.identity import Identity
from gradviz.sources.torch_recorder.known_things import Known, NodeRecord, grad_fn_of
from gradviz.sources.torch_recorder.linear import saves_inner
from gradviz.sources.torch_recorder.node_formulas import described, rule_of_node
from gradviz.sources.torch_recorder.pytorchs_own import is_floating_point
from gradviz.sources.torch_recorder.saved import RAW, saved_as_is
from gradviz.sources.torch_recorder.saved_again import Plan, is_changed_below, plan_of
from gradviz.sources.torch_recorder.shared import Source, in_transform
from gradviz.sources.torch_recorder.tensor_values import PLAIN, READER

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
        if not is_in_place and len({*map(id, inputs), *map(id, outputs)}) < len(set(map(id, inputs))) + len(outputs):
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
        inner = not is_one and op == "linear" and saves_inner(inputs, [made.name for made in nodes if made.saved])
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


_MOST = 10_000  # the most places with entries
_MOST_AT_A_PLACE = 4
_PATIENCE = 16  # different calls at a place until nothing more is learned there
_HANDS_ON = torch.overrides.handle_torch_function.__code__
_Place = tuple[int, int, Any]  # the address of a code, the instruction in it, and the function that it calls
_is_traced = torch._C._is_tracing
# Ops for which the long way needs more than an entry has: a target's dtype, memory that is shared unseen.
_LEFT_OUT = {"setitem", "cross_entropy", *calls.ALIASES, *calls.UNCOUNTED}


# A call that matches an entry so far: the entry, its inputs, their numbers, and their versions before the call.
Call = tuple[Entry, list[torch.Tensor], list[int], list[int]]


class InlineCache:
    """Emits to a source's listener the calls that are like the last call at their place. `note_view` receives a new
    view, its entry, and the inputs that it may be a view of."""

    def __init__(
        self, source: Source, note_view: Callable[[torch.Tensor, Known, Sequence[torch.Tensor]], None]
    ) -> None:
        self.source, self.identity = source, source.identity
        self.note_view = note_view
        self.makes = Entries(self.identity)
        self.entries: dict[_Place, list[Entry]] = {}
        self.learned: dict[_Place, int] = {}  # the number of entries made for each place

    # --- before the call

    def begin(self, func: Any, args: Any, kwargs: Any, frame: FrameType) -> Call | None:
        """The matching entry for the call of `func` that is about to be made in `frame`; None if there is none, or if
        the call is not recorded."""
        source = self.source
        listener = source.listener
        if listener is None or source.thread.muted or _is_traced() or not listener.detailed or in_transform():
            return None
        code = frame.f_code
        # all functions of PyTorch that are written in Python pass through it
        if code is _HANDS_ON and frame.f_back is not None:
            frame = frame.f_back
            code = frame.f_code
        entries = self.entries.get((id(code), frame.f_lasti, func))
        if entries is None or self.identity.pending:
            return None
        values, labels = (*args, *kwargs.values()) if kwargs else args, tuple(kwargs)
        for entry in entries:
            if len(values) == len(entry.given) and labels == entry.labels:
                call = self._compared(entry, values)
                if call is not None:
                    return call
        return None

    def _compared(self, entry: Entry, values: Sequence[Any]) -> Call | None:
        """The call with these arguments, if they match those of an entry."""
        known, unfilled = self.identity.known, self.identity.unfilled
        inputs: list[torch.Tensor] = []
        numbers: list[int] = []
        versions: list[int] = []
        try:
            for value, before in zip(values, entry.given):  # noqa: B905
                if before is not TENSOR:
                    if value is before or _is_equal(value, before):
                        continue
                    return None
                one = known.get(id(value))
                if one is None or type(value) not in PLAIN or (one.number in unfilled and not value._version):
                    return None
                inputs.append(value)
                numbers.append(one.number)
                versions.append(value._version)
        except RuntimeError:  # a tensor of inference mode counts no versions
            return None
        if entry.dimensions is not None and tuple([tensor.ndim for tensor in inputs]) != entry.dimensions:
            return None
        return entry, inputs, numbers, versions

    # --- after it

    def end(self, call: Call, result: Any, frame: FrameType) -> bool:
        """Emit a call that has been made. Returns False, and emits nothing, if it is not like the last call after
        all."""
        entry, inputs, numbers, versions = call
        if entry.nodes is not None:
            return self._end_of_several(call, result, frame)
        if entry.is_in_place:
            return self._end_in_place(call, result, frame)
        if type(result) is not torch.Tensor or (inputs[0].dtype, result.dtype) != entry.dtypes:
            return False
        identity = self.identity
        if id(result) in identity.known or identity.pending or forward_ad._current_level >= 0:
            return False
        for tensor, version in zip(inputs, versions):  # noqa: B905
            if tensor._version != version:
                return False
        fn = grad_fn_of(result)
        if type(fn) is not entry.node:
            return False
        if fn is not None:
            return self._tell_op_and_node(call, result, fn, frame)
        if entry.absent is not None:
            numbers = numbers.copy()
            numbers.insert(entry.absent, 0)
        return self._tell_op(entry, inputs, numbers, result, frame)

    def _tell_op(
        self, entry: Entry, inputs: Sequence[torch.Tensor], numbers: Sequence[int], result: torch.Tensor,
        frame: FrameType,
    ) -> bool:  # fmt: skip
        """Emit an op that made no node."""
        if result.requires_grad:
            return False
        known = self.identity.fresh(result)
        self.identity.note_dependence(inputs, (result,))
        if result._is_view():
            self.note_view(result, known, inputs)
        self.source.listener.op(
            frame, entry.op, entry.text, entry.rule, self.source.in_pass, is_grad_enabled(), numbers, (known.number,),
            (result,), (LEAF | known.alias,), (known.version,), (known.base,),
        )  # fmt: skip
        return True

    def _tell_op_and_node(self, call: Call, result: torch.Tensor, fn: Any, frame: FrameType) -> bool:
        """Emit an op that made one node, whose targets were all emitted before, except leaves."""
        entry, inputs, given, versions = call
        numbers: Sequence[int] = given
        if entry.absent is not None:
            numbers = (0, *given) if entry.absent == 0 else (*given, 0)
        identity, key = self.identity, self.identity.key
        metadata, nexts = fn.metadata, fn.next_functions
        if key in metadata or len(nexts) != entry.edges or result.output_nr or not is_grad_enabled():
            return False
        leaves: list[tuple[int, Any]] = []  # those without a number, and the places of their edges
        edges: list[int] = []  # as `identity.edges_of`
        nowhere: tuple[int, ...] = ()
        aligned = numbers if len(numbers) == len(nexts) else (0,) * len(nexts)
        for (target, nr), number in zip(nexts, aligned):  # noqa: B905
            if target is None:
                nowhere += (len(edges) // 3,)
                edges += (0, 0, number)
            elif (known_node := target.metadata.get(key)) is not None:
                edges += (known_node.number, nr, known_node.tensor(nr) if nr else known_node.first)
            elif hasattr(target, "variable"):
                leaves.append((len(edges), target))
                edges += (0, nr, 0)
            else:
                return False
        known = identity.fresh(result)
        if result._is_view():
            self.note_view(result, known, inputs)
        for at, leaf in reversed(leaves):  # in the order of the long way, so that they get the same numbers
            of_leaf = leaf.metadata.get(key) or identity.number_leaf(leaf)
            edges[at], edges[at + 2] = of_leaf.number, of_leaf.first
        node = next_node_number()
        record = metadata[key] = NodeRecord(node, entry.node_name, False, False, fn._sequence_nr())
        record.first = known.number
        saved: Sequence[int] = ()
        if entry.saved:
            plan = entry.plan
            if plan is None or nowhere != plan.nowhere or not _goes_for(plan, inputs):
                saved = identity.saved.flat(fn, entry.saved, (*inputs, result))
            else:
                pairs = [*zip(given, versions), (known.number, known.version)]  # noqa: B905
                saved = [part for place in plan.places for part in pairs[place]]
        source = self.source
        passes = source.thread.passes
        source.listener.differentiated(
            frame, entry.op, entry.text, entry.rule, passes[-1].number if passes else 0, numbers, known.number, result,
            REQUIRES_GRAD | known.alias, known.version, known.base, node, entry.node_name,
            edges, saved,
        )  # fmt: skip
        return True

    def _end_of_several(self, call: Call, result: Any, frame: FrameType) -> bool:
        """`end` for a call that has several results, or has made several nodes."""
        entry, inputs, numbers, versions = call
        identity = self.identity
        outputs = plain_outputs(result)
        if type(result) is not entry.returned or not outputs:
            return False
        if (inputs[0].dtype, outputs[0].dtype) != entry.dtypes or forward_ad._current_level >= 0:
            return False
        if identity.pending or any(id(output) in identity.known for output in outputs):
            return False
        if [tensor._version for tensor in inputs] != versions:
            return False
        if entry.saves_inner and not saves_inner(inputs):
            return False
        nodes = self._nodes_like(entry, outputs)
        if nodes is None:
            return False
        if entry.absent is not None:
            numbers = numbers.copy()
            numbers.insert(entry.absent, 0)
        self._tell_several(entry, inputs, numbers, outputs, nodes, frame)
        return True

    def _end_in_place(self, call: Call, result: Any, frame: FrameType) -> bool:
        """`end` for a call that wrote to its first input, which has no history and shares its memory with no other
        tensor."""
        entry, inputs, numbers, versions = call
        if result is not inputs[0] or (result.dtype, result.dtype) != entry.dtypes or result._is_view():
            return False
        identity = self.identity
        known = identity.known.get(id(result))
        if known is None or known.views or identity.pending or forward_ad._current_level >= 0:
            return False
        if grad_fn_of(result) is not None or result._version == versions[0]:
            return False
        if [tensor._version for tensor in inputs[1:]] != versions[1:]:
            return False
        if entry.absent is not None:
            numbers = numbers.copy()
            numbers.insert(entry.absent, 0)
        READER.recent.clear()
        identity.note_dependence(inputs, (result,))
        number, _, flags, version, base = identity.state_of(result)
        self.source.listener.op(
            frame, entry.op, entry.text, entry.rule, self.source.in_pass, is_grad_enabled(), numbers, (number,),
            (result,), (flags,), (version,), (base,),
        )  # fmt: skip
        return True

    def _nodes_like(self, entry: Entry, outputs: Sequence[torch.Tensor]) -> tuple[list[Any], list[Any]] | None:
        """The new nodes behind outputs, and the new leaves, if the nodes match those of an entry; otherwise None."""
        roots = [fn for output in outputs if output.requires_grad and (fn := grad_fn_of(output)) is not None]
        found, leaves = self.identity.nodes_behind(roots)
        if [(type(fn), len(nexts)) for fn, nexts in found] != [(m.type, m.edges) for m in entry.nodes or ()]:
            return None
        return found, leaves

    def _tell_several(
        self, entry: Entry, inputs: Sequence[torch.Tensor], numbers: Sequence[int], outputs: Sequence[torch.Tensor],
        behind: tuple[list[Any], list[Any]], frame: FrameType,
    ) -> None:  # fmt: skip
        """Emit a call that had several results, or made several nodes."""
        found, leaves = behind
        identity = self.identity
        listener = self.source.listener
        each = [identity.fresh(output) for output in outputs]
        identity.note_dependence(inputs, outputs)
        for output, known in zip(outputs, each, strict=True):
            if output._is_view():
                self.note_view(output, known, inputs)
        states = [identity.state(output, known) for output, known in zip(outputs, each, strict=True)]
        nodes = identity.number_found(found, leaves) if len(outputs) == 1 else []
        where = (self.source.place(frame) or frame) if found else frame
        listener.op(
            where, entry.op, entry.text, entry.rule, self.source.in_pass, is_grad_enabled(), numbers,
            [state.tensor for state in states], outputs, [state.flags for state in states],
            [state.version for state in states], [state.base for state in states],
        )  # fmt: skip
        if len(outputs) > 1:  # the long way numbers them after the op is emitted
            nodes = identity.number_found(found, leaves)
        identity.put_outputs([output for output in outputs if output.requires_grad])
        tensors = (*inputs, *outputs)
        made_nodes = []
        for (fn, record, nexts), made in zip(nodes, entry.nodes or (), strict=True):
            saved = identity.saved.flat(fn, made.saved, tensors) if made.saved else ()
            made_nodes.append((record.number, made.name, made.rule, record.outputs(), identity.edges_of(nexts), saved))
        if made_nodes:
            listener.nodes_made(where, made_nodes)

    # --- an entry

    def learn(
        self, func: Any, name: str, args: Any, kwargs: Any, inputs: Sequence[torch.Tensor], result: Any,
        frame: FrameType,
    ) -> None:  # fmt: skip
        """Keep an entry for a call that was emitted the long way."""
        if name in _LEFT_OUT or in_transform():
            return
        if frame.f_code is _HANDS_ON and frame.f_back is not None:
            frame = frame.f_back
        place = id(frame.f_code), frame.f_lasti, func
        times = self.learned.get(place, 0)
        entry = None
        if times < _PATIENCE:
            entry = self.makes.of(func, name, args, kwargs, inputs, result, frame.f_code)
        if entry is None:
            return
        if len(self.entries) >= _MOST:
            self.entries.clear()
            self.learned.clear()
        others = [one for one in self.entries.get(place, ()) if one.given != entry.given]
        self.entries[place] = [entry, *others[: _MOST_AT_A_PLACE - 1]]
        self.learned[place] = times + 1


def _goes_for(plan: Plan, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether a call with these inputs saves the tensors of the plan."""
    for tensor, dtype in zip(inputs, plan.dtypes):  # noqa: B905
        if tensor.dtype is not dtype:
            return False
    return not is_changed_below()


def _is_equal(value: Any, before: Any) -> bool:
    """Whether an argument that is a different object from the entry's has the same text."""
    if type(value) is not type(before) or value != before:
        return False
    if type(value) is float:
        return bool(value)  # a zero has a sign
    if type(value) is complex:
        return repr(value) == repr(before)
    return type(value) in (int, str, bool) or is_shape(value)
