"""The cuts that `detached-path` reports beside leaves without any gradient: one path of several that is cut. The leaves
behind the cut get gradients from elsewhere, so that nothing else shows it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.events.kinds import LEAF, REQUIRES_GRAD, Kind, OpRan, TensorMade
from gradviz.events.values import Stat
from gradviz.query.copies import copied_from
from gradviz.query.flow import (
    NEAR,
    Use,
    Ways,
    chain,
    computed_alike,
    groups_behind,
    leaves_of,
    op_of,
    reach,
    taken_by,
    uses,
)
from gradviz.query.missing_gradients import FROM_OUTSIDE, Lacks
from gradviz.query.numbers_read import NumbersRead
from gradviz.query.ops import (
    COPYING,
    DIFFERENCES,
    DIVIDING,
    DRAWN,
    JOINING,
    LOSSES,
    MULTIPLYING,
    NEGATING,
    PRODUCTS,
    REDUCTIONS,
    RESHAPING,
    SELECTING,
    SHARING,
    SPLITTING,
    SUMS,
)
from gradviz.query.pass_owners import PassOwners
from gradviz.sets import contained, distinct


@dataclass(frozen=True, slots=True)
class Cut:
    """An event that cuts trained `leaves` off from the root of a pass. The question decides which other fields are
    given: the `tensor` that is cut and how the source has it (`reading`), the op `reader` that reads the cut tensor,
    the leaves of the `part` whose input is cut, the `optimizer` of the pass, the `share` of a leaf that is cut."""

    event: int
    leaves: tuple[int, ...]
    root: int = 0
    tensor: int = 0
    reading: str = ""
    reader: int = -1
    part: tuple[int, ...] = ()
    optimizer: int = 0
    share: float = 1.0


def _one_a_line(case: Case, cuts: Iterable[Cut]) -> list[Cut]:
    found: dict[int, Cut] = {}
    for cut in cuts:
        found.setdefault(case.site(cut.event), cut)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class FirstPass:
    """The first pass from a line: its number, its root, the event where it begins (`at`), the last event of the passes
    before it (`since`), and the leaves that it is meant to train (`own`)."""

    number: int
    root: int
    at: int
    since: int
    own: set[int]


def first_passes(case: Case) -> Iterator[FirstPass]:
    """The first pass of each line that begins passes, if its root is known."""
    seen: set[int] = set()
    ends = [case.query.passes.last(backward_pass) for backward_pass in case.trace.passes]
    for backward_pass in case.trace.passes:
        if backward_pass.site in seen:
            continue
        roots = case.query.passes.began(backward_pass.number).roots
        if not roots or not roots[0].tensor:
            continue
        seen.add(backward_pass.site)
        optimizers = case.query.of(PassOwners).optimizers(backward_pass.number)
        trained = {leaf for leaf, owners in case.training.owners.items() if owners & optimizers}
        since = max((end for end in ends if end < backward_pass.first), default=-1)
        yield FirstPass(backward_pass.number, roots[0].tensor, backward_pass.first, since, trained)


def cut_uses(case: Case) -> list[Cut]:
    """The uses that are cut in the first pass of each line that begins passes. Use `case.of(cut_uses)`."""
    cuts = (_in_pass(case, one.root, one.at, one.since, one.own) for one in first_passes(case))
    return _one_a_line(case, itertools.chain.from_iterable(cuts))


def _in_pass(case: Case, root: int, at: int, since: int, own: set[int]) -> list[Cut]:
    """The cut uses on the way to one root; `own` are the leaves that the pass is meant to train."""
    readers: dict[frozenset[int], list[tuple[int, int]]] = {}
    for use in uses(case.query, case.query.of(Lacks).ways(root, at)):
        if len(use.data) == 1:
            readers.setdefault(use.leaves, []).append((use.event, use.data[0]))
    found = []
    for weights, calls in readers.items():
        is_open = {event: _requires_grad(case, source, at) for event, source in calls}
        if not any(is_open.values()):
            continue
        for event, source in calls:
            cut = None if is_open[event] else cut_behind(case, source, since, own)
            if cut is not None and not cut[1] & weights:
                found.append(Cut(cut[0], tuple(sorted(cut[1])), root, reader=event))
    return found


def sources_of(case: Case, made: OpRan | TensorMade) -> list[int]:
    """The tensors that a tensor was made from; if it was made from numbers, the tensor whose values it has."""
    taken = [source for source in taken_by(case.query, made) if source]
    if not taken and isinstance(made, TensorMade) and made.how in FROM_OUTSIDE:
        taken = [source for source in (copied_from(case.query, made),) if source]
    return taken


def cut_behind(case: Case, tensor: int, since: int, own: set[int]) -> tuple[int, set[int]] | None:
    """(event, leaves): the first event after `since` that cuts a tensor off from a graph, and the leaves of `own`
    behind the cuts; None if there is none. Behind a cut only the graph is followed: another cut there takes nothing
    from this tensor."""
    cuts, leaves = set[int](), set[int]()

    def onward(source: int) -> list[int]:
        made = case.query.tensors.made(source)
        if made is None or made.index <= since:
            return []
        taken = sources_of(case, made)
        blocks = isinstance(made, TensorMade) or not case.query.nodes.of_op(made.index)
        open_ = {source for source in taken if _requires_grad(case, source, made.index)} if blocks else set()
        behind = {*open_, *leaves_of(case.query, *open_)} & own
        cuts.update({made.index} if behind else ())
        leaves.update(behind)
        return [source for source in taken if source not in open_]

    for _ in reach([tensor], onward, NEAR):
        pass
    return (min(cuts), leaves) if cuts else None


def _requires_grad(case: Case, tensor: int, at: int) -> bool:
    flags = case.query.tensors.flags(tensor, at)
    return bool(flags & REQUIRES_GRAD) and not (flags & LEAF and op_of(case.query, tensor) is not None)


_SEVERAL = 2  # the fewest optimizers of a shared leaf, and the fewest results that are cut together


def cut_holdings(case: Case) -> list[Cut]:
    """The cuts in the first pass of each line that begins passes. Use `case.of(cut_holdings)`."""
    return list(_found(case))


def _found(case: Case) -> Iterator[Cut]:
    owners = case.query.of(PassOwners)
    for first in first_passes(case):
        optimizers = owners.optimizers(first.number)
        if len(optimizers) != 1:
            continue
        optimizer = min(optimizers)
        missing = _without_gradients(case, optimizer)
        cut = _cut(case, first, missing) if missing else None
        if cut is not None:
            yield Cut(cut[0], tuple(sorted(cut[1])), first.root, optimizer=optimizer)


def _without_gradients(case: Case, optimizer: int) -> set[int]:
    """The leaves that an optimizer shares with another optimizer, and that get a gradient from no pass of this
    optimizer but from other passes. Empty if its passes give no gradient to any of its leaves."""
    owners, came = case.query.of(PassOwners), case.trace.table(Kind.ACCUMULATED)
    passes = [
        backward_pass.number
        for backward_pass in case.trace.passes
        if optimizer in owners.optimizers(backward_pass.number)
    ]
    got = set(distinct(came["tensor"][contained(came["in_pass"], passes)]).tolist())
    ever = set(distinct(came["tensor"]).tolist())
    held = {leaf: holders for leaf, holders in case.training.holders.items() if optimizer in holders}
    if got.isdisjoint(held):
        return set()
    return {leaf for leaf, holders in held.items() if len(holders) >= _SEVERAL and leaf in ever - got}


def _cut(case: Case, first: FirstPass, missing: set[int]) -> tuple[int, set[int]] | None:
    """The cut behind a tensor that the pass used without a graph, and the missing leaves behind the cut."""
    for use in uses(case.query, case.query.of(Lacks).ways(first.root, first.at)):
        for tensor in use.data:
            is_open = case.query.tensors.requires_grad(tensor, first.at)
            cut = None if is_open else cut_behind(case, tensor, first.since, missing)
            if cut is not None:
                return cut
    return None


def cut_inputs(case: Case) -> list[Cut]:
    """The inputs that are cut in the first pass of each line that begins passes. Use `case.of(cut_inputs)`."""
    cuts = (_inputs_in_pass(case, first) for first in first_passes(case))
    return _one_a_line(case, itertools.chain.from_iterable(cuts))


def _inputs_in_pass(case: Case, first: FirstPass) -> Iterator[Cut]:
    ways = case.query.of(Lacks).ways(first.root, first.at)
    own_uses = uses(case.query, ways)
    for use in own_uses:
        if not use.leaves & first.own or any(
            case.query.tensors.requires_grad(tensor, first.at) for tensor in use.data
        ):
            continue
        behind = {tensor: cut_behind(case, tensor, first.since, first.own) for tensor in use.data}
        cuts = {tensor: cut for tensor, cut in behind.items() if cut is not None}
        if len(cuts) != 1:
            continue
        ((tensor, (event, leaves)),) = cuts.items()
        if leaves & use.leaves:
            continue
        way = _way(case, ways, tensor, first)
        if (len(way.joined) >= _SEVERAL or _is_drawn(case, event)) and not _learns_elsewhere(
            case, ways, own_uses, way, leaves
        ):
            yield Cut(event, tuple(sorted(leaves)), first.root, part=tuple(sorted(use.leaves)))


def _is_drawn(case: Case, event: int) -> bool:
    """Whether the event that cuts draws from a distribution, as `q.sample()` does."""
    made = case.trace.event(event)
    return isinstance(made, TensorMade) and made.how in DRAWN


@dataclass(frozen=True, slots=True)
class _Way:
    """The tensors from a cut-off input back to the results that the loss uses with their graph (`tensors`), and these
    results (`joined`), which are empty if a leaf that requires grad is on the way."""

    tensors: set[int]
    joined: set[int]


def _way(case: Case, ways: Ways, tensor: int, first: FirstPass) -> _Way:
    openly = set(ways.reached_openly)
    joined = set[int]()

    def onward(tensor: int) -> list[int]:
        made = case.query.tensors.made(tensor)
        taken = sources_of(case, made) if made is not None and made.index > first.since else []
        own = {one for one in taken if one in openly and case.query.tensors.requires_grad(one, first.at)}
        joined.update(own)
        return [source for source in taken if source not in own]

    tensors = set[int]()
    for one in reach([tensor], onward, NEAR):
        if one != tensor and case.query.tensors.is_leaf_that_requires_grad(one, first.at):
            return _Way(tensors, set())
        tensors.add(one)
    is_a_leaf = any(case.query.tensors.is_leaf_that_requires_grad(one, first.at) for one in joined)
    return _Way(tensors, set() if is_a_leaf else joined)


def _learns_elsewhere(case: Case, ways: Ways, own_uses: list[Use], way: _Way, leaves: set[int]) -> bool:
    """Whether another part learns from results of these leaves with their graph, or an op combines a cut-off tensor
    with such a result, as the log-probability of a sample does."""
    behind = groups_behind(case.query, ways, dict.fromkeys(leaves, 1))
    if any(any(behind.get(t) for t in use.data) and not use.leaves <= leaves for use in own_uses):
        return True
    for tensor in way.tensors - behind.keys():
        for event in case.downstream.readers(tensor):
            op = case.query.tensors.op(event)
            is_on_way = way.tensors.issuperset(op.outputs)
            if (
                op.grad_enabled
                and not is_on_way
                and any(behind.get(source) for source in op.inputs if source != tensor)
            ):
                return True
    return False


_VIEWING = COPYING | RESHAPING | SELECTING | SHARING | SPLITTING | {"narrow"}


def cut_parts(case: Case) -> list[Cut]:
    """The parts that are cut off and joined again, one for each line. Use `case.of(cut_parts)`."""
    ops, ran = case.trace.table(Kind.OP), case.query.nodes.ops_that_ran
    joins = ops.events[case.trace.named(ops["op"], JOINING) & contained(ops.events, ran)]
    first = (case.query.tensors.op(int(events[0])) for events in case.by_site(joins).values())
    return _one_a_line(case, (cut for join in first for cut in _of_join(case, join)))


def _of_join(case: Case, join: OpRan) -> Iterator[Cut]:
    """The inputs of a join that are cut-off parts of a tensor, if another input is an open part of the same tensor."""
    inputs = [tensor for tensor in join.inputs if tensor]
    wholes = [
        _whole(case, tensor) for tensor in inputs if case.query.tensors.requires_grad(tensor, join.index)
    ]
    for tensor in inputs:
        cut = None if case.query.tensors.requires_grad(tensor, join.index) else _view_that_cuts(case, tensor)
        if cut is None:
            continue
        event, source = cut
        whole = _whole(case, source)
        if op_of(case.query, whole) is None or not any(
            computed_alike(case.query, whole, other) for other in wholes
        ):
            continue
        leaves = [leaf for leaf in leaves_of(case.query, whole) if leaf in case.training.trained]
        if leaves:
            yield Cut(event, tuple(leaves), tensor=whole, reader=join.index)


def _view_that_cuts(case: Case, tensor: int) -> tuple[int, int] | None:
    """(event, source): the view op that cuts a tensor off, and the tensor that it is a view of; else None."""
    views = ((view.index, view.inputs[0]) for view in _views_behind(case, tensor))
    return next(
        ((event, source) for event, source in views if case.query.tensors.requires_grad(source, event)), None
    )


def _whole(case: Case, tensor: int) -> int:
    """The tensor at the beginning of a chain of views; the tensor itself if it is no view."""
    for view in _views_behind(case, tensor):
        tensor = view.inputs[0]
    return tensor


def _views_behind(case: Case, tensor: int) -> Iterator[OpRan]:
    """The view ops behind a tensor, the last op first."""
    return chain(case.query, tensor, lambda op: op.op in _VIEWING)


_LEAST = 2  # the fewest passes, and the fewest dimensions of a matrix
_NEAR = 64  # the most results of a leaf that are looked at
_ALMOST = 0.999
_VIEWS = 6  # the most views between a result and a part of it


def cut_rows(case: Case) -> list[Cut]:
    """The parts that are cut off, one for each line. Use `case.of(cut_rows)`."""
    return _one_a_line(
        case, (cut for leaf, zeros in _partly_zero(case) for cut in _cut_parts(case, leaf, zeros))
    )


def _partly_zero(case: Case) -> Iterator[tuple[int, float]]:
    """The trained matrices with some zeros in every gradient, each with the smallest share of zeros."""
    came = case.trace.table(Kind.ACCUMULATED)
    states = case.trace.states
    rows = states.rows_of(came["gradient"], came.events)
    for leaf in distinct(came["tensor"]).tolist():
        form = states.form(states.first(leaf))
        own = rows[came["tensor"] == leaf]
        if leaf not in case.training.trained or form is None or len(form.shape) < _LEAST or len(own) < _LEAST:
            continue
        if (own < 0).any() or not prod(form.shape):
            continue
        zeros = float(np.min(states.stats[own, Stat.ZEROS])) / prod(form.shape)
        if 0 < zeros < _ALMOST:
            yield leaf, zeros


def _cut_parts(case: Case, leaf: int, zeros: float) -> Iterator[Cut]:
    """The ops that cut off a part of a result, if the part's rows are no more than the share `zeros` of the leaf."""
    results = case.downstream.results(leaf, _NEAR)
    for source, readers in results.items():
        whole = _size_of_whole(case, source)
        share = case.trace.states.size_of(source) / whole if whole else 1.0
        for event in readers if share < 1 and zeros >= _ALMOST * share else ():
            op = case.query.tensors.op(event)
            if op.op in SHARING and op.outputs and _is_a_cut(case, op, source):
                yield Cut(event, (leaf,), share=share)


