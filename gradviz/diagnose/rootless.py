"""backward() on a root that does not require grad: which tensor that is, and why."""

from __future__ import annotations

from dataclasses import dataclass

from gradviz.diagnose.case import Case
from gradviz.events.kinds import REQUIRES_GRAD, Kind, OpRan, TensorMade
from gradviz.query.copies import copied_from
from gradviz.query.failures import Failure
from gradviz.query.lack import FROM_OUTSIDE
from gradviz.query.refused import refused
from gradviz.query.upstream import Upstream
from gradviz.sets import contained


@dataclass(frozen=True, slots=True)
class Rootless:
    """A backward() that failed. `root` is 0 if it is unknown. `cut` is the event that cuts it off from what
    requires grad, `frozen` those that switched requires_grad off at its leaves."""

    failure: Failure
    root: int
    cut: OpRan | TensorMade | None
    frozen: tuple[int, ...]


def rootless(case: Case) -> list[Rootless]:
    """The calls of backward() on roots that do not require grad. Use `case.of(rootless)`."""
    return [_explained(case, failure, root) for failure, root in refused(case.query)]


def _explained(case: Case, failure: Failure, root: int) -> Rootless:
    if not root:
        return Rootless(failure, 0, None, ())
    up = Upstream(case.query, root, failure.event)
    frozen = _frozen(case, _before_any_cut(case, up))
    if frozen:
        return Rootless(failure, root, None, frozen)
    cut = up.nearest_cut or _copy(case, up)
    return Rootless(failure, root, cut, () if cut is not None else _frozen(case, up.leaves))


def _before_any_cut(case: Case, up: Upstream) -> list[int]:
    """The leaves that a root was computed from by ops none of which cut off what requires grad."""
    waiting, seen = [up.root], {up.root}
    while waiting:
        tensor = waiting.pop()
        taken = [source for source in up.taken_by(case.query.tensors.made(tensor)) if source]
        if any(case.query.tensors.flags(source, up.at) & REQUIRES_GRAD for source in taken):
            continue
        waiting += [source for source in taken if source not in seen]
        seen.update(taken)
    return [leaf for leaf in up.leaves if leaf in seen]


def _copy(case: Case, up: Upstream) -> TensorMade | None:
    """The leaf among those of the root that was made from the numbers of a tensor that requires grad; or the root, if
    it is made of numbers though there is something to train: `torch.tensor(total)` of a sum of `.item()`."""
    for made in map(case.query.tensors.made, up.leaves):
        if isinstance(made, TensorMade) and copied_from(case.query, made):
            return made
    root = case.query.tensors.made(up.root)
    is_of_numbers = isinstance(root, TensorMade) and root.how in FROM_OUTSIDE
    return root if is_of_numbers and case.training.holders else None  # type: ignore[return-value]


def _frozen(case: Case, leaves: list[int]) -> tuple[int, ...]:
    """The events that switched requires_grad off at the leaves of a root."""
    changed = case.trace.table(Kind.REQUIRES_GRAD_CHANGED)
    own = contained(changed["tensor"], leaves)
    events = zip(changed.events[own].tolist(), changed["tensor"][own].tolist(), strict=True)
    return tuple(e for e, t in events if not case.query.tensors.flags(t, e) & REQUIRES_GRAD)
