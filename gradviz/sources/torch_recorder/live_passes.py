"""A pass of which only the graph is at hand, because nothing was watched when its forward ran: it is emitted as if it
had been recorded.

Its nodes are compared with those of the passes that were recorded. Where a recorded pass had the same nodes with the
same edges, each op has the place, the text and the scopes that it had there. Its values are those that nodes saved, or
that follow from them. Ops without a node left nothing behind: what they gave is emitted as a tensor that came to be
unwatched."""

import dis
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from inspect import CO_VARARGS, CO_VARKEYWORDS
from itertools import groupby
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np
import torch

from gradviz.events.counters import next_scope_number, next_tensor_number
from gradviz.events.kinds import REQUIRES_GRAD, UNWATCHED
from gradviz.events.listener import NO_RULE, Entered, Made, edges_of
from gradviz.events.site import Place, place_of
from gradviz.sources.torch_recorder.backward import Pass, inner_values
from gradviz.sources.torch_recorder.calls import op_of_node
from gradviz.sources.torch_recorder.known_things import NodeRecord, Numbered, version_of
from gradviz.sources.torch_recorder.memory import check_room
from gradviz.sources.torch_recorder.node_formulas import rule_of_node
from gradviz.sources.torch_recorder.pytorchs_own import detach, numel, to_numpy
from gradviz.sources.torch_recorder.saved import RAW, data_of, saved_as_is
from gradviz.sources.torch_recorder.shared import Source, safely, users_frame
from gradviz.sources.torch_recorder.tensor_values import PLAIN, Unseen, unheard

_MOST_FORMS = 16  # of passes that are remembered
_MOST_ELEMENTS = 1 << 22  # of a value that is computed again
_OF_RESULTS = ("result", "total_weight", "reserve")  # what a node saved that its op has computed
_MOST_ALARMS = 8  # passes that are recorded for such points
# Nodes whose derivative is not finite somewhere: what they save of that place, and where it is finite.
_SINGULAR: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    **dict.fromkeys("LogBackward0 Log2Backward0 Log10Backward0".split(), ("self", lambda x: x != 0)),
    **dict.fromkeys("AcosBackward0 AsinBackward0 AtanhBackward0".split(), ("self", lambda x: abs(x) < 1)),
    **dict.fromkeys("ExpBackward0 ReciprocalBackward0 RsqrtBackward0".split(), ("result", np.isfinite)),
    **dict.fromkeys("SqrtBackward0 HypotBackward0".split(), ("result", lambda x: x > 0)),
    "DivBackward0": ("other", lambda x: x != 0),
    "Log1PBackward0": ("self", lambda x: x != -1),
    "PowBackward0": ("self", lambda x: x > 0),
}
_SMOOTH = re.compile(r"exponent=[1-9]|[\d.]+(e.*)?$")  # arguments of `pow` and `div`
_NEAR = 8  # nodes next to the roots that are compared
_AROUND, _MOST_NODES = 1 << 6, 1 << 14  # that are looked at for such a point: in any case, and at most
_NOWHERE, _OTHER_LEAF = -1, -2  # edges without a target, and to a leaf that is made anew for each pass

_Form = tuple[tuple[str, tuple[int, ...]], ...]  # the name of each node, and where its edges lead


class _Place(NamedTuple):
    """Where an input of an op comes from: output `nr` of a node, by its place in the pass, or the leaf of that number,
    or neither: then the op took data without a graph."""

    node: int = -1
    nr: int = 0
    leaf: int = 0


class _Like(NamedTuple):
    """How a node came to be in recorded passes, and where the inputs of its op come from. Its arguments are
    `steady` if all of several passes had the same; None after the first."""

    made: Made
    inputs: tuple[_Place, ...]
    steady: bool | None = None


