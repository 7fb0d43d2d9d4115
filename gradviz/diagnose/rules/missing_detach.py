"""`missing-detach`: a gradient or a graph flows into a tensor that is meant to be a constant. A tensor is carried from
round to round with its graph, so that each pass goes through all earlier rounds; a pass for one network goes on into
another network, where its gradients are always thrown away; or a graph is behind the target of a loss, the weight of
a log-probability, or the output of a copy that follows the trained network.

Why it is bad: each pass is longer than the pass before it, or a pass computes gradients that nothing uses, or a target
moves with its prediction.

Example:

    torch.manual_seed(0)
    w, u = torch.randn(4, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    hidden = torch.zeros(4)
    for step in range(5):
        hidden = hidden * 0.5 + w.sum(0) * 0.1  # <- missing-detach
        loss = (hidden * u).sum() ** 2
        loss.backward(retain_graph=True)
        w.grad = u.grad = None

Cure: detach the tensor that is meant to be constant: `hidden = hidden.detach()` at the start of a round,
`target.detach()`, `with torch.no_grad():` around the target.

Not reported: gradients of an input that the program looks at and clears, without a step; a graph over several rounds
that one pass goes through (truncated backpropagation); a difference that is only weighted on its way to the root.
"""

import re
from collections.abc import Iterator

from gradviz.diagnose.constants import Link, carried, in_targets, in_weights, into_followers, wasted
from gradviz.diagnose.fix import Fix, detached, detached_in_each_round
from gradviz.diagnose.own_words import by_expressions
from gradviz.diagnose.rule import WARNING, Case, Found, Kind, Need, Rule
from gradviz.sets import contained


@Rule(
    "missing-detach",
    WARNING,
    "a gradient or a graph in what is meant to be a constant",
    needs=(Need.PASSES, Need.DETAILS),
    follows=("gradient-leak", "stale-graph"),
)
def missing_detach(case: Case) -> Iterator[Found]:
    chain = carried(case)
    if chain is not None:
        made = case.query.tensors.maker(chain.tensor)
        name = case.words.called(chain.tensor) if chain.tensor else "a tensor"
        yield Found(
            f"{name} is carried along with its graph: each pass goes through the graphs of all earlier rounds again",
            Fix(f"{name} = {name}.detach()  # between two rounds", detached_in_each_round(by_expressions(case, name))),
            (made if made is not None else chain.op, case.query.passes.by_number[chain.number].first),
            node=chain.node,
            number=chain.number,
        )
    for link in wasted(case):
        given = case.query.places.expression(link.site)
        name = case.words.called(link.tensor) if link.tensor else "its input"
        handed = re.fullmatch(r"[\w.]+\(([^\W\d]\w*)\)", given)
        # `fake` in `net(fake)`, though the function that made the tensor calls it `image`
        name = handed[1] if handed and not re.search(rf"\b{re.escape(name)}\b", given) else name
        yield Found(
            f"pass {link.number} flows through {name} into {case.called(link.leaves)}: these gradients are always "
            "cleared before a step uses them",
            Fix(
                f"{name}.detach()  # here: this loss is not for what {name} is computed from",
                detached(by_expressions(case, name)),
            ),
            (link.op, case.query.passes.by_number[link.number].first),
            node=link.node,
            number=link.number,
            tensors=link.leaves,
            site=link.site,
        )
    told: set[int] = set()
    for link in in_targets(case):
        told.update(link.leaves)
        calls = _calls_of(case, link, has_own_name=True)
        yield _of_constant(case, link.tensor, link.op, link.leaves, "is the target of a loss", calls)
    for link in into_followers(case):
        if told.isdisjoint(link.leaves):
            role, calls = "comes from a copy of what is trained", _calls_of(case, link)
            yield _of_constant(case, link.tensor, link.op, link.leaves, role, calls)
    for weight in in_weights(case):
        yield _of_constant(case, weight.tensor, weight.op, weight.leaves, "weights a log-probability")


def _calls_of(case: Case, link: Link, has_own_name: bool = False) -> int:
    """The event at which the program calls the module of the leaves of a link, last before its op, if that is not at
    the line (`has_own_name`: not in the function) that computes the tensor of the link. 0 if other modules are called
    there, too, or if it is unknown."""
    readers = [event for event in case.downstream.readers(link.leaves[0]) if event < link.op]
    sites = case.query.scopes.entered_at(readers[-1])[:1] if readers else ()
    call = case.query.places.site(sites[0]) if sites else None
    here = case.place(case.query.tensors.maker(link.tensor))
    entered = case.trace.table(Kind.SCOPE_ENTERED)
    events = entered.events[contained(entered.sites, sites)].tolist() if sites else []
    models = {entered.object(event).name.partition(".")[0] for event in events}
    if call is None or len(models) != 1 or not case.query.places.expression(sites[0]):
        return 0
    is_near = here is not None and call.place.function == here.place.function
    if here is not None and is_near and (has_own_name or call.place.line == here.place.line):
        return 0
    return max(event for event in events if event < link.op)


def _of_constant(case: Case, tensor: int, op: int, leaves: tuple[int, ...], role: str, calls: int = 0) -> Found:
    name = case.query.places.expression(case.site(calls)) if calls else case.words.called(tensor)
    made = case.query.tensors.maker(tensor)
    whole = case.query.places.expression(case.site(made)) if made is not None and "…" in name else ""
    code = whole or by_expressions(case, name)
    constant = f"({code})" if " " in code else code
    return Found(
        f"{name} {role} and carries a graph: gradients flow through it into {case.called(leaves)}",
        Fix(f"{constant}.detach()  # or compute it under torch.no_grad()", detached(code)),
        (calls or (made if made is not None else op), op),
        tensors=leaves,
    )
