"""The run as a graph of tensors: what a tensor was computed from, what was computed from it, the paths between two
tensors, the events that cut a path off, and the line at which the cure of a cut would be typed. Every search for an
answer walks by `reach` or `chain`, which end at a limit."""

import ast
from collections import deque
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from enum import Enum
from functools import cache, cached_property
from heapq import heappop, heappush
from typing import NamedTuple, TypeVar

import numpy as np

from gradviz.events.kinds import LEAF, WHOLE, Kind, OpRan, TensorMade
from gradviz.events.values import TRANSFORM, VMAP
from gradviz.query import ops as op_sets
from gradviz.query.functions_of_source import called, nodes_of
from gradviz.query.query import Query
from gradviz.query.source_trees import trees
from gradviz.sets import contained, grouped
from gradviz.tracefile import Site
from gradviz.tracefile.sites import last_name

MOST = 200_000  # the most tensors that a search in the whole run visits
NEAR = 256  # the most tensors near a tensor that a search visits
FAR = 16  # the most ops of a chain, such as views of views
_VIEWS = 3  # the most ops between a leaf and the op that uses it, such as `weight.t()`
_T = TypeVar("_T", bound=Hashable)


def reach(
    starts: Iterable[_T],
    onward: Callable[[_T], Iterable[_T]],
    most: int = MOST,
    came: dict[_T, _T | None] | None = None,
) -> Iterator[_T]:
    """The things that `onward` leads to from `starts`: these first, then by distance, at most `most`. 0 is left
    out. `came` is filled with what each was reached from, None for a start."""
    came = {} if came is None else came
    came |= dict.fromkeys(starts)
    waiting = deque(one for one in came if one)
    while waiting and most > 0:
        one = waiting.popleft()
        most -= 1
        yield one
        for other in onward(one):
            if other and other not in came:
                came[other] = one
                waiting.append(other)


def chain(query: Query, tensor: int, passes: Callable[[OpRan], bool], most: int = FAR) -> Iterator[OpRan]:
    """The ops behind a tensor, the last first, each the maker of the first input of the op before it, as long as an op
    `passes`; at most `most`."""
    for _ in range(most):
        op = op_of(query, tensor)
        if op is None or not op.inputs or not op.inputs[0] or not passes(op):
            return
        yield op
        tensor = op.inputs[0]


class Reason(Enum):
    """Reasons why an op made no node."""

    NOTHING_REQUIRES_GRAD = "no input requires grad"
    GRAD_MODE_OFF = "grad mode was off"
    DETACHED = "it shares the memory of its input, outside of the graph"
    NOT_DIFFERENTIABLE = "its result is not differentiable"


def why_no_node(query: Query, op: OpRan) -> Reason:
    """The reason why an op made no node."""
    before = op.index - 1
    if not any(query.tensors.requires_grad(one, before) or one in query.of(summed) for one in op.inputs if one):
        return Reason.NOTHING_REQUIRES_GRAD
    if not op.grad_enabled:
        return Reason.GRAD_MODE_OFF
    if op.outputs and query.tensors.flags(op.outputs[0], op.index) & WHOLE:
        return Reason.DETACHED
    return Reason.NOT_DIFFERENTIABLE


def computed_from(op: OpRan) -> tuple[int, ...]:
    """The inputs of an op whose elements go into its result; without an input that gives only a shape or a dtype."""
    return op.inputs[:1] if op.op in op_sets.SHAPED_BY_SECOND else op.inputs


def op_of(query: Query, tensor: int) -> OpRan | None:
    """The op that made a tensor; None if no op did."""
    maker = query.tensors.made(tensor)
    return maker if isinstance(maker, OpRan) else None


def is_square(op: OpRan) -> bool:
    """Whether an op multiplies a tensor with itself."""
    return op.op in op_sets.MULTIPLYING and len(op.inputs) > 1 and len(set(op.inputs)) == 1


def transposed_of(query: Query, tensor: int) -> int:
    """The tensor that a tensor is the transpose of; the tensor itself if it is no transpose."""
    made = op_of(query, tensor)
    return made.inputs[0] if made is not None and made.op in op_sets.TRANSPOSING and made.inputs else tensor


