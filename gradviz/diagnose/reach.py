"""The leaves that should learn and never get a gradient, and how sure it is that they should."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import NOTE, WARNING
from gradviz.events.kinds import LEAF, REQUIRES_GRAD, Kind, OpRan, TensorMade
from gradviz.query.lack import PARAMETER, Lack, Lacking, Lacks
from gradviz.query.names import EARLIER
from gradviz.query.writes import Writes
from gradviz.sets import distinct, distinct_pairs

_WANTED = LEAF | REQUIRES_GRAD
_LEAVES = 256  # the most leaves that are explained
_DEEPCOPY = "deepcopy"
_OFTEN = 3  # writes


@dataclass(frozen=True, slots=True)
class Wanting:
    """A leaf that should learn and never got a gradient: why, and how sure it is that it should learn."""

    lacking: Lacking
    severity: str

    @property
    def leaf(self) -> int:
        """The leaf."""
        return self.lacking.leaf

    @property
    def lack(self) -> Lack:
        """Why it never got a gradient."""
        return self.lacking.lack

    @property
    def event(self) -> int:
        """The event that explains it; −1 if there is none."""
        return self.lacking.event

    @property
    def root(self) -> int:
        """The root that it should lead to; 0 if none is concerned."""
        return self.lacking.root


def lacking(case: Case) -> list[Wanting]:
    """The leaves that should learn and never get a gradient. Use `case.of(lacking)`."""
    found = []
    lacks = case.query.of(Lacks)
    for leaf, severity in list(_candidates(case).items())[:_LEAVES]:
        why = lacks.of(leaf)
        if why is not None:
            sure = severity if why.lack is not Lack.COPIED else WARNING
            if sure and not (sure == NOTE and (_is_left_as_it_is(case, why) or _is_searched(case, leaf))):
                found.append(Wanting(why, sure))
    return found


def _is_left_as_it_is(case: Case, why: Lacking) -> bool:
    """Whether the program says twice that a leaf is not to learn, as of a teacher: only other leaves are in optimizers
    that step, and grad mode was off where the path to the root is cut."""
    cut = case.trace.event(why.event) if why.lack is Lack.CUT and why.event >= 0 else None
    others_learn = len(case.training.stepped) > 0 and why.leaf not in case.training.holders
    return others_learn and isinstance(cut, OpRan) and not cut.grad_enabled


def _is_searched(case: Case, leaf: int) -> bool:
    """Whether the program writes to a leaf again and again at one line: it searches its values without gradients."""
    writes = case.query.of(Writes)
    sites = case.query.places.of_events[writes.events[writes.leaves == leaf]]
    return bool(np.unique(sites, return_counts=True)[1].max(initial=0) >= _OFTEN)


def _candidates(case: Case) -> dict[int, str]:
    """The leaves that require grad at the end of the run and never got a gradient, each with the severity; the severity
    is empty if nothing shows that the leaf should learn."""
    query, trace = case.query, case.trace
    tensors, flags = query.tensors.leaf_flags.standing(trace.count - 1)
    wanting = tensors[flags & _WANTED == _WANTED]
    assigned = trace.table(Kind.GRAD_ASSIGNED)
    assigned_to = assigned["tensor"][assigned["grad"] > 0]
    unknown = query.of(Writes).unwatched_leaves.tolist()
    got = {*trace.table(Kind.ACCUMULATED)["tensor"].tolist(), *assigned_to.tolist(), *unknown}
    stepping = set(case.training.stepped["optimizer"].tolist())
    held = {tensor for tensor, holders in case.training.holders.items() if holders & stepping}
    asked = set(distinct(trace.table(Kind.PASS_BEGAN).lists("inputs").values).tolist()) - held
    learning = case.training.trained or got
    families = {_family(case, tensor) for tensor in learning} - {""}
    nothing_learns = len(case.training.stepped) > 0 and not families and not case.training.trained
    waiting = _still_waiting(case, got)
    found = {}
    for tensor in wanting.tolist():
        made = query.tensors.made(tensor)
        if (
            tensor in got
            or tensor in asked
            or tensor in waiting
            or not isinstance(made, TensorMade)
            or made.how == "gradient"
        ):
            continue
        if case.trace.passes and made.index > case.trace.passes[-1].first:  # no pass could reach it
            continue
        sure = nothing_learns or tensor in held
        found[tensor] = WARNING if sure else _severity(case, tensor, made, families)
    return found


def _still_waiting(case: Case, got: set[int]) -> set[int]:
    """The parameters of optimizers whose turn has not come, in a program that ended with an exception or still runs:
    none of their parameters got a gradient, while parameters of other optimizers did."""
    if case.trace.meta.get("ended") not in ("error", ""):
        return set()
    holders = case.training.holders
    had_turns = {optimizer for leaf in got for optimizer in holders.get(leaf, set())}
    had_turns.update(case.training.stepped["optimizer"].tolist())
    return {leaf for leaf, own in holders.items() if had_turns and not own & had_turns}


def _severity(case: Case, tensor: int, made: TensorMade, families: set[str]) -> str:
    if tensor in case.training.owners:
        return WARNING
    others_step = tensor not in case.training.holders or len(case.training.stepped) > 0
    if others_step and case.query.of(Writes).follows_another(
        tensor
    ):  # even a leaf whose own optimizer is never used
        return ""
    if made.how == _DEEPCOPY:  # a kept copy of a leaf that learns
        return NOTE
    is_parameter = made.how == PARAMETER or tensor in case.trace.parameters
    if is_parameter and case.training.holders:
        return WARNING if tensor in case.training.holders else NOTE
    if is_parameter:
        return WARNING if _family(case, tensor) in families else NOTE
    if made.how == EARLIER and not case.downstream.readers(tensor):
        return ""  # a library made it where nothing was recorded, and shows it nowhere else
    if case.query.places.line(made.site) in case.of(_lines_of_states):
        return NOTE
    return WARNING if case.training.trained and case.query.names.of(tensor) else NOTE


def _lines_of_states(case: Case) -> set[tuple[str, int]]:
    """The lines that make a new tensor for each pass: it is a first state, not a leaf that should learn."""
    made, begun = case.trace.table(Kind.TENSOR), case.trace.table(Kind.PASS_BEGAN)
    passes_before = np.searchsorted(begun.events, made.events)
    found: dict[tuple[str, int], set[int]] = {}
    for site, count in distinct_pairs(made.sites, passes_before).tolist():
        found.setdefault(case.query.places.line(site), set()).add(count)
    return {line for line, counts in found.items() if line[0] and len(counts) > 1}


def _family(case: Case, tensor: int) -> str:
    """The variable that holds the module of a parameter; empty for any other tensor."""
    return case.trace.parameters.get(tensor, "").partition(".")[0]
