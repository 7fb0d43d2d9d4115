"""Leaves that two optimizers hold, and that get gradients from the passes of one optimizer only: they are cut off from
the roots of the other optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradviz.diagnose.case import Case
from gradviz.diagnose.cut_uses import FirstPass, cut_behind, first_passes
from gradviz.events.kinds import Kind
from gradviz.query.flow import uses
from gradviz.query.lack import Lacks
from gradviz.query.pass_owners import PassOwners
from gradviz.sets import contained, distinct

_SEVERAL = 2  # the fewest optimizers of a shared leaf


@dataclass(frozen=True, slots=True)
class CutHolding:
    """An event that cuts leaves off from the root of the passes of one of their optimizers."""

    event: int
    leaves: tuple[int, ...]
    optimizer: int
    root: int


def cut_holdings(case: Case) -> list[CutHolding]:
    """The cuts in the first pass of each line that begins passes. Use `case.of(cut_holdings)`."""
    return list(_found(case))


def _found(case: Case) -> Iterator[CutHolding]:
    owners = case.query.of(PassOwners)
    for first in first_passes(case):
        optimizers = owners.optimizers(first.number)
        if len(optimizers) != 1:
            continue
        optimizer = min(optimizers)
        missing = _without_gradients(case, optimizer)
        cut = _cut(case, first, missing) if missing else None
        if cut is not None:
            yield CutHolding(cut[0], tuple(sorted(cut[1])), optimizer, first.root)


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
