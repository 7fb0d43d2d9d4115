"""Edges of a graph where a constant is meant: a tensor is carried from pass to pass, leads from one network into the
loss of another network, or is the target of a loss."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.events.kinds import Kind, OpRan
from gradviz.query import ops as op_sets
from gradviz.query.collective_calls import sent
from gradviz.query.flow import is_square, op_behind, op_of, reach
from gradviz.query.training import ACCUMULATED, STEPPED
from gradviz.query.writes import Writes
from gradviz.sets import contained, distinct, ranked, without

_PASSES = 3  # the fewest passes in which a graph has to grow
_SITES = 8  # the most lines with passes that are looked at
_DIRECT = 64  # the most nodes next to leaves that are looked at
_NEAR = 16  # the most tensors behind a factor that are looked at
_OF_ACTIONS = 64  # the same behind a sum of log-probabilities of several actions


class Link(NamedTuple):
    """An edge of a graph that should not be there: from `node`, made by op `op`, to the node that made `tensor`.
    `leaves` are the leaves that the gradient reaches through the edge. `number` is the pass; 0 if it is not known.
    `site` is where the tensor is given to a module; 0 if the op is in no module."""

    node: int
    op: int
    tensor: int
    leaves: tuple[int, ...]
    number: int
    site: int = 0


def carried(case: Case) -> Link | None:
    """The edge from the graph of one round to the graphs of earlier rounds, if passes go through more and more nodes
    that earlier passes went through. None if there is no such edge."""
    received = case.trace.table(Kind.RECEIVED)
    known = contained(received["node"], case.trace.table(Kind.NODE)["node"])
    nodes, numbers = received["node"][known], received["in_pass"][known]
    if not len(nodes):
        return None
    known_nodes, at = ranked(nodes)
    first = np.full(len(known_nodes), np.iinfo(np.int64).max)
    np.minimum.at(first, at, numbers)
    again = numbers > first[at]
    passes, counts = np.unique(numbers[again], return_counts=True)
    if len(passes) < _PASSES or np.any(np.diff(counts) < 0) or counts[-1] <= counts[0] * 1.5:
        return None
    backward_pass = case.query.passes.by_number[int(passes[0])]
    old = set(nodes[again & (numbers == backward_pass.number)].tolist())
    ends = [case.query.passes.last(other) for other in case.trace.passes if other.number < backward_pass.number]
    end = max(ends, default=0)
    for node in nodes[(numbers == backward_pass.number) & ~again].tolist():
        made = case.query.nodes.event(node)
        if made is None or made.index < end:
            continue
        for edge in made.edges:
            if edge.node in old:
                return Link(node, made.op, edge.tensor, (), backward_pass.number)
    return None


def carried_into(case: Case, node: int, number: int) -> int:
    """The tensor through which a pass reaches a node that an earlier pass went through, one with a name if there is
    one; 0 if there is none."""
    received = case.trace.table(Kind.RECEIVED)
    earlier = received["in_pass"][(received["node"] == node) & (received["in_pass"] < number)]
    if not len(earlier):
        return 0
    nodes = case.query.nodes
    since = case.query.passes.last(case.query.passes.by_number[int(earlier.max())])
    roots = [root.node for root in case.query.passes.began(number).roots]
    made = {one: event for one in sorted(nodes.walk(roots)) if (event := nodes.event(one)) is not None}
    edges = [edge for event in made.values() if event.index > since for edge in event.edges if edge.tensor]
    old = {edge.node for edge in edges if edge.node in made and made[edge.node].index < since}
    leading = {one for one in old if node in nodes.walk([one])}
    carried = [edge.tensor for edge in edges if edge.node in leading]
    return next((tensor for tensor in carried if case.query.names.of(tensor)), carried[0] if carried else 0)


def wasted(case: Case) -> Iterator[Link]:
    """Links into networks that a pass is not meant for. For all passes from its line, the gradients that reach these
    networks are cleared before a step uses them, and no gradient that is used flows through these networks."""
    lives = case.training.lives
    came = lives.whats == ACCUMULATED
    stepped = came & (lives.after(lives.whats == STEPPED) > 0)
    unused = came & ~stepped & lives.ends_cleared
    unused |= came & ~stepped & contained(lives.leaves, lives.leaves[stepped])  # of the last round, too
    by_number = case.query.passes.by_number
    sites = np.array([by_number[n].site if n in by_number else 0 for n in lives.numbers.tolist()])
    for site in distinct(sites[came & unused])[:_SITES].tolist():
        here = came & (sites == site)
        lost = without(lives.leaves[here & unused], lives.leaves[here & ~unused])
        # a stage of a pipeline sends gradients to other ranks
        grads, gone = case.query.tensors.grads, case.query.of(sent)
        kept = [leaf for leaf in lost.tolist() if not contained(grads.of(leaf)[1], gone).any()]
        # an optimizer that is made later takes its turn then
        last = by_number[int(lives.numbers[here].max())].first
        holders, made_at = case.training.holders, case.training.made_at
        kept = [leaf for leaf in kept if all(made_at(one) < last for one in holders.get(leaf, ()))]
        used = without(lives.leaves[here & stepped], np.array(kept, lost.dtype))
        # what a trainer clears with all else after an epoch sums up over the steps: it is in no optimizer
        rounds = {leaf: len(distinct(lives.windows[here & (lives.leaves == leaf)])) for leaf in (*kept, *used.tolist())}
        least = min((rounds[leaf] for leaf in used.tolist()), default=0)
        lost = np.array([leaf for leaf in kept if rounds[leaf] >= least], lost.dtype)
        numbers = distinct(lives.numbers[here])
        if len(lost) and len(used) and len(numbers) > 1 and site:
            used_elsewhere = distinct(lives.numbers[stepped & contained(lives.leaves, lost)])[:_PASSES].tolist()
            ways = [
                _at_the_door(case, link)
                for number in (int(numbers[0]), *used_elsewhere)
                if (link := _into(case, set(lost.tolist()), set(used.tolist()), number)) is not None
            ]
            # a loss may be minimised with respect to two groups of leaves, in turns; a cut in a line that passes for
            # these leaves go through, too, would take their gradients; and a term of the root that is cut is constant
            in_turns = by_number[int(numbers[0])].digest in [by_number[other].digest for other in used_elsewhere]
            lines = [case.query.places.line(link.site or case.site(link.op)) for link in ways]
            is_first = bool(ways) and ways[0].number == numbers[0] and not in_turns
            if is_first and lines.count(lines[0]) == 1 and not is_linear_to_root(case, ways[0].tensor):
                yield ways[0]


def _at_the_door(case: Case, link: Link) -> Link:
    """The link through which a gradient leaves the module around a link, if there is only one path to it: a cut inside
    the module would cut all calls of the module. The link itself if there is no such module or path."""
    query, inner = case.query, link
    for _ in range(_NEAR):
        op, maker = query.tensors.op(inner.op), query.tensors.made(inner.tensor)
        around = query.scopes.around(op.index, op.thread)
        if not around or not isinstance(maker, OpRan):
            return link
        if maker.index < around[0].index:
            return inner._replace(site=around[0].site)
        edges = [(node, edge) for node in query.nodes.of_op(maker.index) for edge in query.nodes.edges(node)]
        onwards = [(node, edge.tensor) for node, edge in edges if edge.node]
        if len(onwards) != 1:
            return link
        ((node, tensor),) = onwards
        inner = inner._replace(node=node, op=maker.index, tensor=tensor)
    return link


def into_followers(case: Case) -> Iterator[Link]:
    """Links into networks that follow the trained network: no optimizer holds their parameters, the program writes to
    them between the passes, and nothing reads their gradients, which grow from pass to pass."""
    lives = case.training.lives
    came = case.trace.table(Kind.ACCUMULATED)
    leaves, counts = np.unique(came["tensor"], return_counts=True)
    touched = lives.leaves[lives.whats != ACCUMULATED]
    alone = ~contained(leaves, sorted(case.training.trained | set(case.training.holders)))
    piling = leaves[alone & (counts >= _PASSES) & ~contained(leaves, touched)]
    followers = {leaf for leaf in piling.tolist() if _is_written_and_not_read(case, leaf)}
    numbers = distinct(came["in_pass"][contained(came["tensor"], sorted(followers))])
    for number in numbers[:1].tolist():
        used = set(came["tensor"][came["in_pass"] == number].tolist()) & case.training.trained
        link = _into(case, followers, used, number)
        if link is not None:
            yield link


def _is_written_and_not_read(case: Case, leaf: int) -> bool:
    """Whether the program writes to a leaf between passes that give it gradients, and nothing uses these gradients."""
    came = case.trace.table(Kind.ACCUMULATED)
    events = came.events[came["tensor"] == leaf]
    between = [event for event in case.query.tensors.writes(leaf) if events[0] < event < events[-1]]
    between = between if case.query.of(Writes).follows_another(leaf) else []  # a clamp follows nothing
    gradient = case.query.tensors.grad(leaf, int(events[-1]))
    taken = set(case.trace.table(Kind.GRAD_ASSIGNED)["grad"].tolist())
    return bool(between) and gradient not in taken and not case.downstream.readers(gradient)


def _into(case: Case, lost: set[int], used: set[int], number: int) -> Link | None:
    """The first edge of a pass from a node with used leaves behind it to a node with only lost leaves behind it."""
    nodes = case.query.nodes
    received = case.trace.table(Kind.RECEIVED)
    inside = set(received["node"][received["in_pass"] == number].tolist())
    behind = case.of(leaves_reached)
    direct = [
        node for node in inside if any(edge.tensor in lost and edge.node in nodes.leaves for edge in nodes.edges(node))
    ]
    if not direct or any(behind(node) & used for node in direct[:_DIRECT]):
        return None
    for node in sorted(inside):
        made = nodes.event(node)
        if made is None or not behind(node) & used:
            continue
        for edge in made.edges:
            below = behind(edge.node)
            if edge.node not in nodes.leaves and below and below <= lost:
                return Link(node, made.op, edge.tensor, tuple(sorted(below)), number)
    return None


def leaves_reached(case: Case) -> Callable[[int], frozenset[int]]:
    """The leaves that the gradient of a node reaches, each computed once. Use `case.of(leaves_reached)`."""
    return cache(lambda node: frozenset(case.query.nodes.leaves_behind([node])))


def in_targets(case: Case) -> Iterator[Link]:
    """Links from losses to targets that carry a graph. The target is the output of a network that no optimizer trains,
    or a sum of data and the output of the same network for another input, as in temporal-difference learning. A part of
    the trained model with values of its own is no such network: the optimizer lacks it."""
    ran = case.query.nodes.ran
    got = set(case.trace.table(Kind.ACCUMULATED)["tensor"].tolist())
    behind, loaded = case.of(leaves_reached), case.query.of(Writes).has_loaded_values
    for op in _candidates(case):
        a, b = op.inputs[:2]  # a difference may have the prediction and the target in either order
        for prediction, target in [(a, b), (b, a)] if op.op in op_sets.SUBTRACTING else [(a, b)]:
            node, other = _node(case, target), _node(case, prediction)
            if not node or not other or node not in ran:
                continue
            there, here = behind(node), behind(other)
            untrained = there & got - case.training.trained - set(case.training.holders)
            lonely = bool(there) and untrained == there and bool(here & case.training.trained) and not here & there
            near = {case.model_of(leaf) for leaf in here & case.training.trained}
            is_part = lonely and near == {case.model_of(leaf) for leaf in there if not loaded(leaf)}
            if lonely and not is_part and all(leaf in case.trace.parameters for leaf in there):
                yield Link(node, op.index, target, tuple(sorted(there)), 0)
                return
            total = op_behind(case.query, target, op_sets.RESHAPING | op_sets.CONVERTING)  # of data and an output
            is_bootstrapped = total is not None and total.op in op_sets.ADDING and _is_half_data(case, total)
            is_bootstrapped = is_bootstrapped and not there.isdisjoint(here & case.training.trained)
            nodes = case.query.nodes  # the graphs may share leaves only
            if is_bootstrapped and nodes.leaves.keys() >= {*nodes.walk([node])} & {*nodes.walk([other])}:
                yield Link(node, op.index, target, tuple(sorted(there)), 0)
                return


def in_weights(case: Case) -> Iterator[Link]:
    """Links from the product of a log-probability and an advantage to the baseline, as in actor-critic methods. The
    advantage is the difference of data and the baseline, which is the output of another network."""
    ops = case.trace.table(Kind.OP)
    chosen = case.trace.named(ops["op"], op_sets.MULTIPLYING) & (ops["in_pass"] == 0) & ops["grad_enabled"]
    for event in case.first_of_sites(ops.events[chosen]):
        op = ops.object(event)
        if len(op.inputs) != 2:
            continue
        for factor, weight in (op.inputs, op.inputs[::-1]):
            difference = op_of(case.query, weight) if weight else None
            if difference is None or difference.op not in op_sets.SUMS or not _node(case, weight):
                continue
            if _is_half_data(case, difference) and _node(case, factor) and _is_logarithm(case, factor):
                behind = case.of(leaves_reached)
                there, here = behind(_node(case, weight)), behind(_node(case, factor))
                if there - here and here - there:
                    yield Link(_node(case, weight), op.index, weight, tuple(sorted(there)), 0)
                    return


def _candidates(case: Case) -> Iterator[OpRan]:
    """The first op of each line that compares two tensors that require grad."""
    ops = case.trace.table(Kind.OP)
    chosen = (
        case.trace.named(ops["op"], op_sets.LOSSES | op_sets.SUBTRACTING) & (ops["in_pass"] == 0) & ops["grad_enabled"]
    )
    for event in case.first_of_sites(ops.events[chosen]):
        op = ops.object(event)
        if len(op.inputs) >= 2 and all(op.inputs[:2]) and not is_linear_to_root(case, op.outputs[0]):
            yield op


def is_linear_to_root(case: Case, tensor: int, by_weights: bool = True) -> bool:
    """Whether a tensor is only a term, perhaps scaled, on its single way to a root, as in `fit - 0.01 * entropy`: the
    square of a difference compares. `by_weights` allows factors that require grad."""
    for _ in range(_NEAR):
        if tensor in case.query.passes.roots:
            return True
        readers = [case.query.tensors.op(event) for event in case.downstream.readers(tensor)]
        onward = [op for op in readers if case.query.nodes.of_op(op.index)]
        if len(onward) != 1 or not onward[0].outputs or not _is_linear_in(case, onward[0], tensor, by_weights):
            return False
        tensor = onward[0].outputs[0]
    return False


def _is_linear_in(case: Case, op: OpRan, tensor: int, by_weights: bool) -> bool:
    """Whether an op sums or reshapes, or scales one of its inputs."""
    if op.op in op_sets.SUMS | op_sets.REDUCTIONS | op_sets.NEGATING | op_sets.RESHAPING:
        return True
    others = [other for other in op.inputs if other and other != tensor]
    is_scaling = op.op in op_sets.DIVIDING and op.inputs[0] == tensor
    is_scaling |= op.op in op_sets.MULTIPLYING and not is_square(op)
    return is_scaling and (by_weights or not any(case.query.tensors.requires_grad(one, op.index) for one in others))


def _node(case: Case, tensor: int) -> int:
    """The node of a non-leaf; 0 if it has none."""
    return case.query.nodes.of_tensors.last(tensor, case.trace.count) or 0 if tensor else 0


def _is_half_data(case: Case, op: OpRan) -> bool:
    """Whether an op has two tensors as operands, of which exactly one requires grad."""
    if len(op.inputs) != 2 or not all(op.inputs):
        return False
    wanting = [case.query.tensors.requires_grad(tensor, op.index) for tensor in op.inputs]
    return wanting[0] != wanting[1]


def _is_logarithm(case: Case, tensor: int) -> bool:
    """Whether a logarithm is among the last ops behind a tensor."""

    def onward(source: int) -> tuple[int, ...]:
        op = op_of(case.query, source)
        return () if op is None else op.inputs

    makers = (op_of(case.query, source) for source in reach([tensor], onward, _OF_ACTIONS))
    return any(op is not None and op.op in op_sets.LOG_PROBABILITIES for op in makers)
