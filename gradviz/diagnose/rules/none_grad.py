"""`none-grad`: the program ended because it computed with a `.grad` that is None. It names the line that
reads it; or, if passes ran, the line that cuts the leaf off from the root, or that makes a new tensor in place of it.

Why it is bad: `.grad` of a leaf is None until a backward pass has reached it, and None has no `item()`, no
`zero_()` and no product.

Example:

    x = torch.tensor(2.0, requires_grad=True)
    y = x ** 2
    print(x.grad.item())  # <- none-grad
    y.backward()

Cure: call backward() first, on a root that is computed from a leaf that requires grad.

Not reported: a `.grad` that is None and only printed or compared with None. The `.grad` of a non-leaf is reported as
`nonleaf-grad-read`.
"""

import ast
from collections.abc import Iterator

from gradviz.diagnose.cut_cures import how_cut
from gradviz.diagnose.fix import Edit, Fix, Spot, as_leaf, typed_as
from gradviz.diagnose.own_words import update_in_place
from gradviz.diagnose.rule import ERROR, Case, Found, Need, Rule
from gradviz.events.kinds import OpRan, TensorMade
from gradviz.query.flow import place_of_cut
from gradviz.query.missing_gradients import Why, why_no_grad
from gradviz.query.source_trees import method_calls, statement_at, trees
from gradviz.query.statements import WrongValue, wrong_values
from gradviz.words.absence import no_grad_reason
from gradviz.words.stop import Stop

_OF_NON_LEAVES = (Why.NON_LEAF, Why.REPLACED)


@Rule(
    "none-grad",
    ERROR,
    "a `.grad` that is None, with which the program computes",
    needs=(Need.START,),
    follows=("detached-path", "frozen-parameter", "off-loss-path"),
)
def none_grad(case: Case) -> Iterator[Found]:
    for value in case.query.of(wrong_values):
        origin = value.origin
        if value.type != "NoneType" or not isinstance(origin, ast.Attribute) or origin.attr != "grad":
            continue
        written = ast.unparse(origin.value)
        tensor = case.query.names.tensor_called(written, value.failure.event) or _of_loop(case, value, written)
        found = _of_tensor(case, value, tensor, written) if tensor else _of_unknown(case, value, written)
        if found is not None:
            yield found
            return


def _of_tensor(case: Case, value: WrongValue, tensor: int, name: str) -> Found | None:
    """The finding for a tensor whose `.grad` is None when the program ends; None if the trace does not show that."""
    stop = Stop(case.words, value.failure.event)
    absence = why_no_grad(case.query, tensor, stop.moment)
    if absence.why in (Why.THERE, Why.NOT_MADE_YET):
        return None
    if absence.why in _OF_NON_LEAVES and case.trace.passes:  # for nonleaf-grad-read
        return None
    own = case.words.called(tensor)
    reason = no_grad_reason(stop, tensor, own)
    whose = "" if own == name else f" of {own}"
    made = case.query.tensors.made(tensor)
    line = value.failure.site.place.line if value.failure.site is not None else 0
    if absence.cut is not None and case.trace.passes:
        why, cure = how_cut(case, absence.cut.index)
        return Found(
            f"{own} never gets a gradient: the path to {case.words.called(absence.root)} is cut here, {why}; so "
            f"{name}.grad is None at line {line}",
            cure,
            (absence.cut.index, value.failure.event),
            site=place_of_cut(case.query, absence.cut.index),
            tensors=(tensor,),
        )
    if absence.why is Why.NOT_REQUIRED and isinstance(made, OpRan) and not made.grad_enabled and case.trace.passes:
        return Found(
            f"{name} is a new tensor from here on, without requires_grad (grad mode is off); so {name}.grad is None at "
            f"line {line}",
            update_in_place(case, made.index, name),
            (made.index, value.failure.event),
            tensors=(tensor,),
        )
    return Found(
        f"{name}.grad{whose} is None at this line: {reason}",
        _cure(case, value, tensor, name, absence.why),
        (value.failure.event,),
        site=value.failure.site,
        tensors=(tensor,),
    )


