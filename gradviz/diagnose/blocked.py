"""Lines at which gradients end: their nodes receive a gradient and give only zeros, in every pass."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.events.kinds import Kind
from gradviz.query.chain_step import ChainStep, chain_step
from gradviz.query.pass_owners import PassOwners
from gradviz.query.zeros import Zero, behind_zero
from gradviz.sets import contained, distinct, without

HOOKED_CALL = "BackwardHookFunction"  # the op around a module that has backward hooks
_LEAST = 2  # passes
_VIEWS = 4  # the most nodes between a node and the leaf that it gives a gradient to
_SATISFIED = 1e-4  # a loss below this counts as 0


@dataclass(frozen=True, slots=True)
class Block:
    """A line whose nodes give only zeros. `event` is the first event at which one of these nodes gave zeros, `node` is
    that node, `number` its pass. `leaves` are the leaves behind the line that got only zeros in the whole run.
    `is_last` is True if the node gives the zeros directly to these leaves. `zero` is a tensor of zeros that the op of
    the node read; 0 if there is none."""

    site: int
    event: int
    node: int
    number: int
    leaves: tuple[int, ...]
    is_last: bool
    zero: int


def blocks(case: Case) -> list[Block]:
    """The lines behind which leaves get nothing but zeros. Use `case.of(blocks)`."""
    dry = _dry_leaves(case)
    if not len(dry):
        return []
    produced = case.trace.table(Kind.PRODUCED)
    flows = produced.lists("flows")
    gradients = _rms(case, flows.elements[:, 1], produced.events[flows.owners])
    stops = (flows.elements[:, 1] > 0) & (gradients == 0)
    owners = distinct(flows.owners[stops])
    came = _received(case)
    cancelled = {leaf for leaf in dry.tolist() if _cancels(case, leaf)}
    found: dict[tuple[int, bool], Block] = {}
    for owner in owners.tolist():
        node, number = int(produced["node"][owner]), int(produced["in_pass"][owner])
        event = int(produced.events[owner])
        site = case.site(event)
        zero = _zero_input(case, node, owner, gradients)
        if _sums_cancel(case, owner, gradients):
            continue
        if not came.get((node, number), 0) > 0 or (not zero and _only_sums_cancel(case, owner, gradients)):
            continue
        rows = np.flatnonzero((flows.owners == owner) & stops)
        targets = flows.elements[rows, 0].tolist()
        last = tuple(
            leaf for leaf in map(case.of(_Ends).leaf, targets) if leaf in dry and leaf not in cancelled
        )
        behind = last or tuple(
            leaf for leaf in _leaves_behind(case, targets) if leaf in dry and leaf not in cancelled
        )
        if behind and (site, bool(last)) not in found:
            found[site, bool(last)] = Block(site, event, node, number, behind, bool(last), zero)
    return _nearest(list(found.values()))


def _zero_input(case: Case, node: int, owner: int, gradients: np.ndarray) -> int:
    """A tensor of zeros that the op of a node read; 0 if there is none. An input whose own gradient is 0 does not
    count: its value does not make its own gradient 0."""
    op = case.query.nodes.op(node)
    of_zero_gradients = {step.tensor for step in _zero_steps(case, owner, gradients)}
    read = case.query.tensors.op(op).inputs if op is not None else ()
    inputs = np.array([tensor for tensor in read if tensor and tensor not in of_zero_gradients], int)
    still = _rms(case, inputs, np.full(len(inputs), op or 0)) == 0
    return int(inputs[still][0]) if still.any() else 0


def _nearest(found: list[Block]) -> list[Block]:
    """The blocks, each without the leaves to which another block directly gives zeros."""
    reached: set[int] = set()
    nearest = []
    for block in sorted(found, key=lambda block: not block.is_last):
        left = tuple(leaf for leaf in block.leaves if leaf not in reached)
        if left:
            nearest.append(replace(block, leaves=left))
        reached.update(left if block.is_last else ())
    return nearest


class _Ends:
    """The leaves that nodes lead to, directly or by views such as `weight.t()`."""

    def __init__(self, case: Case) -> None:
        self.nodes = case.query.nodes
        self.leaves = self.nodes.leaves

    def leaf(self, node: int) -> int:
        """The only leaf behind a node, through nodes with one edge; 0 if a node on the way has several edges."""
        for _ in range(_VIEWS):
            if node in self.leaves:
                return self.leaves[node]
            edges = [edge.node for edge in self.nodes.edges(node) if edge.node]
            if len(edges) != 1:
                return 0
            node = edges[0]
        return 0


def _dry_leaves(case: Case) -> np.ndarray:
    """The trained leaves all of whose gradients were zero, in two or more passes with a root other than 0, or in the
    only pass of a program."""
    came = case.trace.table(Kind.ACCUMULATED)
    known = case.trace.states.rows_of(came["gradient"], came.events) >= 0
    known &= case.of(_in_passes_of_their_own)
    leaves = came["tensor"][known]
    rms = _rms(case, came["gradient"][known], came.events[known])
    live = ~contained(came["in_pass"][known], _passes_from_zero(case))
    wet = distinct(leaves[(rms != 0) & live])
    dry, counts = np.unique(leaves[live], return_counts=True)
    dry = dry[(counts >= min(_LEAST, len(case.trace.passes))) & ~contained(dry, wet)]
    held = case.training.trained | set(case.training.holders)
    return dry[contained(dry, sorted(held))] if held else dry


def _in_passes_of_their_own(case: Case) -> np.ndarray:
    """For each gradient that a leaf got, whether its pass belongs to the leaf's optimizer: a critic gets gradients from
    its actor's passes, too."""
    came = case.trace.table(Kind.ACCUMULATED)
    owners = case.query.of(PassOwners)
    is_own = np.ones(len(came), bool)
    training = case.training
    alike: dict[frozenset[int], list[int]] = {}
    for leaf in distinct(came["tensor"]).tolist():
        optimizers = frozenset(training.holders.get(leaf, set()) | training.owners.get(leaf, set()))
        alike.setdefault(optimizers, []).append(leaf)
    for leaves in alike.values():
        rows = contained(came["tensor"], leaves)
        is_own[rows] = contained(
            came["in_pass"][rows], [backward_pass.number for backward_pass in owners.passes_of(leaves[0])]
        )
    return is_own


