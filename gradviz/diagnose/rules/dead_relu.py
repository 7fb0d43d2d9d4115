"""`dead-relu`: a rectifier gives (almost) only zeros for every batch in the last half of the run, or in the last 100
passes if these are a tenth of it, so that no gradient passes it.

Why it is bad: its derivative at 0 is 0: the units get no gradient, and do not come back.

Example:

    torch.manual_seed(0)
    layer, head = torch.nn.Linear(3, 8), torch.nn.Linear(8, 1)
    with torch.no_grad():
        layer.bias.fill_(-50.0)
    optimizer = torch.optim.SGD([*layer.parameters(), *head.parameters()], lr=0.01)
    for step in range(4):
        optimizer.zero_grad()
        hidden = torch.relu(layer(torch.randn(8, 3)))  # <- dead-relu
        loss = (head(hidden) - 1.0).pow(2).mean()
        loss.backward()
        optimizer.step()

Cure: a smaller learning rate, biases that begin at 0 or above, normalised inputs, or `leaky_relu`.

Not reported: a rectifier half of whose units are zero; a term of the loss that is 0, as a hinge loss is when all
margins are kept. In a program of a single pass that trains nothing, the finding is a note.
"""

from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.fix import Fix, leaky
from gradviz.diagnose.rule import NOTE, WARNING, Case, Found, Need, Rule, Threshold
from gradviz.events.kinds import REQUIRES_GRAD, Kind, OpRan
from gradviz.events.values import Stat
from gradviz.query import ops as op_sets
from gradviz.query.flow import leaves_behind, op_of
from gradviz.sets import contained
from gradviz.words.numbers import few_of

# The ops that combine terms into a loss.
_IN_LOSS = op_sets.REDUCTIONS | op_sets.ADDING | op_sets.MULTIPLYING | op_sets.DIVIDING | op_sets.NEGATING
_IN_LOSS |= op_sets.RESHAPING | op_sets.SELECTING | op_sets.JOINING | {"pow", "square", "sqrt"}
_STEPS = 32  # the most results on the way to the loss that are looked at
_LEAST = 8  # elements of the smallest output
_LATE = 100  # passes at the end of a long run, or a tenth of it


@Rule(
    "dead-relu",
    WARNING,
    "a rectifier that gives only zeros",
    needs=(Need.VALUES, Need.DETAILS, Need.PASS),
    follows=("huge-start", "constant-start"),
    threshold=Threshold(0.99, 0.5, 1, "the share of zeros in the results of a rectifier"),
)
def dead_relu(case: Case) -> Iterator[Found]:
    ops = case.trace.table(Kind.OP)
    chosen = case.trace.named(ops["op"], op_sets.RECTIFIERS) & ops["grad_enabled"]
    outputs = ops.lists("outputs")
    events, results = ops.events[chosen], outputs.firsts[chosen]
    rows = case.trace.states.rows_of(results, events)
    states = case.trace.states
    sizes = states.sizes(rows)
    share = states.stats[rows, Stat.ZEROS] / np.maximum(sizes, 1)
    dead = (rows >= 0) & (sizes >= _LEAST) & (share >= dead_relu.threshold_in(case))
    if not dead.any():
        return
    sites = case.query.places.of_events[events]
    scopes = case.query.scopes.last_entered(events)
    # where passes were left out, few of the calls that were recorded are of the last half of the run
    passes = case.trace.passes
    late = max(0 if case.recorded is None else len(passes) // 2, len(passes) - max(_LATE, len(passes) // 10))
    begin = passes[late].first if late else 0
    places: dict[int, dict[int, list[int]]] = {}
    for i in np.flatnonzero((rows >= 0) & contained(sites, sites[dead])).tolist():
        places.setdefault(int(sites[i]), {}).setdefault(int(scopes[i]), []).append(i)
    for site, of_scopes in places.items():
        last = {
            scope: visits[max(len(visits) // 2, min(bisect_left(events[visits], begin), len(visits) - 1)) :]
            for scope, visits in of_scopes.items()
        }
        dead_ones = [
            scope
            for scope, visits in of_scopes.items()
            if dead[last[scope]].all()
            and case.query.nodes.has_run(int(results[visits[-1]]))
            and not _is_hinge(case, int(results[visits[-1]]), bool(dead[visits].all()))
        ]
        if dead_ones:
            calls = sorted(call for scope in dead_ones for call in last[scope])
            names = [case.trace.text(scope) for scope in dead_ones if scope]
            zeros = [int(results[last[scope][0]]) for scope in dead_ones]
            readers = (event for tensor in zeros for event in case.downstream.readers(tensor))
            # the leaves behind them, and those that they are multiplied with
            nodes = [node for event in readers for node in case.query.nodes.of_op(event)]
            yield Found(
                f"the rectifier{f' in or after {few_of(names)}' if names else ''} gives {share[calls].mean():.0%} "
                f"zeros{f' in its last {case.calls_called(len(calls))}' * (len(calls) > 1)}: no gradient passes it",
                Fix("use a smaller learning rate or bias, another initialisation, or nn.LeakyReLU", leaky),
                (int(events[calls[0]]),),
                site=site,
                severity=NOTE if case.is_lesson else "",
                tensors=(*zeros, *leaves_behind(case.query, nodes)),
            )


def _is_hinge(case: Case, tensor: int, was_always_dead: bool) -> bool:
    """Whether a result is a term of the loss that may be 0. It rectifies a difference. On the way to the root it is
    only summed, weighted and reshaped. It was above 0 in an earlier call, or it is one of several terms."""
    made = case.query.tensors.made(tensor)
    op = op_of(case.query, made.inputs[0]) if isinstance(made, OpRan) and made.inputs else None
    if op is None or op.op not in op_sets.SUMS or (op.op in op_sets.ADDING and sum(map(bool, op.inputs)) > 1):
        return False
    results = case.downstream.results(tensor, _STEPS)
    ops = [case.query.tensors.op(event) for event in {op for readers in results.values() for op in readers}]
    if len(results) >= _STEPS or not all(op.op in _IN_LOSS for op in ops):
        return False
    others = {t for op in ops for t in op.inputs if t and t not in results}
    flags = [case.query.tensors.flags(t, case.trace.count) for t in others]
    return not was_always_dead or any(flag & REQUIRES_GRAD for flag in flags)
