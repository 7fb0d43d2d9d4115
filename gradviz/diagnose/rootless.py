"""Calls of backward() on a root that does not require grad: the root, and why it does not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.events.kinds import REQUIRES_GRAD, Kind, OpRan, TensorMade
from gradviz.query.copies import copied_from, read_in_its_line, written_in_its_line
from gradviz.query.failures import Failure
from gradviz.query.flow import Ways, leaves_of, reach, taken_by
from gradviz.query.lack import FROM_OUTSIDE
from gradviz.query.pass_owners import PassOwners
from gradviz.query.refused import refused
from gradviz.sets import contained


@dataclass(frozen=True, slots=True)
class Rootless:
    """A backward() that failed. `root` is 0 if it is unknown. `cut` is the event that cuts the root off from a tensor
    that requires grad, `frozen` the events that switched requires_grad off at the leaves of the root: those after the
    pass `since`, the last one that went well at this line, or all of them if `since` is 0."""

    failure: Failure
    root: int
    cut: OpRan | TensorMade | None
    frozen: tuple[int, ...]
    since: int = 0


def rootless(case: Case) -> list[Rootless]:
    """The calls of backward() on roots that do not require grad. Use `case.of(rootless)`."""
    return [_explained(case, failure, root) for failure, root in refused(case.query)]


@dataclass(frozen=True, slots=True)
class RootOfNumbers:
    """A root that was made from plain numbers, as a leaf that nothing trains: its passes give a gradient to no other
    leaf. `made` is the event that made it, `number` the first pass from such a root at its line, `source` the tensor
    that its value comes from; 0 if there is none."""

    made: int
    root: int
    number: int
    source: int


def roots_of_numbers(case: Case) -> list[RootOfNumbers]:
    """The roots that were made from plain numbers, one for each line, if their pass belongs to an optimizer:
    `torch.tensor(total / n, requires_grad=True).backward()`. Use `case.of(roots_of_numbers)`."""
    found: dict[int, RootOfNumbers] = {}
    owners = case.query.of(PassOwners).optimizers
    from_outside = _from_outside(case)
    for backward_pass in case.trace.passes:
        if backward_pass.number not in from_outside or not owners(backward_pass.number):
            continue
        roots = case.query.passes.began(backward_pass.number).roots
        made = case.query.tensors.made(roots[0].tensor) if len(roots) == 1 and roots[0].tensor else None
        if not isinstance(made, TensorMade) or made.how not in FROM_OUTSIDE:
            continue
        if made.tensor not in case.training.trained and made.tensor not in case.training.holders:
            source = copied_from(case.query, made)
            found.setdefault(
                case.site(made.index), RootOfNumbers(made.index, made.tensor, backward_pass.number, source)
            )
    return list(found.values())


def _from_outside(case: Case) -> set[int]:
    """The passes with a root that no op made."""
    began, made = case.trace.table(Kind.PASS_BEGAN), case.trace.table(Kind.TENSOR)
    roots = began.lists("roots")
    return set(began["number"][roots.owners[contained(roots.elements[:, 2], made["tensor"])]].tolist())


def _explained(case: Case, failure: Failure, root: int) -> Rootless:
    if not root:
        return Rootless(failure, 0, None, ())
    up = Ways(case.query, root, failure.event)
    frozen = _frozen(case, _before_any_cut(case, up))
    if frozen:
        return _since_last_pass(case, Rootless(failure, root, None, frozen))
    cut = _best_cut(case, up)
    return Rootless(failure, root, cut, () if cut is not None else _frozen(case, up.leaves))


def _since_last_pass(case: Case, found: Rootless) -> Rootless:
    """A failed backward(), with only the events that can be its cause: before the last pass that went well at its line,
    nothing was frozen that this pass needed."""
    here = found.failure.site
    line = (here.place.file, here.place.line) if here is not None else ("", 0)
    earlier = [one for one in case.trace.passes if one.site and case.query.places.line(one.site) == line]
    done = [one for one in earlier if case.query.passes.is_done(one) and one.first < found.failure.event]
    frozen = tuple(event for event in found.frozen if done and event > done[-1].first)
    return replace(found, frozen=frozen, since=done[-1].number) if frozen else found


def _best_cut(case: Case, up: Ways) -> OpRan | TensorMade | None:
    """The cut on the path that was meant for gradients. If there are several cuts, as with a target under no_grad:
    first a cut with leaves behind it that an optimizer holds, then a cut with grad mode on, then the nearest. None if
    there is no cut."""
    cuts, copy = up.cuts, _copy(case, up)
    if not cuts:
        return copy
    ranked = [(_rank(case, up, cut), at, cut) for at, cut in enumerate(cuts)]
    if copy is not None:
        ranked.append((_rank(case, up, copy), len(cuts), copy))
    return min(ranked, key=lambda found: found[:2])[2]


def _rank(case: Case, up: Ways, cut: OpRan | TensorMade) -> tuple[bool, bool]:
    taken = {
        *taken_by(case.query, cut),
        copied_from(case.query, cut) if isinstance(cut, TensorMade) else 0,
    } - {0}
    behind = {*leaves_of(case.query, *taken), *taken}
    is_off = isinstance(cut, OpRan) and not cut.grad_enabled
    return behind.isdisjoint(case.training.holders), is_off


def _before_any_cut(case: Case, up: Ways) -> list[int]:
    """The leaves behind a root that are reached without passing an op that cuts off a tensor that requires grad."""

    def onward(tensor: int) -> tuple[int, ...]:
        taken = taken_by(case.query, case.query.tensors.made(tensor))
        is_cut = any(source and case.query.tensors.requires_grad(source, up.at) for source in taken)
        return () if is_cut else taken

    return sorted(set(up.leaves).intersection(reach([up.root], onward)), key=up.leaves.index)


def _copy(case: Case, up: Ways) -> OpRan | TensorMade | None:
    """The event that made a leaf of the root from the numbers of a tensor that requires grad, or the op that wrote such
    numbers into a leaf. Or the root, if it was made from numbers though a tensor requires grad: `torch.tensor(total)`
    of a sum of `.item()`. None if there is none."""
    for made in map(case.query.tensors.made, up.leaves):
        if not isinstance(made, TensorMade):
            continue
        if copied_from(case.query, made) or (made.how in FROM_OUTSIDE and read_in_its_line(case.query, made)):
            return made
    for write in (event for leaf in up.leaves for event in case.query.tensors.writes(leaf) if event < up.at):
        if case.query.tensors.is_op(write) and written_in_its_line(case.query, write):
            return case.query.tensors.op(write)
    root = case.query.tensors.made(up.root)
    is_of_numbers = isinstance(root, TensorMade) and root.how in FROM_OUTSIDE
    return root if is_of_numbers and _is_something_to_learn(case, up.at) else None


def _is_something_to_learn(case: Case, at: int) -> bool:
    """Whether a tensor required grad before an event."""
    states = case.trace.states
    return bool(np.any((states.events < at) & (states.flags & REQUIRES_GRAD > 0)))


def _frozen(case: Case, leaves: list[int]) -> tuple[int, ...]:
    """The events that switched requires_grad off at the leaves of a root."""
    changed = case.trace.table(Kind.REQUIRES_GRAD_CHANGED)
    of_leaves = contained(changed["tensor"], leaves)
    events = zip(changed.events[of_leaves].tolist(), changed["tensor"][of_leaves].tolist(), strict=True)
    return tuple(e for e, t in events if not case.query.tensors.requires_grad(t, e))
