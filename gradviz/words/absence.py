"""Explains in words why a `.grad` is None or 0, and why a tensor has no grad_fn."""

from gradviz.events.kinds import OpRan, TensorMade
from gradviz.query.flow import Reason, place_of_cut, why_no_node
from gradviz.query.missing_gradients import Absence, Lacks, Why, why_no_grad
from gradviz.query.source_trees import in_place, statement_at
from gradviz.query.zeros import why_zero
from gradviz.tracefile import Site
from gradviz.words.escape import clean
from gradviz.words.sentences import LONGEST
from gradviz.words.stop import Stop

NO_NODE = {
    Reason.NOTHING_REQUIRES_GRAD: "none of its inputs requires grad",
    Reason.GRAD_MODE_OFF: "grad mode was off, as under torch.no_grad()",
    Reason.DETACHED: "detach() cut it off from the graph",
    Reason.NOT_DIFFERENTIABLE: "its result is not differentiable",
}


def no_grad_told(stop: Stop, tensor: int, name: str) -> str:
    """One or two sentences on why a tensor's `.grad` is None at a stop."""
    absence = why_no_grad(stop.query, tensor, stop.moment)
    say = stop.say
    if absence.why is Why.NOT_MADE_YET:
        made = "" if absence.event < 0 else say(" ({event} makes it)", event=stop.event_of(absence.event))
        return say("{name}.grad: {name} does not exist yet", name=name) + made
    if absence.why is Why.THERE:
        return say("{name}.grad is not None here: {value}", name=name, value=stop.value(stop.moment.grad(tensor)))
    return say("{name}.grad is None: {reason}", name=name, reason=_reason(stop, tensor, name, absence))


def no_grad_reason(stop: Stop, tensor: int, name: str) -> str:
    """Why the `.grad` of a tensor that exists is None at a stop."""
    return _reason(stop, tensor, name, why_no_grad(stop.query, tensor, stop.moment))


def _reason(stop: Stop, tensor: int, name: str, absence: Absence) -> str:
    to_come = absence.to_come
    later = stop.say("; {event} will set it", event=stop.event_of(to_come)) if to_come >= 0 else ""
    return _REASONS[absence.why](stop, tensor, name, absence) + later


def without_grad_told(stop: Stop) -> list[str]:
    """The leaves that require grad and have none at a stop, and why: those with one reason together."""
    names: dict[str, list[str]] = {}
    missing = [leaf for leaf in stop.moment.newest_leaves if not stop.moment.grad(leaf)]
    for leaf in missing[:_MOST]:
        name = stop.called(leaf)
        absence = why_no_grad(stop.query, leaf, stop.moment)
        reason = _REASONS[absence.why](stop, leaf, name, absence)
        names.setdefault(reason, []).append(name)
    lines = []
    for reason, (first, *others) in names.items():
        lines.append(stop.say("{name}.grad is None: {reason}", name=first, reason=reason))
        if others:
            lines.append(stop.say("  and so are those of {names}", names=stop.listed(others)))
    if len(missing) > _MOST:
        lines.append(stop.say("… and {count} more", count=len(missing) - _MOST))
    return lines


_MOST = 12  # leaves


def zero_told(stop: Stop, tensor: int, name: str) -> str:
    """Why a tensor's `.grad` is 0 at a stop; empty if it is not 0, or if that is not known."""
    zero = why_zero(stop.query, tensor, stop.moment)
    if zero is None:
        return ""
    say = stop.say
    if zero.event >= 0:
        when = _when(stop, zero.event)
        return say("{name}.grad is 0: it was set to 0 at {when}", name=name, when=when)
    if zero.node:
        made = stop.query.nodes.event(zero.node)
        where = "" if made is None else stop.words.at_line(made.site)
        of = stop.words.expression_of(made, LONGEST)
        node = stop.words.node_name(zero.node)
        text = "{name}.grad is 0: {node} of {of}{where}, gave 0 for an upstream gradient that is not 0"
        return say(text, name=name, node=node, of=of, where=where)
    why = "the pass began with 0" if zero.from_start else "the gradients of its paths cancel"
    return say("{name}.grad is 0: {reason}", name=name, reason=say(why))


def _not_required(stop: Stop, tensor: int, name: str, absence: Absence) -> str:
    maker = stop.query.tensors.made(tensor)
    said = stop.say("{name} does not require grad", name=name)
    if isinstance(maker, OpRan):
        return f"{said} ({stop.say(NO_NODE[why_no_node(stop.query, maker)])}{_line(stop, maker.index)})"
    if isinstance(maker, TensorMade):
        without = stop.say("it was made without requires_grad=True")
        return f"{said} ({without}{_line(stop, maker.index)})"
    return said


def _replaced(stop: Stop, tensor: int, name: str, absence: Absence) -> str:
    site = stop.query.places.at(absence.event)
    update = in_place(statement_at(stop.query, site), name) or f"{name} -= ..."
    return stop.say(
        "{name} is a non-leaf since {when}. That made a new tensor of the leaf {name}; update the leaf in place "
        "instead: with torch.no_grad(): {update}",
        name=name,
        when=_when(stop, absence.event),
        update=clean(update),
    )


