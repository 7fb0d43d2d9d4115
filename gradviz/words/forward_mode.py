"""The chain rule of forward mode at one op: the sum of local derivative × tangent over its inputs."""

from typing import NamedTuple

from rich.cells import cell_len

from gradviz.errors import GradvizError
from gradviz.events.kinds import Accumulated, Kind, Produced, Received, TangentPushed
from gradviz.query.chain_step import pushed_through, pushes
from gradviz.query.moment import Modes, Pair, Sweep
from gradviz.tracefile import Snapshot
from gradviz.words.chain import formulas, numbers_of
from gradviz.words.escape import shortened
from gradviz.words.numbers import number
from gradviz.words.stop import Stop


class Term(NamedTuple):
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
    op = pushed_through(stop.query, event)
    if op is None:
        return []
    called = stop.words.inputs_called(op)
    named_formulas = formulas(op.rule, called)
    moment = stop.query.at(max(op.index - 1, 0))
    summands = []
    for i, tangent, local in pushes(stop.query, event):
        tensor, (name, formula) = op.inputs[i], named_formulas[i] if i < len(named_formulas) else ("", "")
        partial = stop.words.partial(event.tensor, tensor, name, before=tensor in op.outputs)
        summands.append(Term(tensor, called[i], moment.value(tensor), partial, formula, numbers_of(local), tangent))
    return summands


def in_numbers(stop: Stop, event: TangentPushed) -> str:
    """`3 × 1 + 2 × 0`; empty if a number is unknown or the text is long."""
    parts = [(term.number, stop.brief(term.tangent)) for term in terms(stop, event)]
    if not parts or not all(number for number, _ in parts):
        return ""
    text = " + ".join(f"{number} × {tangent}" for number, tangent in parts)
    return text if len(text) <= 60 else ""


# Compares forward and reverse mode at one place, as text: a table of values, tangents and gradients, and one line for
# a stop.


class NothingToCompare(GradvizError):
    """The trace does not have both modes. The message is one line for the user."""


_SHOWN = 40  # rows
_NAME, _CELL = 30, 34  # characters


def compare(stop: Stop) -> list[str]:
    """Forward and reverse accumulation of the same function, side by side. Raises NothingToCompare if the
    trace does not have both."""
    modes = stop.query.modes
    sweep = modes.sweep_near(stop.k)
    if sweep is None:
        raise NothingToCompare("no tangents here: forward_ad.make_dual, func.jvp and jacfwd make them")
    position = modes.pass_of(sweep, stop.k)
    if position is None:
        raise NothingToCompare(
            "no backward pass went through the ops of these tangents: there are no gradients to compare"
        )
    pairs = modes.pairs(sweep, position)
    backward_pass = modes.trace.passes[position]
    lines = [
        stop.say(
            "forward sweep {sweep} of {sweeps} (events {first} to {last}) beside backward pass {run} of {runs} "
            "(from event {begins})",
            sweep=sweep.number,
            sweeps=len(modes.sweeps),
            first=sweep.first + 1,
            last=sweep.last + 1,
            run=backward_pass.number,
            runs=modes.trace.passes_begun,
            begins=backward_pass.first + 1,
        )
    ]
    lines += _table(stop, sweep, pairs)
    is_seen = stop.words.may_tell_of(max(sweep.last, *(pair.event for pair in pairs)))
    return [*lines, *(_law(stop, modes, sweep, pairs) if is_seen else [])]