def root_is_mean(query: Query, pass_number: int) -> bool:
    """Whether the only root of a pass is a mean: made by a mean, or by a loss that is no sum, perhaps negative, with
    other terms or times a weight that learns; of several means, each from a line of its own."""
    roots = query.passes.began(pass_number).roots

    def onward(tensor: int) -> tuple[int, ...]:
        op = op_of(query, tensor)
        is_weighted = (
            op is not None
            and op.op in op_sets.MULTIPLYING
            and all(one and query.tensors.requires_grad(one, op.index) for one in op.inputs)
        )
        is_followed = op is not None and (is_weighted or op.op in op_sets.SUMS | op_sets.NEGATING)
        return op.inputs if op is not None and is_followed else ()

    terms = [op_of(query, term) for term in reach([roots[0].tensor], onward, NEAR)] if len(roots) == 1 else []
    sites = [op.site for op in terms if op is not None and is_mean(op)]
    return bool(sites) and len(sites) == len(set(sites))


def is_mean(op: OpRan) -> bool:
    """Whether an op is a mean, or a loss that is no sum."""
    return op.op in op_sets.MEANS or (op.op in op_sets.LOSSES and "reduction='sum'" not in op.args)


def op_behind(query: Query, tensor: int, passing: Container[str]) -> OpRan | None:
    """The op that made a tensor. An op named in `passing` is skipped: its first input is followed instead. None if no
    op made it."""
    for op in chain(query, tensor, lambda op: op.op in passing, MOST):
        tensor = op.inputs[0]
    return op_of(query, tensor) if tensor else None


def shortest_way(query: Query, start: int, end: int) -> list[int]:
    """The tensors on a shortest path of ops from `start` to `end`, in order; empty if there is no path."""
    key = end, query.trace.count  # the count: a run that is under way grows
    if key not in query.searches:
        query.searches.clear()
        came: dict[int, int | None] = {}
        walk = reach([end], lambda tensor: sources(query, tensor, through_memory=False), came=came)
        query.searches[key] = came, walk
    came, walk = query.searches[key]  # it goes on where it stopped: many leaves are looked for from one root
    while start not in came and next(walk, None):
        pass
    way: list[int] = []
    tensor = start if start in came else None
    while tensor:
        way.append(tensor)
        tensor = came[tensor]
    return way


def sources(query: Query, tensor: int, through_memory: bool) -> tuple[int, ...]:
    """The tensors that a tensor was computed from: the inputs of the op that made it, and of the ops that
    changed it in place."""
    maker = query.tensors.made(tensor)
    origins: tuple[int, ...] = ()
    if isinstance(maker, OpRan):
        origins = computed_from(maker)
    elif through_memory and maker is not None:
        base = query.tensors.base(query.tensors.before(tensor, maker.index))
        origins = (base.tensor if base is not None else maker.source,)
    for event in query.tensors.writes(tensor):
        if query.tensors.is_op(event):
            origins += computed_from(query.tensors.op(event))
        elif through_memory:
            origins += (query.tensors.mutation(event).source,)
    return origins


def count_ways(query: Query, start: int, end: int) -> int:
    """The number of paths from `start` to `end`. Inputs have lower numbers than results, so descending numbers are a
    topological order."""

    def onward(tensor: int) -> list[int]:
        op = op_of(query, tensor) if tensor != start else None
        return [one for one in computed_from(op) if start <= one < tensor] if op is not None else []

    ways = {end: 1}
    for tensor in sorted(reach([end], onward), reverse=True):
        for source in onward(tensor):
            ways[source] = ways.get(source, 0) + ways[tensor]
    return ways.get(start, 0)


Rank = tuple[int, int, int, int]


class Hop(NamedTuple):
    """A step from a source to a tensor that an event computed from it. `blocks` is whether it blocks gradients,
    `copies` whether it puts values into another memory, outside of the graph."""

    source: int
    event: int
    blocks: bool
    copies: bool


