"""The values and gradients of a graph's boxes and edges if something were different in its pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradviz.graph.model import GRAD, LEAF, TENSOR, Graph, Node
from gradviz.query.copies import same_bits
from gradviz.query.query import Query
from gradviz.replay.changed_pass import edits_of, held_of
from gradviz.replay.outcome import Edits, Outcome, Runner, gradients_of, graph_of, is_exact
from gradviz.replay.plan import Plan, ReplayError, plan_of
from gradviz.tracefile import Snapshot
from gradviz.words.escape import clean
from gradviz.words.numbers import listed
from gradviz.words.words import Words


def mark_changes(words: Words, runner: Runner, graph: Graph, edits: Sequence[str]) -> None:
    """Mark the nodes and edges whose value or gradient would differ with edits from a replay without edits. An edit
    sets a value (`x=4`) or leaves out a call (`detach@6`). Raises ReplayError if the pass does not run again with the
    recorded result, or if an edit names something that the pass does not have."""
    query = words.query
    plan = plan_of(query, graph.pass_number)
    sets = [text for text in edits if "=" in text]
    without = [text for text in edits if "=" not in text]
    changed = edits_of(words, plan, sets, "", without)
    nodes = graph_of(query, plan)
    before, after = (runner.run(plan, one, nodes) for one in (Edits(), changed))
    if not is_exact(query, plan, before):
        raise ReplayError(
            f"pass {plan.number} does not give what was recorded: what it would give is not drawn"
        )
    for node in graph.nodes.values():
        if node.kind in (LEAF, TENSOR):
            _mark_node(plan, node, before, after, changed)
    _mark_edges(query, plan, graph, before, after)
    changes = [*sets, *(f"without {text}" for text in without)]
    graph.notes.append(f"what if {clean(', '.join(changes))}: as it was → as it would be")
    if held := [clean(name) for _, name in held_of(words, plan)]:
        graph.notes.append(f"held as recorded: {listed(held)}")


def _mark_node(plan: Plan, node: Node, before: Outcome, after: Outcome, edits: Edits) -> None:
    becomes: dict[str, Snapshot] = {}
    was, now = _value(plan, node, before, Edits()), _value(plan, node, after, edits)
    if node.value is not None and _differ(was, now):
        becomes["value"] = _with(node.value, now)
        if node.value.stats is None:
            node.value = _with(node.value, was)
    if not node.overwritten:
        was, gradient = before.gradients.get(node.number), after.gradients.get(node.number)
        if node.added is None and _differ(was, gradient) and (node.grad or node.value) is not None:
            becomes["grad"] = _with(node.grad or node.value, gradient)  # type: ignore[arg-type]
    if becomes:
        node.becomes = becomes


def _value(plan: Plan, node: Node, outcome: Outcome, edits: Edits) -> np.ndarray | None:
    """The value of a node in an outcome; None if the replay does not have it."""
    made = sorted(event for event, tensor in outcome.made if tensor == node.number and event > node.since)
    if made:
        return outcome.made[made[0], node.number]
    entered = [step for step in plan.inputs if step.tensor == node.number and step.event > node.since]
    return edits.values.get(node.number, entered[0].value.array) if entered else None


def _differ(before: np.ndarray | None, after: np.ndarray | None) -> bool:
    return after is not None and (before is None or not same_bits(before, after))


def _with(snapshot: Snapshot, array: np.ndarray | None) -> Snapshot:
    """A snapshot with other elements."""
    return replace(snapshot, array=array, told=None)


def _mark_edges(query: Query, plan: Plan, graph: Graph, before: Outcome, after: Outcome) -> None:
    """Mark the edges of the pass whose gradients would differ."""
    was, now = (
        {number: array for number, _, array in gradients_of(query, plan, outcome)}
        for outcome in (before, after)
    )
    for edge in graph.edges:
        if edge.kind != GRAD or edge.value is None or edge.gradient not in now:
            continue
        if _differ(was.get(edge.gradient), now[edge.gradient]):
            edge.becomes = _with(edge.value, now[edge.gradient])
