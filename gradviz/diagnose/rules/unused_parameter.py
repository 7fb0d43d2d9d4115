"""`unused-parameter`: a leaf that should learn never gets a gradient, because no op reads it. So
it is for a parameter of a module that only a penalty on its values reads.

Why it is bad: the leaf takes memory and a place in the optimizer, and the part of the model that it was meant for is
missing.

Example:

    torch.manual_seed(0)
    w = torch.randn(3, requires_grad=True)
    b = torch.zeros(1, requires_grad=True)  # <- unused-parameter
    optimizer = torch.optim.SGD([w, b], lr=0.1)
    x, y = torch.randn(8, 3), torch.randn(8)
    for step in range(3):
        optimizer.zero_grad()
        loss = ((x @ w - y) ** 2).mean()
        loss.backward()
        optimizer.step()

Cure: use the leaf in `forward`, or remove it from the model.

Not reported: a leaf in no optimizer whose twin in another model of the same class gets a gradient, or of a layer that
another replaced. A leaf beside used
leaves of the same kind (experts, embeddings of a mixture, a part of the last of several blocks) is a note only.
"""

import ast
import re
from collections.abc import Iterator

from gradviz.diagnose.rule import NOTE, WARNING, Case, Edit, Fix, Found, Need, Rule, Spot
from gradviz.diagnose.without_gradient import (
    has_used_twin,
    lacking,
    lacks_gradient,
    learns_in_another_model,
    learns_in_other_blocks,
)
from gradviz.events.kinds import TensorMade
from gradviz.query.missing_gradients import PARAMETER, Lack


@Rule(
    "unused-parameter",
    WARNING,
    "a parameter that no op reads",
    needs=(Need.PASS, Need.DETAILS),
    follows=("detached-path", "stale-optimizer", "no-graph", "recreated-parameter"),
)
def unused_parameter(case: Case) -> Iterator[Found]:
    unused = {
        lack.leaf: lack
        for lack in case.of(lacking)
        if lack.lack is Lack.UNUSED and not (lack.severity == NOTE and _is_of_no_use(case, lack.leaf))
    }
    by_site: dict[int, list[int]] = {}
    behind = (lack.leaf for lack in case.of(lacking) if lack.lack in (Lack.CUT, Lack.COPIED))
    # a layer with a parameter that is read outside of the graph was not called
    modules, cut = case.query.modules, {layer: leaf for leaf in behind if (layer := _layer(case, leaf))}
    for _, leaves in modules.whole(unused):
        by_site.setdefault(modules.made_at(leaves), []).extend(leaves)
    for site, leaves in by_site.items():
        beside = [cut[layer] for layer in sorted({_layer(case, leaf) for leaf in leaves} & cut.keys())]
        last = case.trace.passes[-1].first if case.trace.passes else case.trace.count
        is_read_later = any(op > last for leaf in leaves for op in case.downstream.readers(leaf))
        are_noted = (
            unused[leaf].severity == NOTE or has_used_twin(case, leaf) or learns_in_other_blocks(case, leaf)
            for leaf in leaves
        )
        yield Found(
            f"{lacks_gradient(case, leaves)}: no op reads "
            f"{'it' if len(leaves) == 1 else 'them'}{' before the last pass' * is_read_later}",
            Fix("use it in forward(), or remove it", _removed),
            tuple(event for leaf in leaves[:4] if (event := case.query.tensors.maker(leaf)) is not None),
            site=site,
            tensors=(*leaves, *beside),
            severity=NOTE if all(are_noted) else WARNING,
        )


def _is_of_no_use(case: Case, leaf: int) -> bool:
    """Whether a leaf in no optimizer is no part of what trains: a Parameter of no module that is called, as of a layer
    that another replaced; copied before the first pass; or its twin in another model learns."""
    made = case.query.tensors.made(leaf)
    first = case.trace.passes[0].first if case.trace.passes else 0
    if any(op < first for op in case.downstream.readers(leaf)):
        return True
    is_gone = isinstance(made, TensorMade) and made.how == PARAMETER and leaf not in case.trace.parameters
    return (bool(case.training.holders) and is_gone) or learns_in_another_model(case, leaf)


def _layer(case: Case, leaf: int) -> str:
    return case.trace.parameters.get(leaf, "").rpartition(".")[0]


def _removed(spot: Spot) -> list[Edit]:
    """The removal of a layer that nothing uses, if nothing else in the file names it."""
    source, statement = spot.source, spot.statement
    target = statement.targets[0] if isinstance(statement, ast.Assign) and not statement.targets[1:] else None
    if not isinstance(target, ast.Attribute | ast.Name):
        return []
    name = target.attr if isinstance(target, ast.Attribute) else target.id
    uses = len(re.findall(rf"\b{re.escape(name)}\b", source.text))
    return [source.removed(statement)] if uses == 1 else []
