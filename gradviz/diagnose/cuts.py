"""The cuts that `detached-path` reports beside leaves without any gradient: one path of several that is cut. The leaves
behind the cut get gradients from elsewhere, so that nothing else shows it."""

import itertools
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.constants import is_linear_to_root
from gradviz.events.kinds import LEAF, REQUIRES_GRAD, Kind, OpRan, TensorMade
from gradviz.query import ops as op_sets
from gradviz.query.copies import copied_from
from gradviz.query.flow import NEAR, chain, computed_alike, groups_behind, leaves_of, op_of, reach, sets_value, taken_by
from gradviz.query.ledger import LINKS, Ledger, Link
from gradviz.query.missing_gradients import FROM_OUTSIDE, Lacks
from gradviz.query.numbers_read import NumbersRead
from gradviz.query.pass_owners import PassOwners
from gradviz.sets import contained, distinct, without
from gradviz.tracefile import PassInfo


class Place(Enum):
    """The places at which what is cut off meets what is not."""

    TERM = "a sum that is a loss"
    USE = "a layer that has an input with a graph, too"
    PART = "a layer whose only input is cut off"
    BRANCH = "two branches from one result"
    BESIDE = "a result that gradients flow to by another way"
    OPTIMIZER = "the passes of one of two optimizers"
    STEP = "all steps of a recurrence"


class Cut(NamedTuple):
    """An event that cuts trained `leaves` off from the root of a pass, one path of several. `tensor` is what is cut
    off; of a branch, what it is cut off from. `reader` is the op that reads it, `reading` the source of a
    number, `part` the leaves of the layer, `optimizer` that of the pass. `may_be_meant` says that programs also cut off
    so on purpose."""

    place: Place
    event: int
    leaves: tuple[int, ...]
    root: int = 0
    tensor: int = 0
    reading: str = ""
    reader: int = -1
    part: tuple[int, ...] = ()
    optimizer: int = 0
    may_be_meant: bool = False


def partial_cuts(case: Case) -> list[Cut]:
    """The cuts beside paths that are open, one for each line. Use `case.of(partial_cuts)`."""
    firsts, lasts = (_scanned(case, passes) for passes in (case.trace.passes, case.trace.passes[::-1]))
    known = {scan.number for scan in firsts}
    scans = [*firsts, *(scan for scan in lasts if scan.number not in known)]  # a cut may begin later
    questions = (_recurrences_of, _uses_of, _branches_of, _holdings_of, _besides_of)
    ways = (cut for question in questions for scan in scans for cut in question(case, scan))
    found: dict[int, Cut] = {}
    cuts = itertools.chain(_terms(case, lasts), _numbers(case), ways)
    for cut in sorted(cuts, key=lambda cut: cut.may_be_meant):
        found.setdefault(case.site(cut.event), cut)
    return list(found.values())


class Meeting(NamedTuple):
    """An op with an input, `tensor`, that is cut off from trained leaves: first by the event `cut`, from the `sources`,
    so from the `leaves` behind them. `live` are its inputs through which gradients flow to leaves of the pass, and
    `weights` leaves of the pass among its inputs. If `layered`, a layer that learns made the input of what is cut."""

    op: int
    tensor: int
    cut: int
    sources: frozenset[int]
    leaves: frozenset[int]
    live: tuple[int, ...]
    weights: frozenset[int]
    layered: bool


_Cuts = frozenset[tuple[int, int]]  # events that cut, each with a tensor that it cuts off


