"""`vanishing-gradient`: in the first pass and in half of all passes or more, the gradient of some weights has a root
mean square below 1e-7, while the gradient of other weights in the same pass is at least 10,000 times as large. The
gradient gets smaller at a line whose nodes ran several times.

Why it is bad: the first layers learn ten thousand times more slowly than the last layers, that is, not at all.

Example:

    torch.manual_seed(0)
    layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(20)])
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    for step in range(2):
        h = torch.randn(6, 4)
        for layer in layers:
            h = torch.sigmoid(layer(h))  # <- vanishing-gradient
        loss = h.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Cure: give the gradient a shorter path (residual connections), use activations that do not shrink it, normalisation, or
a better initialisation.

Not reported: gradients that are equally small for all weights, as at the end of training.
"""

import math
from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.norms import gains
from gradviz.diagnose.rule import WARNING, Case, Found, Kind, Need, Rule, Threshold
from gradviz.query.flow import reach, sources
from gradviz.sets import common, contained, ranked, without
from gradviz.words.numbers import number

_RATIO, _SHARE = 1e4, 0.5
_BESIDE = 1e3  # a leaf whose gradient is so many times larger than that of a leaf beside it learns
_ROUNDS, _LOSS = 3, -2.0  # a line is blamed from so many rounds and from a loss of two powers of ten


@Rule(
    "vanishing-gradient",
    WARNING,
    "gradients that get smaller from layer to layer until nothing is left",
    needs=(Need.VALUES, Need.PASS, Need.DETAILS),
    follows=("huge-start", "constant-start", "dead-relu"),
    threshold=Threshold(1e-7, 0, math.inf, "the root mean square of a leaf's gradient"),
)
def vanishing_gradient(case: Case) -> Iterator[Found]:
    came, states = case.trace.table(Kind.ACCUMULATED), case.trace.states
    leaves, passes = came["tensor"], came["in_pass"]
    rms = states.finite_rms(states.rows_of(came["gradient"], came.events))
    numbers, at = ranked(passes)
    largest = np.zeros(len(numbers))
    known = np.isfinite(rms)
    np.maximum.at(largest, at[known], rms[known])
    tiny = known & (rms > 0) & (rms < vanishing_gradient.threshold_in(case)) & (largest[at] >= _RATIO * rms)
    if not tiny.any():
        return
    tensors, places = ranked(leaves)
    counts, of_all = (np.bincount(places[some], minlength=len(tensors)) for some in (tiny, known))
    small = tensors[(counts > 0) & (counts >= _SHARE * of_all)]
    small = common(small, leaves[tiny & (passes == passes.min())])
    at_first = known & (passes == passes.min())
    small = _not_cancelled(case, small, dict(zip(leaves[at_first].tolist(), rms[at_first].tolist(), strict=True)))
    first = int(passes[tiny & contained(leaves, small)].min(initial=numbers[-1] + 1))
    leaves_of, received = set(small.tolist()), _received(case, first)
    on_branches = [leaf for leaf in leaves_of if _begins_at_a_stream(case, leaf, leaves_of, received)]
    small = without(small, sorted(on_branches))
    if not len(small):
        return
    lines = [gain for gain in gains(case, first) if gain.rounds >= _ROUNDS and gain.total <= _LOSS]
    if not lines:
        return
    line = min(lines, key=lambda gain: gain.total + gain.own)
    worst = float(rms[tiny & (passes == first) & contained(leaves, small)].min())
    yield Found(
        f"from the first to the last of {line.count} nodes of this line, the gradient gets "
        f"{number(10.0**-line.total, 2)} times smaller: that of {case.called(small.tolist())} "
        f"has rms {number(worst, 2)}",
        "use ReLU or GELU, residual connections, normalisation, or gates (LSTM, GRU)",
        (line.event, case.query.passes.by_number[first].first),
        site=line.site,
        number=first,
        tensors=tuple(small.tolist()),
    )


def _not_cancelled(case: Case, small: np.ndarray, norms: dict[int, float]) -> np.ndarray:
    """The leaves that no op reads together with a leaf whose gradient is sound, by the norms of one pass. A bias before
    a normalisation gets nothing but rounding errors, while the weight beside it learns."""
    below, nodes = case.downstream, case.query.nodes
    return np.array(
        [
            leaf
            for leaf in small.tolist()
            if not any(
                norms.get(other, 0.0) >= _BESIDE * norms[leaf]
                for event in [use for use in below.readers(leaf) if nodes.of_op(use)][:1]  # no copy of it
                for read in case.query.tensors.op(event).inputs
                for other in (read, *sources(case.query, read, through_memory=True))
            )
        ],
        np.int64,
    )


# --- branches of a model


_LARGER = 1e2  # the gradient of the main path over the gradient of the branch
_LAYERS = 4  # the most layers of a branch whose parameters are among the leaves
_NODES = 64  # the most nodes of a branch that are looked at
_VIEWS = 4  # the most ops on a leaf alone that are looked at


def _received(case: Case, number: int) -> dict[int, float]:
    """The largest root mean square of the gradients that each node received in a pass."""
    received = case.trace.table(Kind.RECEIVED)
    gradients = received.lists("gradients")
    in_pass = received["in_pass"][gradients.owners] == number
    states = case.trace.states
    rows = states.rows_of(gradients.values[in_pass], received.events[gradients.owners[in_pass]])
    rms = np.nan_to_num(states.rms(rows))
    largest: dict[int, float] = {}
    for node, size in zip(received["node"][gradients.owners[in_pass]].tolist(), rms.tolist(), strict=True):
        largest[node] = max(largest.get(node, 0.0), size)
    return largest


def _begins_at_a_stream(case: Case, leaf: int, leaves: set[int], came: dict[int, float]) -> bool:
    query = case.query
    joins = _joins(case, leaf)
    sound = _LARGER * max((came.get(node, 0.0) for node in joins), default=0.0) or np.inf
    layers = dict.fromkeys(joins, 1)

    def onward(node: int) -> Iterator[int]:
        for onwards in {edge.node for edge in query.nodes.edges(node)} - set(layers):
            op = query.nodes.op(onwards)
            if op is None:
                continue
            is_layer = op != query.nodes.op(node) and not leaves.isdisjoint(query.tensors.op(op).inputs)
            if layers[node] + is_layer <= _LAYERS:
                layers[onwards] = layers[node] + is_layer
                yield onwards

    reached = (edge.node for node in reach(joins, onward, _NODES) for edge in query.nodes.edges(node))
    return any(came.get(node, 0.0) >= sound for node in reached)


def _joins(case: Case, leaf: int) -> list[int]:
    """The nodes of the op in which a leaf, or a view of it such as `weight.t()`, meets a computed tensor; empty if
    there is no such op."""
    nodes, tensor = case.query.nodes, leaf
    for _ in range(_VIEWS):
        readers = [use for use in case.downstream.readers(tensor) if nodes.of_op(use)]
        if not readers:
            return []
        joining = nodes.of_op(readers[0])
        led_to = {edge.node for node in joining for edge in nodes.edges(node) if nodes.made(edge.node) is not None}
        if led_to - set(joining):
            return joining
        outputs = case.query.tensors.op(readers[0]).outputs
        tensor = outputs[0] if outputs else 0
    return []