class Separation(NamedTuple):
    """The best way from a leaf to a root. `cut` is the first event on it that blocks gradients (None: the way is open),
    `is_copy` whether it leads through a copy of the leaf itself. Of two ways, the one with the lower `rank` is
    better."""

    cut: OpRan | TensorMade | None
    is_copy: bool
    rank: Rank


class Ways:
    """All ways to one root, as they were at the event where its pass begins, but for those along which gradients flow
    to the tensors `without`."""

    def __init__(self, query: Query, root: int, at: int, without: Container[int] = ()) -> None:
        self.query, self.root, self.at, self._without = query, root, at, without
        # Cached: the searches need these once for each op that reads a tensor.
        self._graph = query.of(Downstream)
        self._has_parameters = cache(self._reads_parameters)
        is_leaf = query.tensors.is_leaf_that_requires_grad
        self._is_end = cache(lambda tensor: tensor != root and is_leaf(tensor, at))
        self.viewed_leaf = cache(self._viewed_leaf)
        self._blocked: dict[int, Sequence[Hop]] = {}  # by the tensors that the first search has visited
        self._learning = self._open_ways()
        self._onwards: dict[int, tuple[int, Hop]] = {}
        self._ranks: dict[int, Rank] = {}
        self._blocked_ways()

    @property
    def reached(self) -> list[int]:
        """The tensors that the root was computed from, with those in the graph first."""
        return [*self._learning, *self._ranks]

    @property
    def reached_openly(self) -> list[int]:
        """The tensors from which gradients can flow to the root."""
        return list(self._learning)

    @cached_property
    def uses(self) -> list["Use"]:
        """The uses in forward on the ways by which gradients flow to the root, in order. A view of a leaf is no use."""
        of_leaves: list[Use] = []
        for event in _events(self.query, self):
            parts = {t: self.viewed_leaf(t) for t in self._graph.inputs(event) if t}
            leaves = frozenset(leaf for leaf in parts.values() if leaf)
            if leaves and len(parts) > 1:
                of_leaves.append(Use(event, leaves, tuple(t for t, leaf in parts.items() if not leaf)))
        return of_leaves

    @cached_property
    def leaves(self) -> list[int]:
        """The leaves that the root was computed from, without results of ops."""
        flags = self.query.tensors.flags
        return [t for t in self.reached if flags(t, self.at) & LEAF and op_of(self.query, t) is None]

    @cached_property
    def cuts(self) -> list[OpRan | TensorMade]:
        """The events that made a tensor behind the root and block gradients of a tensor that requires grad, the nearest
        first."""
        requires_grad, cuts = self.query.tensors.requires_grad, list[OpRan | TensorMade]()
        for tensor in sorted(self.reached, key=lambda tensor: self._ranks.get(tensor, (0,))[-1]):
            made = self.query.tensors.made(tensor)
            blocks = isinstance(made, TensorMade) or (made is not None and not self.query.nodes.of_op(made.index))
            if made is not None and blocks and any(t and requires_grad(t, self.at) for t in taken_by(self.query, made)):
                cuts.append(made)
        return cuts

    def separation(self, leaf: int) -> Separation | None:
        """The separation of a leaf from the root; None if the root was not computed from it."""
        if leaf in self._learning:
            return Separation(None, False, (0, 0, 0, 0))
        if leaf not in self._ranks:
            return None
        hops = list(self._hops(leaf))
        first = next(hop for hop in hops if hop.blocks)
        return Separation(self._event(first.event), self._is_copy(hops), self._ranks[leaf])

    def _hops(self, tensor: int) -> Iterator[Hop]:
        """The steps from a tensor to the graph of the root."""
        while tensor not in self._learning:
            tensor, hop = self._onwards[tensor]
            yield hop

    def _is_copy(self, hops: list[Hop]) -> bool:
        """Whether the first steps only copy a leaf, or mix it into an average of its values."""
        for hop in hops:
            event = self._event(hop.event)
            if hop.copies:
                return True
            if isinstance(event, OpRan) and event.op not in op_sets.COPYING and not event.rule.elementwise:
                return False
        return False

    def _event(self, event: int) -> OpRan | TensorMade | None:
        decoded = self.query.trace.event(event)
        return decoded if isinstance(decoded, OpRan | TensorMade) else None

    # --- the search

    def _open_ways(self) -> dict[int, bool]:
        """The tensors from which gradients flow to the root, in order of distance; with each, whether an op with
        parameters of its own is on the way."""
        reached = {self.root: False}
        waiting = deque([self.root])
        while waiting and len(reached) < MOST:
            tensor = waiting.popleft()
            if self._is_end(tensor):
                continue
            steps = self._steps_to(tensor)
            self._blocked[tensor] = [hop for hop in steps if hop.blocks] or ()
            for hop in steps:
                learns = reached[tensor] or self._has_parameters(hop.event)
                if not hop.blocks and (hop.source not in reached or (learns and not reached[hop.source])):
                    reached[hop.source] = learns
                    waiting.append(hop.source)
        return reached

    def _blocked_ways(self) -> None:
        """The best ways from the tensors behind blocking events, by Dijkstra's search."""
        heap: list[tuple[Rank, int, int, Hop]] = []
        for tensor, learns in self._learning.items():
            if not self._is_end(tensor):
                known = self._blocked.get(tensor)
                for hop in known if known is not None else [one for one in self._steps_to(tensor) if one.blocks]:
                    heappush(heap, (self._further((0, int(not learns), 0, 0), hop, tensor), hop.source, tensor, hop))
        while heap and len(self._ranks) < MOST:
            rank, tensor, onwards, hop = heappop(heap)
            if tensor in self._ranks or tensor in self._learning:
                continue
            self._ranks[tensor], self._onwards[tensor] = rank, (onwards, hop)
            if self._is_end(tensor):
                continue
            for step in self._steps_to(tensor):
                if step.source not in self._ranks:
                    heappush(heap, (self._further(rank, step, tensor), step.source, tensor, step))

    def _further(self, rank: Rank, hop: Hop, tensor: int) -> Rank:
        """The rank of a way that goes one step further, from a tensor to a source of it. What is drawn, as an action
        is, leads on as data."""
        copies, aside, unwatched, length = rank
        tensors = self.query.tensors
        op = tensors.op(hop.event) if hop.blocks and tensors.is_op(hop.event) else None
        is_worse = op is not None and (not op.grad_enabled or self._is_without_gradient(hop.event, tensor))
        is_data = hop.copies or (op is not None and op.op in op_sets.DISCRETE)
        return copies + is_data, aside, unwatched + is_worse, length + 1

    def _steps_to(self, tensor: int) -> list[Hop]:
        """The steps that led to a tensor: the event that made it, and the events that changed it in place before the
        pass."""
        tensors = self.query.tensors
        maker = tensors.maker(tensor)
        steps: list[Hop] = []
        if maker is not None and tensors.is_op(maker):
            steps = self._of_op(maker, tensor, is_write=False)
        elif isinstance(made := tensors.made(tensor), TensorMade):
            copies = made.how not in op_sets.SHARING
            steps = [Hop(source, made.index, True, copies) for source in taken_by(self.query, made)]
        elif maker is None:
            steps = [Hop(source, event, False, False) for event, source in self.query.of(summed).get(tensor, ())]
        steps += [Hop(source, event, True, False) for event, source in self.query.of(_constant).get(tensor, ())]
        for event in tensors.writes(tensor):
            if event >= self.at:
                break
            if tensors.is_op(event):
                steps += self._of_op(event, tensor, is_write=True)
            elif source := tensors.mutation(event).source:
                steps.append(Hop(source, event, True, True))
        return steps

    def _of_op(self, event: int, tensor: int, is_write: bool) -> list[Hop]:
        passes = self.query.nodes.of_op(event) and event not in self._graph.flat
        blocks = not passes or self._is_without_gradient(event, tensor)
        known = dict.fromkeys(self._graph.inputs(event))
        left_out = self._without if passes and tensor not in self._without else ()
        sources = [one for one in known if one and one != tensor and one not in left_out]
        return [Hop(source, event, blocks, blocks and is_write) for source in sources]

    def _is_without_gradient(self, event: int, tensor: int) -> bool:
        """Whether a tensor is one of several results of an op and requires no grad, as the indices of `topk`."""
        is_part = event in self._graph.of_several and tensor in self.query.tensors.op(event).outputs
        return is_part and not self.query.tensors.requires_grad(tensor, event)

    def _reads_parameters(self, event: int) -> bool:
        """Whether an op reads a leaf that requires grad, itself or by views such as `weight.t()`."""
        sources = set(self._graph.inputs(event)) - {0}
        return any(self.viewed_leaf(source) not in (0, self.root) for source in sources)

    def _viewed_leaf(self, tensor: int) -> int:
        """The leaf that requires grad and that a tensor is when the pass begins, itself or by views such as
        `weight.t()`; 0 if there is none."""
        for _ in range(_VIEWS):
            is_root = tensor == self.root
            if self._is_end(tensor) or (is_root and self.query.tensors.is_leaf_that_requires_grad(tensor, self.at)):
                return tensor
            if not self.query.tensors.requires_grad(tensor, self.at):
                break  # `w.data` is no longer the leaf
            tensor = self._graph.views.get(tensor, 0)
            if not tensor:
                break
        return 0


