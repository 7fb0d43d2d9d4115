"""The separation of a leaf from the root of a pass: the ways by which the root was computed from it, and the first
event on the best way that blocks gradients.

Several ways may be cut, and only one of them is meant to bring a gradient. A way through a copy of the leaf itself (a
frozen twin, an average of the weights) is not meant to. A way into a part of the graph that learns is better than a way
straight into the loss, as that of a target; and a way with grad mode on is better than a way under no_grad."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from heapq import heappop, heappush
from typing import NamedTuple

from gradviz.events.kinds import OpRan, TensorMade
from gradviz.query.cuts import MOST
from gradviz.query.ops import COPYING, DRAWN, LOOKUPS, SHARING
from gradviz.query.query import Query

_VIEWS = 3  # the most ops between a leaf and the op that uses it, such as `weight.t()`
_NONE: tuple[Hop, ...] = ()
Rank = tuple[int, int, int, int]


class Hop(NamedTuple):
    """A step from a source to a tensor that an event computed from it. `blocks` is whether it blocks gradients,
    `copies` whether it puts values into another memory, outside of the graph."""

    source: int
    event: int
    blocks: bool
    copies: bool


@dataclass(frozen=True, slots=True)
class Separation:
    """The best way from a leaf to a root. `cut` is the first event on it that blocks gradients (None: the way is open),
    `is_copy` whether it leads through a copy of the leaf itself. Of two ways, the one with the lower `rank` is
    better."""

    cut: OpRan | TensorMade | None
    is_copy: bool
    rank: Rank


class Ways:
    """All ways to one root, as they were at the event where its pass begins."""

    def __init__(self, query: Query, root: int, at: int) -> None:
        self.query, self.root, self.at = query, root, at
        # Cached: the searches need these once for each op that reads a tensor.
        self._has_parameters = cache(self._reads_parameters)
        self._is_end = cache(self._is_leaf)
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
            if isinstance(event, OpRan) and event.op not in COPYING and not event.rule.elementwise:
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
            self._blocked[tensor] = [hop for hop in steps if hop.blocks] or _NONE
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
                for hop in self._blocked_steps_to(tensor):
                    heappush(heap, (self._further((0, int(not learns), 0, 0), hop), hop.source, tensor, hop))
        while heap and len(self._ranks) < MOST:
            rank, tensor, onwards, hop = heappop(heap)
            if tensor in self._ranks or tensor in self._learning:
                continue
            self._ranks[tensor], self._onwards[tensor] = rank, (onwards, hop)
            if self._is_end(tensor):
                continue
            for step in self._steps_to(tensor):
                if step.source not in self._ranks:
                    heappush(heap, (self._further(rank, step), step.source, tensor, step))

    def _further(self, rank: Rank, hop: Hop) -> Rank:
        copies, aside, unwatched, length = rank
        tensors = self.query.tensors
        is_off = hop.blocks and tensors.is_op(hop.event) and not tensors.op(hop.event).grad_enabled
        return copies + hop.copies, aside, unwatched + is_off, length + 1

    def _is_leaf(self, tensor: int) -> bool:
        """Whether the ways end at a tensor: it is a leaf that requires grad."""
        return tensor != self.root and self.query.tensors.is_leaf_that_requires_grad(tensor, self.at)

    def _blocked_steps_to(self, tensor: int) -> Sequence[Hop]:
        """The steps that led to a tensor of the graph and block gradients."""
        known = self._blocked.get(tensor)
        return known if known is not None else [hop for hop in self._steps_to(tensor) if hop.blocks]

    def _steps_to(self, tensor: int) -> list[Hop]:
        """The steps that led to a tensor: the event that made it, and the events that changed it in place before the
        pass."""
        tensors = self.query.tensors
        maker = tensors.made(tensor)
        steps: list[Hop] = []
        if isinstance(maker, OpRan):
            steps = self._of_op(maker, tensor, is_write=False)
        elif maker is not None:
            copies = maker.how not in SHARING
            steps = [Hop(source, maker.index, True, copies) for source in taken_by(self.query, maker)]
        for event in tensors.writes(tensor):
            if event >= self.at:
                break
            if tensors.is_op(event):
                steps += self._of_op(tensors.op(event), tensor, is_write=True)
            elif source := tensors.mutation(event).source:
                steps.append(Hop(source, event, True, True))
        return steps

    def _of_op(self, op: OpRan, tensor: int, is_write: bool) -> list[Hop]:
        blocks = not self.query.nodes.of_op(op.index) or self._is_without_gradient(op, tensor)
        sources = [source for source in dict.fromkeys(op.inputs) if source and source != tensor]
        return [Hop(source, op.index, blocks, blocks and is_write) for source in sources]

    def _is_without_gradient(self, op: OpRan, tensor: int) -> bool:
        """Whether a tensor is one of several results of an op and requires no grad, as the indices of `topk`."""
        is_part = len(op.outputs) > 1 and tensor in op.outputs
        return is_part and not self.query.tensors.requires_grad(tensor, op.index)

    def _reads_parameters(self, event: int) -> bool:
        """Whether an op reads a leaf that requires grad, itself or by views such as `weight.t()`."""
        tensors = self.query.tensors
        sources = set(tensors.op(event).inputs) - {0} if tensors.is_op(event) else ()
        return any(self.viewed_leaf(source) not in (0, self.root) for source in sources)

    def _viewed_leaf(self, tensor: int) -> int:
        """The leaf that requires grad and that a tensor is when the pass begins, itself or by views such as
        `weight.t()`; 0 if there is none."""
        tensors = self.query.tensors
        for _ in range(_VIEWS):
            if self._is_end(tensor) or (tensor == self.root and self._is_root_a_leaf):
                return tensor
            maker = tensors.made(tensor)
            if (
                not isinstance(maker, OpRan)
                or len(maker.inputs) != 1
                or not maker.inputs[0]
                or maker.op in LOOKUPS
            ):
                return 0
            (tensor,) = maker.inputs
        return 0

    @cached_property
    def _is_root_a_leaf(self) -> bool:
        return self.query.tensors.is_leaf_that_requires_grad(self.root, self.at)


def taken_by(query: Query, maker: OpRan | TensorMade | None) -> tuple[int, ...]:
    """The inputs of the event that made a tensor."""
    if maker is None or isinstance(maker, OpRan):
        return () if maker is None else maker.inputs
    if maker.how in DRAWN:
        return _drawn_from(query, maker)
    base = query.tensors.base(query.tensors.before(maker.tensor, maker.index))
    return tuple(tensor for tensor in (base.tensor if base is not None else 0, maker.source) if tensor)


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
