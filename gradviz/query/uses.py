"""The uses of parameters on the way to the root of a pass: the ops with a node that read them, directly or through
views such as `weight.t()`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradviz.query.cuts import op_of
from gradviz.query.query import Query
from gradviz.query.separation import Ways


@dataclass(frozen=True, slots=True)
class Use:
    """An op, the leaves that require grad among its inputs, and its data: the other inputs."""

    event: int
    leaves: frozenset[int]
    data: tuple[int, ...]


class _Uses:
    """The uses on the ways of one trace, cached: several rules need the same uses."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.known: dict[Ways, list[Use]] = {}

    def of(self, ways: Ways) -> list[Use]:
        """The uses on the ways to a root."""
        known_uses = self.known.get(ways)
        if known_uses is None:
            known_uses = self.known[ways] = _uses(self.query, ways)
        return known_uses


def uses(query: Query, ways: Ways) -> list[Use]:
    """The uses in forward on the ways by which gradients flow to a root, in order. A view of a leaf is not a use."""
    return query.of(_Uses).of(ways)


def _uses(query: Query, ways: Ways) -> list[Use]:
    of_leaves: list[Use] = []
    for event in _events(query, ways):
        parts = {t: ways.viewed_leaf(t) for t in query.tensors.op(event).inputs if t}
        leaves = frozenset(leaf for leaf in parts.values() if leaf)
        if leaves and len(parts) > 1:
            of_leaves.append(Use(event, leaves, tuple(t for t, leaf in parts.items() if not leaf)))
    return of_leaves


def _events(query: Query, ways: Ways) -> list[int]:
    """The ops with a node that computed tensors with an open way to a root, in order, without ops inside a pass."""
    ops = (op_of(query, tensor) for tensor in ways.reached_openly)
    events = np.array(sorted({op.index for op in ops if op is not None and query.nodes.of_op(op.index)}), int)
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
