"""The leaves that should learn and never get a gradient, and how sure it is that they should."""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import NOTE, WARNING
from gradviz.events.kinds import LEAF, REQUIRES_GRAD, Kind, OpRan, TensorMade
from gradviz.query.copies import numbers_in, read_in_its_line, written_in_its_line
from gradviz.query.cut_places import place_of_cut, switched_off
from gradviz.query.cuts import Reason, why_no_node
from gradviz.query.lack import PARAMETER, Lack, Lacking, Lacks
from gradviz.query.ops import DISCRETE, DRAWN
from gradviz.query.source_trees import in_place, statement_at
from gradviz.query.writes import Writes
from gradviz.sets import distinct, distinct_pairs
from gradviz.words.absence import NO_NODE
from gradviz.words.escape import clean

_WANTED = LEAF | REQUIRES_GRAD
_LEAVES = 256  # the most leaves that are explained
_CHECKPOINT = "CheckpointFunction"
_NOT_REENTRANT = "pass use_reentrant=False to checkpoint(), or give it an input that requires grad"
_BLOCK = "switch it off by a `with torch.no_grad():`, which ends with its block"
_DEEPCOPY = "deepcopy"
_DETACH, _SAMPLE = ".detach()", ".sample("
_COPYING = ("tensor", "as_tensor")  # makers that take the numbers of a tensor
_COPY = "keep the tensor itself, or torch.stack() of several: not .item(), .numpy() or torch.tensor()"
_CURES = {
    Reason.NOTHING_REQUIRES_GRAD: "make the leaf with requires_grad=True",
    Reason.GRAD_MODE_OFF: "compute it outside of torch.no_grad()",
    Reason.NOT_DIFFERENTIABLE: "use a differentiable op here (softmax in place of argmax, no comparison, no integers)",
}


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
            if sure:
                found.append(Wanting(why, sure))
    return found


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
    """The parameters of the optimizers whose turn had not come when the program ended by an exception, or has not come
    yet: no parameter of theirs got a gradient, and those of others did."""
    if case.trace.meta.get("ended") not in ("error", ""):
        return set()
    holders = case.training.holders
    had_turns = {optimizer for leaf in got for optimizer in holders.get(leaf, set())}
    had_turns.update(case.training.stepped["optimizer"].tolist())
    return {leaf for leaf, own in holders.items() if had_turns and not own & had_turns}


def _severity(case: Case, tensor: int, made: TensorMade, families: set[str]) -> str:
    if tensor in case.training.owners:
        return WARNING
    if tensor not in case.training.holders and case.query.of(Writes).follows_another(tensor):
        return ""
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
        if not maker.grad_enabled and switched_off(case.query, event) is not None:
            return (
                "grad mode is off from here on",
                "switch grad mode off by a block with torch.no_grad(), which ends with its block",
            )
        if maker.op == "data":
            return ".data is outside of the graph", "use the tensor itself, without .data"
        reason = why_no_node(case.query, maker)
        if reason is Reason.NOTHING_REQUIRES_GRAD and written_in_its_line(case.query, event):
            return "what is written here are plain numbers", _of_tensors(case, event) or _COPY
        if reason is Reason.GRAD_MODE_OFF and maker.op not in DISCRETE and _is_sample(case, event):
            return _with_a_graph(case, event)
        if reason is Reason.NOTHING_REQUIRES_GRAD and maker.op == _CHECKPOINT:
            return f"{NO_NODE[reason]}, and a reentrant checkpoint sees no other tensors", _NOT_REENTRANT
        if reason is Reason.GRAD_MODE_OFF and (update := _update_in_place(case, maker)):
            return NO_NODE[reason], update
        if reason is Reason.DETACHED:
            return NO_NODE[reason], _without_detach(case, event)
        return NO_NODE[reason], _CURES[reason]
    assert isinstance(maker, TensorMade)
    if maker.how in DRAWN and _is_sample(case, event):
        return _with_a_graph(case, event)
    if case.query.trace.states.base(maker.tensor):
        return (
            f".{clean(maker.how)} is outside of the graph",
            f"use the tensor itself, without .{clean(maker.how)}",
        )
    return f"{clean(maker.how)} makes a new leaf of the plain numbers", _without_copy(case, maker) or _COPY