def taken_by(query: Query, maker: OpRan | TensorMade | None) -> tuple[int, ...]:
    """The inputs of the event that made a tensor."""
    if maker is None or isinstance(maker, OpRan):
        return () if maker is None else maker.inputs
    if maker.how in op_sets.DRAWN:
        return _drawn_from(query, maker)
    if maker.how in (TRANSFORM, VMAP):  # what it stands for has a graph of its own
        return ()
    base = query.tensors.base(query.tensors.before(maker.tensor, maker.index))
    return tuple(tensor for tensor in (base.tensor if base is not None else 0, maker.source) if tensor)


def summed(query: Query) -> dict[int, list[tuple[int, int]]]:
    """The gradients that passes with `create_graph` summed at a node, where no op is recorded: by gradient, the event
    at which the node received it, with each of its parts. Use `query.of(summed)`."""
    began, received, produced = (query.trace.table(kind) for kind in (Kind.PASS_BEGAN, Kind.RECEIVED, Kind.PRODUCED))
    numbers, flows = began["number"][began["create_graph"] > 0], produced.lists("flows")
    own = contained(produced["in_pass"], numbers)[flows.owners]
    pairs = zip(produced["in_pass"][flows.owners[own]].tolist(), flows.elements[own].tolist(), strict=True)
    parts = grouped(((number, node), gradient) for number, (node, gradient) in pairs)
    sums: dict[int, list[tuple[int, int]]] = {}
    for row in np.flatnonzero(contained(received["in_pass"], numbers)).tolist():
        given = parts.get((int(received["in_pass"][row]), int(received["node"][row])), [])
        if len(given) > 1:
            gradient, event = int(received.lists("gradients").firsts[row]), int(received.events[row])
            sums[gradient] = [(event, part) for part in given if part]
    return sums