def _size_of_whole(case: Case, tensor: int) -> int:
    """The number of elements of the layer's result that a tensor is a part of, by views alone; 0 if there is none."""

    def is_view(op: OpRan) -> bool:
        return (
            op.op not in PRODUCTS and len(op.inputs) == 1 and op.rule is not None and not op.rule.elementwise
        )

    for view in chain(case.query, tensor, is_view, _VIEWS):
        tensor = view.inputs[0]
    made = op_of(case.query, tensor)
    is_product = made is not None and made.op in PRODUCTS and made.op != "embedding"
    return case.trace.states.size_of(tensor) if is_product else 0


def _is_a_cut(case: Case, op: OpRan, source: int) -> bool:
    """Whether an op drops the graph of its source, other ops read its result, and no other op reads the source."""
    wanting = case.query.tensors.requires_grad(source, op.index)
    is_read = any(case.downstream.readers(out) for out in op.outputs)
    others = [reader for reader in case.downstream.readers(source) if reader != op.index]
    return bool(wanting) and is_read and not others and not case.query.nodes.of_op(op.index)


_LEAST_CALLS = 2  # calls
_LINEAR_OPS = 12  # the most ops between an addition of elements and the root
_SCALINGS = 4  # the most ops between a comparison and the sum that it is a term of


