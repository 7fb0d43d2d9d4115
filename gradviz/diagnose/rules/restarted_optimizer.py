"""`restarted-optimizer`: the same line makes a new optimizer for each step, so that the state that an optimizer keeps
between steps is thrown away; or it makes new parameters, too, so that each step is lost.

Why it is bad: momentum and the averages of Adam begin at 0 again, so that each step is a first step. If the model is
made in the loop, training begins again with every batch.

Example:

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    for step in range(5):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)  # <- restarted-optimizer
        x = torch.randn(16, 4)
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Cure: make the model and the optimizer once, before the loop.

Not reported: an optimizer that keeps no state (SGD without momentum), an optimizer that takes several steps before the
next is made (for each epoch, phase or task), and new parameters that are used again after their step.
"""

import ast
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from gradviz.diagnose.first_products import started_at
from gradviz.diagnose.rule import WARNING, Case, Edit, Fix, Found, Kind, Need, Rule, Spot
from gradviz.query.functions_of_source import nodes_of
from gradviz.query.optimizer_steps import settings_of
from gradviz.sets import contained, distinct

_LEAST = 3  # the fewest optimizers of one line


@Rule("restarted-optimizer", WARNING, "an optimizer that is made anew for each step", needs=(Need.STEPS, Need.START))
def restarted_optimizer(case: Case) -> Iterator[Found]:
    held, stepped = case.trace.table(Kind.HOLDS), case.training.stepped
    _, firsts = np.unique(held["optimizer"], return_index=True)
    firsts = firsts[~contained(held.sites[firsts], stepped.sites)]  # else it was made while nothing was watched
    for events in case.by_site(held.events[np.sort(firsts)]).values():
        made = [held.object(event) for event in events.tolist()]
        steps = {one.optimizer: int((stepped["optimizer"] == one.optimizer).sum()) for one in made}
        used = [one for one in made if steps[one.optimizer]]
        # without a step between the making of each two, they are a group that is made together
        ends = stepped.events
        take_turns = all(((ends > one.index) & (ends < two.index)).any() for one, two in pairwise(used))
        if len(used) < _LEAST or max(steps.values()) > 1 or not take_turns:
            continue
        leaves = [set(one.parameters) for one in used]
        first, second = used[:2]
        event = stepped.object(int(stepped.events[stepped["optimizer"] == first.optimizer][0]))
        # plain SGD keeps nothing
        keeps = event.type != "SGD" or any(settings_of(group).get("momentum") for group in event.groups)
        if all(own == leaves[0] for own in leaves) and keeps:
            yield Found(
                f"{first.type} is made here for each of {case.at_least(len(used))} steps: what it keeps between "
                "steps begins at 0 again",
                Fix("make the optimizer once, before the loop", _before_the_loop),
                (second.index, first.index),
                tensors=first.parameters,
            )
        elif not set.intersection(*leaves) and not any(_are_read_later(case, own) for own in leaves):
            yield Found(
                f"{case.called(sorted(leaves[0]))} are made here for each of {case.at_least(len(used))} steps: no "
                "pass uses what a step changed",
                "make the model and the optimizer once, before the loop",
                (started_at(case, min(second.parameters), second.index) or second.index, second.index),
                tensors=first.parameters,
            )


def _are_read_later(case: Case, leaves: set[int]) -> bool:
    """Whether an op reads parameters after the step of their optimizer."""
    stepped = case.training.stepped
    lists = stepped.lists("parameters")
    steps = stepped.events[distinct(lists.owners[contained(lists.values, sorted(leaves))])]
    after = int(steps[-1]) if len(steps) else 0
    return any(reader > after for leaf in leaves for reader in case.downstream.readers(leaf))


def _before_the_loop(spot: Spot) -> list[Edit]:
    """The line that makes the optimizer moved before the outermost loop, if it needs no name that the loop sets."""
    source, statement = spot.source, spot.statement
    loops = [node for node in source.around(statement) if isinstance(node, ast.For | ast.While)]
    if not loops or _names(statement, ast.Load) & _names(loops[-1], ast.Store):
        return []
    return [source.removed(statement), source.before(loops[-1], source.code(statement))]


def _names(tree: ast.AST, how: type[ast.expr_context]) -> set[str]:
    """The names that a tree reads (`ast.Load`) or sets (`ast.Store`)."""
    nodes = (node for node in nodes_of(tree) if isinstance(node, ast.Name))
    return {node.id for node in nodes if isinstance(node.ctx, how)}
