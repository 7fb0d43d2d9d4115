"""Which leaves the roots of a run were computed from, and which leaves that should learn never get a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import NOTE, WARNING
from gradviz.events.kinds import LEAF, REQUIRES_GRAD, Kind, OpRan, PassBegan, TensorMade
from gradviz.query.copies import copied_from
from gradviz.query.cuts import Reason, why_no_node
from gradviz.query.scopes import FUNCTION
from gradviz.query.upstream import Downstream, Upstream
from gradviz.sets import contained, distinct, distinct_pairs
from gradviz.words.absence import NO_NODE
from gradviz.words.escape import clean

PARAMETER = "Parameter"
_WANTED = LEAF | REQUIRES_GRAD
_LEAVES = 256  # the most leaves that are explained
_NEW = {"randn", "rand", "zeros", "ones", "empty", "full", "arange", "randint", "gradient", PARAMETER}
_CHECKPOINT = "CheckpointFunction"
_NOT_REENTRANT = "checkpoint(..., use_reentrant=False); or an input that requires grad: x.requires_grad_()"
_FROM_OUTSIDE = {"from_numpy", "tensor", "as_tensor", "asarray", "new_tensor", "FloatTensor", "Tensor"}
_DETACHING = ("detach", "data")
_DEEPCOPY = "deepcopy"
_COPY = "keep the tensor: torch.stack([...]) or the tensor itself, not .item(), .numpy() or torch.tensor(...)"
_CURES = {
    Reason.NOTHING_REQUIRES_GRAD: "make the leaf with requires_grad=True",
    Reason.GRAD_MODE_OFF: "compute it outside of torch.no_grad()",
    Reason.DETACHED: "leave out .detach() here",
    Reason.NOT_DIFFERENTIABLE: "use a differentiable op here (softmax in place of argmax, no comparison, no integers)",
}
_ROOTS = 8  # the most roots that are looked at, each from another line


class Lack(Enum):
    """Why a leaf never gets a gradient."""

    CUT = "the path to the root is cut"
    COPIED = "the path to the root leads through plain numbers"
    OFF_PATH = "what is computed from it never reaches a root"
    UNUSED = "no op reads it before the last pass"
    NOT_ASKED = "no pass was asked for its gradient"


@dataclass(frozen=True, slots=True)
class Lacking:
    """A leaf without a gradient, and the event that explains it (−1 if there is none). `severity` depends on
    how sure it is that the leaf should learn."""

    leaf: int
    lack: Lack
    event: int
    root: int
    severity: str


def roots(case: Case) -> list[tuple[int, int]]:
    """(root, event of the beginning) of one pass from each line that calls backward()."""
    found: dict[int, tuple[int, int]] = {}
    for run in case.trace.passes:
        if run.site not in found and len(found) < _ROOTS:
            began = case.query.passes.began(run.number)
            if began.roots:
                found[run.site] = (began.roots[0].tensor, run.first)
    return [(root, event) for root, event in found.values() if root]


def lacking(case: Case) -> list[Lacking]:
    """The leaves that should learn and never get a gradient. Use `case.of(lacking)`."""
    found = []
    above = [(Upstream(case.query, root, event), root) for root, event in roots(case)]
    copies = {
        made.index: copied_from(case.query, made)
        for up, _ in above
        for made in map(case.query.tensors.made, up.leaves)
        if isinstance(made, TensorMade) and made.how not in _NEW
    }
    below = case.downstream
    for leaf, severity in list(_candidates(case).items())[:_LEAVES]:
        why = _why(case, leaf, above, copies, below)
        if why is not None:
            lack, event, root = why
            sure = severity if lack is not Lack.COPIED else WARNING
            if sure:
                found.append(Lacking(leaf, lack, event, root, sure))
    return found


def _why(
    case: Case,
    leaf: int,
    above: list[tuple[Upstream, int]],
    copies: dict[int, int],
    below: Downstream,
) -> tuple[Lack, int, int] | None:
    for up, root in reversed(above):  # a network that is cut off from several roots belongs to the last one
        if leaf in up.came and leaf not in _asked_of(case, up):
            cut = up.cut(leaf)
            return (Lack.CUT, cut.index, root) if cut is not None else (Lack.NOT_ASKED, up.at, root)
    results = below.results(leaf)
    for event, source in copies.items():
        if source in results:
            return Lack.COPIED, event, above[0][1] if above else 0
    for up, root in reversed(above):
        event = _cut_at_a_leaf(case, up, results)
        event = _left_for_numpy(case, up, results) if event < 0 else event
        if event >= 0:
            return Lack.CUT, event, root
    end = case.trace.passes[-1].first if case.trace.passes else case.trace.count
    readers = [op for found in results.values() for op in found if op < end and not _only_looks(case, op)]
    with_grad = [op for op in readers if case.query.tensors.op(op).grad_enabled]
    if not readers:
        return Lack.UNUSED, -1, 0
    if with_grad:
        event, root = _root_of_numbers(case, above)
        return (Lack.CUT, event, root) if root else (Lack.OFF_PATH, max(with_grad), 0)
    event = _function_without_node(case, min(readers))
    return (Lack.CUT, event, above[-1][1]) if event >= 0 and above else None


def _only_looks(case: Case, event: int) -> bool:
    """Whether an op detaches a tensor and no op reads the result: `state_dict()`, a value that is logged."""
    op = case.query.tensors.op(event)
    return op.op in _DETACHING and not any(map(case.downstream.readers, op.outputs))


def _asked_of(case: Case, up: Upstream) -> tuple[int, ...]:
    """The tensors whose gradients the pass from a root was asked for: `autograd.grad` returns them."""
    began = case.trace.event(up.at)
    return began.inputs if isinstance(began, PassBegan) else ()


def _cut_at_a_leaf(case: Case, up: Upstream, results: dict[int, list[int]]) -> int:
    """The event that made a leaf behind a root outside of the graph, of one of these results: `h.detach()` and then
    `requires_grad_()`; −1 if there is none."""
    for leaf in up.came:
        maker = case.query.tensors.made(leaf)
        if maker is None or not case.query.tensors.is_leaf_that_requires_grad(leaf, up.at):
            continue
        if set(up.taken_by(maker)) & set(results):
            return maker.index
    return -1


def _root_of_numbers(case: Case, above: list[tuple[Upstream, int]]) -> tuple[int, int]:
    """The event that made a root of plain numbers, a leaf that nobody trains, and that root:
    `loss = torch.tensor(total / n, requires_grad=True)`; (−1, 0) if there is none."""
    for _, root in reversed(above):
        made = case.query.tensors.made(root)
        if isinstance(made, TensorMade) and made.how in _FROM_OUTSIDE and root not in case.training.holders:
            return made.index, root
    return -1, 0


def _function_without_node(case: Case, event: int) -> int:
    """The op of the custom Function around an event, if it made no node because none of its inputs requires grad, as a
    checkpoint of a layer behind frozen ones; −1 if there is none."""
    scopes = case.query.scopes.around(event, case.query.tensors.op(event).thread)
    name = next((scope.name for scope in scopes if scope.kind == FUNCTION), None)
    if name is None:
        return -1
    ops = case.trace.table(Kind.OP)
    numbers = [number for number, text in case.trace.strings.items() if text == name]
    later = ops.events[contained(ops["op"], numbers) & (ops.events > event)]
    op = case.query.tensors.op(int(later[0])) if len(later) else None
    return op.index if op is not None and op.grad_enabled and not case.query.nodes.of_op(op.index) else -1


def _left_for_numpy(case: Case, up: Upstream, results: dict[int, list[int]]) -> int:
    """The event that detached one of these results, if no op reads it and, before the root was computed, a tensor came
    from outside: `torch.from_numpy(f(h.detach().numpy()))`; −1 if there is none."""
    made = [case.query.tensors.made(leaf) for leaf in up.leaves]
    outside = [m.index for m in made if isinstance(m, TensorMade) and m.how in _FROM_OUTSIDE]
    earlier = max((run.first for run in case.trace.passes if run.first < up.at), default=-1)
    for result, readers in results.items():
        maker = case.query.tensors.made(result)
        if readers or maker is None or not earlier < maker.index < max(outside, default=-1):
            continue
        if isinstance(maker, OpRan) and maker.op in _DETACHING and maker.inputs:
            return maker.index
    return -1


def _candidates(case: Case) -> dict[int, str]:
    """The leaves that require grad at the end of the run and never got a gradient, each with the severity of
    that; empty where it is no more than possible that the leaf should learn."""
    query, trace = case.query, case.trace
    tensors, flags = query.tensors.leaf_flags.standing(trace.count - 1)
    wanting = tensors[flags & _WANTED == _WANTED]
    assigned = trace.table(Kind.GRAD_ASSIGNED)
    given = assigned["tensor"][assigned["grad"] > 0]
    got = {*trace.table(Kind.ACCUMULATED)["tensor"].tolist(), *given.tolist()}
    stepping = set(case.training.stepped["optimizer"].tolist())
    held = {tensor for tensor, holders in case.training.holders.items() if holders & stepping}
    asked = set(distinct(trace.table(Kind.PASS_BEGAN).lists("inputs").values).tolist()) - held
    learning = case.training.trained or got
    families = {_family(case, tensor) for tensor in learning} - {""}
    nothing_learns = len(case.training.stepped) > 0 and not families and not case.training.trained
    found = {}
    for tensor in wanting.tolist():
        made = query.tensors.made(tensor)
        if tensor in got or tensor in asked or not isinstance(made, TensorMade) or made.how == "gradient":
            continue
        if case.trace.passes and made.index > case.trace.passes[-1].first:  # no pass could reach it
            continue
        sure = nothing_learns or tensor in held
        found[tensor] = WARNING if sure else _severity(case, tensor, made, families)
    return found


def _severity(case: Case, tensor: int, made: TensorMade, families: set[str]) -> str:
    if tensor in case.training.owners:
        return WARNING
    if made.how == _DEEPCOPY:  # of something that learns: what is kept of it
        return NOTE
    is_parameter = made.how == PARAMETER or tensor in case.trace.parameters
    if is_parameter and case.training.holders:
        return WARNING if tensor in case.training.holders else NOTE
    if is_parameter:
        return WARNING if _family(case, tensor) in families else NOTE
    if _line(case, made.site) in case.of(_lines_of_states):
        return NOTE
    return WARNING if case.training.trained and case.query.names.of(tensor) else NOTE


def _lines_of_states(case: Case) -> set[tuple[str, int]]:
    """The lines that make a tensor anew for each pass: a state to begin with, not something to learn."""
    made, begun = case.trace.table(Kind.TENSOR), case.trace.table(Kind.PASS_BEGAN)
    passes_before = np.searchsorted(begun.events, made.events)
    found: dict[tuple[str, int], set[int]] = {}
    for site, count in distinct_pairs(made.sites, passes_before).tolist():
        found.setdefault(_line(case, site), set()).add(count)
    return {line for line, counts in found.items() if line[0] and len(counts) > 1}


def _line(case: Case, number: int) -> tuple[str, int]:
    site = case.query.places.site(number)
    return ("", 0) if site is None else (site.place.file, site.place.line)


def _family(case: Case, tensor: int) -> str:
    """The variable that holds the module of a parameter; empty for any other tensor."""
    return case.trace.parameters.get(tensor, "").partition(".")[0]


def how_cut(case: Case, event: int) -> tuple[str, str]:
    """Why no gradient passes an event, and the cure."""
    maker = case.trace.event(event)
    if isinstance(maker, OpRan):
        reason = why_no_node(case.query, maker)
        if reason is Reason.NOTHING_REQUIRES_GRAD and maker.op == _CHECKPOINT:
            return f"{NO_NODE[reason]}, and a reentrant checkpoint sees no other tensors", _NOT_REENTRANT
        return NO_NODE[reason], _CURES[reason]
    assert isinstance(maker, TensorMade)
    if case.query.trace.states.bases[case.query.trace.states.first(maker.tensor)]:
        return (
            f".{clean(maker.how)} is outside of the graph",
            f"use the tensor itself, without .{clean(maker.how)}",
        )
    return f"{clean(maker.how)} makes a new leaf of the plain numbers", _COPY