def _table(stop: Stop, sweep: Sweep, pairs: list[Pair]) -> list[str]:
    here, seen = _tensors_at(stop), stop.words.may_tell_of
    rows = [("", "", stop.say("value"), "↓ tangent", stop.say("↑ gradient"))]
    for pair in pairs[:_SHOWN]:
        forward, backward = stop.other(sweep.last), stop.other(pair.event)
        rows.append(
            (
                "▶" if {pair.tensor, pair.twin} & here else "",
                shortened(stop.called(pair.tensor), _NAME),
                forward.compact(pair.tensor),
                forward.compact(pair.tangent) if seen(stop.trace.born(pair.tangent) or 0) else "",
                backward.compact(pair.gradient) if seen(pair.event) else "",
            )
        )
    widths = [max(cell_len(row[i]) for row in rows) for i in range(5)]
    lines = ["  ".join(_column(text, width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if len(pairs) > _SHOWN:
        lines.append(stop.say("   … and {count} more", count=len(pairs) - _SHOWN))
    return lines


def _column(text: str, width: int) -> str:
    text = shortened(text, _CELL)
    return text + " " * (min(width, _CELL) - cell_len(text))


def _law(stop: Stop, modes: Modes, sweep: Sweep, pairs: list[Pair]) -> list[str]:
    """The tangent × gradient sums that show in numbers that both modes give the same derivative."""
    lines = [
        stop.say("tangents go down the table, from the inputs; gradients go up, from the output;"),
        stop.say("the sum of tangent × gradient over the inputs equals tangent × gradient of the output:"),
    ]
    inputs = [pair for pair in pairs if pair.tensor in sweep.seeds]
    output = pairs[-1]
    at_inputs, at_output = modes.product(sweep, inputs), modes.product(sweep, [output])
    if not inputs or at_inputs is None or at_output is None:
        return lines[:1]
    return [*lines, f"  {stop.listed([number(at_inputs, 5), number(at_output, 5)])}"]


def _tensors_at(stop: Stop) -> set[int]:
    """The tensors that get a tangent or a gradient at the event of a stop."""
    if isinstance(stop.event, (TangentPushed, Accumulated)):
        return {stop.event.tensor}
    return set(stop.node_tensors) if isinstance(stop.event, (Received, Produced)) else set()


def beside(stop: Stop) -> tuple[str, str] | None:
    """At a tangent, the gradient of the same place in reverse mode; at a gradient, the tangent of the same place.
    Returns the name of the mode and a text, or None if the trace does not have both modes."""
    here = _tensors_at(stop)
    if not here or not len(stop.words.trace.table(Kind.TANGENT)):
        return None
    modes = stop.query.modes
    if isinstance(stop.event, TangentPushed):
        sweep = modes.sweep_near(stop.k)
        position = None if sweep is None else modes.pass_of(sweep, stop.k)
        pair = _pair(modes, sweep, position, stop.event.tensor, 0)
        if pair is None or not stop.words.may_tell_of(pair.event):
            return None
        gradient = stop.other(pair.event).compact(pair.gradient)
        name, event = stop.called(pair.twin), stop.event_of(pair.event)
        return "reverse", stop.say(
            "the gradient of {name} is {gradient} ({event})", name=name, gradient=gradient, event=event
        )
    backward_pass = stop.moment.pass_info
    passes = modes.trace.passes
    position = next((i for i, known in enumerate(passes) if known is backward_pass or known == backward_pass), None)
    tangents = []
    for sweep in modes.sweeps[:_SWEEPS]:
        pair = _pair(modes, sweep, position, 0, next(iter(here)))
        if pair is not None and stop.words.may_tell_of(sweep.last):
            tangents.append(stop.other(sweep.last).compact(pair.tangent))
    if not tangents:
        return None
    name = stop.called(next(iter(here)))
    text = stop.say("the tangent of {name} is {tangent}", name=name, tangent=", ".join(tangents))
    return "forward", text + (stop.say(" (sweep by sweep)") if len(tangents) > 1 else "")


_SWEEPS = 4


def both_modes(stop: Stop) -> list[str]:
    """The table of `compare` if the event of the stop is in it, otherwise an empty list."""
    return compare(stop) if beside(stop) is not None else []


def _pair(modes: Modes, sweep: Sweep | None, position: int | None, tensor: int, twin: int) -> Pair | None:
    if sweep is None or position is None:
        return None
    pairs = modes.pairs(sweep, position)
    return next((pair for pair in pairs if pair.tensor == tensor or pair.twin == twin), None)