def _constant(query: Query) -> dict[int, list[tuple[int, int]]]:
    """The gradients that nodes made in passes with `create_graph`: by gradient, the event, with each tensor that the
    node received or saved and that does not require grad. No op tells of these, but where others require grad."""
    began, received, produced = (query.trace.table(kind) for kind in (Kind.PASS_BEGAN, Kind.RECEIVED, Kind.PRODUCED))
    numbers, firsts = began["number"][began["create_graph"] > 0], received.lists("gradients").firsts
    came = dict(zip(zip(received["in_pass"].tolist(), received["node"].tolist(), strict=True), firsts, strict=True))
    requires_grad, made = query.tensors.requires_grad, dict[int, list[tuple[int, int]]]()
    for event in map(produced.object, produced.events[contained(produced["in_pass"], numbers)].tolist()):
        given = [int(came.get((event.in_pass, event.node), 0)), *(one.tensor for one in query.nodes.saved(event.node))]
        for gradient in {flow.gradient for flow in event.flows} - {0, *given}:
            made[gradient] = [(event.index, one) for one in given if one and not requires_grad(one, event.index)]
    return made


def _drawn_from(query: Query, maker: TensorMade) -> tuple[int, ...]:
    """The inputs of a distribution that a tensor was drawn from: the inputs of the ops without grad mode, right before
    in the same expression, that give `torch.normal` its arguments."""
    sites, inputs = query.trace.events["site"], list[int]()
    for event in range(maker.index - 1, max(maker.index - 1 - _VIEWS, -1), -1):
        if not query.tensors.is_op(event) or sites[event] != sites[maker.index]:
            break
        op = query.tensors.op(event)
        if op.grad_enabled:
            break
        inputs += filter(None, op.inputs)
    return tuple(inputs)


