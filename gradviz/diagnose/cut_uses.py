"""Uses of a leaf that are cut where their twins are not: a part with parameters of its own is called twice in a pass,
once with what gradients flow back from, once with what was cut off from leaves that are trained."""

from __future__ import annotations

from dataclasses import dataclass

from gradviz.diagnose.case import Case
from gradviz.events.kinds import LEAF, REQUIRES_GRAD, TensorMade
from gradviz.query.cuts import op_of
from gradviz.query.lack import Lacks
from gradviz.query.pass_owners import PassOwners
from gradviz.query.separation import taken_by
from gradviz.query.uses import uses

_NEAR = 256  # tensors behind a cut that are looked at


@dataclass(frozen=True, slots=True)
class CutUse:
    """An event that cuts a use of trained leaves off, the root of the pass, and what reads the cut tensor."""

    event: int
    root: int
    leaves: tuple[int, ...]
    reader: int


def cut_uses(case: Case) -> list[CutUse]:
    """The uses that are cut in the first pass of each line that begins passes. Use `case.of(cut_uses)`."""
    found: dict[int, CutUse] = {}
    seen: set[int] = set()
    ends = [case.query.passes.last(run) for run in case.trace.passes]
    for run in case.trace.passes:
        roots = case.query.passes.began(run.number).roots
        if run.site in seen or not roots or not roots[0].tensor:
            continue
        seen.add(run.site)
        own = {
            leaf
            for leaf, owners in case.training.owners.items()
            if owners & case.query.of(PassOwners).optimizers(run.number)
        }
        since = max((end for end in ends if end < run.first), default=-1)
        for use in _in_pass(case, roots[0].tensor, run.first, since, own):
            found.setdefault(case.site(use.event), use)
    return list(found.values())


def _in_pass(case: Case, root: int, at: int, since: int, own: set[int]) -> list[CutUse]:
    """The cut uses on the way to one root; `own` are the leaves that the pass is to train."""
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
                found.append(CutUse(cut[0], root, tuple(sorted(cut[1])), event))
    return found


def cut_behind(case: Case, tensor: int, since: int, own: set[int]) -> tuple[int, set[int]] | None:
    """The event behind a tensor that cuts off what requires grad and was computed after `since`, and the leaves behind
    it that are to be trained; None if there is none."""
    waiting, seen = [tensor], {tensor}
    cut, leaves = -1, set[int]()
    while waiting and len(seen) < _NEAR:
        made = case.query.tensors.made(waiting.pop())
        if made is None or made.index <= since:
            continue
        taken = [source for source in taken_by(case.query, made) if source]
        blocks = isinstance(made, TensorMade) or not case.query.nodes.of_op(made.index)
        if blocks and any(_requires_grad(case, source, made.index) for source in taken):
            cut = made.index if cut < 0 else min(cut, made.index)
        leaves.update(source for source in taken if source in own)
        waiting += [source for source in taken if source not in seen]
        seen.update(taken)
    return (cut, leaves) if cut >= 0 and leaves else None


def _requires_grad(case: Case, tensor: int, at: int) -> bool:
    flags = case.query.tensors.flags(tensor, at)
    return bool(flags & REQUIRES_GRAD) and not (flags & LEAF and op_of(case.query, tensor) is not None)
