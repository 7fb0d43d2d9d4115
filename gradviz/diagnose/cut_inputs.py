"""Parts whose only computed input is cut off from the graph, though it was computed from several results that the loss
uses with their graph: the decoder behind `z = (mu + noise * std).detach()` or `z = q.sample()`, beside a divergence of
mu and std.

A probe on `h.detach()` looks alike and is healthy: other parts use the same result with its graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradviz.diagnose.case import Case
from gradviz.diagnose.cut_uses import FirstPass, cut_behind, first_passes, sources_of
from gradviz.events.kinds import TensorMade
from gradviz.query.flow import NEAR, Use, Ways, groups_behind, reach, uses
from gradviz.query.lack import Lacks
from gradviz.query.ops import DRAWN

_SEVERAL = 2  # the fewest results that are cut together
_NEAR = 256  # the most tensors behind an input that are looked at


@dataclass(frozen=True, slots=True)
class CutInput:
    """An event that cuts off the only computed input of a part. `leaves` are the leaves behind the cut, `part` the
    leaves of the part, `root` the root of the pass."""

    event: int
    leaves: tuple[int, ...]
    part: tuple[int, ...]
    root: int


def cut_inputs(case: Case) -> list[CutInput]:
    """The inputs that are cut in the first pass of each line that begins passes. Use `case.of(cut_inputs)`."""
    found: dict[int, CutInput] = {}
    for first in first_passes(case):
        for one in _in_pass(case, first):
            found.setdefault(case.site(one.event), one)
    return list(found.values())


def _in_pass(case: Case, first: FirstPass) -> Iterator[CutInput]:
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
            yield CutInput(event, tuple(sorted(leaves)), tuple(sorted(use.leaves)), first.root)


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
