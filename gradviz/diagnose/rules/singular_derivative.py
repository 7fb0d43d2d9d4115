"""`singular-derivative`: an op ran at a point where its derivative is infinite or undefined (sqrt at 0, acos at 1,
a power below 1 at 0), so that a finite gradient becomes NaN or infinite. A warning: the derivative is finite, but more
than a million, as of `normalize` at a row of zeros, and parameters get this gradient.

Why it is bad: the value is finite and its slope is not: one element at this point makes the gradients of all
parameters behind it NaN or infinite.

Example:

    x = torch.tensor(0.0, requires_grad=True)
    y = torch.sqrt(x)  # <- singular-derivative
    y.backward()

Cure: keep away from the point: `sqrt(x + 1e-12)`, `acos(x.clamp(-1 + 1e-6, 1 - 1e-6))`.

Not reported: a singular point that no gradient reaches, or where the gradient stays finite; a loss that is scaled.
"""

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.domain_cures import off_the_point
from gradviz.diagnose.nonfinite import Source, first_bad, is_of_user
from gradviz.diagnose.rule import ERROR, WARNING, Case, Found, Kind, Need, Rule
from gradviz.query.at_points import points_of, version_of
from gradviz.query.curves import norms_of
from gradviz.query.flow import reach
from gradviz.query.ops import DIVIDING, MULTIPLYING
from gradviz.sets import grouped
from gradviz.words.defined_points import called, gradients, place
from gradviz.words.numbers import listed
from gradviz.words.numbers import number as digits


@Rule(
    "singular-derivative",
    ERROR,
    "an op at a point where its derivative is not finite",
    needs=(Need.VALUES, Need.DETAILS),
    follows=("huge-start", "lr-too-large"),
    at_once=True,
)
def singular_derivative(case: Case) -> Iterator[Found]:
    origin = case.of(first_bad)
    if origin is None:
        yield from _steep(case)
    if origin is None or origin.source is not Source.NODE or (origin.zeros and origin.is_nan):
        return
    made = case.query.nodes.event(origin.node)
    if made is None or is_of_user(case, origin.node):
        return
    what = case.words.expression_of(made, 40)
    event, version = case.query.nodes.op(origin.node), version_of(case.trace)
    op = case.query.tensors.op(event) if event is not None else None
    cure = off_the_point(case, op) if op is not None else None
    names = listed(dict.fromkeys(case.words.called(edge.tensor) for edge in made.edges if edge.tensor)) or "its input"
    bad = "NaN" if origin.is_nan else "infinite"
    points = points_of(case.query, op) if op is not None else ()
    why = f"the derivative of {what} is not finite at the value of {names}"
    for point in points:
        if not point.is_finite(version) and (given := gradients(point, version)):
            why = f"{place(point)} {called(version)} gives {given} as the gradient of {what}"
            break
    yield Found(
        f"{why}: a finite gradient becomes {bad}",
        cure or f"keep the input of {what} off the singular point",
        (origin.event, origin.harm, made.index),
        node=origin.node,
        number=origin.number,
    )


_STEEP, _ARRIVES = 1e6, 1e4  # the factor of an op, and the least that arrives of it at a leaf
_MODERATE = 1e3  # the root mean square of a result
_FAR = 10_000  # the most nodes that are followed


def _steep(case: Case) -> Iterator[Found]:
    """The first op of moderate results whose node makes a gradient a million times larger, or more, and gives it to
    leaves."""
    received, produced = case.trace.table(Kind.RECEIVED), case.trace.table(Kind.PRODUCED)
    came, flows = received.lists("gradients"), produced.lists("flows")
    if not len(received):
        return
    sizes = np.zeros(len(received))
    np.fmax.at(sizes, came.owners, _norms(case, came.values, received.events[came.owners]))
    rows = np.searchsorted(received.events, produced.events) - 1  # a node gives right behind what it receives
    is_own = (rows >= 0) & (received["node"][rows] == produced["node"])
    before = np.where(is_own, sizes[rows], 0)[flows.owners]
    after = _norms(case, flows.elements[:, 1], produced.events[flows.owners])
    for row in np.flatnonzero((before > 0) & (after >= _STEEP * before)).tolist():
        event = int(produced.events[flows.owners[row]])
        node, number = (int(produced[one][flows.owners[row]]) for one in ("node", "in_pass"))
        made, at = case.query.nodes.event(node), case.query.nodes.op(node)
        if made is None or at is None or is_of_user(case, node) or not _is_moderate(case, at):
            continue
        # the nodes to which it goes on that large: what others give to a leaf is no proof
        large = (after >= _ARRIVES * before[row]) & (produced["in_pass"][flows.owners] == number)
        givers = produced["node"][flows.owners[large]].tolist()
        onward = grouped(zip(givers, flows.elements[large, 0].tolist(), strict=True))
        behind = reach([node], lambda one: onward.get(one, ()), _FAR)  # noqa: B023
        leaves = tuple(sorted({leaf for one in behind if (leaf := case.query.nodes.leaf(one))}))
        if leaves:
            what, has_eps = case.words.expression_of(made, 40), "eps=" in case.query.tensors.op(at).args
            norms = [digits(float(norm), 3) for norm in (before[row], after[row])]
            yield Found(
                f"{what} turns a gradient of norm {norms[0]} into one of {norms[1]}, which goes to "
                f"{case.called(leaves)}: its derivative is that steep here",
                f"{'use a larger eps, or ' * has_eps}keep zeros and other steep points out of {what}",
                (event, made.index),
                node=node,
                number=number,
                tensors=leaves,
                severity=WARNING,
            )
            return


def _is_moderate(case: Case, event: int) -> bool:
    """Whether an op has results that are not large, and does not scale its input by a factor without a graph."""
    op, states = case.query.tensors.op(event), case.trace.states
    factors = op.inputs[1:] if op.op in MULTIPLYING | DIVIDING else ()
    is_scaling = any(not one or not case.query.tensors.requires_grad(one, event) for one in factors)
    sizes = states.rms(states.rows_of(np.array(op.outputs), np.full(len(op.outputs), event)))
    return not is_scaling and bool((sizes < _MODERATE).all())


def _norms(case: Case, tensors: np.ndarray, events: np.ndarray) -> np.ndarray:
    return norms_of(case.trace, case.trace.states.rows_of(tensors, events))
