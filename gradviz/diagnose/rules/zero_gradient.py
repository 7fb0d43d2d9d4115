"""`zero-gradient`: parameters get only zeros as gradients in every pass, because the op of a line turns each gradient
that it receives into zeros: `round`, `sign`, a product with 0, `clamp` outside of its range, `hidden[-1]` of a
recurrent layer with two directions. Or the gradients that come to a result by several ways cancel, as in
`x + (x.round() - x)`.

Why it is bad: the parameters have a gradient, but it never moves them.

Example:

    torch.manual_seed(0)
    w = torch.randn(6, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    target = torch.tensor([1.0, 2.0, -1.0, 0.0, 3.0, 1.0])
    for step in range(4):
        optimizer.zero_grad()
        loss = (torch.round(w * 4) - target).pow(2).mean()  # <- zero-gradient
        loss.backward()
        optimizer.step()

Cure: remove the op from the path to the loss, or use a straight-through estimate: `x + (x.round() - x).detach()`.

Not reported: a loss of 0 that sends no gradient. In a program of a single pass that trains nothing, the finding is a
note.
"""

import ast
from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.blocked import HOOKED_CALL, Block, blocks
from gradviz.diagnose.fix import Edit, Edits, Fix, Spot, argument_of, bracketed, leaky, other_function
from gradviz.diagnose.rule import NOTE, WARNING, Case, Found, Need, Rule
from gradviz.events.kinds import Kind, OpRan, TensorMade
from gradviz.events.values import Stat
from gradviz.query.at_points import points_of, version_of
from gradviz.query.flow import is_square, leaves_of
from gradviz.query.ops import FLAT_AT_ZERO, FLAT_BELOW_ZERO, JOINING, MULTIPLYING, PRODUCTS, SELECTING, ZEROS
from gradviz.query.statements import function_of
from gradviz.sets import contained, distinct
from gradviz.words.defined_points import called, gradients, place


def _straight_through(spot: Spot) -> list[Edit]:
    """A straight-through estimator for rounding."""
    for call in spot.calls_here("round", "floor", "ceil"):
        value = argument_of(call)
        if value is not None:
            x = bracketed(spot.source, value)
            return [spot.source.replaced(call, f"({x} + ({spot.source.code(call)} - {x}).detach())")]
    return []


def _estimated(spot: Spot) -> list[Edit]:
    """`x + (f(x) - x)` with its difference detached."""
    for node in ast.walk(spot.statement):
        match node:
            case ast.BinOp(left=x, right=ast.BinOp(op=ast.Sub(), right=y) as carried) if ast.unparse(x) == ast.unparse(
                y
            ):
                return [spot.source.replaced(carried, f"({spot.source.code(carried)}).detach()")]
    return []


_THROUGH = "{x} + ({op} - {x}).detach()  # a straight-through estimator", _straight_through
_CURES: dict[str, tuple[str, Edits | None]] = {
    "round": _THROUGH,
    "floor": _THROUGH,
    "ceil": _THROUGH,
    "sign": (
        "torch.tanh({x})  # in place of {op}; it is steeper for {x} times a number above 1",
        lambda spot: other_function(spot, "sign", "torch.tanh"),
    ),
    "clamp": ("keep the input inside of the range, or use a soft limit (tanh, sigmoid)", None),
}
_CURE_OF_INPUT = "look where this 0 comes from: data that were scaled to 0, a state that is not carried on"
_ESTIMATE = "x + (f(x) - x).detach()  # what carries the value alone has no gradient of its own"
_FLAT = ("round", "floor", "ceil", "trunc", "sign")
_VIEWS = 4  # the most views between the zeros and the op that reads them
_CURE = "use an op here whose derivative is not 0 everywhere"


@Rule(
    "zero-gradient",
    WARNING,
    "a line behind which all gradients are 0",
    needs=(Need.VALUES, Need.DETAILS, Need.PASS),
    follows=(
        "huge-start",
        "constant-start",
        "dead-relu",
        "constant-output",
        "uninitialised-parameter",
        "hook-changed-gradient",
        "saturated-activation",
        "detached-path",
    ),
)
def zero_gradient(case: Case) -> Iterator[Found]:
    all_leaves = distinct(case.trace.table(Kind.ACCUMULATED)["tensor"])
    for block in case.of(blocks):
        made = case.query.nodes.event(block.node)
        op = case.query.nodes.op(block.node)
        name = case.query.tensors.op(op).op if op is not None else ""
        if name == HOOKED_CALL or (_is_minimum(case, op) and not block.cancelled):
            continue
        what = case.words.expression_of(made, 40) if made is not None else case.words.node_name(block.node)
        reader = _only_reader(case, block)
        if block.cancelled:
            met = case.words.called(case.query.nodes.outputs(block.cancelled)[0])
            why = f"the gradients that come to {met} by several ways cancel"
            cure: Fix | str = Fix(_ESTIMATE, _estimated)
        elif reader is not None:
            read = case.words.expression(case.site(reader), 40)
            them = "it" if len(block.leaves) == 1 else "them"
            why = f"{read} sends 0 to the part of {what} that is made with {them}"
            cure = f"read that part of {what} here, too, or leave out what makes it"
        elif block.zero and (name in PRODUCTS or (block.is_last and not function_of(case.query, block.node))):
            why = f"{what} multiplies it with {case.words.called(block.zero)}, which is 0"
            cure = _CURE_OF_INPUT
        elif _is_below_zero(case, op):
            read = _input(case, op)
            why = f"all elements of {read} are below 0, where {what} is flat"
            cure = Fix(f"start {read} above 0, or use torch.nn.functional.leaky_relu({read})", leaky)
        elif (defined := _defined(case, op, what)) is not None:
            why, cure = defined
        else:
            told = "gives 0 for any gradient" if name in _FLAT else "turns the gradient that it receives into 0"
            why, cure = f"{what} {told}", _cure(case, op, what)
        passes = "every pass" if case.recorded is None else case.passes_called(case.recorded[0])
        when = f" in {passes}" * (len(case.trace.passes) > 1)
        is_all = contained(all_leaves, block.leaves).all()
        yield Found(
            f"the gradient of {case.called(block.leaves)} is 0{when}: {why}",
            cure,
            (block.event, *((made.index,) if made is not None else ())),
            site=block.site if reader is None else case.site(reader),
            node=block.node,
            number=block.number,
            tensors=(*block.leaves, *leaves_of(case.query, block.zero)),
            severity=NOTE
            if _is_first_state(case, block)
            # `0.0 * term`
            or (name in MULTIPLYING and op is not None and 0 in case.query.tensors.op(op).inputs and not is_all)
            or case.is_lesson
            else "",
        )