class _Scan:
    """The meetings of a pass, by one walk over the ops behind its root that ran since the pass before from its line,
    in order. `own` are the leaves that the pass is meant to train."""

    def __init__(self, case: Case, backward_pass: PassInfo) -> None:
        self.case, self.query = case, case.query
        self.number, self.at = backward_pass.number, backward_pass.first
        self.root = case.query.passes.began(self.number).roots[0].tensor
        owners = case.query.of(PassOwners).optimizers(self.number)
        before = (one for one in case.trace.passes if one.first < self.at and one.site == backward_pass.site)
        begun = (event for event in map(case.training.made_at, owners) if event < self.at)
        self.since = max((*map(case.query.passes.last, before), *begun), default=-1)  # copies of models come before
        self.own = _trained_by(case, self.number)
        self.ways = case.query.of(Lacks).ways(self.root, self.at)
        self.openly = set(self.ways.reached_openly)
        self.meetings: list[Meeting] = []
        self._live = set(self.own)
        self.dead: dict[int, _Cuts] = {}
        self._ranks: dict[int, int] = {}  # of what cuts: calls for it, then grad mode, then what has no derivative
        self._shade: dict[int, _Cuts] = {}  # of results of layers that learn
        made = map(self.query.tensors.made, self.ways.reached)
        events = {one.index: one for one in made if one is not None and one.index > self.since}
        order = np.array(sorted(events), int)
        for event, is_inside in zip(order.tolist(), self.query.passes.contains(order).tolist(), strict=True):
            self._visit(events[event], is_inside)

    def _visit(self, made: OpRan | TensorMade, is_inside: bool) -> None:
        inputs = [one for one in sources_of(self.case, made) if one]
        outputs = made.outputs if isinstance(made, OpRan) else (made.tensor,)
        live = tuple(one for one in inputs if self._is_live(one, made))
        dead = _Cuts().union(*(self.dead.get(one, ()) for one in inputs))
        passes = self.query.nodes.of_op(made.index) and made.index not in self.case.downstream.flat
        if live and passes and isinstance(made, OpRan):
            self._live.update(outputs)
            self._shade |= {} if is_inside else dict.fromkeys(outputs, self._met(made, live))
            return
        is_off = isinstance(made, OpRan) and not made.grad_enabled
        self._ranks[made.index] = 0 if isinstance(made, OpRan) and made.op in op_sets.SHARING else 2 - is_off
        dead |= {(made.index, one) for one in live}
        self.dead |= dict.fromkeys(outputs if dead and not is_inside else (), dead)

    def _is_live(self, tensor: int, made: OpRan | TensorMade) -> bool:
        """Whether the graph of an input leads to leaves of the pass. What is read as numbers is not behind the root."""
        if not _requires_grad(self.case, tensor, made.index):
            return False
        is_read = isinstance(made, TensorMade) and made.how in FROM_OUTSIDE
        behind = {tensor, *leaves_of(self.query, tensor)} if is_read else {tensor} & self._live
        return tensor in self._live or not self.own.isdisjoint(behind)

    def _met(self, op: OpRan, live: tuple[int, ...]) -> _Cuts:
        """Notes the meetings at an op with a live input. Gives what its result is cut off from behind a layer."""
        weights = frozenset(map(self.ways.viewed_leaf, live)) & self.own
        dtypes = ((one, self.case.trace.states.dtype_of(one)) for one in op.inputs)
        data = [one for one, dtype in dtypes if "float" in dtype or "complex" in dtype]  # no index, no mask
        for tensor in data:
            others = tuple(one for one in live if one != tensor)
            shade = self._shade.get(tensor, _Cuts()) if others and not weights else _Cuts()
            for cuts, is_layered in ((self.dead.get(tensor, _Cuts()), False), (shade, True)):
                sources = frozenset(source for _, source in cuts)
                behind = self.own & {*sources, *leaves_of(self.query, *sources)}
                if behind:
                    first = min((self._ranks[cut], cut) for cut, _ in cuts)[1]
                    self.meetings.append(
                        Meeting(op.index, tensor, first, sources, frozenset(behind), others, weights, is_layered)
                    )
        known = (self._shade, self.dead) if weights else (self._shade,)
        return _Cuts().union(*(shade.get(one, _Cuts()) for shade in known for one in data))