def leaves_behind(query: Query, nodes: Iterable[int]) -> list[int]:
    """The leaves that the graph leads to from nodes, as they were when the graph was made."""
    made = map(query.nodes.event, query.nodes.walk(list(nodes)))
    edges = ((node.index, edge.tensor) for node in made if node is not None for edge in node.edges)
    leaves = {t: None for at, t in edges if t and query.tensors.is_leaf_that_requires_grad(t, at)}
    return list(leaves)


def leaves_of(query: Query, *tensors: int) -> list[int]:
    """The leaves that the grad_fns of tensors lead to, as they were when the graph was made."""
    return leaves_behind(query, (n for t in tensors for n in query.nodes.of_tensors.of(t)[1].tolist()))


class Downstream:
    """The ops of a trace as a graph in arrays (CSR): the inputs of each op, and the ops that read each tensor. No op is
    decoded for it. `views` has the only input for each result of an op that read one tensor, and no table."""

    def __init__(self, query: Query) -> None:
        self.query = query
        ops = query.trace.table(Kind.OP)
        inputs, outputs = ops.lists("inputs"), ops.lists("outputs")
        order = np.argsort(inputs.values, kind="stable")
        self._tensors, self._ops = inputs.values[order], ops.events[inputs.owners[order]]
        self._rows = {event: row for row, event in enumerate(ops.events.tolist())}
        self._starts, self._inputs = [0, *np.cumsum(inputs.counts).tolist()], inputs.values.tolist()
        self.of_several = set(ops.events[outputs.counts > 1].tolist())
        """The ops with several results."""
        zero = [number for number, rule in query.trace.rules.items() if {one for _, one in rule.inputs} == {"0"}]
        is_flat = contained(ops["rule"], zero) & (inputs.firsts != outputs.firsts)
        self.flat = set(ops.events[is_flat].tolist())
        """The ops whose derivatives are 0 everywhere, such as `round` and `torch.normal`, but for writes."""
        is_view = (inputs.counts == 1) & ~query.trace.named(ops["op"], op_sets.LOOKUPS) & ~query.tensors.are_collectives
        sources = inputs.firsts[outputs.owners]
        # the first event wins
        chosen = np.flatnonzero(is_view[outputs.owners] & (sources != outputs.values))[::-1]
        self.views = dict(zip(outputs.values[chosen].tolist(), sources[chosen].tolist(), strict=True))

    def inputs(self, event: int) -> list[int]:
        """The inputs of an op, 0 for one that is no tensor; empty for any other event."""
        row = self._rows.get(event)
        return [] if row is None else self._inputs[self._starts[row] : self._starts[row + 1]]

    def readers(self, tensor: int) -> list[int]:
        """The ops that read a tensor, in order."""
        start, end = np.searchsorted(self._tensors, [tensor, tensor + 1])
        return self._ops[start:end].tolist()

    def onward(self, tensor: int) -> Iterator[int]:
        """The results of the ops that read a tensor."""
        return (output for op in self.readers(tensor) for output in self.query.tensors.op(op).outputs)

    @cached_property
    def astray(self) -> set[int]:
        """The ops with a node that no root of any pass was computed from, with or without a gradient; without ops
        inside passes. Tensors on one memory count as one: an op in doubt is not among them. Empty if the trace does
        not have all passes of the run."""
        trace = self.query.trace
        if not trace.is_whole or len(trace.pass_numbers) < trace.passes_begun:
            return set()
        bases = {tensor: base for tensor, (base, _) in self.query.tensors.bases.items()}
        ops, writes = trace.table(Kind.OP), trace.table(Kind.MUTATED)
        outputs = ops.lists("outputs")
        sources = dict(zip(writes.events.tolist(), writes["source"].tolist(), strict=True))
        results = np.concatenate([ops.events[outputs.owners], writes.events]), [*outputs.values, *writes["tensor"]]
        written = grouped((int(event), int(tensor)) for event, tensor in zip(*results, strict=True))

        def home(tensor: int) -> int:
            behind = reach([tensor], lambda one: [bases.get(one, 0)])  # a damaged trace may have a circle
            return next((one for one in behind if not bases.get(one)), tensor)

        passes = self.query.passes
        needed = {home(root.tensor) for number in trace.pass_numbers for root in passes.starts(number) if root.tensor}
        astray = set(ops.events[ops["in_pass"] == 0].tolist()) & set(trace.table(Kind.NODE)["op"].tolist())
        for event in sorted(written, reverse=True):
            if not needed.isdisjoint(map(home, written[event])):
                needed.update(home(tensor) for tensor in (sources.get(event, 0), *self.inputs(event)) if tensor)
                astray.discard(event)
        return astray if needed else set()

    def results(self, tensor: int, most: int = 10_000) -> dict[int, list[int]]:
        """All tensors that were computed from a tensor, and the tensor itself; with each, the ops that read it."""
        return {one: self.readers(one) for one in reach([tensor], self.onward, most)}


