"""The tensors that a tensor was computed from, through data and graph: the leaves behind a root, and the cuts of the
paths to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import cached_property

import numpy as np

from gradviz.events.kinds import LEAF, Kind, OpRan, TensorMade
from gradviz.query.cuts import MOST, op_of, sources
from gradviz.query.query import Query


class Upstream:
    """All tensors that a root was computed from. `came[t]` is the tensor that t led to, on a shortest path to the root.
    The search ends at leaves that require grad, but not at the root: `loss.requires_grad = True` makes it a leaf."""

    def __init__(self, query: Query, root: int, at: int) -> None:
        self.query, self.root, self.at = query, root, at
        self.came: dict[int, int] = {root: 0}
        waiting = deque([root])
        while waiting and len(self.came) < MOST:
            tensor = waiting.popleft()
            if tensor != root and query.tensors.is_leaf_that_requires_grad(tensor, at):
                continue
            for source in sources(query, tensor, through_memory=True):
                if source and source not in self.came:
                    self.came[source] = tensor
                    waiting.append(source)

    def cut(self, start: int) -> OpRan | TensorMade | None:
        """The first event on the path from a tensor to the root that blocks gradients; None if there is none."""
        tensor = self.came.get(start, 0)
        while tensor:
            maker = self._blocking(tensor)
            if maker is not None:
                return maker
            tensor = self.came[tensor]
        return None

    @cached_property
    def cuts(self) -> list[OpRan | TensorMade]:
        """The events above the root that block gradients of a tensor that requires grad, by distance from the root."""
        cuts: list[OpRan | TensorMade] = []
        for maker in map(self._blocking, self.came):
            if maker is not None and any(map(self._requires_grad, self.taken_by(maker))):
                cuts.append(maker)
        return cuts

    @cached_property
    def leaves(self) -> list[int]:
        """The leaves that the root was computed from, without results of ops."""
        return [
            t
            for t in self.came
            if self.query.tensors.flags(t, self.at) & LEAF and op_of(self.query, t) is None
        ]

    def _blocking(self, tensor: int) -> OpRan | TensorMade | None:
        maker = self.query.tensors.made(tensor)
        if isinstance(maker, OpRan):
            return None if self.query.nodes.of_op(maker.index) else maker
        return maker if self.taken_by(maker) else None

    def taken_by(self, maker: OpRan | TensorMade | None) -> tuple[int, ...]:
        """The tensors that an event used."""
        if isinstance(maker, OpRan):
            return maker.inputs
        if maker is None:
            return ()
        base = self.query.tensors.base(self.query.tensors.before(maker.tensor, maker.index))
        return tuple(tensor for tensor in (base.tensor if base is not None else 0, maker.source) if tensor)

    def _requires_grad(self, tensor: int) -> bool:
        return bool(tensor and self.query.tensors.requires_grad(tensor, self.at))


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
    """The ops that read each tensor of a trace."""

    def __init__(self, query: Query) -> None:
        self.query = query
        ops = query.trace.table(Kind.OP)
        inputs = ops.lists("inputs")
        order = np.argsort(inputs.values, kind="stable")
        self._tensors, self._ops = inputs.values[order], ops.events[inputs.owners[order]]

    def readers(self, tensor: int) -> list[int]:
        """The ops that read a tensor, in order."""
        start, end = np.searchsorted(self._tensors, [tensor, tensor + 1])
        return self._ops[start:end].tolist()

    def results(self, tensor: int, most: int = 10_000) -> dict[int, list[int]]:
        """All tensors that were computed from a tensor, and the tensor itself; with each, the ops that read it."""
        readers_of = {tensor: self.readers(tensor)}
        waiting = deque([tensor])
        while waiting and len(readers_of) < most:
            for op in readers_of[waiting.popleft()]:
                for output in self.query.tensors.op(op).outputs:
                    if output not in readers_of:
                        readers_of[output] = self.readers(output)
                        waiting.append(output)
        return readers_of