def _scanned(case: Case, passes: list[PassInfo]) -> list[_Scan]:
    """The scan of the first of these passes from each line that begins passes for leaves, if its root is known."""
    by_site: dict[int, PassInfo] = {}
    for backward_pass in filter(case.query.passes.is_done, passes):
        began = case.query.passes.began(backward_pass.number)
        is_for_leaves = not began.inputs or not case.training.holders.keys().isdisjoint(began.inputs)
        if is_for_leaves and began.roots and began.roots[0].tensor and backward_pass.site not in by_site:
            by_site[backward_pass.site] = backward_pass
    return [_Scan(case, backward_pass) for backward_pass in by_site.values()]


def _uses_of(case: Case, scan: _Scan) -> Iterator[Cut]:
    """The layers that are given what is cut off: a layer that has an input with a graph, too; or one whose only input
    is cut off from several results, or is drawn from them."""
    own_uses = scan.ways.uses
    for meeting in scan.meetings:
        weights = frozenset(map(scan.ways.viewed_leaf, meeting.live)) - {0}
        is_layer = meeting.weights and len(weights) == len(set(meeting.live)) and not meeting.layered
        if not is_layer or meeting.leaves & meeting.weights:
            continue
        leaves = tuple(sorted(meeting.leaves))
        open_uses = [
            use
            for use in own_uses
            if use.leaves == meeting.weights
            and any(_requires_grad(case, one, scan.at) and one not in scan.dead for one in use.data)
        ]
        is_drawn = meeting.cut in case.downstream.flat and _is_scored(case, scan, meeting)
        if open_uses and not is_drawn:
            yield Cut(Place.USE, meeting.cut, leaves, scan.root, reader=meeting.op)
        elif _is_whole_input(case, scan, meeting) and not _is_scored(case, scan, meeting):
            behind = groups_behind(case.query, scan.ways, dict.fromkeys(meeting.leaves, 1))
            if any(any(map(behind.get, use.data)) and not use.leaves <= meeting.leaves for use in own_uses):
                continue  # another part learns from results of these leaves with their graph
            yield Cut(Place.PART, meeting.cut, leaves, part=tuple(sorted(meeting.weights)))


_STEPS = 3  # the fewest steps of a recurrence


def _recurrences_of(case: Case, scan: _Scan) -> Iterator[Cut]:
    """The cuts in front of all steps of a recurrence but the first: layers that are given what they made themselves,
    without its graph. Not where the state reaches the next step by another way, or what is drawn or chosen does."""
    by_weights: dict[frozenset[int], dict[int, Meeting]] = {}
    for meeting in scan.meetings:
        if meeting.weights & meeting.leaves and not meeting.layered and meeting.cut not in case.downstream.flat:
            by_weights.setdefault(meeting.weights, {})[meeting.op] = meeting
    for weights, steps in by_weights.items():
        uses = [use for use in scan.ways.uses if use.leaves == weights]
        starts = [use for use in uses if use.event not in steps]  # of several rollouts, each has one
        later = [steps[use.event] for use in uses if use.event in steps]
        behind = groups_behind(case.query, scan.ways, dict.fromkeys(weights, 1))
        if len(uses) < _STEPS * max(len(starts), 1) or any(behind.get(one) for use in starts for one in use.data):
            continue
        live = {one for step in later for one in step.live if scan.ways.viewed_leaf(one) not in weights}
        carried = [{*reach(step.sources, lambda one: _openly(case, one), NEAR)} - weights for step in later]
        goes_on = any(behind.get(one) for pair in itertools.pairwise(carried) for one in set.intersection(*pair))
        sources = {one for step in later for one in step.sources}
        if all(map(behind.get, sources)):
            first, leaves, is_meant = later[0], tuple(sorted(later[0].leaves)), goes_on or any(map(behind.get, live))
            cut = Cut(Place.STEP, first.cut, leaves, scan.root, min(first.sources), reader=first.op)
            yield cut._replace(may_be_meant=is_meant)


_SEVERAL = 2  # the fewest results that are cut together