def cut_terms(case: Case) -> list[Cut]:
    """The terms of losses that are cut off, one for each line. Use `case.of(cut_terms)`."""
    ops, ran = case.trace.table(Kind.OP), case.query.nodes.ops_that_ran
    adding = ops.events[case.trace.named(ops["op"], SUMS) & contained(ops.events, ran)]
    used = case.query.nodes.ran
    found: list[Cut] = []
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
                found.append(Cut(event, leaves, tensor=tensor, reading=reading))
    return found


def _term(case: Case, tensor: int, event: int, leaves: Iterable[int]) -> Cut:
    """The term `tensor`, which an event cuts off from leaves."""
    return Cut(event, tuple(leaves), tensor=tensor, reading=case.words.called(tensor))


def equal_sides(case: Case) -> list[OpRan]:
    """The first op of each line that compares a tensor with equal numbers in all its calls, and that is a term of a
    loss without a graph. Use `case.of(equal_sides)`."""
    ops, made = case.trace.table(Kind.OP), case.trace.table(Kind.NODE)
    comparing = case.trace.named(ops["op"], LOSSES) & ~contained(ops.events, made["op"])
    found = []
    for events in case.by_site(ops.events[comparing]).values():
        calls = [case.query.tensors.op(event) for event in events.tolist()]
        terms = [_is_added(case, op) for op in (calls[0], calls[-1])]
        if len(calls) >= _LEAST_CALLS and all(terms) and all(_is_of_equal_sides(case, op) for op in calls):
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