def _defined(case: Case, op: int | None, what: str) -> tuple[str, Fix | str] | None:
    """Why an op gives 0, and the cure, if all of its inputs are at a point without a derivative, at which this version
    of PyTorch defines 0; None elsewhere."""
    version, ran = version_of(case.trace), case.query.tensors.op(op) if op is not None else None
    points = points_of(case.query, ran, everywhere=True) if ran is not None and ran.op not in _FLAT else ()
    point = next((point for point in points if point.is_zero(version)), None)
    if point is None:
        return None
    why = f"{place(point)} {called(version)} defines the gradient of {what} as 0"
    earlier = point.by_version[0][0]
    if not point.is_zero(earlier):
        why += f" ({called(earlier)} gave {gradients(point, earlier)})"
    off = f"keep {_input(case, op)} off this point: start with a little noise"
    return why, _cure(case, op, what) if point.op in _CURES else off


def _only_reader(case: Case, block: Block) -> int | None:
    """The selecting op that is the only reader of joined parts, and so gave one part zeros; None if the block joins
    nothing or has other readers."""
    # the node may be inside of an op, which has another name
    kind = case.query.nodes.name(block.node).removesuffix("Backward0").lower()
    if kind not in JOINING:
        return None
    made = filter(None, case.query.nodes.outputs(block.node))
    readers = [op for tensor in made for op in case.downstream.readers(tensor)]
    return readers[0] if len(readers) == 1 and case.query.tensors.op(readers[0]).op in SELECTING else None


def _is_below_zero(case: Case, op: int | None) -> bool:
    """Whether an op that is flat below 0, as a relu is, had only negative inputs."""
    ran = case.query.tensors.op(op) if op is not None else None
    if ran is None or op is None or ran.op not in FLAT_BELOW_ZERO or not ran.inputs[0]:
        return False
    rows = case.trace.states.rows_of(np.array(ran.inputs[:1]), np.array([op - 1]))
    return bool(rows[0] >= 0 and case.trace.states.stats[rows[0], Stat.MAX] < 0)


def _input(case: Case, op: int | None) -> str:
    """The name of the input of an op, or the expression that made it."""
    assert op is not None
    tensor = case.query.tensors.op(op).inputs[0]
    if case.query.names.of(tensor):
        return case.words.called(tensor)
    made = case.query.tensors.maker(tensor)
    return (case.words.expression(case.site(made), 40) if made is not None else "") or "its input"


def _cure(case: Case, op: int | None, expression: str) -> Fix | str:
    """The cure for an op whose derivative is 0, with the program's own name of its input if there is one."""
    if op is None:
        return _CURE
    ran = case.query.tensors.op(op)
    read = _input(case, op) if ran.inputs else ""
    x = read if read.replace(".", "").isidentifier() else f"({read})"
    if not read or read not in expression or "…" in expression:
        x, expression = "x", f"x.{ran.op}()"
    text, edits = _CURES.get(ran.op, (_CURE, None))
    return Fix(text.format(x=x, op=expression), edits, ran.op)


def _is_minimum(case: Case, op: int | None) -> bool:
    """Whether an op gave only zeros because it is at its minimum, where a gradient of 0 is right."""
    if op is None:
        return False
    ran = case.query.tensors.op(op)
    if ran.op not in FLAT_AT_ZERO and not is_square(ran):
        return False
    rows = case.trace.states.rows_of(np.array(ran.outputs), np.full(len(ran.outputs), op))
    return bool(case.trace.states.are_zero(rows).all())


def _is_first_state(case: Case, block: Block) -> bool:
    """Whether the leaves are multiplied, once in a pass, with zeros that the program made: the first state of a
    recurrence that has one step."""
    if not block.is_last or not block.zero:
        return False
    made = case.query.tensors.made(block.zero)
    for _ in range(_VIEWS):
        if not isinstance(made, OpRan) or len(made.inputs) != 1:
            break
        made = case.query.tensors.made(made.inputs[0])
    readers = max(len(case.downstream.readers(leaf)) for leaf in block.leaves)
    return isinstance(made, TensorMade) and made.how in ZEROS and readers <= len(case.trace.passes)
