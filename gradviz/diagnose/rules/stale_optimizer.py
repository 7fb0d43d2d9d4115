"""`stale-optimizer`: an optimizer holds no parameter that gets gradients, from its first step or from a later step on,
while the parameters that get gradients are in no optimizer, or in another. Or the newest parameters are in no
optimizer, and as many older parameters are not used. The optimizer was made before the parameters were replaced, or
from the wrong parameters: two networks have an optimizer each, and both optimizers hold the parameters of one network.
Also reported: two optimizers that hold the same parameters and both step with the same gradients.

Why it is bad: the optimizer holds tensors that nothing computes with. The loss stays where it is, or only another
part learns.

Example:

    torch.manual_seed(0)
    def make():
        return torch.nn.Linear(3, 1)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = make()  # <- stale-optimizer
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).pow(2).mean().backward()
        optimizer.step()

Cure: make the optimizer after the parameters, from the parameters of the model that is trained.

Not reported: an optimizer that waits for its turn, or whose parameters are frozen for a while; two optimizers of the
same parameters, each with passes of its own; an optimizer that steps inside of another.
"""

import ast
from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.rule import ERROR, WARNING, Case, Edit, Fix, Found, Kind, Need, Rule, Spot
from gradviz.query.functions_of_source import nodes_of
from gradviz.query.ledger import WITH_GRADIENT, Ledger
from gradviz.query.missing_gradients import PARAMETER, Lack, Lacks
from gradviz.query.pass_owners import PassOwners, call_with_first, optimizer_name
from gradviz.query.source_trees import assigned_to, statement_at, trees
from gradviz.query.training import ACCUMULATED, STEPPED
from gradviz.sets import contained, distinct, without

_LEAST = 2  # steps without a gradient
_CURE = "make the optimizer after the last change of the model: "


@Rule(
    "stale-optimizer",
    ERROR,
    "an optimizer none of whose parameters get gradients, while others do",
    needs=(Need.STEP, Need.PASSES),
)
def stale_optimizer(case: Case) -> Iterator[Found]:
    yield from _stepped_twice(case)
    yield from _of_others(case)
    stepped = case.training.stepped
    made_as = {leaf: getattr(case.query.tensors.made(leaf), "how", "") for leaf in case.query.of(Ledger).homeless}
    held_by = case.training.holders  # an optimizer that never steps, which is another fault
    is_idle = not contained(case.trace.table(Kind.ACCUMULATED)["tensor"], [*held_by]).any()  # nothing learns
    leaves = [
        leaf
        for leaf, how in made_as.items()
        if leaf not in held_by and (leaf in case.trace.parameters or how == PARAMETER or is_idle)
    ]
    idle = _idle_steps(case, leaves) if leaves else stepped.events[:0]
    if not leaves or not (len(idle) or _took_the_place(case, leaves)):
        return
    step = int(idle[0]) if len(idle) else int(stepped.events[0])
    optimizer = int(stepped["optimizer"][stepped.events == step][0])
    lacks = "holds no tensor that gets a gradient" if len(idle) else "holds the parameters from before a replacement"
    made, unfed = case.query.tensors.maker(leaves[0]), [*filter(held_by.get, case.query.of(Lacks).never_got)]
    holding = case.training.made_at(optimizer)
    name = case.training.optimizer_class(optimizer)
    # than the optimizer: nothing was replaced
    is_older = made is not None and made < holding < case.trace.count
    site = 0 if made is None or is_older else _replacing(case, made)
    yield Found(
        f"the optimizer that steps at {case.at(step)} {lacks}; {case.called(leaves)} "
        f"get{'s' * (len(leaves) == 1)} gradients and {'is' if len(leaves) == 1 else 'are'} in no optimizer",
        "give the optimizer the tensors that get gradients, after they are made"
        if is_idle and case.trace.parameters.keys().isdisjoint(leaves)
        else _made_anew(case, holding, name, leaves, site, _CURE * (not is_older)),
        (step,) if made is None else (holding, step) if is_older else (made, step),
        site=site,
        tensors=(*leaves, *unfed, *(case.training.held_by(optimizer) if len(idle) else ())),
    )


