"""The leaves that should learn and never get a gradient, how sure it is that they should, and the roots that do not
require grad."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, cast

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import NOTE, WARNING
from gradviz.events.kinds import LEAF, REQUIRES_GRAD, Kind, OpRan, TensorMade
from gradviz.query.copies import copied_from, original, read_in_its_line, written_in_its_line
from gradviz.query.failures import Failure, refused
from gradviz.query.flow import Ways, leaves_of, reach, taken_by
from gradviz.query.ledger import Ledger
from gradviz.query.missing_gradients import FROM_OUTSIDE, PARAMETER, Lack, Lacking, Lacks
from gradviz.query.names import EARLIER
from gradviz.query.statements import wrong_values
from gradviz.query.writes import Writes
from gradviz.sets import contained, distinct, distinct_pairs

_WANTED = LEAF | REQUIRES_GRAD
_LEAVES = 256  # the most leaves that are explained
_DEEPCOPY = "deepcopy"
_OFTEN = 3  # writes


@dataclass(frozen=True, slots=True)
class Wanting(Lacking):
    """A leaf that should learn and never got a gradient: why, and how sure it is that it should learn."""

    severity: str = WARNING


def lacking(case: Case) -> list[Wanting]:
    """The leaves that should learn and never get a gradient, or are cut off from a later pass on. Use
    `case.of(lacking)`."""
    lacks = case.query.of(Lacks)
    late = [cut for one in case.query.of(Ledger).stopped.items() if (cut := lacks.cut_after(*one)) is not None]
    found = [_wanting(cut, WARNING) for cut in late[:_LEAVES]]
    for leaf, severity in list(_candidates(case).items())[:_LEAVES]:
        why = lacks.of(leaf)
        if why is not None:
            sure = severity if why.lack is not Lack.COPIED else WARNING
            if sure and not (sure == NOTE and (_is_left_as_it_is(case, why) or _is_searched(case, leaf))):
                found.append(_wanting(why, sure))
    return found


def _wanting(why: Lacking, severity: str) -> Wanting:
    return Wanting(**{part.name: getattr(why, part.name) for part in fields(why)}, severity=severity)


def lacks_gradient(case: Case, leaves: Sequence[int]) -> str:
    """The clause that leaves get no gradient: `w and b never get a gradient`; or, if passes of other optimizers give
    them one, `w gets no gradient before a step of its optimizer`; or `w gets no gradient after pass 5`."""
    is_one = len(leaves) == 1
    penalised = set(leaves) & case.query.of(Lacks).penalties.keys()
    if penalised == set(leaves):
        return f"only a penalty on {'its' if is_one else 'their'} own values brings {case.called(leaves)} a gradient"
    if penalised:
        return f"{case.called(leaves)} get no gradient, or only from a penalty on their own values"
    stopped = case.query.of(Ledger).stopped
    if stopped.keys() >= set(leaves):
        at = bisect_left(case.trace.passes, stopped[leaves[0]], key=lambda one: one.first)
        of_those = "" if case.recorded is None else " in the passes recorded"
        last = case.trace.passes[at - 1].number
        return f"{case.called(leaves)} get{'s' * is_one} no gradient{of_those} after pass {last}"
    if set(leaves).isdisjoint(case.query.of(Ledger).starved):
        return f"{case.called(leaves)} never get{'s' * is_one} a gradient"
    its = "its" if is_one else "their"
    return f"{case.called(leaves)} get{'s' * is_one} no gradient before a step of {its} optimizer"


def _is_left_as_it_is(case: Case, why: Lacking) -> bool:
    """Whether the program says twice that a leaf is not to learn, as of a teacher: only other leaves are in optimizers
    that step; and it is a copy, or grad mode was off where the path to the root is cut."""
    if not len(case.training.stepped) or why.leaf in case.training.holders:
        return False
    cut = case.trace.event(why.event) if why.lack is Lack.CUT and why.event >= 0 else None
    return original(case.query, why.leaf) not in (0, why.leaf) or (isinstance(cut, OpRan) and not cut.grad_enabled)


def _is_searched(case: Case, leaf: int) -> bool:
    """Whether the program writes to a leaf again and again at one line: it searches its values without gradients."""
    writes = case.query.of(Writes)
    sites = case.query.places.of_events[writes.events[writes.leaves == leaf]]
    return bool(np.unique(sites, return_counts=True)[1].max(initial=0) >= _OFTEN)


def _candidates(case: Case) -> dict[int, str]:
    """The leaves that require grad at the end of the run and never got a gradient, each with the severity; the severity
    is empty if nothing shows that the leaf should learn."""
    query, trace = case.query, case.trace
    lacks, starved = query.of(Lacks), query.of(Ledger).starved
    came = set(trace.table(Kind.ACCUMULATED)["tensor"].tolist())
    stepping = set(case.training.stepped["optimizer"].tolist())
    held = {tensor for tensor, holders in case.training.holders.items() if holders & stepping}
    asked = set(distinct(trace.table(Kind.PASS_BEGAN).lists("inputs").values).tolist()) - held
    learning = case.training.trained or came
    families = {case.model_of(tensor) for tensor in learning} - {""}
    nothing_learns = len(case.training.stepped) > 0 and not families and not case.training.trained
    left_out = asked | _still_waiting(case, came)
    found = {}
    for tensor in sorted({*lacks.never_got, *starved, *lacks.penalties} - left_out):
        made = query.tensors.made(tensor)
        is_other = isinstance(made, OpRan) and tensor not in held  # held: `torch.ones(3).log().requires_grad_()`
        if made is None or is_other or getattr(made, "how", "") == "gradient":
            continue
        if case.trace.passes and made.index > case.trace.passes[-1].first:  # no pass could reach it
            continue
        sure = nothing_learns or tensor in held
        found[tensor] = WARNING if sure else _severity(case, tensor, cast(TensorMade, made), families)
    return found


def _still_waiting(case: Case, got: set[int]) -> set[int]:
    """The parameters of optimizers whose turn has not come, in a program that ended with an exception or still runs:
    none of their parameters got a gradient, while parameters of other optimizers did, or no pass was for leaves."""
    if case.trace.meta.get("ended") not in ("error", ""):
        return set()
    holders = case.training.holders
    had_turns = {optimizer for leaf in got for optimizer in holders.get(leaf, set())}
    had_turns.update(case.training.stepped["optimizer"].tolist())
    are_asked = case.trace.named(case.trace.table(Kind.PASS_BEGAN)["how"], ("grad",)).all()
    return {leaf for leaf, own in holders.items() if (had_turns or are_asked) and not own & had_turns}


def _severity(case: Case, tensor: int, made: TensorMade, families: set[str]) -> str:
    if tensor in case.training.owners:
        return WARNING
    others_step = tensor not in case.training.holders or len(case.training.stepped) > 0
    # even a leaf whose own optimizer is never used
    if others_step and case.query.of(Writes).follows_another(tensor):
        return ""
    if made.how == _DEEPCOPY:  # a kept copy of a leaf that learns
        return NOTE
    is_parameter = made.how == PARAMETER or tensor in case.trace.parameters
    if is_parameter and case.training.holders:
        return WARNING if tensor in case.training.holders else NOTE
    if is_parameter:
        return WARNING if case.model_of(tensor) in families else NOTE
    if made.how == EARLIER and not case.downstream.readers(tensor):
        return ""  # a library made it where nothing was recorded, and shows it nowhere else
    if case.query.places.line(made.site) in case.of(_lines_of_states):
        return NOTE
    is_missed = any(value.type == "NoneType" for value in case.query.of(wrong_values))  # as a `.grad`
    return WARNING if (case.training.trained or is_missed) and case.query.names.of(tensor) else NOTE


def _lines_of_states(case: Case) -> set[tuple[str, int]]:
    """The lines that make a new tensor for each pass: it is a first state, not a leaf that should learn."""
    made, begun = case.trace.table(Kind.TENSOR), case.trace.table(Kind.PASS_BEGAN)
    passes_before = np.searchsorted(begun.events, made.events)
    found: dict[tuple[str, int], set[int]] = {}
    for site, count in distinct_pairs(made.sites, passes_before).tolist():
        found.setdefault(case.query.places.line(site), set()).add(count)
    return {line for line, counts in found.items() if line[0] and len(counts) > 1}


class Rootless(NamedTuple):
    """A backward() that failed. `root` is 0 if it is unknown. `cut` is the event that cuts the root off from a tensor
    that requires grad, `frozen` the events that switched requires_grad off at the leaves of the root: those after the
    pass `since`, the last one that went well at this line, or all of them if `since` is 0. `held` are leaves that an
    optimizer holds and that never required grad."""

    failure: Failure
    root: int
    cut: OpRan | TensorMade | None
    frozen: tuple[int, ...]
    since: int = 0
    held: tuple[int, ...] = ()
    unread: tuple[int, ...] = ()


def rootless(case: Case) -> list[Rootless]:
    """The calls of backward() on roots that do not require grad. Use `case.of(rootless)`."""
    return [_explained(case, failure, root) for failure, root in refused(case.query)]


def _explained(case: Case, failure: Failure, root: int) -> Rootless:
    """The reason of a failed backward(): a cut with leaves behind it that an optimizer holds; leaves without
    requires_grad that an optimizer holds, first if what is behind the cut learns elsewhere; leaves that were frozen and
    that nobody holds; any other cut."""
    if not root:
        return Rootless(failure, 0, None, ())
    up = Ways(case.query, root, failure.event)
    cut, openly = _best_cut(case, up), _before_any_cut(case, up)
    held = [leaf for leaf in openly if leaf in case.training.holders]
    behind = _behind(case, cut) & case.training.holders.keys() if cut is not None else set()
    came = case.trace.table(Kind.ACCUMULATED)["tensor"]
    if behind and not (held and contained([*behind], came).all()):
        return Rootless(failure, root, cut, ())
    frozen = _frozen(case, held or openly)
    unread = [leaf for leaf in case.training.holders if case.query.tensors.requires_grad(leaf, failure.event)]
    if unread and frozen and not held and cut is None and all(map(case.query.places.is_in_library, frozen)):
        return Rootless(failure, root, None, (), unread=tuple(unread))  # `with model.disable_adapter():`
    if frozen:
        return _since_last_pass(case, Rootless(failure, root, None, frozen))
    if held:
        return Rootless(failure, root, None, (), held=tuple(held))
    return Rootless(failure, root, cut, () if cut is not None else _frozen(case, up.leaves))


def _since_last_pass(case: Case, found: Rootless) -> Rootless:
    """A failed backward(), with only the events that can be its cause: before the last pass that went well at its line,
    nothing was frozen that this pass needed."""
    here = found.failure.site
    line = (here.place.file, here.place.line) if here is not None else ("", 0)
    earlier = [one for one in case.trace.passes if one.site and case.query.places.line(one.site) == line]
    done = [one for one in earlier if case.query.passes.is_done(one) and one.first < found.failure.event]
    frozen = tuple(event for event in found.frozen if done and event > done[-1].first)
    return found._replace(frozen=frozen, since=done[-1].number) if frozen else found


def _best_cut(case: Case, up: Ways) -> OpRan | TensorMade | None:
    """The cut on the path that was meant for gradients. If there are several cuts, as with a target under no_grad:
    first a cut with leaves behind it that an optimizer holds, then a cut with grad mode on, then the nearest. None if
    there is no cut."""
    cuts, copy = up.cuts, _copy(case, up)
    if not cuts:
        return copy
    ranked = [(_rank(case, cut), at, cut) for at, cut in enumerate(cuts)]
    if copy is not None:
        ranked.append((_rank(case, copy), len(cuts), copy))
    return min(ranked, key=lambda found: found[:2])[2]


def _behind(case: Case, cut: OpRan | TensorMade) -> set[int]:
    """The tensors that an event takes, and the leaves behind them."""
    copied = copied_from(case.query, cut) if isinstance(cut, TensorMade) else 0
    taken = {*taken_by(case.query, cut), copied} - {0}
    return {*leaves_of(case.query, *taken), *taken}


def _rank(case: Case, cut: OpRan | TensorMade) -> tuple[bool, bool]:
    behind = _behind(case, cut)
    is_off = isinstance(cut, OpRan) and not cut.grad_enabled
    return behind.isdisjoint(case.training.holders), is_off


def _before_any_cut(case: Case, up: Ways) -> list[int]:
    """The leaves behind a root that are reached without passing an op that cuts off a tensor that requires grad."""

    def onward(tensor: int) -> tuple[int, ...]:
        taken = taken_by(case.query, case.query.tensors.made(tensor))
        is_cut = any(source and case.query.tensors.requires_grad(source, up.at) for source in taken)
        return () if is_cut else taken

    before = set(reach([up.root], onward))
    return [leaf for leaf in up.leaves if leaf in before]


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
    states = case.trace.states
    is_anything_to_learn = bool(np.any((states.events < up.at) & (states.flags & REQUIRES_GRAD > 0)))
    return root if is_of_numbers and is_anything_to_learn else None


def _frozen(case: Case, leaves: list[int]) -> tuple[int, ...]:
    """The events that switched requires_grad off at the leaves of a root."""
    changed = case.trace.table(Kind.REQUIRES_GRAD_CHANGED)
    of_leaves = contained(changed["tensor"], leaves)
    events = zip(changed.events[of_leaves].tolist(), changed["tensor"][of_leaves].tolist(), strict=True)
    return tuple(e for e, t in events if not case.query.tensors.requires_grad(t, e))


_NUMBER = re.compile(r"\d+")


def has_used_twin(case: Case, leaf: int) -> bool:
    """Whether a leaf got a gradient whose form is the same and whose name differs only in its numbers."""
    name = case.trace.parameters.get(leaf, "")
    if not _NUMBER.search(name):
        return False
    got, form = case.of(_learning), _form(case, leaf)
    return any(
        _NUMBER.sub("#", other) == _NUMBER.sub("#", name) and _form(case, number) == form
        for other, number in got.items()
    )


def learns_in_other_blocks(case: Case, leaf: int) -> bool:
    """Whether a leaf is in a numbered block with other parts that get gradients, and the same part of another block
    gets a gradient. In the last block of a chain, nothing uses the output for a next block."""
    parts = case.trace.parameters.get(leaf, "").split(".")
    got = case.of(_learning)
    for place, part in enumerate(parts):
        block, rest = ".".join(parts[:place]), ".".join(parts[place + 1 :])
        same_part = re.compile(rf"{re.escape(block)}\.\d+\.{re.escape(rest)}")
        if (
            part.isdigit()
            and any(other.startswith(f"{block}.{part}.") for other in got)
            and any(same_part.fullmatch(other) for other in got)
        ):
            return True
    return False


def learns_in_another_model(case: Case, leaf: int) -> bool:
    """Whether the same parameter of another model gets a gradient: its path in the model is the same, and the same line
    made it. The class has the parameter for what that model is used for."""
    name, made = case.trace.parameters.get(leaf, ""), case.query.tensors.made(leaf)
    if "." not in name or made is None:
        return False
    path, line = name.partition(".")[2], case.query.places.line(made.site)
    got = set(case.trace.table(Kind.ACCUMULATED)["tensor"].tolist())
    return any(
        other.partition(".")[2] == path
        and number in got
        and (twin := case.query.tensors.made(number)) is not None
        and case.query.places.line(twin.site) == line
        for number, other in case.trace.parameters.items()
    )


def _learning(case: Case) -> dict[str, int]:
    """The parameters that learn from data, by name."""
    got = set(case.trace.table(Kind.ACCUMULATED)["tensor"].tolist()) - case.query.of(Lacks).penalties.keys()
    got -= set(case.query.of(Ledger).starved)
    return {name: number for number, name in case.trace.parameters.items() if number in got}


def _form(case: Case, tensor: int) -> object:
    states = case.trace.states
    return states.form(states.first(tensor))