def _is_whole_input(case: Case, scan: _Scan, meeting: Meeting) -> bool:
    """Whether an input is cut off from several results at once that the root uses with their graph, none of them a
    leaf; or drawn from them, as `q.sample()` is."""
    if _is_drawn(case, meeting.cut):
        return True
    joined = set[int]()

    def onward(tensor: int) -> list[int]:
        made = case.query.tensors.made(tensor)
        taken = sources_of(case, made) if made is not None and made.index > scan.since else []
        own = {one for one in taken if one in scan.openly and case.query.tensors.requires_grad(one, scan.at)}
        joined.update(own)
        return [source for source in taken if source not in own]

    behind = {*reach([meeting.tensor], onward, NEAR), *joined} - {meeting.tensor}
    is_leaf = case.query.tensors.is_leaf_that_requires_grad
    return len(joined) >= _SEVERAL and not any(is_leaf(one, scan.at) for one in behind)


def _is_drawn(case: Case, event: int) -> bool:
    made = case.trace.event(event)
    return isinstance(made, TensorMade) and made.how in op_sets.DRAWN


def _is_scored(case: Case, scan: _Scan, meeting: Meeting) -> bool:
    """Whether an op combines what is cut off with a result of the same leaves, as the log-probability of a sample
    does."""
    behind = groups_behind(case.query, scan.ways, dict.fromkeys(meeting.leaves, 1))
    return any(
        other.cut == meeting.cut and not other.layered and any(behind.get(one) for one in other.live)
        for other in scan.meetings
        if other.op != meeting.op
    )


def _branches_of(case: Case, scan: _Scan) -> Iterator[Cut]:
    """The branches that are cut off from a result and joined with it, or with what is computed from it: a part of a
    tensor beside its other part, a skip connection, a residual, the keys of a fused projection. Or cut off as the input
    of a layer, as of a gate, whose result a later op combines with it; as a factor on the way to a layer; or as what
    is drawn for a layer that has another input: these may be meant."""
    for meeting in scan.meetings:
        op = case.query.tensors.op(meeting.op)
        wholes = {_whole(case, source) for source in meeting.sources}
        beside = [_whole(case, one) for one in meeting.live]
        if not wholes or not all(op_of(case.query, whole) for whole in wholes):
            continue
        behind = {*reach(meeting.live, lambda one: _openly(case, one), NEAR)}
        may_be_meant = meeting.cut in case.downstream.flat
        if not meeting.layered and all(_is_lost_part(case, scan, source) for source in meeting.sources):
            is_branch, may_be_meant = True, False
        elif meeting.layered:
            may_be_meant = op.op not in op_sets.ADDING or wholes.isdisjoint(beside)
            is_joined = not wholes.isdisjoint(behind) and not is_linear_to_root(case, op.outputs[0], by_weights=False)
            is_branch = is_joined or not may_be_meant
        elif op.op in op_sets.JOINING:
            pairs = ((_whole(case, one), whole) for one in behind for whole in wholes)
            is_branch = any(computed_alike(case.query, *pair) for pair in pairs)
            if not is_branch and _is_drawn(case, meeting.cut):
                is_branch = may_be_meant = not _is_scored(case, scan, meeting)
        elif op.op in op_sets.MULTIPLYING:
            is_term = bool(meeting.weights) or is_linear_to_root(case, op.outputs[0], by_weights=False)
            is_branch = may_be_meant = not is_term
        else:
            is_branch = op.op in op_sets.MATRIX_PRODUCTS and wholes.issubset(beside) and not meeting.sources & wholes
        if is_branch:
            leaves = tuple(sorted(meeting.leaves))
            yield Cut(
                Place.BRANCH, meeting.cut, leaves, tensor=min(wholes), reader=meeting.op, may_be_meant=may_be_meant
            )


_AGO = 3  # the most ops between what is cut off and the result that gradients flow to