class LivePasses:
    """Emits such passes to a source's listener."""

    def __init__(self, source: Source) -> None:
        self.source, self.identity = source, source.identity
        self.known: OrderedDict[_Form, list[_Like | None]] = OrderedDict()
        self.reach = 0  # how far from the roots recorded passes had nodes whose derivative may not be finite
        self.alarms = 0  # the passes that began with such a node at its point
        self.tops: set[tuple[str, ...]] = set()  # the nodes next to the roots of the passes that were recorded
        self.new_tops = 0  # the other passes that were recorded because these nodes were new
        self.newest = 0  # the newest tensor as the last of these passes ended: older leaves stay

    @safely
    def remember(self, current: Pass) -> None:
        """Note how the nodes of a pass came to be that was recorded, and is about to end."""
        self.tops.add(_top(current.kept_alive))
        made = self.source.listener.made if self.source.listener is not None else {}
        self.newest = self.newest or max([one.first for one in current.records.values() if one.is_leaf], default=0)
        if not made:
            return
        records = sorted((one for one in current.records.values() if not one.is_leaf), key=lambda one: one.sequence)
        leaves = {record.number: record for record in current.records.values() if record.is_leaf}
        form = self._form(records, [current.targets[record.number] for record in records], leaves)
        outputs = {
            tensor: _Place(at, nr)
            for at, record in enumerate(records)
            for nr, tensor in enumerate(record.outputs())
            if tensor
        }
        outputs.update((record.first, _Place(leaf=record.first)) for record in leaves.values())
        likes = [
            None if (one := made.get(record.number)) is None
            else _Like(one, tuple(outputs.get(tensor, _Place()) for tensor in one.inputs))
            for record in records
        ]  # fmt: skip
        often = {one.number for one, like in zip(records, likes, strict=True) if _is_often_singular(one.name, like)}
        near = _nearest(current.kept_alive, _MOST_NODES) if often else ()
        numbers = [0 if fn is None else fn.metadata[self.identity.key].number for fn in near]
        self.reach = max([self.reach, *[at for at, number in enumerate(numbers, 1) if number in often]])
        before = self.known.pop(form, None)
        self.known[form] = likes if before is None else list(map(_in_common, before, likes))
        if len(self.known) > _MOST_FORMS:
            self.known.popitem(last=False)
        self.newest = next_tensor_number()

    def _form(
        self, records: Sequence[NodeRecord], targets: Sequence[Sequence[int]], leaves: dict[int, NodeRecord]
    ) -> _Form:
        """The form of nodes with edges to nodes of these numbers."""
        places = {record.number: at for at, record in enumerate(records)}

        def edge(number: int) -> int:
            if number in places:
                return places[number]
            leaf = leaves.get(number)
            if leaf is None:
                return _NOWHERE
            return -3 - leaf.first if leaf.first <= self.newest else _OTHER_LEAF

        return tuple((one.name, tuple(map(edge, numbers))) for one, numbers in zip(records, targets, strict=True))

    def is_of_interest(self, roots: Sequence[Any]) -> bool:
        """Whether the graph that these roots lead to begins as that of no recorded pass, or has a node where its
        derivative is not finite. A few times only: a program may make other graphs each time, and the gradient may be
        finite all the same, behind a mask."""
        with torch._C.DisableTorchFunction():
            fns = [fn for root in roots if (fn := getattr(root, "grad_fn", None)) is not None]
        is_new = self.new_tops < _MOST_ALARMS and _top(fns) not in self.tops
        self.new_tops += is_new
        if is_new or not self.reach or self.alarms >= _MOST_ALARMS:
            return is_new
        with torch._C.DisableTorchFunction(), unheard():
            singular = (
                fn for fn in _nearest(fns, max(_AROUND, 2 * self.reach)) if fn is not None and fn.name() in _SINGULAR
            )
            is_there = any(map(self._is_at_its_point, singular))
            self.alarms += is_there
            return is_there

    @staticmethod
    def _is_at_its_point(fn: Any) -> bool:
        name, is_regular = _SINGULAR[fn.name()]
        try:
            value = data_of(saved_as_is(fn, f"{RAW}{name}", True))
            is_plain = type(value) in PLAIN and value.is_cpu and numel(value) <= _MOST_ELEMENTS
            if not is_plain or getattr(fn, "_saved_exponent", 0) >= 1:
                return False
            check_room(value)
            return not is_regular(to_numpy(detach(value))).all()
        except (RuntimeError, AttributeError, TypeError):  # it was freed, or NumPy does not have its dtype
            return False

    def tell(self, roots: Sequence[Any], frame: FrameType | None) -> None:
        """Emit the graph of a pass that is about to begin from roots, in a frame of the program, or has failed."""
        identity = self.identity
        with_nodes = [root for root in roots if isinstance(root, torch.Tensor) and root.grad_fn is not None]
        others = [root.node for root in roots if not isinstance(root, torch.Tensor)]
        nodes = identity.new_nodes([*(root.grad_fn for root in with_nodes), *others])
        for root in with_nodes:
            record = identity.record_of(root.grad_fn)
            if not record.tensor(root.output_nr):
                record.put(root.output_nr, identity.fresh(root).number)
        saved = {fn: dict(identity.saved.unchanged(fn)) for fn, _, _ in nodes}
        known = {(id(root.grad_fn), root.output_nr): root for root in with_nodes}
        values = inner_values(saved, known, _MOST_ELEMENTS)
        records = [record for _, record, _ in nodes]
        ops = Ops(self.source, records, saved, values, frame)
        met = {target: target.metadata[identity.key] for _, _, nexts in nodes for target, _ in nexts if target}
        targets = [[met[target].number if target else 0 for target, _ in nexts] for _, _, nexts in nodes]
        likes = self._likes(self._form(records, targets, {one.number: one for one in met.values() if one.is_leaf}))
        # nodes of one op have its event in common
        for _, group in groupby(
            zip(nodes, likes, strict=True), lambda told: told[1].made.event if told[1] else told[0]
        ):
            ops.tell(list(group))
        ops.enter(())

    def _likes(self, form: _Form) -> list[_Like | None]:
        """How the nodes of a form came to be in the recorded pass that has most of them in common, from the oldest on.
        Nothing is known of the others."""
        best: list[_Like | None] = []
        for known, likes in self.known.items():
            common = next((at for at, (one, other) in enumerate(zip(known, form)) if one != other), None)  # noqa: B905
            common = min(len(known), len(form)) if common is None else common
            if common >= len(best):
                best = likes[:common]
        return [*best, *[None] * (len(form) - len(best))]


