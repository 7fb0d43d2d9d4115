"""A pass of which only the graph is at hand, because nothing was watched when its forward ran: it is emitted as if it
had been recorded.

Its nodes are compared with those of the passes that were recorded. Where a recorded pass had the same nodes with the
same edges, each op has the place, the text and the scopes that it had there. Its values are those that nodes saved, or
that follow from them. Ops without a node left nothing behind: what they gave is emitted as a tensor that came to be
unwatched."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from types import FrameType
from typing import Any

import torch

from gradviz.events.counters import next_tensor_number
from gradviz.events.kinds import REQUIRES_GRAD, UNWATCHED
from gradviz.events.likeness import SINGULAR, Form, Like, Likes, OpenScopes, Origin, is_often_singular
from gradviz.events.listener import NO_RULE, edges_of
from gradviz.events.site import Place, giver_of
from gradviz.sources.torch_recorder.backward import Pass, inner_values
from gradviz.sources.torch_recorder.calls import op_of_node
from gradviz.sources.torch_recorder.known_things import NodeRecord, Numbered, version_of
from gradviz.sources.torch_recorder.memory import check_room
from gradviz.sources.torch_recorder.node_formulas import rule_of_node
from gradviz.sources.torch_recorder.pytorchs_own import detach, numel, to_numpy
from gradviz.sources.torch_recorder.saved import RAW, data_of, saved_as_is
from gradviz.sources.torch_recorder.shared import Source, safely, users_frame
from gradviz.sources.torch_recorder.tensor_values import PLAIN, Unseen, unheard

_MOST_ELEMENTS = 1 << 22  # of a value that is computed again
_OF_RESULTS = ("result", "total_weight", "reserve")  # what a node saved that its op has computed
_MOST_ALARMS = 8  # passes that are recorded for such points
_CHANGED = re.compile(r"Tensor (\[[\d, ]*\])\], which is output \d+ of ([\w:]+), is at version (\d+)")
_NEAR = 8  # nodes next to the roots that are compared
_AROUND, _MOST_NODES = 1 << 6, 1 << 14  # that are looked at for such a point: in any case, and at most


class LivePasses:
    """Emits such passes to a source's listener."""

    def __init__(self, source: Source) -> None:
        self.source, self.identity = source, source.identity
        self.likes = Likes()
        self.reach = 0  # how far from the roots recorded passes had nodes whose derivative may not be finite
        self.alarms = 0  # the passes that began with such a node at its point
        self.tops: set[tuple[str, ...]] = set()  # the nodes next to the roots of the passes that were recorded
        self.new_tops = 0  # the other passes that were recorded because these nodes were new

    @safely
    def remember(self, current: Pass) -> None:
        """Note how the nodes of a pass came to be that was recorded, and is about to end."""
        self.tops.add(_top(current.kept_alive))
        made = self.source.listener.made if self.source.listener is not None else {}
        leaves = {record.number: record for record in current.records.values() if record.is_leaf}
        self.likes.newest = self.likes.newest or max([one.first for one in leaves.values()], default=0)
        if not made:
            return
        records = sorted((one for one in current.records.values() if not one.is_leaf), key=lambda one: one.sequence)
        form = self._form(records, [current.targets[record.number] for record in records], leaves)
        outputs = {
            tensor: Origin(at, nr)
            for at, record in enumerate(records)
            for nr, tensor in enumerate(record.outputs())
            if tensor
        }
        outputs.update((record.first, Origin(leaf=record.first)) for record in leaves.values())
        likes = self.likes.note(form, [made.get(record.number) for record in records], outputs, next_tensor_number())
        often = {one.number for one, like in zip(records, likes, strict=True) if is_often_singular(one.name, like)}
        near = _nearest(current.kept_alive, _MOST_NODES) if often else ()
        numbers = [0 if fn is None else fn.metadata[self.identity.key].number for fn in near]
        self.reach = max([self.reach, *[at for at, number in enumerate(numbers, 1) if number in often]])

    def _form(
        self, records: Sequence[NodeRecord], targets: Sequence[Sequence[int]], leaves: dict[int, NodeRecord]
    ) -> Form:
        """The form of nodes with edges to nodes of these numbers."""
        nodes = [(one.number, one.name, numbers) for one, numbers in zip(records, targets, strict=True)]
        return self.likes.form(nodes, {number: leaf.first for number, leaf in leaves.items()})

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
                fn for fn in _nearest(fns, max(_AROUND, 2 * self.reach)) if fn is not None and fn.name() in SINGULAR
            )
            is_there = any(map(self._is_at_its_point, singular))
            self.alarms += is_there
            return is_there

    @staticmethod
    def _is_at_its_point(fn: Any) -> bool:
        name, is_regular = SINGULAR[fn.name()]
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
        likes = self.likes.of(self._form(records, targets, {one.number: one for one in met.values() if one.is_leaf}))
        # nodes of one op have its event in common
        for _, group in groupby(
            zip(nodes, likes, strict=True), lambda told: told[1].made.event if told[1] else told[0]
        ):
            ops.tell(list(group))
        ops.scopes.enter(())

    def tell_change(self, error: Exception, frame: FrameType | None, in_pass: int) -> None:
        """Emit the write to a saved tensor that made a pass fail, if one variable of the program alone has the
        tensor."""
        said = _CHANGED.search(str(error))
        held: dict[str, torch.Tensor] = {}
        while said is not None and frame is not None and not held:
            kind = said[2]
            own = [(name, one) for name, one in [*frame.f_locals.items()] if type(one) in PLAIN and one.grad_fn]
            held = {
                name: one
                for name, one in own
                if (str([*one.shape]), one.grad_fn.name().split("Backward")[0], str(one._version)) == said.groups()
            }
            frame = users_frame(frame.f_back)
        if len(held) == 1:
            ((name, tensor),) = held.items()
            number = self.identity.number_of(tensor, None, UNWATCHED)
            self.source.listener.named(number, name, "")
            self.source.listener.mutated(None, kind, self.identity.state_of(tensor), 0, in_pass)


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
        self.scopes = OpenScopes(source.listener)

    def tell(self, group: Sequence[tuple[Numbered, Like | None]]) -> None:
        """Emit an op, which made these nodes."""
        listener, like = self.listener, group[-1][1]
        self.scopes.enter(() if like is None else like.made.scopes)
        where = None if like is None else like.made.where
        data = [
            self.identity.number_of(tensor, giver(tensor, self.frame), UNWATCHED)
            for (fn, _, _), _ in group
            for name, tensor in self.saved.get(fn, {}).items()
            if tensor.grad_fn is None and not tensor.requires_grad and not name.startswith(_OF_RESULTS)
        ]
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

    def _inputs(self, origins: Sequence[Origin], data: Sequence[int]) -> list[int]:
        """The inputs of an op, as in the recorded pass. Data is given to an input if there is one of each."""
        only = data[0] if len(set(data)) == 1 and origins.count(Origin()) == 1 else 0
        return [self.records[one.node].tensor(one.nr) if one.node >= 0 else one.leaf or only for one in origins]


def giver(tensor: torch.Tensor, frame: FrameType | None) -> Place | None:
    """The expression that gave a tensor, if a variable of the program in this frame or its callers proves it, and
    nothing has written to the tensor."""
    return None if version_of(tensor) else giver_of(tensor, _users_frames(frame))


def _users_frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = users_frame(frame.f_back)
