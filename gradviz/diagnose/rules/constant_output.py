"""`constant-output`: an op gives the same numbers for every input, so that no gradient passes: softmax over one
entry, normalisation of one element, cross_entropy of one class. This holds for all calls of its line, though their
inputs differ.

Why it is bad: the derivative is 0 everywhere: the layers before the op learn nothing.

Example:

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(3):
        p = torch.softmax(model(torch.randn(6, 4)), dim=1)  # <- constant-output
        p = p.squeeze(1).clamp(1e-6, 1 - 1e-6)
        loss = -(torch.log(p) + torch.log(1 - p)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Cure: use the op for this number of classes (`sigmoid` for one class), or normalise over the axis that was meant.

Not reported: an op whose inputs were constant too.
"""

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.blocked import blocks
from gradviz.diagnose.fix import Fix, other_function
from gradviz.diagnose.rule import WARNING, Case, Found, Kind, Need, Rule
from gradviz.events.values import Stat
from gradviz.query.ops import NORMALISING, SHARES
from gradviz.sets import contained
from gradviz.words.numbers import number

_LEAST = 2  # calls
_FLAT = 1e-5  # a spread that may be rounding
_TINY = 1e-5  # the share of the gradient that rounding lets through


@Rule(
    "constant-output",
    WARNING,
    "an op that gives the same for every input",
    needs=(Need.VALUES, Need.DETAILS, Need.PASSES),
    follows=("huge-start", "constant-start"),
)
def constant_output(case: Case) -> Iterator[Found]:
    blocked = {block.site: block.leaves for block in case.of(blocks)}
    ops, states = case.trace.table(Kind.OP), case.trace.states
    outputs, inputs = ops.lists("outputs"), ops.lists("inputs")
    chosen = np.flatnonzero(
        case.trace.named(ops["op"], NORMALISING) & ops["grad_enabled"] & (outputs.counts > 0) & (ops["in_pass"] == 0)
    )
    chosen = chosen[contained(ops.events[chosen], case.trace.table(Kind.NODE)["op"])]
    for events in case.by_site(ops.events[chosen]).values():
        rows = np.searchsorted(ops.events, events)
        result_rows = states.rows_of(outputs.firsts[rows], events)
        input_rows = states.rows_of(inputs.firsts[rows], events)
        if len(rows) < _LEAST or (result_rows < 0).any() or (input_rows < 0).any():
            continue
        low, high = states.stats[result_rows, Stat.MIN], states.stats[result_rows, Stat.MAX]
        varied = states.stats[input_rows, Stat.MAX] - states.stats[input_rows, Stat.MIN] > _FLAT
        if not varied.all() or not np.all(high - low <= _FLAT):
            continue
        op = ops.object(int(events[0]))
        if not _blocks(case, op.index, is_one_entry=op.op in SHARES and float(low[0]) == 1):
            continue
        yield Found(
            f"{op.op} gives {number(float(high[0]), 4)} for every input in all {case.calls_called(len(rows))}: "
            f"it has one entry to normalise, and no gradient passes it",
            Fix(
                "normalise over the dimension of the classes or features: dim=-1 of more than one entry; "
                "for one output use sigmoid",
                lambda spot: other_function(spot, "softmax", "torch.sigmoid"),
            ),
            (op.index, int(events[-1])),
            tensors=blocked.get(op.site, ()),
        )


def _blocks(case: Case, op: int, is_one_entry: bool) -> bool:
    """Whether the nodes of an op produced (almost) nothing from the gradients that they received in all passes. With
    one entry the gradient received may be 0, too: the op that reads the constant may block as well."""
    nodes = case.query.nodes.of_op(op)
    received, produced = case.trace.table(Kind.RECEIVED), case.trace.table(Kind.PRODUCED)
    flows, gradients = produced.lists("flows"), received.lists("gradients")
    first = nodes[:1]
    of_node = contained(produced["node"][flows.owners], first) & (flows.positions == 0)
    came = contained(received["node"][gradients.owners], nodes[-1:])
    gave = _highest(case, flows.elements[of_node, 1], produced.events[flows.owners[of_node]])
    got = _highest(case, gradients.values[came], received.events[gradients.owners[came]])
    return gave <= _TINY * got and (got > 0 or (is_one_entry and bool(came.any())))


def _highest(case: Case, tensors: np.ndarray, events: np.ndarray) -> float:
    rows = case.trace.states.rows_of(tensors, events)
    return float(np.nan_to_num(case.trace.states.stats[rows[rows >= 0], 3]).max(initial=0.0))
