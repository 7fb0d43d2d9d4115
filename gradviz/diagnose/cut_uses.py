"""Calls of a part of a model with an input that is cut off from trained leaves, while another call of the same part in
the pass has an input with its graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradviz.diagnose.case import Case
from gradviz.events.kinds import LEAF, REQUIRES_GRAD, OpRan, TensorMade
from gradviz.query.copies import copied_from
from gradviz.query.flow import NEAR, leaves_of, op_of, reach, taken_by, uses
from gradviz.query.lack import FROM_OUTSIDE, Lacks
from gradviz.query.pass_owners import PassOwners

_NEAR = 256  # the most tensors behind an input that are looked at


@dataclass(frozen=True, slots=True)
class CutUse:
    """An event that cuts trained `leaves` off from a `root`, and the op `reader` that reads the cut tensor."""

    event: int
    root: int
    leaves: tuple[int, ...]
    reader: int


@dataclass(frozen=True, slots=True)
class FirstPass:
    """The first pass from a line: its number, its root, the event where it begins (`at`), the last event of the passes
    before it (`since`), and the leaves that it is meant to train (`own`)."""

    number: int
    root: int
    at: int
    since: int
    own: set[int]


def first_passes(case: Case) -> Iterator[FirstPass]:
    """The first pass of each line that begins passes, if its root is known."""
    seen: set[int] = set()
    ends = [case.query.passes.last(backward_pass) for backward_pass in case.trace.passes]
    for backward_pass in case.trace.passes:
        if backward_pass.site in seen:
            continue
        roots = case.query.passes.began(backward_pass.number).roots
        if not roots or not roots[0].tensor:
            continue
        seen.add(backward_pass.site)
        optimizers = case.query.of(PassOwners).optimizers(backward_pass.number)
        trained = {leaf for leaf, owners in case.training.owners.items() if owners & optimizers}
        since = max((end for end in ends if end < backward_pass.first), default=-1)
        yield FirstPass(backward_pass.number, roots[0].tensor, backward_pass.first, since, trained)


def cut_uses(case: Case) -> list[CutUse]:
    """The uses that are cut in the first pass of each line that begins passes. Use `case.of(cut_uses)`."""
    found: dict[int, CutUse] = {}
    for first in first_passes(case):
        for use in _in_pass(case, first.root, first.at, first.since, first.own):
            found.setdefault(case.site(use.event), use)
    return list(found.values())


def _in_pass(case: Case, root: int, at: int, since: int, own: set[int]) -> list[CutUse]:
    """The cut uses on the way to one root; `own` are the leaves that the pass is meant to train."""
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


def sources_of(case: Case, made: OpRan | TensorMade) -> list[int]:
    """The tensors that a tensor was made from; if it was made from numbers, the tensor whose values it has."""
    taken = [source for source in taken_by(case.query, made) if source]
    if not taken and isinstance(made, TensorMade) and made.how in FROM_OUTSIDE:
        taken = [source for source in (copied_from(case.query, made),) if source]
    return taken


def cut_behind(case: Case, tensor: int, since: int, own: set[int]) -> tuple[int, set[int]] | None:
    """(event, leaves): the first event after `since` that cuts a tensor off from a graph, and the leaves of `own`
    behind the cuts; None if there is none. Behind a cut only the graph is followed: another cut there takes nothing
    from this tensor."""
    cuts, leaves = set[int](), set[int]()

    def onward(source: int) -> list[int]:
        made = case.query.tensors.made(source)
        if made is None or made.index <= since:
            return []
        taken = sources_of(case, made)
        blocks = isinstance(made, TensorMade) or not case.query.nodes.of_op(made.index)
        open_ = {source for source in taken if _requires_grad(case, source, made.index)} if blocks else set()
        behind = {*open_, *leaves_of(case.query, *open_)} & own
        cuts.update({made.index} if behind else ())
        leaves.update(behind)
        return [source for source in taken if source not in open_]

    for _ in reach([tensor], onward, NEAR):
        pass
    return (min(cuts), leaves) if cuts else None


def _requires_grad(case: Case, tensor: int, at: int) -> bool:
    flags = case.query.tensors.flags(tensor, at)
    return bool(flags & REQUIRES_GRAD) and not (flags & LEAF and op_of(case.query, tensor) is not None)
