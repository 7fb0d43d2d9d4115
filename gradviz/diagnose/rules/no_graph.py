"""`no-graph`: backward() was called on a tensor that does not require grad, because nothing that it was computed
from does.

Why it is bad: there is no graph, so there is nothing to differentiate, and backward() raises.

Example:

    x = torch.tensor([1.0, 2.0])
    y = (x ** 2).sum()
    y.backward()  # <- no-graph

Cure: make the leaf with `requires_grad=True`, or compute the loss from the parameters of the model.

Not reported: a root that was cut off from leaves that do require grad: that is `detached-path` or
`frozen-parameter`.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR
from gradviz.diagnose.rootless import rootless
from gradviz.diagnose.rule import Found, Rule
from gradviz.query.upstream import Upstream


def _search(case: Case) -> Iterator[Found]:
    for failed in case.of(rootless):
        name = case.words.called(failed.root) if failed.root else "the root"
        leaves = Upstream(case.query, failed.root, failed.failure.event).leaves if failed.root else []
        named = [leaf for leaf in leaves if case.query.names.of(leaf)]
        behind = f": none of its leaves does ({case.called(named)})" if named else ""
        first = case.words.called(named[0]) if named else "x"
        yield Found(
            f"backward() is called on {name}, which does not require grad" + ("" if failed.cut else behind),
            f"{first}.requires_grad_()  # before the forward computation",
            (failed.failure.event,),
            site=failed.failure.site,
            severity=case.severity_of(failed.failure),
        )


RULE = Rule(
    "no-graph",
    ERROR,
    "backward() on a tensor that does not require grad",
    _search,
    follows=("detached-path", "frozen-parameter", "missing-create-graph"),
)
