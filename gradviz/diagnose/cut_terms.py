"""Terms of a loss that give no gradient, though they were computed from trained leaves: `fit + kl.item()`,
`fit + kl.detach()`. These leaves may get gradients from other terms, so that nothing else shows the cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.cut_uses import cut_behind
from gradviz.events.kinds import Kind, OpRan, TensorMade
from gradviz.events.values import Stat
from gradviz.query.copies import copied_from
from gradviz.query.flow import computed_alike, leaves_of, op_of
from gradviz.query.lack import FROM_OUTSIDE
from gradviz.query.ops import (
    DIFFERENCES,
    DIVIDING,
    LOSSES,
    MULTIPLYING,
    NEGATING,
    REDUCTIONS,
    RESHAPING,
    SHARING,
    SUMS,
)
from gradviz.query.pass_owners import PassOwners
from gradviz.query.plain_numbers import numbers_read
from gradviz.sets import contained

_LEAST = 2  # calls
_LINEAR_OPS = 12  # the most ops between an addition of elements and the root
_SCALINGS = 4  # the most ops between a comparison and the sum that it is a term of


@dataclass(frozen=True, slots=True)
class CutTerm:
    """A term that is added to a loss without its graph. `event` reads or cuts `tensor`, which the source has as
    `reading`; `leaves` are the trained leaves behind it."""

    event: int
    tensor: int
    reading: str
    leaves: tuple[int, ...]


def cut_terms(case: Case) -> list[CutTerm]:
    """The terms of losses that are cut off, one for each line. Use `case.of(cut_terms)`."""
    ops, ran = case.trace.table(Kind.OP), case.query.nodes.ops_that_ran
    adding = ops.events[case.trace.named(ops["op"], SUMS) & contained(ops.events, ran)]
    used = case.query.nodes.ran
    found: list[CutTerm] = []
    for events in case.by_site(adding).values():
        op = case.query.tensors.op(int(events[0]))
        if not op.outputs:
            continue
        if case.query.tensors.shape(op.outputs[0]) != ():
            found += _of_elements(case, events)
            continue
        found += _without_any_graph(case, op) or _without_any_graph(case, _in_the_middle(case, events))
        for event, tensor, reading in _read_without_graph(case, op):
            leaves = _learning_behind(case, tensor, event)
            if leaves and used.isdisjoint(case.query.nodes.of_tensors.of(tensor)[1].tolist()):
                found.append(CutTerm(event, tensor, reading, leaves))
    return found


def equal_sides(case: Case) -> list[OpRan]:
    """The first op of each line that compares a tensor with equal numbers in all its calls, and that is a term of a
    loss without a graph. Use `case.of(equal_sides)`."""
    ops, made = case.trace.table(Kind.OP), case.trace.table(Kind.NODE)
    comparing = case.trace.named(ops["op"], LOSSES) & ~contained(ops.events, made["op"])
    found = []
    for events in case.by_site(ops.events[comparing]).values():
        calls = [case.query.tensors.op(event) for event in events.tolist()]
        terms = [_is_added(case, op) for op in (calls[0], calls[-1])]
        if len(calls) >= _LEAST and all(terms) and all(_is_of_equal_sides(case, op) for op in calls):
            found.append(calls[0])
    return found


def _is_of_equal_sides(case: Case, op: OpRan) -> bool:
    """Whether the two tensors that an op compares have equal statistics, and are not constant."""
    states = case.trace.states
    rows = states.rows_of(np.array(op.inputs[:2]), np.full(len(op.inputs[:2]), op.index))
    if (
        len(set(op.inputs[:2])) != 2
        or (rows < 0).any()
        or states.form(int(rows[0])) != states.form(int(rows[1]))
    ):
        return False
    stats = states.stats[rows]
    return bool((stats[0] == stats[1]).all() and stats[0, Stat.MIN] < stats[0, Stat.MAX])


def _is_added(case: Case, op: OpRan) -> bool:
    """Whether the result of an op, perhaps times a number, is added to a tensor with a graph."""
    for _ in range(_SCALINGS):
        readers = case.downstream.readers(op.outputs[0]) if op.outputs else ()
        if not readers:
            return False
        op = case.query.tensors.op(readers[0])
        if op.op in SUMS:
            return bool(case.query.nodes.of_op(op.index))
        if op.op not in MULTIPLYING | DIVIDING:
            return False
    return False


def _of_elements(case: Case, events: np.ndarray) -> list[CutTerm]:
    """The term that a line adds element by element and that detach() cut off, in a call in the middle of the run and in
    the last: `fit + weights.detach()` before a mean that is the loss. If some calls alone have a cut since the last
    pass, the term may be meant as a constant, as the log-probabilities of an old policy."""
    calls = [case.query.tensors.op(int(events[at])) for at in (len(events) // 2, -1)]
    terms = [_cut_addend(case, op) for op in calls] if len(events) > _LEAST else []
    return [term for term in terms[:1] if term is not None and None not in terms]


def _cut_addend(case: Case, op: OpRan) -> CutTerm | None:
    """The term of an addition that detach() cut off in the same function since the last pass, if the sum goes to a root
    of a pass through nothing but sums, means and factors."""
    if not _is_linear_to_root(case, op.outputs[0]):
        return None
    since = _end_of_last_pass(case, op)
    for source in filter(None, op.inputs):
        has_graph = case.query.tensors.requires_grad(source, op.index)
        if has_graph or case.query.tensors.shape(source) != case.query.tensors.shape(op.outputs[0]):
            continue
        cut = cut_behind(case, source, since, _trained_by_the_next_pass(case, op.index))
        if cut is None or not case.query.tensors.is_op(cut[0]):
            continue
        detaching = case.query.tensors.op(cut[0])
        if detaching.op not in SHARING or not _in_one_function(case, detaching, op):
            continue
        if _only_sets_value(case, detaching.inputs[0], op):
            continue
        return CutTerm(cut[0], source, case.words.called(source), tuple(sorted(cut[1])))
    return None


def _in_one_function(case: Case, one: OpRan, other: OpRan) -> bool:
    places = [site.place for op in (one, other) if (site := case.place(op.index)) is not None]
    return len({(place.file, place.function) for place in places}) == 1


def _is_linear_to_root(case: Case, tensor: int) -> bool:
    for _ in range(_LINEAR_OPS):
        if tensor in case.query.passes.roots:
            return True
        readers = [case.query.tensors.op(event) for event in case.downstream.readers(tensor)]
        onward = [op for op in readers if case.query.nodes.of_op(op.index)]
        if len(onward) != 1 or not onward[0].outputs or not _is_linear_in(case, onward[0], tensor):
            return False
        tensor = onward[0].outputs[0]
    return False


def _is_linear_in(case: Case, op: OpRan, tensor: int) -> bool:
    """Whether an op is linear in one of its inputs: it sums or reshapes, or its other inputs are constants."""
    if op.op in SUMS | REDUCTIONS | NEGATING | RESHAPING:
        return True
    others = [other for other in op.inputs if other and other != tensor]
    is_scaling = op.op in MULTIPLYING | DIVIDING and op.inputs[0] == tensor
    return is_scaling and not any(case.query.tensors.requires_grad(other, op.index) for other in others)


def _end_of_last_pass(case: Case, op: OpRan) -> int:
    ends = (case.query.passes.last(one) for one in case.trace.passes if one.first < op.index)
    return max(ends, default=-1)


def _in_the_middle(case: Case, events: np.ndarray) -> OpRan:
    """The op of a call in the middle of the run. In the first call a number may be as round as a constant."""
    return case.query.tensors.op(int(events[len(events) // 2]))


def _without_any_graph(case: Case, op: OpRan) -> list[CutTerm]:
    """The terms of an addition that were computed since the last pass without a graph: `loss_of(net(x).detach())`."""
    since, found = _end_of_last_pass(case, op), list[CutTerm]()
    for source in filter(None, op.inputs):
        maker = case.query.tensors.made(source)
        is_plain = isinstance(maker, OpRan) and maker.op not in SHARING
        if case.query.tensors.shape(source) != ():
            continue
        if isinstance(maker, TensorMade) and maker.how in FROM_OUTSIDE and maker.index > since:
            copied = copied_from(case.query, maker)
            has_graph = bool(copied) and case.query.tensors.requires_grad(copied, maker.index)
            if has_graph and (behind := _learning_behind(case, copied, op.index)):
                found.append(CutTerm(maker.index, source, case.words.called(source), behind))
            continue
        if not is_plain or case.query.tensors.requires_grad(source, op.index):
            continue
        cut = cut_behind(case, source, since, _trained_by_the_next_pass(case, op.index))
        if cut is not None:
            found.append(CutTerm(cut[0], source, case.words.called(source), tuple(sorted(cut[1]))))
    return found


def _learning_behind(case: Case, tensor: int, event: int) -> tuple[int, ...]:
    """The leaves that a tensor was computed from and that the first pass after an event trains."""
    trained = _trained_by_the_next_pass(case, event)
    return tuple(leaf for leaf in leaves_of(case.query, tensor) if leaf in trained)


def _trained_by_the_next_pass(case: Case, event: int) -> set[int]:
    """The leaves that the optimizers of the first pass after an event train. A teacher that was trained before, by an
    optimizer of its own, is none of them. All trained leaves, if no step follows that pass."""
    number = next((one.number for one in case.trace.passes if one.first > event), 0)
    owners = case.query.of(PassOwners).optimizers(number)
    holders = case.training.holders
    return {
        leaf
        for leaf in case.training.trained
        if not owners or not holders.get(leaf) or holders[leaf] & owners
    }


def _read_without_graph(case: Case, op: OpRan) -> Iterator[tuple[int, int, str]]:
    """The tensors that require grad and that an addition uses as a number or detached: (the event that reads or
    detaches the tensor, the tensor, its text in the source)."""
    for tensor, reading in numbers_read(case.query, op.index):
        yield op.index, tensor, reading
    for source in filter(None, op.inputs):
        maker = case.query.tensors.made(source)
        if isinstance(maker, OpRan) and maker.op in SHARING and case.query.tensors.shape(source) == ():
            for tensor in filter(None, maker.inputs[:1]):
                if case.query.tensors.requires_grad(tensor, op.index) and not _only_sets_value(
                    case, tensor, op
                ):
                    yield maker.index, tensor, case.words.called(source)


def _only_sets_value(case: Case, tensor: int, op: OpRan) -> bool:
    """Whether a detached term of an addition is a difference to the other term, as in `a + (b - a).detach()`: it gives
    the sum the value of `b`, and the gradient of `a` is meant."""
    difference = op_of(case.query, tensor)
    if difference is None or difference.op not in DIFFERENCES:
        return False
    sides = [side for side in difference.inputs if side]
    terms = [term for term in op.inputs if term and case.query.tensors.requires_grad(term, op.index)]
    return any(computed_alike(case.query, side, term) for side in sides for term in terms)
