"""The chain rule of forward mode at one op: the sum of local derivative × tangent over its inputs."""

from __future__ import annotations

from dataclasses import dataclass

from gradviz.events.kinds import OpRan, TangentPushed
from gradviz.query.chain_step import is_number, quotient
from gradviz.query.moment import Moment
from gradviz.tracefile import Snapshot
from gradviz.words.formulas import formulas, numbers_of
from gradviz.words.numbers import brief, scalar
from gradviz.words.stop import Stop


@dataclass(frozen=True, slots=True)
class Term:
    """An input that has a tangent: its name, its value, and its local derivative as a formula and, if known, as a
    number."""

    tensor: int
    name: str
    value: Snapshot | None
    partial: str
    formula: str
    number: str
    tangent: int

    @property
    def local(self) -> str:
        """The local derivative, as a chain of equations."""
        sides = [self.formula] if self.formula == self.number else [self.formula, self.number]
        return " = ".join(part for part in (self.partial, *sides) if part)


def terms(stop: Stop, event: TangentPushed) -> list[Term]:
    """The terms whose sum is the tangent of an op's output. Empty for the inputs of a sweep."""
    op = pushed_through(stop, event)
    if op is None:
        return []
    called = stop.words.inputs_called(op)
    named_formulas = formulas(op.rule, called)
    # an op in place replaces its input and the tangent of its input
    moment = stop.query.at(max(op.index - 1, 0))
    with_tangent = [i for i, tensor in enumerate(op.inputs) if tensor and moment.tangent(tensor)]
    moving = [i for i in with_tangent if scalar(moment.value(moment.tangent(op.inputs[i]))) != 0]
    summands = []
    for i in with_tangent:
        tensor, (name, formula) = op.inputs[i], named_formulas[i] if i < len(named_formulas) else ("", "")
        tangent = moment.tangent(tensor)
        number = _known(moment, op, formula, called)
        if not number and moving == [i]:
            pushed = stop.moment.value(event.tangent)
            number = numbers_of(quotient(op.rule.elementwise, moment.value(tangent), pushed))
        partial = stop.words.partial(event.tensor, tensor, name, before=tensor in op.outputs)
        summands.append(Term(tensor, called[i], moment.value(tensor), partial, formula, number, tangent))
    return summands


def pushed_through(stop: Stop, event: TangentPushed) -> OpRan | None:
    """The op that a tangent was pushed through; None for the inputs of a sweep."""
    tensors = stop.query.tensors
    return None if event.how == "make_dual" else tensors.op_behind(tensors.after(event.tensor, stop.k))


def _known(moment: Moment, op: OpRan, formula: str, called: list[str]) -> str:
    """The value of a formula that is a number, or the name of an input; otherwise empty."""
    if is_number(formula):
        return formula.replace("−", "-")
    for tensor, name in zip(op.inputs, called, strict=True):
        if tensor and formula.strip("()") == name.strip("()"):
            return brief(moment.value(tensor)) if scalar(moment.value(tensor)) is not None else ""
    return ""


def in_numbers(stop: Stop, event: TangentPushed) -> str:
    """`3 × 1 + 2 × 0`; empty if a number is unknown or the text is long."""
    parts = [(term.number, stop.brief(term.tangent)) for term in terms(stop, event)]
    if not parts or not all(number for number, _ in parts):
        return ""
    text = " + ".join(f"{number} × {tangent}" for number, tangent in parts)
    return text if len(text) <= 60 else ""