def _nearest(fns: Sequence[Any], most: int) -> list[Any]:
    """The nodes of a graph that are next to the roots; None for an edge without a target."""
    near = set(fns)
    here = [*dict.fromkeys(fns)]
    for fn in here:  # which grows meanwhile
        if len(here) >= most:
            break
        for target, _ in fn.next_functions if fn is not None else ():
            if target not in near:
                near.add(target)
                here.append(target)
    return here


def _top(fns: Sequence[Any]) -> tuple[str, ...]:
    """The names of the first few nodes of a graph."""
    return tuple(["" if fn is None else fn.name() for fn in _nearest(fns, _NEAR)])


def _is_often_singular(name: str, like: _Like | None) -> bool:
    """Whether the derivative of a node may not be finite: of a power of 1 or more and of a division by a number it
    is."""
    args, op = ("", "") if like is None else (like.made.args, like.made.op)
    return name in _SINGULAR and op != "square" and not _SMOOTH.match(args)


def _in_common(before: _Like | None, now: _Like | None) -> _Like | None:
    """What two passes tell of a node: nothing, if they made it at different places."""
    if before is None or now is None or _where(before.made) != _where(now.made):
        return None
    return now._replace(steady=before.steady is not False and before.made.args == now.made.args)


def _where(made: Made) -> tuple[Any, ...]:
    return made.where, made.op, [(scope.where, scope.name, scope.training) for scope in made.scopes]