def _besides_of(case: Case, scan: _Scan) -> Iterator[Cut]:
    """The cuts, by a call for them, of a result that gradients flow to by another way, or of what was computed from it:
    `time.detach()` in one of two sums. These may be meant, but for one of two sides of which the smaller or the larger
    counts. Not where two sides are compared or multiplied, where what is cut off weights a term, and not in front of a
    layer that is given nothing else."""
    for meeting in scan.meetings:
        op, cut = case.query.tensors.op(meeting.op), case.trace.event(meeting.cut)
        is_asked = not (isinstance(cut, OpRan) and (not cut.grad_enabled or cut.index in case.downstream.flat))
        # the side that is to learn, beside a target that gradients flow to
        is_prediction = op.op in op_sets.OF_LOG_PROBABILITIES and op.inputs[0] == meeting.tensor and bool(meeting.live)
        # a loss, or a difference that no layer reads, as it reads adapted weights
        compares = op.op in op_sets.LOSSES or (op.op in op_sets.DIFFERENCES and not _is_read_by_layers(case, op, _AGO))
        if not is_prediction and (meeting.layered or not is_asked or compares):
            continue
        is_weight = op.op in op_sets.MULTIPLYING | op_sets.DIVIDING and not meeting.sources <= scan.own
        is_weight = is_weight and is_linear_to_root(case, op.outputs[0], by_weights=False)
        is_product = op.op in op_sets.MATRIX_PRODUCTS and not meeting.weights | meeting.leaves & meeting.sources
        is_product &= not _is_read_by_layers(case, op, NEAR)  # as of queries and keys
        others = [use.data for use in scan.ways.uses if use.leaves == meeting.weights and use.event != meeting.op]
        is_probe = bool(meeting.weights) and all(one in scan.dead for data in others for one in data)
        is_probe &= meeting.leaves.isdisjoint(meeting.sources)
        if is_weight or is_product or is_probe:
            continue
        is_sum = op.op in op_sets.ADDING and not meeting.sources.isdisjoint(meeting.live)
        if is_sum or meeting.weights & meeting.leaves:
            continue
        near = {*reach(meeting.sources, lambda one: _openly(case, one), _AGO)} & scan.openly
        beside = {one for one in near if _requires_grad(case, one, scan.at)} | meeting.sources & near
        if beside and not sets_value(case.query, meeting.sources, meeting.live):
            leaves = tuple(sorted(meeting.leaves))
            meant = op.op not in op_sets.CHOOSING
            yield Cut(Place.BESIDE, meeting.cut, leaves, scan.root, tensor=max(beside), may_be_meant=meant)


def _is_read_by_layers(case: Case, op: OpRan, most: int) -> bool:
    """Whether a product reads one of the first so many results of an op."""
    near = case.downstream.results(op.outputs[0], most)
    readers = {case.query.tensors.op(event).op for events in near.values() for event in events}
    return not op_sets.PRODUCTS.isdisjoint(readers)


def _is_lost_part(case: Case, scan: _Scan, source: int) -> bool:
    """Whether a tensor is a part of a result of which the root uses other parts openly, and nothing else."""
    whole, query = _whole(case, source), case.query
    if source in scan.openly or source == whole or not op_of(query, whole):
        return False
    readers = [query.tensors.op(event) for event in case.downstream.readers(whole)]
    live = [op for op in readers if not scan.openly.isdisjoint(op.outputs)]
    return bool(live) and all(op.op in op_sets.SPLITTING | op_sets.SELECTING for op in live)


def _openly(case: Case, tensor: int) -> tuple[int, ...]:
    """The inputs of the op that made a tensor, if gradients flow back to them."""
    made = op_of(case.query, tensor)
    return made.inputs if made is not None and case.query.nodes.of_op(made.index) else ()


