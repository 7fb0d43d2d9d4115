"""The reason why a leaf never got a gradient, and why a `.grad` is None at a moment: the event that cuts the leaf off
from the roots of the passes that its optimizer uses, or whatever else keeps it from them. All views ask here, so that
they name the same line."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import COMPILED, LEAF, REQUIRES_GRAD, Accumulated, Event, Kind, OpRan, PassBegan, TensorMade
from gradviz.events.values import TRANSFORM, VMAP
from gradviz.query import flow
from gradviz.query import ops as op_sets
from gradviz.query.copies import copied_from, equal_result, original, read_in_its_line, read_right_before
from gradviz.query.failures import refused
from gradviz.query.moment import Moment
from gradviz.query.numbers_read import NumbersRead
from gradviz.query.pass_owners import PassOwners, missing_at
from gradviz.query.query import Query
from gradviz.query.scopes import FUNCTION
from gradviz.query.statements import function_of, returned_at, variables_of
from gradviz.query.training import Training
from gradviz.query.writes import Writes
from gradviz.sets import contained, distinct, without
from gradviz.tracefile import Site

PARAMETER = "Parameter"
FROM_OUTSIDE = {"from_numpy", "tensor", "as_tensor", "asarray", "new_tensor", "FloatTensor", "Tensor"}
_NEW = {"randn", "rand", "zeros", "ones", "empty", "full", "arange", "randint", "gradient", PARAMETER}
_LEAVES = 256  # the most leaves that are explained
_RESULTS = 10_000  # the most tensors computed from a leaf that are looked at
_LATER = 4  # the most passes of a line that are searched for a cut
_SITES = 8  # the most lines that begin passes, whose passes are examined


class Lack(Enum):
    """The reasons why a leaf never gets a gradient."""

    CUT = "the path to the root is cut"
    COPIED = "the path to the root leads through plain numbers"
    OFF_PATH = "what is computed from it never reaches a root"
    UNUSED = "no op reads it before the last pass"
    NOT_ASKED = "no pass was asked for its gradient"
    NOT_RETURNED = "the backward of a custom Function returned None on the way to it"
    AS_NUMBER = "what is computed from it is read as a plain number"


@dataclass(frozen=True, slots=True)
class Lacking:
    """A leaf without a gradient, the reason, and the event that explains it (−1 if there is none). `root` and
    `pass_number` are 0 if the reason concerns none. If the leaf reaches no root, `result` is the last tensor that was
    computed from it, and `reading` is how the program reads that as a number."""

    leaf: int
    lack: Lack
    event: int
    root: int = 0
    pass_number: int = 0
    result: int = 0
    reading: str = ""


class Begun(NamedTuple):
    """The root of a pass, and the event where the pass begins."""

    root: int
    at: int
    pass_number: int


class Lacks:
    """The lacks of one trace. Use `query.of(Lacks)`."""

    def __init__(self, query: Query) -> None:
        self.query, self.trace = query, query.trace
        self._ways: dict[tuple[int, int, int], flow.Ways] = {}
        self._known: dict[tuple[int, int], Lacking | None] = {}
        self._copies: dict[tuple[int, int], dict[int, int]] = {}
        self._calls_behind = cache(self._calls_behind_roots)

    def of(self, leaf: int, until: int | None = None) -> Lacking | None:
        """The reason why a leaf got no gradient from the passes of its optimizer that began up to the event `until`
        (None: from any pass); None if it is not known."""
        key = leaf, self.trace.count if until is None else until
        if key not in self._known:
            # a leaf without memory tells only a shape, or stands for a tensor that it holds
            value = self.trace.snapshot(leaf, self.trace.count - 1)
            is_gone = (value is not None and value.device == "meta") or 0 in (self.query.tensors.shape(leaf) or ())
            is_gone |= leaf in self._converted and self._is_forgotten(leaf)
            is_replaced = self.trace.parameters.get(leaf) in self._stand_ins
            is_gone |= is_replaced and leaf not in self.query.of(Training).holders
            learns = self._memory(leaf) in self._learning and leaf in self.never_got  # by another name
            self._known[key] = None if is_gone or learns else self._why(*key)
        return self._known[key]

    def cut_after(self, leaf: int, event: int) -> Lacking | None:
        """The cut that keeps a leaf from the passes after an event, at lines whose passes gave it gradients before."""
        came = self.trace.table(Kind.ACCUMULATED)
        numbers = set(came["in_pass"][came["tensor"] == leaf].tolist())
        by_number = self.query.passes.by_number
        sites = {by_number[number].site for number in numbers}
        for _ in range(_LATER):  # of a pass that was recorded from its graph no cut is known
            later = self._begun(leaf, self.trace.count, event)
            cut = self._cut(leaf, [one for one in later if by_number[one.pass_number].site in sites])
            if cut is not None and cut.lack is Lack.CUT:
                return cut
            event = max((one.at for one in later), default=self.trace.count)
        return None

    def _why(self, leaf: int, until: int) -> Lacking | None:
        if self._in_transforms and not self._in_transforms.isdisjoint((leaf, *self._results(leaf))):
            return None
        begun = self._begun(leaf, until)
        cut = self._cut(leaf, begun)
        made = self.trace.event(cut.event) if cut is not None else None
        if cut is not None and not (isinstance(made, OpRan) and not made.grad_enabled):
            is_meant = self._is_straight_through(made) or self.query.places.is_in_library(cut.event)
            return (self._open_use(leaf, begun[-1].at) if is_meant else self._before_own_step(leaf)) or cut
        results = self._results(leaf)
        numbers = self._through_numbers(leaf, begun, results)
        if cut is not None:
            if numbers is not None:  # a copy after the cut is in the pass itself, unlike data from a memory
                return numbers if numbers.lack is Lack.COPIED and numbers.event > cut.event else cut
            return (self._open_use(leaf, begun[-1].at) if leaf not in self.penalties else None) or cut
        if numbers is not None or any(self._is_returned(leaf, one) for one in begun):
            return numbers
        return self._not_on_a_way(leaf, begun, results)

    def _is_straight_through(self, cut: Event | None) -> bool:
        """Whether all that reads what an event cuts off adds it to what it is a difference to."""
        if not isinstance(cut, OpRan | TensorMade):
            return False
        (result, *_), sources = cut.outputs if isinstance(cut, OpRan) else (cut.tensor,), flow.taken_by(self.query, cut)
        readers = [self.query.tensors.op(event) for event in self.query.of(flow.Downstream).readers(result)]
        added = [one.op in op_sets.SUMS and flow.sets_value(self.query, sources, one.inputs) for one in readers]
        return bool(added) and all(added)

    def _results(self, leaf: int) -> dict[int, list[int]]:
        """All tensors that were computed from a leaf, and the leaf itself, with the ops that read each; but for what
        is its penalty, and for what a penalty goes into with its graph."""
        penalty, graph = self.penalties.get(leaf, frozenset()), self.query.of(flow.Downstream)

        def is_beside(op: OpRan, tensor: int) -> bool:
            return penalty.isdisjoint(op.outputs) and not (tensor in penalty and self.query.nodes.of_op(op.index))

        def onward(tensor: int) -> Iterator[int]:
            ops = map(self.query.tensors.op, graph.readers(tensor))
            given = ((op, one) for op in ops for one in op.outputs if one not in self.trace.parameters)  # an average
            return (one for op, one in given if one in penalty or is_beside(op, tensor))

        tensors = flow.reach([leaf], onward, _RESULTS)
        return {
            one: [op for op in graph.readers(one) if is_beside(self.query.tensors.op(op), one)]
            for one in tensors
            if one
        }

    @cached_property
    def penalties(self) -> dict[int, frozenset[int]]:
        """The leaves that all gradients reach through penalties on their own values, so that no data has a part in
        them, while other leaves learn from data. With each leaf, the tensors of its penalties."""
        received = frozenset(distinct(self.trace.table(Kind.RECEIVED)["node"]).tolist())
        training = self.query.of(Training)
        got = distinct(self.trace.table(Kind.ACCUMULATED)["tensor"])
        pairs = ((leaf, self._penalty(leaf, received)) for leaf in got.tolist() if leaf in training.holders)
        found = {leaf: penalty for leaf, penalty in pairs if penalty}
        learning = {*got.tolist()} & training.holders.keys() - found.keys()
        return found if learning else {}

    def _penalty(self, leaf: int, received: frozenset[int]) -> frozenset[int]:
        """The tensors that were computed from a leaf alone, up to the scalars that are terms of sums, if nothing else
        brings it gradients; else none. `received` are the nodes that received gradients."""
        own, sums, waiting = {leaf}, set[int](), [leaf]
        while waiting and len(own) + len(sums) < _RESULTS:
            tensor = waiting.pop()
            for op in self._learning_readers(tensor, received):
                others = [one for one in op.inputs if one and one not in own and one != tensor]
                is_sum = op.op in op_sets.ADDING | op_sets.JOINING and self.query.tensors.shape(tensor) in ((), (1,))
                if tensor in own and not others:
                    group = own
                elif tensor != leaf and (is_sum or (tensor in sums and self._is_linear(op, others))):
                    group = sums
                else:
                    return frozenset()
                waiting += [one for one in op.outputs if one not in group]
                group.update(op.outputs)
        return frozenset(own - {leaf}) if sums and not waiting else frozenset()

    def _learning_readers(self, tensor: int, received: frozenset[int]) -> Iterator[OpRan]:
        """The ops outside of passes that read a tensor and whose nodes received gradients."""
        events = np.array(list(self.query.of(flow.Downstream).readers(tensor)), np.int64)
        for event in events[~self.query.passes.contains(events)].tolist():
            if not received.isdisjoint(self.query.nodes.of_op(event)):
                yield self.query.tensors.op(event)

    def _is_linear(self, op: OpRan, others: list[int]) -> bool:
        """Whether an op sums, or scales by what has no graph."""
        has_graph = any(self.query.tensors.requires_grad(one, op.index) for one in others)
        return op.op in op_sets.SUMS | op_sets.REDUCTIONS | op_sets.JOINING | op_sets.NEGATING or (
            op.op in op_sets.MULTIPLYING | op_sets.DIVIDING and not has_graph
        )

    def _memory(self, leaf: int) -> int:
        """The first tensor that has the memory of a leaf: that of which a Parameter was made."""
        made = self.query.tensors.made(leaf)
        while isinstance(made, TensorMade) and made.how == PARAMETER and made.source:
            leaf, made = made.source, self.query.tensors.made(made.source)
        return leaf

    @cached_property
    def _learning(self) -> set[int]:
        """The first tensors that have the memory of leaves that got gradients."""
        return {self._memory(leaf) for leaf in distinct(self.trace.table(Kind.ACCUMULATED)["tensor"]).tolist()}

    def cut_from(self, leaf: int, root: int, at: int) -> OpRan | TensorMade | None:
        """The event that cuts a leaf off from a root whose pass begins (or is refused) at an event; None if no event
        does."""
        way = self._separation(leaf, root, at)
        if way is not None:
            return way.cut if not way.is_copy else None
        event = self._cut_at_a_leaf(leaf, Begun(root, at, 0), self._results(leaf))
        made = self.trace.event(event) if event >= 0 else None
        return made if isinstance(made, OpRan | TensorMade) else None

    @cached_property
    def never_got(self) -> list[int]:
        """The leaves that require grad at the end of the run and never got a gradient, parameters first."""
        tensors, flags = self.query.tensors.leaf_flags.standing(self.trace.count - 1)
        wanted = LEAF | REQUIRES_GRAD
        grads = self.query.tensors.grads
        unknown = self.query.of(Writes).unwatched_leaves  # whether they got one is not known
        got = np.concatenate([grads.tensors[grads.values > 0], unknown])
        never = without(tensors[flags & wanted == wanted], got)
        order = np.argsort(~contained(never, list(self.trace.parameters)), kind="stable")
        return never[order].tolist()

    @cached_property
    def without_gradient(self) -> dict[int, Lacking]:
        """The reasons for the leaves that never got a gradient, or only from penalties; for the first of many."""
        pairs = ((leaf, self.of(leaf)) for leaf in [*self.never_got, *self.penalties][:_LEAVES])
        return {leaf: lacking for leaf, lacking in pairs if lacking is not None}

    def place(self, lacking: Lacking) -> Site | None:
        """The line of the program that keeps a leaf from its gradient; None if there is none."""
        if lacking.lack is Lack.OFF_PATH:
            return missing_at(self.query, self.computed_at(lacking), lacking.leaf, lacking.event)[0]
        if lacking.lack is Lack.NOT_RETURNED:
            made = self.query.places.at(lacking.event)
            return returned_at(self.query, self.function_without(lacking)) or made
        return flow.place_of_cut(self.query, lacking.event) if lacking.event >= 0 else None

    def function_without(self, lacking: Lacking) -> str:
        """The custom Function whose backward returned None."""
        return function_of(self.query, self.node_of(lacking))

    def node_of(self, lacking: Lacking) -> int:
        """The node whose backward returned None."""
        produced = self.trace.table(Kind.PRODUCED)
        return int(produced["node"][produced.events == lacking.event][0])

    def computed_at(self, lacking: Lacking) -> Site | None:
        """The site of the expression whose value is the result that reaches no root, even if functions of the program
        computed it. It is the call of a module, if neither a parameter nor a result of the module reaches the loss;
        else the call of the function that returns the result."""
        event = lacking.event
        around = self.query.scopes.around(event, self.query.tensors.op(event).thread)
        module = self._lost_modules.get(lacking.leaf, "")
        site = next((scope.site for scope in around if scope.name == module), None)
        if site is None or site in self._calls_behind(tuple(self._begun(lacking.leaf, self.trace.count))):
            site = int(self.query.places.of_events[event])
            if (variables := variables_of(self.query, site)) and variables[-1][1] == "_":  # returned to nobody
                return variables[-1][0]
        return self.query.places.site(self.query.places.named_at(site))

    def _calls_behind_roots(self, begun: tuple[Begun, ...]) -> set[int]:
        """The sites of the calls in which tensors behind roots were made."""
        made = {self.query.tensors.maker(one) for root in begun for one in self.ways(root.root, root.at).reached}
        sites = distinct(self.query.places.of_events[[event for event in made if event is not None]])
        return {caller.number for site in sites.tolist() for caller in self.query.places.callers(site)}

    @cached_property
    def _lost_modules(self) -> dict[int, str]:
        """The outermost module for each leaf from which nothing reaches a root, if the same is true of the whole
        module."""
        lost = [leaf for leaf, why in self.without_gradient.items() if why.lack is Lack.OFF_PATH]
        return {leaf: path for path, leaves in self.query.modules.whole(lost) for leaf in leaves}

    def ways(self, root: int, at: int, without: frozenset[int] = frozenset()) -> flow.Ways:
        """The ways to a root whose pass begins at an event, but for those through the tensors `without`."""
        key = root, at, len(without)
        if key not in self._ways:
            self._ways[key] = flow.Ways(self.query, root, at, without)
        return self._ways[key]

    def _separation(self, leaf: int, root: int, at: int) -> flow.Separation | None:
        """The separation of a leaf from a root. What penalties alone bring a leaf is no way."""
        is_penalised = leaf in self.penalties
        penalties = self.penalties.values() if is_penalised else ()
        return self.ways(root, at, frozenset().union(*penalties)).separation(leaf)

    def _begun(self, leaf: int, until: int, since: int = -1) -> list[Begun]:
        """The first pass of a leaf from each line that begins passes, of those between two events."""
        by_site: dict[int, Begun] = {}
        for backward_pass in self.query.of(PassOwners).passes_of(leaf):
            is_new = backward_pass.site not in by_site and len(by_site) < _SITES
            if is_new and since < backward_pass.first <= until:
                roots = self.query.passes.began(backward_pass.number).roots
                if roots and roots[0].tensor:
                    by_site[backward_pass.site] = Begun(roots[0].tensor, backward_pass.first, backward_pass.number)
        return list(by_site.values())

    def _cut(self, leaf: int, begun: list[Begun]) -> Lacking | None:
        """The best reason among the ways to the roots: an event that cuts the way, else a pass that was asked for other
        gradients. Of equal ways it is the one to the last root."""
        ways: list[tuple[flow.Separation, Begun]] = []
        for one in reversed(begun):
            way = self._separation(leaf, one.root, one.at)
            if way is not None and not way.is_copy and not self._is_returned(leaf, one):
                ways.append((way, one))
        cuts = [(way, one) for way, one in ways if way.cut is not None]
        if cuts:
            way, one = min(cuts, key=lambda pair: pair[0].rank[:-1])
            assert way.cut is not None
            return Lacking(leaf, Lack.CUT, way.cut.index, one.root, one.pass_number)
        for _, one in ways:
            asked = self.query.passes.began(one.pass_number).inputs
            event = -1 if asked else self._returned_none(leaf, one.pass_number)
            if event >= 0:
                return Lacking(leaf, Lack.NOT_RETURNED, event, one.root, one.pass_number)
        return next((Lacking(leaf, Lack.NOT_ASKED, one.at, one.root, one.pass_number) for _, one in ways), None)

    def _returned_none(self, leaf: int, pass_number: int) -> int:
        """The event at which the node of a custom Function got a gradient in a pass and gave None to an input that was
        computed from a leaf; −1 if there is none."""
        produced = self.trace.table(Kind.PRODUCED)
        flows = produced.lists("flows")
        is_none = (produced["in_pass"][flows.owners] == pass_number) & (flows.elements[:, 1] == 0)
        targets = flows.elements[is_none, 0].tolist()
        for row, target in zip(flows.owners[is_none].tolist(), targets, strict=True):
            node = int(produced["node"][row])
            if target and function_of(self.query, node) and self._leads_to(node, target, leaf) and self._received(row):
                return int(produced.events[row])
        return -1

    def _leads_to(self, node: int, target: int, leaf: int) -> bool:
        """Whether the edge from a node to a target leads to a leaf."""
        made = self.query.nodes.event(node)
        edges = made.edges if made is not None else ()
        is_its_own = any(edge.node == target and edge.tensor == leaf for edge in edges)
        return is_its_own or leaf in flow.leaves_behind(self.query, [target])

    def _received(self, row: int) -> bool:
        """Whether the node of a row of what nodes produced had received a gradient."""
        produced = self.trace.table(Kind.PRODUCED)
        event, node = int(produced.events[row]), int(produced["node"][row])
        received = self.query.at(event).received(node)
        return received is not None and any(received.gradients)

    def _is_returned(self, leaf: int, begun: Begun) -> bool:
        """Whether `autograd.grad` returns the gradient of a leaf."""
        began = self.query.passes.began(begun.pass_number)
        return began.how == "grad" and leaf in began.inputs

    # --- through plain numbers

    def _through_numbers(self, leaf: int, begun: list[Begun], results: dict[int, list[int]]) -> Lacking | None:
        """A way from a leaf to a root without an op: by a new leaf, by NumPy, by equal values."""
        for one in begun:
            for event, source in self._copies_behind(one).items():
                if source in results:
                    return Lacking(leaf, Lack.COPIED, event, one.root, one.pass_number)
        for one in reversed(begun):
            event = self._cut_at_a_leaf(leaf, one, results)
            event = self._copied_result(one, results) if event < 0 else event
            event = self._left_for_numpy(one, results) if event < 0 else event
            if event >= 0:
                return Lacking(leaf, Lack.CUT, event, one.root, one.pass_number)
        return None

    def _copies_behind(self, begun: Begun) -> dict[int, int]:
        """The events that made leaves of a root from the plain numbers of other tensors, with these tensors."""
        key = begun.root, begun.at
        if key not in self._copies:
            made = map(self.query.tensors.made, self.ways(begun.root, begun.at).leaves)
            self._copies[key] = {
                one.index: copied_from(self.query, one)
                for one in made
                if isinstance(one, TensorMade) and one.how not in _NEW
            }
        return self._copies[key]

    def _cut_at_a_leaf(self, of: int, begun: Begun, results: dict[int, list[int]]) -> int:
        """The event that made a leaf behind a root from `results` of the leaf `of`, outside of the graph: `h.detach()`
        and then `requires_grad_()`; −1 if there is none. A copy of the leaf itself is no cut."""
        for leaf in self.ways(begun.root, begun.at).reached:
            maker = self.query.tensors.made(leaf)
            if maker is None or not self.query.tensors.is_leaf_that_requires_grad(leaf, begun.at):
                continue
            if original(self.query, leaf) == of:
                continue
            if not results.keys().isdisjoint(flow.taken_by(self.query, maker)):
                return self._where_it_ended(maker, results)
        return -1

    def _copied_result(self, begun: Begun, results: dict[int, list[int]]) -> int:
        """The event at which the graph of a result ended whose numbers a new leaf behind the root has, one that no
        optimizer holds: the comparison in `torch.tensor((x > 0).float(), requires_grad=True)`; −1 if there is none."""
        tensors = self.query.tensors
        for leaf in self.ways(begun.root, begun.at).leaves:
            made = tensors.made(leaf)
            is_new = isinstance(made, TensorMade) and made.how in FROM_OUTSIDE
            if not is_new or not tensors.is_leaf_that_requires_grad(leaf, begun.at):
                continue
            assert isinstance(made, TensorMade)
            source = equal_result(self.query, made, results)
            maker = tensors.made(source) if source and leaf not in self.query.of(Training).holders else None
            if maker is not None:
                return self._where_it_ended(maker, results)
        return -1

    def _where_it_ended(self, maker: OpRan | TensorMade, results: dict[int, list[int]]) -> int:
        """The nearest event behind a leaf of plain numbers at which the graph ended: the comparison in
        `(x > 0).float()`."""

        def onward(one: OpRan | TensorMade) -> Iterator[OpRan | TensorMade]:
            taken = (tensor for tensor in flow.taken_by(self.query, one) if tensor in results)
            return filter(None, map(self.query.tensors.made, taken))

        def ends(one: OpRan | TensorMade) -> bool:
            return any(self.query.tensors.requires_grad(tensor, one.index) for tensor in flow.taken_by(self.query, one))

        return next(filter(ends, flow.reach([maker], onward)), maker).index

    def _is_template(self, leaf: int, begun: list[Begun]) -> bool:
        """Whether a leaf was copied into leaves that lead to a root, as the layer that `nn.TransformerEncoder`
        copies."""
        return any(
            original(self.query, other) == leaf
            for one in begun
            for other in self.ways(one.root, one.at).reached
            if self.query.tensors.is_leaf_that_requires_grad(other, one.at)
        )

    @cached_property
    def _stand_ins(self) -> set[str]:
        """The names of parameters in whose places modules were called with other tensors, by `functional_call`: results
        of ops, or what stands for tensors inside a transform."""
        end, tensors, inside = self.trace.count - 1, self.query.tensors, self._in_transforms
        named = self.trace.parameters.items()
        return {name for one, name in named if one in inside or not tensors.is_leaf_that_requires_grad(one, end)}

    @cached_property
    def _converted(self) -> set[int]:
        """The parameters of which others were made, and that no optimizer holds: by `module.to("cuda")`."""
        made = self.trace.table(Kind.TENSOR)
        new = made["tensor"][(made["source"] > 0) & self.trace.named(made["how"], (PARAMETER,))]
        return {original(self.query, leaf) for leaf in new.tolist()} - self.query.of(Training).holders.keys()

    def _left_for_numpy(self, begun: Begun, results: dict[int, list[int]]) -> int:
        """The event that detached one of these results for NumPy: `torch.from_numpy(f(h.detach().numpy()))`; −1 if
        there is none. No op reads the result, and a tensor came from outside before the root was computed. Events with
        grad mode on come before events without it, as where actions are chosen."""
        made = [self.query.tensors.made(leaf) for leaf in self.ways(begun.root, begun.at).leaves]
        outside = [m.index for m in made if isinstance(m, TensorMade) and m.how in FROM_OUTSIDE]
        earlier = max(
            (backward_pass.first for backward_pass in self.trace.passes if backward_pass.first < begun.at), default=-1
        )
        detached = []
        for result, readers in results.items():
            maker = self.query.tensors.made(result)
            if readers or maker is None or not earlier < maker.index < max(outside, default=-1):
                continue
            if isinstance(maker, OpRan) and maker.op in op_sets.SHARING and maker.inputs:
                detached.append(maker)
        with_graph = (one for one in detached if one.grad_enabled)
        return next((one.index for one in (*with_graph, *detached)), -1)

    # --- no way at all

    def _not_on_a_way(self, leaf: int, begun: list[Begun], results: dict[int, list[int]]) -> Lacking | None:
        """The reason why a leaf lacks a gradient although no way to a root was found; None if it is not known."""
        if self._is_forgotten(leaf):
            return None
        last = begun[-1] if begun else None
        end = last.at if last is not None else self.trace.count
        readers = [op for reading in results.values() for op in reading if op < end and not self._only_copies(op)]
        ops = map(self.query.tensors.op, readers)
        with_grad = [op.index for op in ops if op.grad_enabled and op.outputs]  # `dist.send` has no result
        with_grad = with_grad if leaf not in self.penalties else [*filter(self.query.nodes.of_op, with_grad)]
        if not readers:
            # it may be what the penalty is for
            is_own = leaf in self.penalties and leaf not in self.trace.parameters
            compiled = self._compiled[self._compiled < end].max(initial=-1)
            is_hidden = compiled > min(chain(*results.values()), default=end)
            if is_own or is_hidden or self._is_template(leaf, begun) or leaf in self._converted:
                return None  # compiled code may read a copy that was made before it
            return self._as_number(leaf, (leaf,)) or Lacking(leaf, Lack.UNUSED, -1)
        if with_grad and self.query.passes.roots.intersection(self.query.tensors.op(max(with_grad)).outputs):
            return None  # of a pass for other gradients, as `autograd.grad(energy, position)`
        if with_grad:
            of_numbers = self._root_of_numbers(leaf, begun) or self._read_by_a_leaf(leaf, begun, results)
            return of_numbers or self._off_path(leaf, max(with_grad))
        event = self._function_without_node(min(readers))
        if event < 0 or last is None:
            return None
        return Lacking(leaf, Lack.CUT, event, last.root, last.pass_number)

    @cached_property
    def _compiled(self) -> np.ndarray:
        return self.trace.events_named(Kind.OP, "op", (COMPILED,))

    @cached_property
    def _in_transforms(self) -> set[int]:
        """The tensors that entered a transform of torch.func, and those that stand for them: it takes the derivatives
        that the program asks for, and perhaps none."""
        made = self.trace.table(Kind.TENSOR)
        is_one = self.trace.named(made["how"], (TRANSFORM, VMAP))
        return {*made["source"][is_one].tolist(), *made["tensor"][is_one].tolist()}

    def _before_own_step(self, leaf: int) -> Lacking | None:
        """The last scalar with a graph that is computed from a leaf before the first step of its optimizer, if no pass
        runs between the step of another optimizer, or the start, and this step: a loss without its backward()."""
        training, begun = self.query.of(Training), self.trace.table(Kind.PASS_BEGAN).events
        own = training.steps_of(training.holders.get(leaf, ()))
        end = int(own.min(initial=self.trace.count))
        others = without(training.stepped.events, own)
        since = int(others[others < end].max(initial=-1))
        if end == self.trace.count or ((since < begun) & (begun < end)).any():
            return None
        lost = self._open_use(leaf, end)
        is_loss = lost is not None and lost.event > since and self.query.tensors.shape(lost.result) == ()
        return lost if is_loss else None

    def _open_use(self, leaf: int, end: int) -> Lacking | None:
        """The last result with a graph that is computed from a leaf before an event, and that no op reads, unless a
        library copies it, as a logger does, or a copy that no op reads; None if there is none."""
        graph = self.query.of(flow.Downstream)

        def onward(tensor: int) -> list[int]:
            ops = map(self.query.tensors.op, graph.readers(tensor))
            outputs = ((one, op.index) for op in ops if op.grad_enabled and op.index < end for one in op.outputs if one)
            return [one for one, event in outputs if self.query.tensors.requires_grad(one, event)]

        def is_copy(event: int) -> bool:
            op = self.query.tensors.op(event)
            is_idle = self.query.places.is_in_library(event) or not any(map(graph.readers, op.outputs))
            return op.op in op_sets.COPYING and is_idle

        reached = [one for one in flow.reach([leaf], onward, _RESULTS) if one != leaf and not onward(one)]
        makers = (self.query.tensors.maker(one) or 0 for one in reached if all(map(is_copy, graph.readers(one))))
        last = max(makers, default=0)
        while last and is_copy(last) and (made := self.query.tensors.maker(self.query.tensors.op(last).inputs[0])):
            if not self.query.tensors.is_op(made):
                break
            last = made
        return self._off_path(leaf, last) if last else None

    def _is_forgotten(self, leaf: int) -> bool:
        """Whether neither a name nor an optimizer holds a leaf, in a program that trains other leaves: `fully_shard`
        replaces the parameters of a layer by its own."""
        holders = self.query.of(Training).holders
        return bool(holders) and leaf not in holders and not self.query.names.of(leaf)

    def _off_path(self, leaf: int, event: int) -> Lacking:
        results = self.query.tensors.op(event).outputs
        return self._as_number(leaf, results) or Lacking(leaf, Lack.OFF_PATH, event, result=results[0])

    def _as_number(self, leaf: int, results: tuple[int, ...]) -> Lacking | None:
        """The reading of a leaf, or of some `results` of it, as a plain number; None if there is none."""
        used = self.query.of(NumbersRead).first_use(results, self.query.tensors.maker(results[0]) or 0)
        if used is None:
            return None
        node, read = used
        event = node if read.is_here else read.event
        return Lacking(leaf, Lack.AS_NUMBER, event, result=results[0], reading=read.text)

    def _only_copies(self, event: int) -> bool:
        """Whether an op only copies or detaches a tensor, and no op reads the result; or only writes to a leaf:
        `state_dict()`, `deepcopy`, a value that is logged, `nn.init.zeros_`. Or only splits a tensor into parts that no
        op reads: `fully_shard` asks for their shapes."""
        op = self.query.tensors.op(event)
        if op.outputs and op.outputs[0] in op.inputs and not self.query.nodes.of_op(event):
            return self.query.of(Writes).leaf_of(op.outputs[0]) > 0
        if op.op in op_sets.SPLITTING and self.query.of(NumbersRead).first_use(op.outputs, event):
            return False
        readers = self.query.of(flow.Downstream).readers
        return op.op in op_sets.COPYING | op_sets.CONVERTING | op_sets.SPLITTING and all(
            self._only_copies(reader) for out in op.outputs for reader in readers(out)
        )

    def _root_of_numbers(self, leaf: int, begun: list[Begun]) -> Lacking | None:
        """The event that made a root of plain numbers, a leaf that nobody trains:
        `loss = torch.tensor(total / n, requires_grad=True)`; None if there is none."""
        for one in reversed(begun):
            made = self.query.tensors.made(one.root)
            is_new = isinstance(made, TensorMade) and made.how in FROM_OUTSIDE
            if is_new and made is not None and one.root not in self.query.of(Training).holders:
                return Lacking(leaf, Lack.CUT, made.index, one.root, one.pass_number)
        return None

    def _read_by_a_leaf(self, leaf: int, begun: list[Begun], results: dict[int, list[int]]) -> Lacking | None:
        """The event that made a leaf behind a root from the numbers of this leaf, by its source:
        `torch.tensor([x[0] * 2, x[1] * 3])`; None if there is none. Leaves of an optimizer are no copies on a way."""
        holders = self.query.of(Training).holders
        for one in reversed(begun):
            for made in map(self.query.tensors.made, self.ways(one.root, one.at).leaves):
                if not isinstance(made, TensorMade) or made.how not in FROM_OUTSIDE or made.tensor in holders:
                    continue
                sources = {read_in_its_line(self.query, made), *read_right_before(self.query, made)}
                if not sources.isdisjoint((leaf, *results)):
                    return Lacking(leaf, Lack.CUT, made.index, one.root, one.pass_number)
        return None

    def _function_without_node(self, event: int) -> int:
        """The op of the custom Function around an event, if it made no node because none of its inputs requires grad,
        as in a checkpoint of a layer behind frozen layers; −1 if there is none."""
        scopes = self.query.scopes.around(event, self.query.tensors.op(event).thread)
        name = next((scope.name for scope in scopes if scope.kind == FUNCTION), None)
        if name is None:
            return -1
        ops = self.trace.table(Kind.OP)
        later = ops.events[self.trace.named(ops["op"], (name,)) & (ops.events > event)]
        op = self.query.tensors.op(int(later[0])) if len(later) else None
        return op.index if op is not None and op.grad_enabled and not self.query.nodes.of_op(op.index) else -1


class Why(Enum):
    """The reasons why a `.grad` is None at a moment."""

    NOT_MADE_YET = "the tensor is made later"
    THERE = "it is not None"
    EMPTIED = "it was set to None"
    NOT_REQUIRED = "the tensor does not require grad"
    REPLACED = "an op made it of the leaf that had its name before"
    NON_LEAF = "only leaves keep their gradient"
    NO_PASS_YET = "no backward pass has begun"
    PASS_UNDER_WAY = "the pass has not reached it yet"
    RETURNED = "autograd.grad() returns the gradients and does not change .grad"
    NOT_ASKED_FOR = "the pass computed only the gradients of others"
    CUT = "the path to the root is cut"
    AS_NUMBER = "what is computed from it is read as a plain number"
    NOT_RETURNED = "the backward of a custom Function returned None on the way to it"
    OFF_PATH = "what is computed from it reaches no root"
    NOT_COMPUTED_FROM = "the root was not computed from it"


class Absence(NamedTuple):
    """The reason why a `.grad` is None, with the fields that apply to it. `event` made the tensor, set its `.grad` to
    None, or received a non-leaf's `gradient`; `leaf` had its name before; `number` is the pass and `root` its root;
    `cut` is the event that cuts the path; `asked` are the inputs of the pass; `to_come` is a later event that sets the
    `.grad`. `lacking` is what keeps a leaf from any gradient at all, if known."""

    why: Why
    event: int = -1
    gradient: int = 0
    leaf: int = 0
    number: int = 0
    root: int = 0
    cut: OpRan | TensorMade | None = None
    asked: tuple[int, ...] = ()
    to_come: int = -1
    lacking: Lacking | None = None


_OF_LACK = {
    Lack.CUT: Why.CUT,
    Lack.COPIED: Why.CUT,
    Lack.AS_NUMBER: Why.AS_NUMBER,
    Lack.OFF_PATH: Why.OFF_PATH,
    Lack.NOT_RETURNED: Why.NOT_RETURNED,
}


def why_no_grad(query: Query, tensor: int, moment: Moment) -> Absence:
    """The reason why the `.grad` of a tensor is None at a moment."""
    query.trace.reach_all()
    born = query.trace.born(tensor)
    if born is None or born > moment.k:
        return Absence(Why.NOT_MADE_YET, event=-1 if born is None else born)
    state = moment.state(tensor)
    if state.grad:
        return Absence(Why.THERE)
    emptied = query.tensors.emptied(tensor, moment.k)
    if emptied >= 0:
        return Absence(Why.EMPTIED, event=emptied)
    if not state.requires_grad:
        return Absence(Why.NOT_REQUIRED)
    if not state.is_leaf:
        if leaf := _leaf_before(query, tensor, born):
            return Absence(Why.REPLACED, event=born, leaf=leaf)
        event, gradient = _passed_by(query, tensor, moment)
        return Absence(Why.NON_LEAF, event=event, gradient=gradient)
    return _of_leaf(query, tensor, moment)


def _leaf_before(query: Query, tensor: int, born: int) -> int:
    """The first leaf with the name of a tensor that was computed from it: `w = w - lr * w.grad`. 0 if there is none."""
    name = query.names.of(tensor)
    if name is None:
        return 0
    leaf = query.names.tensor_called(name, 0)
    is_leaf = leaf not in (0, tensor) and query.tensors.is_leaf_that_requires_grad(leaf, born)
    return leaf if is_leaf and flow.shortest_way(query, leaf, tensor) else 0


def _passed_by(query: Query, tensor: int, moment: Moment) -> tuple[int, int]:
    """The last event up to the moment at which a node received the gradient of a non-leaf, and that gradient;
    −1 and 0 if there is none."""
    node = moment.grad_fn(tensor)
    outputs = query.nodes.outputs(node)
    received = query.trace.table(Kind.RECEIVED)
    events = received.events[(received["node"] == node) & (received.events <= moment.k)]
    if not len(events) or tensor not in outputs:
        return -1, 0
    gradients = received.object(int(events[-1])).gradients
    position = outputs.index(tensor)
    gradient = gradients[position] if position < len(gradients) else 0
    return (int(events[-1]), gradient) if gradient else (-1, 0)


def _of_leaf(query: Query, tensor: int, moment: Moment) -> Absence:
    trace, k = query.trace, moment.k
    accumulated = trace.table(Kind.ACCUMULATED)
    later = accumulated.events[(accumulated.events > k) & (accumulated["tensor"] == tensor)]
    to_come = int(later[0]) if len(later) else -1
    begun = [backward_pass for backward_pass in trace.passes if backward_pass.first <= k]
    if not begun:
        return _cut_off(query, tensor, k) or Absence(Why.NO_PASS_YET, to_come=to_come)
    of_optimizer = [one for one in query.of(PassOwners).passes_of(tensor) if one.first <= k]
    backward_pass = (of_optimizer or begun)[-1]
    if (backward_pass.last is None or backward_pass.last > k) and to_come >= 0:
        return Absence(Why.PASS_UNDER_WAY, number=backward_pass.number, to_come=to_come)
    began = query.passes.began(backward_pass.number)
    if began.how == "grad" and backward_pass.last is not None and backward_pass.last <= k:
        return Absence(Why.RETURNED, number=backward_pass.number, to_come=to_come)
    if began.inputs and tensor not in began.inputs:
        return Absence(Why.NOT_ASKED_FOR, number=backward_pass.number, asked=began.inputs, to_come=to_come)
    return _never(query, tensor, began, k) or _in_a_pass(query, tensor, began, to_come)


def _never(query: Query, tensor: int, began: PassBegan, k: int) -> Absence | None:
    """The reason why a leaf never gets a gradient; None if it gets one at some time, or if the reason is not known."""
    lacks = query.of(Lacks)
    lacking = lacks.of(tensor, k) if tensor in lacks.never_got else None
    if lacking is None or lacking.lack not in _OF_LACK:
        return None
    event = query.trace.event(lacking.event)
    cut = event if isinstance(event, OpRan | TensorMade) else None
    root = lacking.root or next((root.tensor for root in began.roots), 0)
    return Absence(
        _OF_LACK[lacking.lack], number=lacking.pass_number or began.number, root=root, cut=cut, lacking=lacking
    )


def _in_a_pass(query: Query, tensor: int, began: PassBegan, to_come: int) -> Absence:
    """The reason why a leaf gets no gradient from one pass."""
    for root in began.roots:
        cut = query.of(Lacks).cut_from(tensor, root.tensor, began.index) if root.tensor else None
        if cut is not None:
            return Absence(Why.CUT, number=began.number, root=root.tensor, cut=cut, to_come=to_come)
    first = began.roots[0].tensor if began.roots else 0
    return Absence(Why.NOT_COMPUTED_FROM, number=began.number, root=first, to_come=to_come)


def _cut_off(query: Query, tensor: int, k: int) -> Absence | None:
    """The cut between a tensor and the root of a refused backward(), up to event k; None if there is none."""
    for failure, root in refused(query):
        if root and failure.event <= k:
            cut = query.of(Lacks).cut_from(tensor, root, failure.event)
            if cut is not None:
                return Absence(Why.CUT, root=root, cut=cut)
    return None


def accumulations(query: Query, tensor: int, k: int, most: int) -> list[Accumulated]:
    """The last `most` events up to k that accumulated into a leaf's `.grad`, in order."""
    query.trace.reach_all()
    accumulated = query.trace.table(Kind.ACCUMULATED)
    events = accumulated.events[(accumulated.events <= k) & (accumulated["tensor"] == tensor)]
    return [accumulated.object(event) for event in events[-most:].tolist()]
