"""The elements of all tensors in a pass, computed by a replay, for a trace that kept only the inputs' elements."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradviz.events.kinds import Kind, Produced, Received
from gradviz.query.query import Query
from gradviz.replay.outcome import Edits, Graph, Outcome, Runner, is_exact
from gradviz.replay.plan import Plan, ReplayError, plan_of


def fill_in(query: Query, runner: Runner, number: int | None) -> None:
    """Add the elements that a replay computes to the states of a pass (None: the last), so that views show them.
    Raises ReplayError if the pass cannot run again, or does not reproduce the recording: then nothing is added."""
    plan = plan_of(query, number)
    outcome = runner.run(plan, Edits(), graph_of(query, plan))
    if not is_exact(query, plan, outcome):
        raise ReplayError(
            f"pass {plan.number} does not give what was recorded, as far as is known: its elements are not known"
        )
    states = query.trace.states
    for step in plan.inputs:
        if step.value.array is not None:
            states.fill(step.tensor, step.event, step.value.array)
    for (event, tensor), array in outcome.made.items():
        states.fill(tensor, event, array)
    for gradient, event, array in gradients_of(query, plan, outcome):
        states.fill(gradient, event, array)


def graph_of(query: Query, plan: Plan) -> Graph:
    """The nodes that the pass went through."""
    roots = tuple(root.node for root in plan.began.roots)
    nodes = [*query.nodes.walk(list(roots))]
    return Graph(
        roots,
        {node: query.nodes.name(node) or "" for node in nodes},
        {node: tuple(edge.node for edge in query.nodes.edges(node)) for node in nodes},
    )


def gradients_of(query: Query, plan: Plan, outcome: Outcome) -> Iterator[tuple[int, int, np.ndarray]]:
    """The gradients that flowed in the pass, as the replay computes them: the number of each, its event, its
    elements."""
    trace = query.trace
    for kind in (Kind.RECEIVED, Kind.PRODUCED):
        table = trace.table(kind)
        for event in table.events[table["in_pass"] == plan.number].tolist():
            event_of_node = trace.event(event)
            assert isinstance(event_of_node, (Received, Produced))
            if isinstance(event_of_node, Received):
                numbers, arrays = event_of_node.gradients, _received(query, event_of_node.node, outcome)
            else:
                flowed = outcome.nodes.get(event_of_node.node)
                numbers = tuple(flow.gradient for flow in event_of_node.flows)
                arrays = () if flowed is None else flowed.produced
            for number, array in zip(numbers, arrays, strict=False):
                if number and array is not None:
                    yield number, event, array


def _received(query: Query, node: int, outcome: Outcome) -> tuple[np.ndarray | None, ...]:
    """The gradients that a node received in the replay; for a leaf node, the leaf's gradient."""
    leaf = query.nodes.leaf(node)
    if leaf:
        return (outcome.gradients.get(leaf),)
    flowed = outcome.nodes.get(node)
    return () if flowed is None else flowed.received