def _holdings_of(case: Case, scan: _Scan) -> Iterator[Cut]:
    """The cut behind which leaves are that get no gradient at any step of one of their optimizers, but at others."""
    optimizers = case.query.of(PassOwners).optimizers(scan.number)
    if len(optimizers) != 1:
        return
    (optimizer,), rows = optimizers, case.query.of(Ledger).rows
    own = rows.optimizers == optimizer
    lacking = contained(rows.links, [LINKS.index(Link.NO_GRADIENT), LINKS.index(Link.CLEARED)])
    fed = case.trace.table(Kind.ACCUMULATED)["tensor"]
    missing = without(rows.leaves[own & lacking], rows.leaves[own & ~lacking])
    several = {
        leaf
        for leaf in missing[contained(missing, fed)].tolist()
        if len(case.training.holders.get(leaf, ())) >= _SEVERAL
    }
    for cut in scan.ways.cuts if several else ():
        sources = [one for one in sources_of(case, cut) if _requires_grad(case, one, cut.index)]
        leaves = tuple(sorted({*sources, *leaves_of(case.query, *sources)} & several))
        if leaves and cut.index > scan.since:
            yield Cut(Place.OPTIMIZER, cut.index, leaves, scan.root, optimizer=optimizer)
            return


def sources_of(case: Case, made: OpRan | TensorMade) -> list[int]:
    """The tensors that a tensor was made from; if it was made from numbers, the tensor whose values it has."""
    taken = [source for source in taken_by(case.query, made) if source]
    if not taken and isinstance(made, TensorMade) and made.how in FROM_OUTSIDE:
        taken = [source for source in (copied_from(case.query, made),) if source]
    return taken


def _requires_grad(case: Case, tensor: int, at: int) -> bool:
    flags = case.query.tensors.flags(tensor, at)
    return bool(flags & REQUIRES_GRAD) and not (flags & LEAF and op_of(case.query, tensor) is not None)


_VIEWING = op_sets.COPYING | op_sets.RESHAPING | op_sets.SELECTING | op_sets.SHARING | op_sets.SPLITTING | {"narrow"}


def _whole(case: Case, tensor: int) -> int:
    """The tensor at the beginning of a chain of views; the tensor itself if it is no view."""
    for view in chain(case.query, tensor, lambda op: op.op in _VIEWING):
        tensor = view.inputs[0]
    return tensor


_LEAST_CALLS = 2  # calls
_ENDS = 4  # so many last sums of a line are looked at: `sum(terms)` has one for each term


def _terms(case: Case, lasts: list[_Scan]) -> Iterator[Cut]:
    """The terms of losses that are cut off. Judged by the last pass of each line: the first log-probabilities of an old
    policy are cut off, too, and in the first pass a number may be as round as a constant."""
    for scan in lasts:
        for meeting in scan.meetings:
            op = case.query.tensors.op(meeting.op)
            is_listed = op.op in op_sets.JOINING and case.shape(meeting.tensor) == ()  # and summed later
            is_term = (op.op in op_sets.SUMS or is_listed) and not meeting.weights and not meeting.layered
            trains = leaves_of(case.query, meeting.tensor)  # leaves of others, as those of a critic
            made = case.query.tensors.maker(meeting.tensor)  # by a call that also sums: the loss of a library
            is_term &= case.training.holders.keys() >= set(trains) and case.site(made or 0) != case.site(op.index)
            if (
                is_term
                and is_linear_to_root(case, op.outputs[0], by_weights=False)
                and not sets_value(case.query, meeting.sources, meeting.live)
            ):
                yield Cut(Place.TERM, meeting.cut, tuple(sorted(meeting.leaves)), tensor=meeting.tensor)