def _of_loop(case: Case, value: WrongValue, name: str) -> int:
    """The first tensor without a `.grad` in the loop around the line: `for p in [w, b]`, `for p in net.parameters()`;
    0 if there is no such loop or tensor."""
    site, event = value.failure.site, value.failure.event
    assert site is not None
    loops = [
        node
        for node in ast.walk(case.query.of(trees)[site.place.file])
        if isinstance(node, ast.For)
        and ast.unparse(node.target) == name
        and node.lineno <= site.place.line <= (node.end_lineno or 0)
    ]
    given = loops[-1].iter if loops else None
    if isinstance(given, ast.List | ast.Tuple):
        found = [case.query.names.tensor_called(ast.unparse(one), event) for one in given.elts]
    elif isinstance(given, ast.Call) and ast.unparse(given.func).endswith(".parameters"):
        model = ast.unparse(given.func).removesuffix("parameters")
        named = {path: one for one, path in case.trace.parameters.items() if one not in case.trace.buffers}
        found = [tensor for path, tensor in named.items() if path.startswith(model)]
    else:
        found = []
    moment = case.query.at(event)
    return next((tensor for tensor in found if tensor and not moment.grad(tensor)), 0)


def _of_unknown(case: Case, value: WrongValue, name: str) -> Found | None:
    """The finding for a tensor that the trace does not know by its name. If no pass has begun, that is the reason; if
    one has, there is no finding."""
    if case.trace.passes:
        return None
    reason = "no backward pass has begun yet"
    return Found(
        f"{name}.grad is None at this line: {reason}",
        _backward_first(case, value),
        (value.failure.event,),
        site=value.failure.site,
    )


def _cure(case: Case, value: WrongValue, tensor: int, name: str, why: Why) -> Fix | str:
    if guard := _guard(case, value, is_of_loop=case.words.called(tensor) != name):
        return guard
    if why is Why.NON_LEAF:
        return f"{name}.retain_grad()  # before backward(), and backward() before line {value.origin_line}"
    if why is Why.REPLACED:
        return update_in_place(case, case.query.tensors.maker(tensor), name)
    if why is Why.NO_PASS_YET:
        return _backward_first(case, value)
    if why is Why.NOT_REQUIRED and isinstance(case.query.tensors.made(tensor), TensorMade):
        return Fix(f"{name}.requires_grad_()  # before the forward computation", as_leaf(name))
    if why is Why.RETURNED:
        return f"use what torch.autograd.grad() returned in place of {name}.grad"
    if why is Why.EMPTIED:
        return f"read {name}.grad after backward() and before it is set to None"
    return f"compute the root of backward() from {name}, or do not read {name}.grad"


def _guard(case: Case, value: WrongValue, is_of_loop: bool = False) -> Fix | None:
    """The failing statement under `if ... is not None`, if it clears a `.grad` or updates the tensors of a loop; None
    for any other statement."""
    statement = statement_at(case.query, value.failure.site)
    clears = isinstance(statement, ast.Expr) and ast.unparse(statement).endswith(".zero_()")
    updates = isinstance(statement, ast.Expr | ast.AugAssign) and is_of_loop
    if statement is None or not (clears or updates):
        return None
    guarded = f"if {ast.unparse(value.origin)} is not None: {ast.unparse(statement)}"
    return Fix(guarded, typed_as(guarded))


def _backward_first(case: Case, value: WrongValue) -> Fix | str:
    """The cure that moves the first later call of backward() before the failing line."""
    if guard := _guard(case, value):
        return guard
    site = value.failure.site
    assert site is not None
    found = method_calls(case.query.of(trees)[site.place.file], "backward")
    calls = [call for call, _ in found if call.lineno > site.place.line]
    if not calls:
        return f"call backward() on the loss before line {site.place.line}"
    call = min(calls, key=lambda call: call.lineno)
    return Fix(f"{ast.unparse(call)}  # before line {site.place.line}", _called_before)


def _called_before(spot: Spot) -> list[Edit]:
    """The call of backward() moved before the line that reads `.grad`."""
    source = spot.source
    reader: ast.stmt | None = spot.statement
    while reader is not None:
        for later in source.behind(reader):
            if isinstance(later, ast.Expr) and source.calls("backward", within=later):
                return [source.before(reader, source.code(later)), source.removed(later)]
        outer = source.parent(reader)
        reader = outer if isinstance(outer, ast.With) else None
    return []