def _update_in_place(case: Case, op: OpRan) -> str:
    """`x -= 0.1 * x.grad` for `x = x - 0.1 * x.grad`, which makes a new tensor of a leaf; empty for another line."""
    leaf = op.inputs[0] if op.inputs else 0
    if not leaf or not case.query.tensors.is_leaf_that_requires_grad(leaf, op.index):
        return ""
    statement = statement_at(case.query, case.query.places.site(op.site))
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    update = in_place(statement, ast.unparse(target)) if target is not None else ""
    return f"{clean(update)}  # in place: it stays the leaf" if update else ""


class _OfTensors(ast.NodeTransformer):
    """Takes `.item()` and `float()` out of an expression."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "item" and not node.args:
            return self.generic_visit(node.func.value)
        if isinstance(node.func, ast.Name) and node.func.id == "float" and len(node.args) == 1:
            return self.generic_visit(node.args[0])
        return self.generic_visit(node)


def _of_tensors(case: Case, event: int) -> str:
    """The statement of an event with the tensors in place of their numbers; empty if that is no other statement."""
    statement = statement_at(case.query, case.query.places.site(case.site(event)))
    return "" if statement is None else of_tensors(statement)


def of_tensors(statement: ast.stmt) -> str:
    """A statement without `.item()` and `float()`; empty if it has none."""
    before = ast.unparse(statement)
    after = ast.unparse(_OfTensors().visit(copy.deepcopy(statement)))
    return "" if after == before else clean(after)


def _are_tensors(case: Case, parts: list[ast.expr], at: int) -> bool:
    """Whether all elements of a list are computed from tensors that the program names."""
    called = case.query.names.tensor_called
    return bool(parts) and all(any(called(name, at) for name in numbers_in(part)) for part in parts)


def _without_copy(case: Case, made: TensorMade) -> str:
    """`y = x ** 2` for `y = torch.tensor(x ** 2)`, if that is the whole statement; else empty."""
    statement = statement_at(case.query, case.query.places.site(made.site))
    value = statement.value if isinstance(statement, ast.Assign) else None
    if made.how not in _COPYING or not isinstance(value, ast.Call) or not value.args:
        return ""
    is_copy = isinstance(value.func, ast.Attribute) and value.func.attr == made.how
    own = value.args[0]
    if is_copy and isinstance(own, ast.List) and _are_tensors(case, own.elts, made.index):
        parts = ", ".join(ast.unparse(_OfTensors().visit(copy.deepcopy(part))) for part in own.elts)
        assert isinstance(statement, ast.Assign)
        assert isinstance(value.func, ast.Attribute)
        library = ast.unparse(value.func.value)
        return clean(
            f"{ast.unparse(statement.targets[0])} = {library}.stack([{parts}])  # the tensors themselves"
        )
    if not is_copy or not isinstance(own, ast.BinOp | ast.Call) or not read_in_its_line(case.query, made):
        return ""
    assert isinstance(statement, ast.Assign)
    kept = _OfTensors().visit(copy.deepcopy(own))
    return clean(f"{ast.unparse(statement.targets[0])} = {ast.unparse(kept)}  # the tensor itself")


def _is_sample(case: Case, event: int) -> bool:
    """Whether a cut is the `sample()` of a distribution."""
    return _SAMPLE in _text_of_cut(case, event)


def _with_a_graph(case: Case, event: int) -> tuple[str, str]:
    """Why no gradient passes the `sample()` of a distribution, and the cure."""
    drawn = _text_of_cut(case, event).replace(_SAMPLE, ".rsample(")
    return "sample() draws without a graph", f"{clean(drawn)}  # which keeps the graph"


def _text_of_cut(case: Case, event: int) -> str:
    """The expression at the place of a cut."""
    place = place_of_cut(case.query, event)
    return case.query.places.expression(place.number) if place is not None else ""


def _without_detach(case: Case, event: int) -> str:
    """The expression of a `detach()` without it."""
    place = place_of_cut(case.query, event)
    text = _text_of_cut(case, event)
    if text.endswith(_DETACH):
        return f"{clean(text.removesuffix(_DETACH))}  # without {_DETACH}"
    line = case.query.places.line_text(place.number) if place is not None else ""
    return (
        f"leave out {_DETACH} here"
        if "detach" in line
        else "use the tensor itself here, not a copy of its values"
    )