def _numbers(case: Case) -> Iterator[Cut]:
    """The terms of losses that are read as plain numbers: `loss + kl.item()`."""
    ops, ran = case.trace.table(Kind.OP), case.query.nodes.ops_that_ran
    sums = ops.events[case.trace.named(ops["op"], op_sets.SUMS)]
    adding, sites = sums[contained(sums, ran)], case.query.places.of_events[sums]
    reads = case.query.of(NumbersRead)
    for events in case.by_site(adding).values():
        # the first sum may have a term that is 0 as yet
        for op in map(case.query.tensors.op, distinct([events[0], *events[-_ENDS:]]).tolist()):
            result = op.outputs[0] if op.outputs else 0
            if not result or not (case.shape(result) == () or is_linear_to_root(case, result, by_weights=False)):
                continue
            made = [op_of(case.query, one) for one in op.inputs if one]  # a number may be spread over a batch
            constants = [one for one in made if one is not None and not case.query.nodes.of_op(one.index)]
            readings = [(one.index, read) for one in (op, *constants) for read in reads.of_op(one.index)]
            if op.index == events[-1]:
                alike = sums[(sites == case.site(op.index)) & (sums <= op.index)]
                readings += [(read.event, read) for read in reads.in_proportion(alike)]
            for place, reading in readings:
                event = place if reading.is_here else reading.event
                trained = _trained_by(case, next((one.number for one in case.trace.passes if one.first > event), 0))
                leaves = tuple(leaf for leaf in leaves_of(case.query, reading.tensor) if leaf in trained)
                nodes = case.query.nodes.of_tensors.of(reading.tensor)[1].tolist()
                if leaves and case.query.nodes.ran.isdisjoint(nodes):
                    yield Cut(Place.TERM, event, leaves, tensor=reading.tensor, reading=reading.text)


_ROUNDING = 1e-6  # the most that is 0 but for rounding: a divergence of shares is of the order of 1


def compared_with_itself(case: Case) -> list[OpRan]:
    """The first op of each line that compares a tensor with itself: a difference of a tensor that requires grad to
    itself, or a loss whose two sides are computed from one tensor alone. The result of the line is 0 before each pass.
    Use `case.of(compared_with_itself)`."""
    ops, made = case.trace.table(Kind.OP), case.trace.table(Kind.NODE)
    comparing = case.trace.named(ops["op"], op_sets.DIFFERENCES) & contained(ops.events, made["op"])
    comparing = (comparing | case.trace.named(ops["op"], op_sets.LOSSES)) & ~(ops["in_pass"] > 0)
    rows = case.trace.states.rows_of(ops.lists("outputs").firsts, ops.events)
    begun, found = case.trace.table(Kind.PASS_BEGAN).events, []
    for site in distinct(ops.sites[comparing]).tolist():
        own = np.flatnonzero(ops.sites == site)
        rounds = np.searchsorted(begun, ops.events[own])
        ends = own[np.append(rounds[1:] != rounds[:-1], True)]
        if len(ends) >= _LEAST_CALLS and (case.trace.states.rms(rows[ends]) <= _ROUNDING).all():
            events = ops.events[own[comparing[own]]].tolist()
            calls = [op for op in map(case.query.tensors.op, events) if _compares_with_itself(case, op)]
            if len(distinct(np.searchsorted(begun, [op.index for op in calls]))) == len(ends):
                found.append(calls[0])
    return found


def _compares_with_itself(case: Case, op: OpRan) -> bool:
    one, other = [*op.inputs, 0, 0][:2]
    if not one or not other or op.op in op_sets.DIFFERENCES:
        return one == other > 0
    return _source(case, one) == _source(case, other) or computed_alike(case.query, one, other)


def _source(case: Case, tensor: int) -> int:
    """The first tensor behind a chain of ops with one tensor each, open or cut off."""

    def onward(one: int) -> tuple[int, ...]:
        taken = tuple(filter(None, taken_by(case.query, case.query.tensors.made(one))))
        return taken if len(taken) == 1 else ()

    *_, source = reach([tensor], onward, NEAR)
    return source


def _trained_by(case: Case, pass_number: int) -> set[int]:
    """The leaves that the optimizers of a pass train. A teacher that was trained before, by an optimizer of its own, is
    none of them. All trained leaves, if no step follows that pass."""
    owners = case.query.of(PassOwners).optimizers(pass_number)
    holders = case.training.holders
    return {leaf for leaf in case.training.trained if not owners or not holders.get(leaf) or holders[leaf] & owners}