class Use(NamedTuple):
    """An op, the leaves that require grad among its inputs, and its data: the other inputs."""

    event: int
    leaves: frozenset[int]
    data: tuple[int, ...]


def _events(query: Query, ways: Ways) -> list[int]:
    """The ops with a node and a derivative that computed tensors with an open way to a root, in order, without ops
    inside a pass."""
    makers = {event for event in map(query.tensors.maker, ways.reached_openly) if event is not None}
    makers -= query.of(Downstream).flat
    events = np.array(sorted(event for event in makers if query.nodes.of_op(event)), int)
    return events[~query.passes.contains(events)].tolist()


def groups_behind(query: Query, ways: Ways, groups: dict[int, int]) -> dict[int, int]:
    """The groups of the leaves that each tensor with an open way to a root was computed from, as bits; `groups` has the
    bit of each leaf."""
    groups_of = dict(groups)
    for event in _events(query, ways):
        op = query.tensors.op(event)
        bits = 0
        for source in op.inputs:
            bits |= groups_of.get(source, 0)
        for output in op.outputs:
            groups_of[output] = groups_of.get(output, 0) | bits
    return groups_of


def sets_value(query: Query, cut_off: Iterable[int], terms: Iterable[int]) -> bool:
    """Whether what is cut off, one term of a sum, is a difference to another of its `terms`, as in
    `a + (b - a).detach()`: it gives the sum the value of `b`, and the gradient of `a` is meant."""
    made = [one for source in cut_off if (one := op_of(query, source)) is not None]
    sides = {side for one in made if one.op in op_sets.DIFFERENCES for side in one.inputs if side}
    return any(computed_alike(query, side, term) for side in sides for term in terms if term)


def computed_alike(query: Query, one: int, other: int) -> bool:
    """Whether two tensors are the same, or were computed by the same ops from the same tensors, as when a program has
    an expression twice."""
    differing: list[tuple[int, int]] = []

    def onward(pair: tuple[int, int]) -> Iterator[tuple[int, int]]:
        left, right = (op_of(query, tensor) for tensor in pair)
        if pair[0] == pair[1] or (left is None and right is None and all(_is_zeros(query, t) for t in pair)):
            return
        if (
            left is None
            or right is None
            or (left.op, left.args) != (right.op, right.args)
            or len(left.inputs) != len(right.inputs)
        ):
            differing.append(pair)
        else:
            yield from zip(left.inputs, right.inputs, strict=True)

    pairs = list(reach([(one, other)], onward, NEAR))
    return not differing and len(pairs) < NEAR