def _of_others(case: Case) -> Iterator[Found]:
    """The optimizers without a gradient at any step, the first of each line: the passes before their steps do not go
    through what they hold, and give gradients to other parameters. Of passes that another optimizer has, too, those
    count that no optimizer holds."""
    rows, came = case.query.of(Ledger).rows, case.trace.table(Kind.ACCUMULATED)
    seen: set[int] = set()
    for optimizer in distinct(rows.optimizers).tolist() if case.recorded is None else ():
        own, owners = rows.optimizers == optimizer, case.query.of(PassOwners).optimizers
        passes = [one.number for one in case.trace.passes if owners(one.number) == {optimizer}]
        steps, held, made = distinct(rows.steps[own]), distinct(rows.leaves[own]), case.training.made_at(optimizer)
        known = {*case.trace.parameters, *case.training.holders}
        if not passes:
            known &= {*case.query.of(Ledger).homeless}
            passes = [one.number for one in case.trace.passes if known and made < one.first < steps[-1]]
        got = distinct(came["tensor"][contained(came["in_pass"], passes)])
        others = [leaf for leaf in got.tolist() if leaf in known]
        is_fed = contained(rows.links[own], WITH_GRADIENT).any() or contained(held, got).any()
        if is_fed or not others or len(steps) < _LEAST or not contained(held, came["tensor"]).any():
            continue
        begun = [case.query.passes.began(number) for number in passes]
        roots = [(one.roots[0].tensor, one.index) for one in (begun[0], begun[-1]) if one.roots]
        ways = (case.query.of(Lacks).ways(*root) for root in roots)
        are_held = case.training.holders.keys() >= set(others)
        if are_held and any(way.separation(leaf) is not None for way in ways for leaf in held.tolist()):
            continue  # what it holds is cut off
        kind, site = case.training.optimizer_class(optimizer), case.site(made) if made < case.trace.count else 0
        if site and site in seen:
            continue
        seen.add(site)
        yield Found(
            f"{optimizer_name(case.query, {optimizer}) or kind} holds {case.called(held.tolist())}, and none has a "
            f"gradient at any step at {case.at(int(steps[0]))}: the passes before are for {case.called(others)}",
            _made_anew(case, made, kind, others, 0, ""),
            (made, int(steps[0])) if made < case.trace.count else (int(steps[0]),),
            tensors=(*others, *held.tolist()),
        )


def _stepped_twice(case: Case) -> Iterator[Found]:
    """The pairs of optimizers that both step with the same gradients: between their steps nothing comes to them, and
    nothing clears them."""
    lives, is_inside = case.training.lives, case.training.is_inside_step
    used, got = lives.whats == STEPPED, lives.before(lives.whats == ACCUMULATED) > 0
    again = used[1:] & used[:-1] & got[:-1] & (lives.windows[1:] == lives.windows[:-1])
    again &= (lives.numbers[1:] != lives.numbers[:-1]) & (np.minimum(lives.numbers[1:], lives.numbers[:-1]) > 0)
    pairs: dict[tuple[int, ...], dict[int, set[int]]] = {}
    for row in np.flatnonzero(again).tolist():
        first, second = map(case.site, lives.events[row : row + 2].tolist())
        if first != second and not is_inside(first) and not is_inside(second):
            pair = tuple(sorted(lives.numbers[row : row + 2].tolist()))
            pairs.setdefault(pair, {}).setdefault(int(lives.leaves[row]), set()).add(int(lives.events[row]))
    for pair, rounds in pairs.items():
        leaves = tuple(leaf for leaf, events in rounds.items() if len(events) >= _LEAST)
        made = [*map(case.training.made_at, pair)]
        if not leaves or max(made) == case.trace.count:
            continue
        names = [optimizer_name(case.query, {one}) or case.training.optimizer_class(one) for one in pair]
        counts, homeless = [len(case.training.held_by(one)) for one in pair], case.query.of(Ledger).homeless
        # the one that holds too much; or the one that was to hold what is in none
        at = int(counts[1] <= counts[0] if homeless else counts[1] >= counts[0])
        yield Found(
            f"{names[at]} and {names[1 - at]} (made at {case.at(made[1 - at])}) both hold {case.called(leaves)}: each "
            "gradient is used for two steps",
            f"give {case.called(leaves)} to one of the two optimizers only",
            (made[at], made[1 - at], min(rounds[leaves[0]])),
            tensors=(*leaves, *homeless),  # which one of the two was to hold
            severity=WARNING,
        )


