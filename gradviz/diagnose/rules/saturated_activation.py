"""`saturated-activation`: tanh or sigmoid is at its ends for (almost) all elements, from the first call of its
line to the last, so that almost no gradient passes it. The mean derivative is computed from the mean and the root
mean square of the result. Or half of the activations of a recurrent cell are at their ends: their nodes let almost no
gradient through.

Why it is bad: the derivative at the ends is nearly 0: the layers before it get almost no gradient.

Example:

    torch.manual_seed(0)
    fc1, fc2 = torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD([*fc1.parameters(), *fc2.parameters()], lr=0.01)
    for step in range(5):
        x = torch.randn(32, 8) * 500 + 1000
        hidden = torch.tanh(fc1(x))  # <- saturated-activation
        loss = (fc2(hidden) - 1.0).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Cure: normalise the inputs, begin with smaller weights, or put a normalisation before the activation.

Not reported: the last op before a loss: a network that is sure of its prediction is healthy. In a program of a single
pass that trains nothing, the finding is a note.
"""

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.rule import NOTE, WARNING, Case, Found, Kind, Need, Rule
from gradviz.events.kinds import OpRan
from gradviz.events.values import Stat
from gradviz.query.flow import reach
from gradviz.query.ops import CELLS, CLAMPING, CONVERTING, LOGARITHMS, RESHAPING, SATURATING, SUMS
from gradviz.sets import contained
from gradviz.words.numbers import few_of

_FLAT = 0.06  # the mean derivative, as a share of the highest: 1 (tanh), 1/4 (sigmoid)
_PASSING = CLAMPING | RESHAPING | CONVERTING | SUMS
_NEAR = 16  # the most tensors between a result and the loss that are looked at
_SHARE = 0.9  # of the calls
_CURE = "scale its input: normalise the data, use a smaller initialisation, or LayerNorm before it"
_LEAST, _CALLS = 8, 2  # elements, calls


@Rule(
    "saturated-activation",
    WARNING,
    "tanh or sigmoid at its ends, where it passes almost no gradient",
    needs=(Need.VALUES, Need.DETAILS, Need.PASS),
    follows=("huge-start",),
)
def saturated_activation(case: Case) -> Iterator[Found]:
    yield from _activations(case)
    yield from _cells(case)


def _activations(case: Case) -> Iterator[Found]:
    ops, states = case.trace.table(Kind.OP), case.trace.states
    names = {number: text for number, text in case.trace.strings.items() if text in SATURATING}
    outputs = ops.lists("outputs")
    in_passes = contained(ops.events, case.query.nodes.ops_that_ran)
    chosen = np.flatnonzero(contained(ops["op"], list(names)) & in_passes)
    if not len(chosen):
        return
    events, results = ops.events[chosen], outputs.firsts[chosen]
    rows = states.rows_of(results, events)
    sigmoid = np.array([names[code].startswith("sigmoid") for code in ops["op"][chosen].tolist()])
    mean, square = states.stats[rows, Stat.MEAN], states.stats[rows, Stat.RMS] ** 2
    flat = (rows >= 0) & (np.where(sigmoid, 4 * (mean - square), 1 - square) < _FLAT) & (states.sizes(rows) >= _LEAST)
    scopes = case.query.scopes.last_entered(events)
    places: dict[int, dict[int, list[int]]] = {}
    for i, site in enumerate(ops.sites[chosen].tolist()):
        places.setdefault(site, {}).setdefault(int(scopes[i]), []).append(i)
    for site, of_scopes in places.items():
        saturated = {
            scope: calls
            for scope, calls in of_scopes.items()
            if len(calls) >= min(_CALLS, len(case.trace.passes))
            and flat[calls].mean() >= _SHARE
            and flat[calls[0]]
            and not _feeds_a_loss(case, int(results[calls[0]]))
        }
        if saturated:
            yield _found(case, site, saturated, events, flat)


def _found(case: Case, site: int, saturated: dict[int, list[int]], events: np.ndarray, flat: np.ndarray) -> Found:
    """The finding for the calls of one line that are at their ends, by the scope before them."""
    calls = sorted(call for each in saturated.values() for call in each)
    ops = [case.query.tensors.op(int(events[each[0]])) for each in saturated.values()]
    names = [case.trace.text(scope) for scope in saturated if scope]
    often = f" in {int(flat[calls].sum())} of {case.calls_called(len(calls))}" if len(calls) > 1 else ""
    nodes = case.query.nodes

    def behind(op: OpRan) -> list[int]:
        return nodes.leaves_behind(nodes.of_op(op.index))

    return Found(
        f"{ops[0].op.rstrip('_')}{f' in or after {few_of(names)}' if names else ''} is at its ends for (almost) "
        f"all elements{often}: almost no gradient passes it",
        _CURE,
        (ops[0].index,),
        site=site,
        severity=NOTE if case.is_lesson else "",
        tensors=tuple(
            dict.fromkeys(t for op in ops for t in (op.outputs[0], *nodes.leaves_behind(nodes.of_op(op.index))))
        ),
    )