def _zero_steps(case: Case, owner: int, gradients: np.ndarray) -> list[ChainStep]:
    """The edges along which a node gave 0. `owner` is the row of the node's PRODUCED event."""
    produced = case.trace.table(Kind.PRODUCED)
    rows = np.flatnonzero(produced.lists("flows").owners == owner)
    event = produced.object(int(produced.events[owner]))
    made = case.query.nodes.event(event.node)
    if made is None:
        return []
    received = case.query.at(event.index).received(event.node)
    positions = np.flatnonzero(gradients[rows] == 0).tolist()
    return [chain_step(case.query, made, position, received, event) for position in positions]


def _sums_cancel(case: Case, owner: int, gradients: np.ndarray) -> bool:
    """Whether the zeros that a node gave are sums over broadcast dimensions, of terms that are not 0."""
    steps = [step for step in _zero_steps(case, owner, gradients) if step.downstream is not None]
    products = [step.product.array for step in steps if step.summed and step.product is not None]
    return (
        bool(steps)
        and len(products) == len(steps)
        and all(array is not None and bool(np.any(array)) for array in products)
    )


def _only_sums_cancel(case: Case, owner: int, gradients: np.ndarray) -> bool:
    """Whether a node also gives gradients other than 0, and its gradients of 0 are sums over the gradient that it
    received: the gradient of a bias is 0 if the gradients of several samples cancel. `gradients` are the root mean
    squares of all flows."""
    size_of = case.trace.states.size_of
    produced = case.trace.table(Kind.PRODUCED)
    flows = produced.lists("flows")
    rows = np.flatnonzero(flows.owners == owner)
    zero = (flows.elements[rows, 1] > 0) & (gradients[rows] == 0)
    if not (gradients[rows] > 0).any():
        return False
    received = case.query.at(int(produced.events[owner])).received(int(produced["node"][owner]))
    came = max(
        (size_of(one) for one in (received.gradients if received is not None else ()) if one), default=0
    )
    return all(size_of(int(gradient)) < came for gradient in flows.elements[rows[zero], 1])


def _cancels(case: Case, leaf: int) -> bool:
    """Whether the gradients from several paths cancel at a leaf, as at the last bias of subtracted twin networks."""
    came = case.trace.table(Kind.ACCUMULATED)
    of_leaf = (came["tensor"] == leaf) & case.of(_in_passes_of_their_own)
    last = came.object(int(came.events[of_leaf][-1]))
    return behind_zero(case.query, last) == Zero()


def _passes_from_zero(case: Case) -> np.ndarray:
    """The passes whose roots are all (almost) 0. A loss of 0 rightly sends no gradient."""
    began = case.trace.table(Kind.PASS_BEGAN)
    roots = began.lists("roots")
    zero = _rms(case, roots.elements[:, 2], began.events[roots.owners]) < _SATISFIED
    others = distinct(roots.owners[~zero])
    return without(began["number"], began["number"][others])


def _received(case: Case) -> dict[tuple[int, int], float]:
    """For each node and pass, the highest root mean square of the gradients that the node received."""
    received = case.trace.table(Kind.RECEIVED)
    gradients = received.lists("gradients")
    values = _rms(case, gradients.values, received.events[gradients.owners])
    highest = np.zeros(len(received))
    np.maximum.at(highest, gradients.owners, np.nan_to_num(values))
    pairs = zip(received["node"].tolist(), received["in_pass"].tolist(), strict=True)
    return dict(zip(pairs, highest.tolist(), strict=True))


def _leaves_behind(case: Case, nodes: list[int]) -> list[int]:
    leaves = case.query.nodes.leaves
    return [leaves[node] for node in case.query.nodes.walk(nodes) if node in leaves]


def _rms(case: Case, tensors: np.ndarray, events: np.ndarray) -> np.ndarray:
    """The root mean square of tensors at events; NaN where it is not known or not finite."""
    states = case.trace.states
    return states.finite_rms(states.rows_of(tensors, events))