def _is_zeros(query: Query, tensor: int) -> bool:
    made = query.tensors.made(tensor)
    return isinstance(made, TensorMade) and made.how in op_sets.ZEROS


_MODES = {"no_grad", "inference_mode", "set_grad_enabled"}
_SWITCH = "set_grad_enabled"


class GradMode(NamedTuple):
    """An expression that sets grad mode, as `torch.no_grad()`, with its file and line."""

    file: str
    line: int
    expression: str


def grad_mode_at(query: Query, number: int) -> GradMode | None:
    """The `with` or the decorator that sets grad mode around a site or one of its callers, the innermost first. None if
    there is none."""
    for caller, mode in _mode_at(query, number):
        expressions = [item.context_expr for item in mode.items] if isinstance(mode, ast.With) else [mode]
        return GradMode(caller.place.file, mode.lineno, ast.unparse(next(filter(_sets_mode, expressions))))
    return None


def place_of_cut(query: Query, event: int) -> Site | None:
    """The line of a cut. For an op without grad mode it is the call in the `with` block that turned grad mode off, the
    decorator, or the call that turned it off for good; else it is the line of the event."""
    number = int(query.places.of_events[event])
    if query.tensors.is_op(event) and not query.tensors.op(event).grad_enabled:
        setting = _under_a_mode(query, number) or switched_off(query, event)
        if setting is not None:
            return setting
    return query.places.site(number)


def switched_off(query: Query, event: int) -> Site | None:
    """The only call of `set_grad_enabled(False)` in the program that is a statement of its own: it lasts until another
    call. None if there is none or several, or if a `with` or a decorator around the event explains the mode."""
    if _under_a_mode(query, int(query.places.of_events[event])) is not None:
        return None
    calls = [(file, line) for file, tree in query.of(trees).items() for line in _lasting_calls(tree)]
    return query.places.of_line(*calls[0]) if len(calls) == 1 else None


def _under_a_mode(query: Query, number: int) -> Site | None:
    """The innermost call, among a site and its callers, inside a `with` that sets grad mode; the decorator, if a
    decorated function sets it. None if there is none."""
    for caller, mode in _mode_at(query, number):
        return caller if isinstance(mode, ast.With) else query.places.of_line(caller.place.file, mode.lineno)
    return None


def _mode_at(query: Query, number: int) -> Iterator[tuple[Site, ast.With | ast.expr]]:
    """The calls, among a site and its callers, inside a `with` or a decorated function that sets grad mode, the
    innermost first; with each that `with` or decorator."""
    for caller in query.places.callers(number):
        mode = _mode_around(query.of(trees).get(caller.place.file), caller.place.line)
        if mode is not None:
            yield caller, mode


def _mode_around(tree: ast.Module | None, line: int) -> ast.With | ast.expr | None:
    """The innermost `with`, or decorator of a function, around a line that sets grad mode."""
    innermost: ast.With | ast.expr | None = None
    for node in nodes_of(tree):  # outer ones first
        if not isinstance(node, ast.With | ast.FunctionDef) or not node.lineno <= line <= (node.end_lineno or 0):
            continue
        if isinstance(node, ast.With):
            innermost = node if any(_sets_mode(item.context_expr) for item in node.items) else innermost
        else:
            innermost = next(filter(_sets_mode, node.decorator_list), innermost)
    return innermost


def _sets_mode(expression: ast.expr) -> bool:
    return last_name(expression.func if isinstance(expression, ast.Call) else expression) in _MODES


def _lasting_calls(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
            continue
        call = node.value
        if called(call) == _SWITCH and len(call.args) == 1:
            off = call.args[0]
            if isinstance(off, ast.Constant) and off.value is False:
                yield node.lineno