def _made_anew(case: Case, holding: int, name: str, leaves: list[int], site: int, advice: str) -> Fix:
    """The call that made an optimizer, with the parameters of the model of these leaves, which a site may have made."""
    names = {case.model_of(leaf) for leaf in leaves}
    nodes = (node for tree in case.query.of(trees).values() for node in nodes_of(tree))
    names -= {node.name for node in nodes if isinstance(node, ast.ClassDef)}  # a model without a name of its own
    made = assigned_to(statement_at(case.query, case.query.places.site(site))) if not names and site else ""
    model = names.pop() if len(names) == 1 else made
    given = f"{model or 'model'}.parameters()"
    call = call_with_first(case.query, case.site(holding), given) if holding < case.trace.count else ""
    text = f"{advice}{call or f'{name} of {given}'}"
    return Fix(text, lambda spot: _made_after(spot, given if call and model else ""))


def _made_after(spot: Spot, given: str) -> list[Edit]:
    """Other parameters, if they are known, for the optimizer that the statement makes; or the optimizer made again
    after the statement, which replaces its parameters."""
    source, statement = spot.source, spot.statement
    if made_here := [call for made, call, _ in spot.optimizers() if made is statement and call.args]:
        return [source.replaced(made_here[0].args[0], given)] if given else []
    for made, _, _ in spot.optimizers():
        if source.function(made) is source.function(statement) and made.lineno < statement.lineno:
            return [source.after(statement, source.code(made))]
    return []


def _replacing(case: Case, made: int) -> int:
    """The line that made a parameter and made no parameter that an optimizer holds. If the same function made both,
    this is the line of its call."""
    site = case.site(made)
    held = {
        (caller.place.file, caller.place.line)
        for tensor in case.training.holders
        if (maker := case.query.tensors.maker(tensor)) is not None
        for caller in case.query.places.callers(case.site(maker))
    }
    for caller in case.query.places.callers(site):
        if (caller.place.file, caller.place.line) not in held:
            return caller.number
    return site


def _idle_steps(case: Case, leaves: list[int]) -> np.ndarray:
    """The steps of optimizers whose parameters never get a gradient, or none after these leaves got their first."""
    stepped, came = case.training.stepped, case.trace.table(Kind.ACCUMULATED)
    since = int(came.events[contained(came["tensor"], leaves)].min())
    found = [stepped.events[:0]]
    for optimizer in distinct(stepped["optimizer"]).tolist():
        got = came.events[contained(came["tensor"], case.training.held_by(optimizer))]
        steps = stepped.events[stepped["optimizer"] == optimizer]
        late = steps[steps > since]
        if not len(got) or (got.max() < since and len(late) >= _LEAST):
            found.append(late if len(got) else steps)
    return np.sort(np.concatenate(found))


def _took_the_place(case: Case, leaves: list[int]) -> bool:
    """Whether the leaves are the newest parameters, and at least as many older parameters are not used."""
    made, lacks = case.trace.table(Kind.TENSOR), case.query.of(Lacks)
    parameters = made["tensor"][case.trace.named(made["how"], (PARAMETER,))]
    others = without(parameters, leaves)
    if min(leaves) <= others.max(initial=0):
        return False
    wanting = map(lacks.of, others[contained(others, lacks.never_got)].tolist())
    return sum(why is not None and why.lack is Lack.UNUSED for why in wanting) >= len(leaves)