class Ops:
    """Emits the ops of a graph, the oldest first. `records` are those of its nodes, by their places; `saved` is what
    they saved, and `values` are their results, by their index, as far as they are known. The pass begins in `frame`."""

    def __init__(
        self,
        source: Source,
        records: Sequence[NodeRecord],
        saved: dict[Any, dict[str, torch.Tensor]],
        values: dict[tuple[int, int], torch.Tensor],
        frame: FrameType | None = None,
    ) -> None:
        self.identity, self.records, self.saved, self.values = source.identity, records, saved, values
        self.frame = frame
        self.listener: Any = source.listener
        self.scopes: list[tuple[Entered, int]] = []  # that are open, with the number that they have here

    def tell(self, group: Sequence[tuple[Numbered, _Like | None]]) -> None:
        """Emit an op, which made these nodes."""
        listener, like = self.listener, group[-1][1]
        self.enter(() if like is None else like.made.scopes)
        where = None if like is None else like.made.where
        outputs, handles = [], []
        for (fn, record, _), one in group:
            for nr, form in enumerate(fn._input_metadata):
                if one is not None and not (one.made.outputs[nr : nr + 1] or (0,))[0]:
                    continue  # the program never had it
                if not record.tensor(nr):
                    record.put(nr, next_tensor_number())
                outputs.append(record.tensor(nr))
                value = self.values.get((id(fn), nr))
                handles.append(Unseen(form.shape, form.dtype, form.device) if value is None else value)
        data = [
            self.identity.number_of(tensor, giver(tensor, self.frame), UNWATCHED)
            for (fn, _, _), _ in group
            for name, tensor in self.saved.get(fn, {}).items()
            if tensor.grad_fn is None and not tensor.requires_grad and not name.startswith(_OF_RESULTS)
        ]
        (fn, record, nexts), _ = group[-1]
        if like is None:
            op, args, rule = op_of_node(record.name), "", NO_RULE
            inputs = self.identity.inputs_of(
                edges_of(self.identity.edges_of(nexts)), self.identity.saved.by(fn, ()), outputs
            )
        else:
            made = like.made if like.steady else like.made._replace(args="", rule=NO_RULE)
            op, args, rule, inputs = made.op, made.args, made.rule, self._inputs(like.inputs, data)
        zeros = [0] * len(outputs)
        flags = [REQUIRES_GRAD] * len(outputs)
        listener.op(where, op, args, rule, 0, True, inputs, outputs, handles, flags, zeros, zeros)
        for (fn, record, nexts), one in group:
            rule = rule_of_node(fn, record.name, len(nexts))
            if one is not None and one.steady:
                rule = one.made.node_rule
            edges = edges_of(self.identity.edges_of(nexts, inputs if len(group) == 1 else ()))
            listener.node(
                where, record.number, record.name, -1, rule, record.outputs(), edges,
                self.identity.saved.by(fn, ()),
            )  # fmt: skip

    def _inputs(self, places: Sequence[_Place], data: Sequence[int]) -> list[int]:
        """The inputs of an op, as in the recorded pass. Data is given to an input if there is one of each."""
        only = data[0] if len(set(data)) == 1 and places.count(_Place()) == 1 else 0
        return [
            self.records[place.node].tensor(place.nr) if place.node >= 0 else place.leaf or only for place in places
        ]

    def enter(self, wanted: Sequence[Entered]) -> None:
        """Leave and enter scopes until the wanted ones are open."""
        common = 0
        while common < min(len(wanted), len(self.scopes)) and self.scopes[common][0] == wanted[common]:
            common += 1
        for _, number in reversed(self.scopes[common:]):
            self.listener.scope_left(number)
        del self.scopes[common:]
        for scope in wanted[common:]:
            number = next_scope_number()
            self.listener.scope_entered(scope.where, number, *scope[2:])
            self.scopes.append((scope, number))


_STORING = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")


def giver(tensor: torch.Tensor, frame: FrameType | None) -> Place | None:
    """The expression that gave a tensor, if a variable of the program in this frame or its callers proves it: it still
    has the tensor, nothing else is ever assigned to it, and nothing has written to the tensor."""
    while frame is not None and not version_of(tensor):
        code = frame.f_code
        stars = bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + stars]
        for name in [name for name, value in [*frame.f_locals.items()] if value is tensor]:
            stores = _stores(code, name, _STORING)
            if len(stores) == 1 and name not in arguments:
                return place_of(code, stores[0])
        frame = users_frame(frame.f_back)
    return None


def _stores(code: CodeType, name: str, storing: Sequence[str]) -> list[int]:
    """The instructions before those that assign to a variable, also in functions inside."""
    before, found = 0, []
    for instruction in dis.get_instructions(code):
        if instruction.opname in storing and instruction.argval == name:
            found.append(before)
        before = instruction.offset
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return found + [offset for one in inner for offset in _stores(one, name, _STORING[2:])]
