"""Lines at which gradients end: their nodes receive a gradient and give only zeros, in every pass."""

from typing import NamedTuple

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.events.kinds import Accumulated, Kind, Produced
from gradviz.query.chain_step import ChainStep, chain_step
from gradviz.query.pass_owners import PassOwners
from gradviz.query.zeros import behind_zero
from gradviz.sets import contained, distinct, without

HOOKED_CALL = "BackwardHookFunction"  # the op around a module that has backward hooks
_LEAST = 2  # passes
_LEAVES = 256  # the most leaves that are looked at
_VIEWS = 4  # the most nodes between a node and the leaf that it gives a gradient to
_SATISFIED = 1e-4  # a loss below this counts as 0


class Block(NamedTuple):
    """A line whose nodes give only zeros. `event` is the first event at which one of these nodes gave zeros, `node` is
    that node, `number` its pass. `leaves` are the leaves behind the line that got only zeros in the whole run.
    `is_last` is True if the node gives the zeros directly to these leaves. `zero` is a tensor of zeros that the op of
    the node read; 0 if there is none. `cancelled` is a node to which gradients came by several ways that cancel: of
    these `node` is the last in forward; 0 if there is none."""

    site: int
    event: int
    node: int
    number: int
    leaves: tuple[int, ...]
    is_last: bool
    zero: int
    cancelled: int = 0


def blocks(case: Case) -> list[Block]:
    """The lines behind which leaves get nothing but zeros. Use `case.of(blocks)`."""
    came, own = case.trace.table(Kind.ACCUMULATED), case.of(_in_passes_of_their_own)
    live = own & ~contained(came["in_pass"], _passes_from_zero(case))
    found: dict[tuple[int, bool], Block] = {}
    for leaf in _dry_leaves(case).tolist()[:_LEAVES]:
        block = _block(case, came.object(int(came.events[live & (came["tensor"] == leaf)][0])))
        if block is not None:
            key = block.site, block.is_last
            before = found.get(key)
            found[key] = block if before is None else before._replace(leaves=(*before.leaves, leaf))
    return sorted(found.values(), key=lambda block: not block.is_last)


def _block(case: Case, accumulated: Accumulated) -> Block | None:
    """The node that gave 0 to a leaf for a gradient that is not 0, or at which gradients cancel; None if there is none:
    the gradients of several samples cancel, or the pass began with 0."""
    zero = behind_zero(case.query, accumulated)
    produced = case.trace.table(Kind.PRODUCED)
    if zero is not None and zero.cancelled:
        return _cancelled(case, accumulated, zero.cancelled)
    if zero is None or not zero.node:
        return None
    rows = (produced["node"] == zero.node) & (produced["in_pass"] == accumulated.in_pass)
    event = produced.object(int(produced.events[rows][0]))
    received = case.query.at(event.index).received(event.node)
    came = np.array(received.gradients if received is not None else (), np.int64)
    if not (_rms(case, came, np.full(len(came), event.index)) > 0).any():  # not finite, or not known
        return None
    steps, read = _zero_steps(case, event), 0
    op = case.query.nodes.op(zero.node)
    if op is not None:
        own = {step.tensor for step in steps}  # an input whose own gradient is 0 did not make it 0
        inputs = np.array([t for t in case.query.tensors.op(op).inputs if t and t not in own], int)
        still = inputs[_rms(case, inputs, np.full(len(inputs), op)) == 0]
        read = int(still[0]) if len(still) else 0
    if steps and not read and all(map(_cancels, steps)):
        return None
    ways = ([*case.query.nodes.walk([flow.node])] for flow in event.flows if flow.node)  # by views, as `weight.t()`
    is_last = any(accumulated.node in way and len(way) <= _VIEWS for way in ways)
    site = case.site(event.index)
    return Block(site, event.index, zero.node, accumulated.in_pass, (accumulated.tensor,), is_last, read)


def _cancelled(case: Case, accumulated: Accumulated, node: int) -> Block | None:
    """The last op in forward of those from which gradients came to a node that cancel; None if it does not read the
    result of the node: that of a critic's bias rightly cancels, which is in both of its terms."""
    nodes = case.query.nodes
    arrivals = case.query.deliveries(accumulated.in_pass).arrivals(node, accumulated.index)
    sent = [event for one in arrivals if isinstance(event := case.trace.event(one.event), Produced)]
    last = max(sent, key=lambda one: nodes.op(one.node) or 0, default=None)
    op = nodes.op(last.node) if last is not None else None
    if last is None or op is None or set(case.query.tensors.op(op).inputs).isdisjoint(nodes.outputs(node)):
        return None
    return Block(case.site(op), last.index, last.node, accumulated.in_pass, (accumulated.tensor,), False, 0, node)


def _zero_steps(case: Case, event: Produced) -> list[ChainStep]:
    """The edges along which a node gave 0."""
    made = case.query.nodes.event(event.node)
    if made is None:
        return []
    received = case.query.at(event.index).received(event.node)
    given = np.array([flow.gradient for flow in event.flows], np.int64)
    zeros = np.flatnonzero(_rms(case, given, np.full(len(given), event.index)) == 0)
    return [chain_step(case.query, made, position, received, event) for position in zeros.tolist()]


def _cancels(step: ChainStep) -> bool:
    """Whether the zeros of an edge are sums over broadcast dimensions of terms that are not 0, as far as is known."""
    array = step.product.array if step.product is not None else None
    return bool(step.summed) and (array is None or bool(np.any(array)))


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


def _passes_from_zero(case: Case) -> np.ndarray:
    """The passes whose roots are all (almost) 0. A loss of 0 rightly sends no gradient."""
    began = case.trace.table(Kind.PASS_BEGAN)
    roots = began.lists("roots")
    zero = _rms(case, roots.elements[:, 2], began.events[roots.owners]) < _SATISFIED
    others = distinct(roots.owners[~zero])
    return without(began["number"], began["number"][others])


def _rms(case: Case, tensors: np.ndarray, events: np.ndarray) -> np.ndarray:
    """The root mean square of tensors at events; NaN where it is not known or not finite."""
    states = case.trace.states
    return states.finite_rms(states.rows_of(tensors, events))