def _of_elements(case: Case, events: np.ndarray) -> list[Cut]:
    """The term that a line adds element by element and that detach() cut off, in a call in the middle of the run and in
    the last: `fit + weights.detach()` before a mean that is the loss. If some calls alone have a cut since the last
    pass, the term may be meant as a constant, as the log-probabilities of an old policy."""
    calls = [case.query.tensors.op(int(events[at])) for at in (len(events) // 2, -1)]
    terms = [_cut_addend(case, op) for op in calls] if len(events) > _LEAST_CALLS else []
    return [term for term in terms[:1] if term is not None and None not in terms]


def _cut_addend(case: Case, op: OpRan) -> Cut | None:
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
        return _term(case, source, cut[0], sorted(cut[1]))
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


def _without_any_graph(case: Case, op: OpRan) -> list[Cut]:
    """The terms of an addition that were computed since the last pass without a graph: `loss_of(net(x).detach())`."""
    since, found = _end_of_last_pass(case, op), list[Cut]()
    for source in filter(None, op.inputs):
        maker = case.query.tensors.made(source)
        is_plain = isinstance(maker, OpRan) and maker.op not in SHARING
        if case.query.tensors.shape(source) != ():
            continue
        if isinstance(maker, TensorMade) and maker.how in FROM_OUTSIDE and maker.index > since:
            copied = copied_from(case.query, maker)
            has_graph = bool(copied) and case.query.tensors.requires_grad(copied, maker.index)
            if has_graph and (behind := _learning_behind(case, copied, op.index)):
                found.append(_term(case, source, maker.index, behind))
            continue
        if not is_plain or case.query.tensors.requires_grad(source, op.index):
            continue
        cut = cut_behind(case, source, since, _trained_by_the_next_pass(case, op.index))
        if cut is not None:
            found.append(_term(case, source, cut[0], sorted(cut[1])))
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
    for reading in case.query.of(NumbersRead).of_op(op.index):
        yield op.index if reading.is_here else reading.event, reading.tensor, reading.text
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
