"""Cells of recurrent networks whose gates are at their ends. A cell is one op for PyTorch, so that the results of the
gates are not known. But the nodes of the gates show which part of the gradient they let through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.events.kinds import Kind
from gradviz.events.values import Stat
from gradviz.query.ops import CELLS
from gradviz.sets import contained

_HIGHEST = {"TanhBackward0": 1.0, "SigmoidBackward0": 0.25}  # the derivative at 0
_FLAT = 0.245  # a share of the highest derivative: the root mean square if only 6 of 100 elements have it
_SHARE = 0.9  # the least share of the calls
_MOST, _LEAST = 64, 2  # the most and the fewest calls that are looked at


@dataclass(frozen=True, slots=True)
class SaturatedCell:
    """The first call of a cell, the number of its gates that are at their ends, and the number of all its gates."""

    event: int
    flat: int
    gates: int


def saturated_cells(case: Case) -> Iterator[SaturatedCell]:
    """The cells with half of their gates or more at their ends in most calls of a line, one for each line."""
    ops = case.trace.table(Kind.OP)
    chosen = case.trace.named(ops["op"], tuple(CELLS)) & contained(ops.events, case.query.nodes.ops_that_ran)
    for events in case.by_site(ops.events[chosen]).values():
        calls = [_flat_gates(case, event) for event in events[:_MOST].tolist()]
        gates = len(calls[0])
        if len(calls) < _LEAST or not gates or any(len(call) != gates for call in calls):
            continue
        flat = sum(_is_flat([call[i] for call in calls]) for i in range(gates))
        if 2 * flat >= gates:
            yield SaturatedCell(int(events[0]), flat, gates)


def _is_flat(calls: list[bool | None]) -> bool:
    known = [call for call in calls if call is not None]
    return len(known) >= _LEAST and sum(known) >= _SHARE * len(known)


def _flat_gates(case: Case, event: int) -> list[bool | None]:
    """For each gate of a call, whether it lets almost no gradient through; None if it received no gradient."""
    flat: list[bool | None] = []
    for node in case.query.nodes.of_op(event):
        made = case.query.nodes.event(node)
        highest = _HIGHEST.get(made.grad_fn, 0.0) if made is not None else 0.0
        if highest:
            passed = _passed(case, node)
            flat.append(None if passed is None else passed < _FLAT * highest)
    return flat


def _passed(case: Case, node: int) -> float | None:
    """The size of the gradient that a node gave over that of the gradient that it received (None if it received
    nothing)."""
    came, gave = case.of(_received).get(node, 0.0), case.of(_produced).get(node, 0.0)
    return gave / came if came > 0 else None


def _received(case: Case) -> dict[int, float]:
    """The root mean square of the first gradient that each node received."""
    table = case.trace.table(Kind.RECEIVED)
    gradients = table.lists("gradients")
    return _rms_by_node(case, table["node"], table.events, gradients.firsts)


def _produced(case: Case) -> dict[int, float]:
    """The root mean square of the first gradient that each node gave."""
    table = case.trace.table(Kind.PRODUCED)
    flows = table.lists("flows")
    first = flows.positions == 0
    owners = flows.owners[first]
    return _rms_by_node(case, table["node"][owners], table.events[owners], flows.elements[first, 1])


def _rms_by_node(case: Case, nodes: np.ndarray, events: np.ndarray, tensors: np.ndarray) -> dict[int, float]:
    rows = case.trace.states.rows_of(tensors, events)
    known = rows >= 0
    sizes = case.trace.states.stats[rows[known], Stat.RMS]
    return dict(zip(nodes[known].tolist(), sizes.tolist(), strict=True))