def _non_leaf(stop: Stop, tensor: int, name: str, absence: Absence) -> str:
    say = stop.say
    advice = say("only leaves keep their gradient; call {name}.retain_grad() before backward()", name=name)
    if absence.event >= 0:
        return say(
            "{name} is a non-leaf: an op made it. Its gradient passed at {event} ({value}), but {advice}",
            name=name,
            event=stop.event_of(absence.event),
            value=stop.other(absence.event).brief(absence.gradient),
            advice=advice,
        )
    begun = any(backward_pass.first <= stop.k for backward_pass in stop.trace.passes)
    none = "" if begun else say(" (and no backward pass has begun yet)")
    return say("{name} is a non-leaf (an op made it); {advice}", name=name, advice=advice) + none


def _not_asked_for(stop: Stop, tensor: int, name: str, absence: Absence) -> str:
    text, asked = ("pass {number} computed only the gradients of {asked}", ", ".join(map(stop.end, absence.asked)))
    return stop.say(text, number=absence.number, asked=asked)


def _cut(stop: Stop, tensor: int, name: str, absence: Absence) -> str:
    made = absence.cut
    assert made is not None
    text = "the path from it to {root} is cut at {when}: {how}"
    when = stop.event_of(made.index) + _at(stop, place_of_cut(stop.query, made.index))
    return stop.say(text, root=stop.end(absence.root), when=when, how=_how_blocked(stop, made))


def _how_blocked(stop: Stop, made: OpRan | TensorMade) -> str:
    """The reason why an event blocks gradients."""
    how = made.how if isinstance(made, TensorMade) else made.op
    if isinstance(made, TensorMade) or how == "data":
        return stop.say(".{how} is outside of the graph", how=clean(how))
    return stop.say(NO_NODE[why_no_node(stop.query, made)])


def _as_number(stop: Stop, tensor: int, name: str, absence: Absence) -> str:
    lacking = absence.lacking
    assert lacking is not None
    text = "the loss has only its number at {when}"
    if lacking.result != tensor:
        text = "{result} is computed from it, and the loss has only its number at {when}"
    return stop.say(text, result=stop.called(lacking.result), when=_when(stop, lacking.event))


def _off_path(stop: Stop, tensor: int, name: str, absence: Absence) -> str:
    lacking = absence.lacking
    assert lacking is not None
    lacks = stop.query.of(Lacks)
    made, missing = lacks.computed_at(lacking), lacks.place(lacking)
    text = "{result}, which is computed from it at {when}, reaches no root; "
    when = stop.event_of(lacking.event) + _at(stop, made)
    if missing is not None and missing != made:
        when += stop.say(", and is missing at the root{line}", line=_at(stop, missing))
    return stop.say(text, result=stop.called(lacking.result), when=when) + _not_computed_from(
        stop, tensor, name, absence
    )


def _not_returned(stop: Stop, tensor: int, name: str, absence: Absence) -> str:
    lacking = absence.lacking
    assert lacking is not None
    lacks = stop.query.of(Lacks)
    text = "the backward of {function} returned None on the way to it at {when}"
    when = stop.event_of(lacking.event) + _at(stop, lacks.place(lacking))
    return stop.say(text, function=clean(lacks.function_without(lacking)), when=when)


def _not_computed_from(stop: Stop, tensor: int, name: str, absence: Absence) -> str:
    root = stop.called(absence.root) if absence.root else stop.say("the root")
    return stop.say("no path of grad_fns leads from {root} to it: {root} was not computed from it", root=root)


_REASONS = {
    Why.EMPTIED: lambda stop, tensor, name, absence: stop.say(
        "it was set to None at {when}", when=_when(stop, absence.event)
    ),
    Why.NOT_REQUIRED: _not_required,
    Why.REPLACED: _replaced,
    Why.NON_LEAF: _non_leaf,
    Why.NO_PASS_YET: lambda stop, *_: stop.say("no backward pass has begun yet"),
    Why.PASS_UNDER_WAY: lambda stop, tensor, name, absence: stop.say(
        "backward pass {number} has not reached it yet", number=absence.number
    ),
    Why.RETURNED: lambda stop, *_: stop.say("torch.autograd.grad() returns the gradients and does not change .grad"),
    Why.NOT_ASKED_FOR: _not_asked_for,
    Why.CUT: _cut,
    Why.AS_NUMBER: _as_number,
    Why.OFF_PATH: _off_path,
    Why.NOT_RETURNED: _not_returned,
    Why.NOT_COMPUTED_FROM: _not_computed_from,
}


def _when(stop: Stop, event: int) -> str:
    return stop.event_of(event) + _line(stop, event)


def _line(stop: Stop, event: int) -> str:
    return _at(stop, stop.query.places.at(event))


def _at(stop: Stop, site: Site | None) -> str:
    """A line of the program and its expression: `, line 9: h.detach()`; empty if there is none."""
    if site is None:
        return ""
    text = stop.words.expression(site.number, 40)
    return stop.say(", line {line}", line=site.place.line) + (f": {text}" if text else "")