def _feeds_a_loss(case: Case, result: int) -> bool:
    """Whether a result goes into a loss or its logarithm, perhaps reshaped or clamped on the way."""
    below = case.downstream

    def passing(tensor: int) -> Iterator[int]:
        readers = map(case.query.tensors.op, below.readers(tensor))
        return (output for op in readers if op.op in _PASSING for output in op.outputs)

    readers = (event for tensor in reach([result], passing, _NEAR) for event in below.readers(tensor))
    names = (case.query.tensors.op(event).op for event in readers)
    return any("loss" in name or "entropy" in name or name in {*LOGARITHMS, "kl_div"} for name in names)


# --- cells of a recurrent layer that are saturated


_HIGHEST = {"TanhBackward0": 1.0, "SigmoidBackward0": 0.25}  # the derivative at 0
# a share of the highest derivative: the root mean square if only 6 of 100 elements have it
_FLAT_CELL = 0.245
_SHARE_OF_CELLS = 0.9  # the least share of the calls
_MOST, _LEAST_STEPS = 64, 2  # the most and the fewest calls that are looked at


def _cells(case: Case) -> Iterator[Found]:
    """The cells with half of their gates or more at their ends in most calls of a line, one for each line."""
    ops = case.trace.table(Kind.OP)
    chosen = case.trace.named(ops["op"], tuple(CELLS)) & contained(ops.events, case.query.nodes.ops_that_ran)
    for events in case.by_site(ops.events[chosen]).values():
        calls = [_flat_gates(case, event) for event in events[:_MOST].tolist()]
        gates = len(calls[0])
        if len(calls) < _LEAST_STEPS or not gates or any(len(call) != gates for call in calls):
            continue
        known = [[one for call in calls if (one := call[i]) is not None] for i in range(gates)]
        flat = sum(len(own) >= _LEAST_STEPS and sum(own) >= _SHARE_OF_CELLS * len(own) for own in known)
        if 2 * flat >= gates:
            op = case.query.tensors.op(int(events[0]))
            yield Found(
                f"{flat} of the {gates} activations of {op.op} are at their ends for (almost) all elements: almost no "
                "gradient passes them",
                _CURE,
                (op.index,),
                severity=NOTE if case.is_lesson else "",
                tensors=tuple(dict.fromkeys(case.query.nodes.leaves_behind(case.query.nodes.of_op(op.index)))),
            )


def _flat_gates(case: Case, event: int) -> list[bool | None]:
    """For each gate of a call, whether it lets almost no gradient through; None if it received no gradient."""
    flat: list[bool | None] = []
    for node in case.query.nodes.of_op(event):
        made = case.query.nodes.event(node)
        highest = _HIGHEST.get(made.grad_fn, 0.0) if made is not None else 0.0
        if highest:
            came, gave = case.of(_received).get(node, 0.0), case.of(_produced).get(node, 0.0)
            flat.append(gave < _FLAT_CELL * highest * came if came > 0 else None)
    return flat


def _received(case: Case) -> dict[int, float]:
    """The root mean square of the first gradient that each node received."""
    table = case.trace.table(Kind.RECEIVED)
    gradients = table.lists("gradients")
    return _rms_by_node(case, table["node"], table.events, gradients.firsts)


def _produced(case: Case) -> dict[int, float]:
    """The root mean square of the first gradient that each node gave."""
    table = case.trace.table(Kind.PRODUCED)
    flows = table.lists("flows")
    first = flows.positions == 0
    owners = flows.owners[first]
    return _rms_by_node(case, table["node"][owners], table.events[owners], flows.elements[first, 1])


def _rms_by_node(case: Case, nodes: np.ndarray, events: np.ndarray, tensors: np.ndarray) -> dict[int, float]:
    rows = case.trace.states.rows_of(tensors, events)
    known = rows >= 0
    sizes = case.trace.states.stats[rows[known], Stat.RMS]
    return dict(zip(nodes[known].tolist(), sizes.tolist(), strict=True))
