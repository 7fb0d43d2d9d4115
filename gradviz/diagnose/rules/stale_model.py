"""`stale-model`: the model that is evaluated is not the model that is trained. One is a copy of the other. Nothing ever
changes the evaluated model, and it is called again and again without gradients, for results that reach no root. Or
the program loads, after steps, a state_dict that it kept without a copy, or takes its difference to the model: it has
changed with the model. Or a target network loads its own state_dict, not that of the model that it follows. Or an
average of the weights is the model itself: each `lerp`, or `mul_` and `add_`, is between a parameter and the same
parameter. Or it is taken the wrong way round: each draws the trained parameters to the copy that is evaluated, which
never changes. Or another model gets the values of the trained one behind each pass, and then no more.

Why it is bad: the evaluation does not measure the training: its numbers never change.

Example:

    import copy
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    trained = copy.deepcopy(model)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    x, y = torch.randn(20, 4), torch.randn(20, 1)
    for epoch in range(4):
        optimizer.zero_grad()
        (trained(x) - y).pow(2).mean().backward()
        optimizer.step()
        with torch.no_grad():
            error = (model(x) - y).pow(2).mean().item()  # <- stale-model

Cure: evaluate the model that is trained; keep a state_dict with `copy.deepcopy(model.state_dict())`.

Not reported: an average of the weights that follows the trained model; weights that are drawn to a copy which is a part
of the loss: a target network that is averaged the wrong way round looks like an anchor, and one that nothing updates
like the reference policy of a divergence.
"""

import ast
import re
from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.fix import Edit, Fix, Spot, makes_edits, typed_for
from gradviz.diagnose.rule import ERROR, NOTE, WARNING, Case, Found, Kind, Need, Rule, Site
from gradviz.diagnose.visits import Visit, visits
from gradviz.query.copies import original
from gradviz.query.flow import op_of
from gradviz.query.ops import DIFFERENCES, MULTIPLYING
from gradviz.query.pass_owners import seen_at
from gradviz.query.passes import each_left_out
from gradviz.query.source_trees import assigned_to, method_calls, statement_at
from gradviz.query.writes import Writes, writes_by_any_name
from gradviz.sets import contained, distinct, grouped, without

_LEAST = 2  # the fewest calls after steps
_ROUNDS = 16  # the fewest passes before an average stops, and behind it
_INTERPOLATING = ("lerp", "lerp_", "add_")
_SCALING = "mul_"  # before an `add_` in the same line, as of an average: alone it is the decay of a weight


@Rule(
    "stale-model",
    WARNING,
    "a model that is evaluated, while a copy of it is trained; a copy that is the model itself",
    needs=(Need.STEP, Need.DETAILS),
    follows=("not-updated", "unregistered-parameter"),
)
def stale_model(case: Case) -> Iterator[Found]:
    averaged = [*_averaged(case)]
    yield from averaged
    yield from _untouched(case, {leaf for found in averaged for leaf in found.tensors})
    yield from _loaded_from_itself(case)
    yield from _following_itself(case)
    yield from _stopped(case)


def _stopped(case: Case) -> Iterator[Found]:
    """The lines that write a trained model's values to another model behind each pass, and stop to, although steps go
    on, and lines that have read the other model do. Where passes were left out, those in detail are looked at, and what
    was written to between them."""
    writes, sites = case.query.of(Writes), case.trace.events["site"]
    passes = [one for one in case.trace.passes if one.recorded]
    firsts, ops = np.array([one.first for one in passes], np.int64), case.trace.table(Kind.OP)
    inputs, steps = ops.lists("inputs"), case.training.stepped.events
    by_line: dict[int, dict[int, tuple[int, int, int]]] = {}  # of each leaf the last write, its pass and the next
    for leaf in without(writes.leaves, sorted(case.training.trained)).tolist() if len(passes) > _ROUNDS else ():
        events = writes.events[(writes.leaves == leaf) & (writes.events > firsts[0])]
        seen = np.searchsorted(firsts, events) - 1  # the pass before each write
        known = np.flatnonzero(sites[events] > 0)
        if len(known) < _ROUNDS or not np.array_equal(distinct(seen), np.arange(seen[0], seen[-1] + 1)):
            continue
        read = ops.events[inputs.owners[inputs.values == leaf]]
        read = read[contained(sites[read], sites[read[read < events[0]]])]
        last, behind = int(np.searchsorted(case.trace.pass_spans[0], read.max(initial=0))), int(seen[-1]) + 1
        if behind >= len(passes) or last - passes[behind].number + 1 < max(_ROUNDS, passes[behind].number / 10):
            continue
        if (steps > firsts[behind]).any() and writes.follows_another(leaf):
            event = int(events[known[-1]])
            by_line.setdefault(case.site(event), {})[leaf] = event, int(seen[known[-1]]), behind
    for site, found in by_line.items():
        event, at, behind = max(found.values())
        detail, none = (" in detail", "none of these") if each_left_out(case.trace) else ("", "none")
        yield Found(
            f"{case.called(list(found))} no longer follow{'s' * (len(found) == 1)}: this line writes to "
            f"{'it' if len(found) == 1 else 'them'} behind each pass{detail} until pass {passes[at].number:,}, and "
            f"behind {none} from pass {passes[behind].number:,} on, although the training goes on",
            "let this line run behind each step as before",
            (event,),
            site=site,
            tensors=tuple(found),
        )


def _untouched(case: Case, known: set[int]) -> Iterator[Found]:
    """Findings for the evaluated models that nothing changes, but for those with parameters that are `known`."""
    writes, end = case.query.of(Writes), case.trace.count
    changed = set(writes.changed.tolist())
    pairs = [(leaf, source) for leaf in case.trace.parameters if (source := original(case.query, leaf))]
    copies = grouped([*pairs, *((source, leaf) for leaf, source in pairs)])
    calls = (one for one in case.of(visits) if one.is_evaluation and not one.in_pass and one.rounds > 0)
    for parameters, own in grouped((one.parameters, one) for one in calls if one.parameters).items():
        writes_between = (one for leaf in parameters for one in case.query.tensors.writes(leaf) if one > own[0].event)
        if len(own) < _LEAST or (changed | known) & set(parameters) or min(writes_between, default=end) < own[-1].event:
            continue
        made = max(case.query.tensors.maker(leaf) or 0 for leaf in parameters)
        around = {other for leaf in parameters for other in copies.get(leaf, ())} & case.training.trained & changed
        twins = {leaf for leaf in around if writes.events[writes.leaves == leaf][-1] > made}
        if not twins or len({visit.rounds for visit in own}) < _LEAST:
            continue
        first = own[0]
        trained = case.model_of(min(twins))
        if trained == first.name:  # the name of an argument: it does not tell the two models apart
            trained = ""
        name, site = _where_it_is_named(case, first, parameters)
        compared = (one for one in case.of(visits) if one.is_evaluation)
        is_baseline = any(twins & {*one.parameters} for one in compared)
        yield Found(
            f"{name or first.type} is evaluated {case.at_least(len(own))} times, but no step ever changes it: "
            f"{trained or 'a copy of it'} is the model that is trained",
            Fix(
                f"evaluate {trained or 'the model that is trained'}, or copy its weights: "
                f"{name}.load_state_dict({trained or 'trained'}.state_dict())",
                _evaluated(name, trained) if trained else None,
            ),
            (first.event,),
            site=site,
            tensors=parameters,
            severity=NOTE if is_baseline else "",
        )


@makes_edits
def _evaluated(spot: Spot, name: str, trained: str) -> list[Edit]:
    """The trained model in place of the evaluated model: `self.net` for `net` beside `self.ema`."""
    is_of_self = name.startswith("self.") and not trained.startswith("self.")
    nodes = ast.walk(spot.statement)
    held = [node for node in nodes if isinstance(node, ast.Name | ast.Attribute) and spot.source.code(node) == name]
    return [spot.source.replaced(node, f"{'self.' * is_of_self}{trained}") for node in held[:1]]


def _where_it_is_named(case: Case, visit: Visit, parameters: tuple[int, ...]) -> tuple[str, int]:
    """The variable that a copied model was assigned to, and the innermost caller of a visit whose line has this
    variable. A function that evaluates any model has only the name of its argument."""
    places, maker = case.query.places, case.query.tensors.made(parameters[0])
    made = case.trace.sites.get(places.named_at(maker.site)) if maker is not None else None
    if made is not None and len(made.names) == 1:
        name = re.compile(rf"\b{re.escape(made.names[0])}\b")
        for site in places.callers(visit.site):
            if name.search(places.line_text(site.number)):
                return made.names[0], site.number
    return visit.name, visit.site


def _loaded_from_itself(case: Case) -> Iterator[Found]:
    """Findings for a parameter that is loaded from a tensor on its own memory, after steps that changed both."""
    states, leaf_of = case.trace.states, case.query.of(Writes).leaf_of
    steps = case.training.stepped.events
    seen: set[int] = set()
    for event, target, source in _copies(case):
        if source == target or leaf_of(source) != target:
            continue
        made = int(states.events[states.first(source)])
        site = case.site(made)
        # from the first that was kept at this line on: the best state may be the last
        kept = int(np.argmax(case.trace.events["site"] == site))
        between = int(np.searchsorted(steps, event) - np.searchsorted(steps, kept))
        is_at_once = case.at(made) == case.at(event)  # kept by the statement that loads it
        if site in seen or is_at_once or not between or target not in case.training.trained:
            continue
        seen.add(site)
        yield _of_shared(case, made, event, between, f"loading it at {case.at(event)} restores nothing", target)
    ops = case.trace.table(Kind.OP)
    comparing = case.trace.named(ops["op"], (*DIFFERENCES, "lerp"))
    for event in case.first_of_sites(ops.events[comparing]):
        given = case.query.tensors.op(event).inputs[:2]
        leaves = {leaf_of(one) for one in given if one}
        made = min((int(states.events[states.first(one)]) for one in given if one not in leaves), default=event)
        between = int(np.searchsorted(steps, event) - np.searchsorted(steps, made))
        is_same = len(leaves) == 1 < len(set(given)) and leaves <= case.training.trained
        if is_same and between > 0:
            seen.add(case.site(made))
            yield _of_shared(case, made, event, between, f"its difference at {case.at(event)} is 0", *leaves)


def _of_shared(case: Case, made: int, event: int, steps: int, fact: str, leaf: int) -> Found:
    """The finding of what a line kept on the memory of a parameter, until an event."""
    kept = case.words.expression(case.site(made), 40) or "this state_dict"
    return Found(
        f"{kept} shares the memory of the parameters: {steps} steps have changed what this line kept, and {fact}",
        _deep_copy(case, case.place(made)),
        (made, event),
        site=case.site(made),
        tensors=(leaf,),
        severity=ERROR,
    )


def _following_itself(case: Case) -> Iterator[Found]:
    """Findings for the lines at which a copy of a trained model loads the state_dict that it has itself."""
    states, trained = case.trace.states, case.training.trained
    copies = [(event, target, states.base(source), source) for event, target, source in _copies(case)]
    followed = {target: base for _, target, base, _ in copies if base != target and base in trained}
    by_line: dict[int, dict[int, int]] = {}  # the first event of each parameter
    for event, target, base, source in copies:
        made = int(states.events[states.first(source)])
        if base == target and target in followed and target not in trained and case.at(made) == case.at(event):
            by_line.setdefault(case.site(event), {}).setdefault(target, event)
    for site, found in by_line.items():
        (leaf, event), *_ = found.items()
        model = case.model_of(followed[leaf])
        yield Found(
            f"{case.called(list(found))} are loaded with their own values: the line changes nothing, and they do not "
            f"follow {model or 'the model that is trained'}",
            _of_another(case, site, model),
            (event,),
            site=site,
            tensors=tuple(found),
        )


def _of_another(case: Case, site: int, model: str) -> Fix | str:
    """The call that loads a state_dict, with that of another model."""
    name = seen_at(case.query, site, model) if model else ""
    statement = statement_at(case.query, case.query.places.site(site))
    calls = list(method_calls(statement, "load_state_dict"))
    if not name or len(calls) != 1:
        return f"load the state_dict of {model or 'the model that is trained'}"
    text = f"{ast.unparse(calls[0][1])}.load_state_dict({name}.state_dict())"
    return Fix(text, typed_for(ast.unparse(calls[0][0]), text))


def _deep_copy(case: Case, site: Site | None) -> Fix:
    """The line that keeps a state_dict, with a deep copy of it."""
    statement = statement_at(case.query, site)
    calls = [call for call, _ in method_calls(statement, "state_dict")]
    if len(calls) != 1:
        shared = case.query.places.expression(site.number) if site is not None else ""
        copied = f"{shared}.clone()" if shared else "keep a copy of each tensor: .clone()"
        return Fix(copied, typed_for(shared, copied) if shared else None)
    state = ast.unparse(calls[0])
    is_whole = isinstance(statement, ast.Assign) and statement.value is calls[0]
    target = assigned_to(statement) if is_whole else ""
    kept = f"{target} = " * bool(target) + f"copy.deepcopy({state})"
    return Fix(f"{kept}  # or {{k: v.clone() for k, v in {state}.items()}}", _cloned)


def _cloned(spot: Spot) -> list[Edit]:
    """A copy of the state_dict in place of the state_dict."""
    calls = spot.calls_here("state_dict")
    return [
        spot.source.replaced(call, f"{{k: v.clone() for k, v in {spot.source.code(call)}.items()}}")
        for call in calls[:1]
    ]


def _averaged(case: Case) -> Iterator[Found]:
    """Findings for the lines that average trained parameters with themselves, or that draw them to the model that is
    evaluated, a copy that nothing changes."""
    writes = case.query.of(Writes)
    called = {leaf for visit in case.of(visits) if visit.rounds and visit.is_evaluation for leaf in visit.parameters}
    kept = called - set(writes.changed.tolist()) - case.training.trained
    by_line: dict[int, dict[int, tuple[int, int]]] = {}  # the first event of each parameter, and the tensor beside it
    averaging = case.trace.events_named(Kind.OP, "op", _INTERPOLATING).tolist()
    for event in averaging:
        write = case.query.tensors.op(event)
        average, other, *_ = (*write.inputs, 0, 0)
        scaled = op_of(case.query, other)
        if scaled is not None and scaled.op in MULTIPLYING:
            other = next(filter(None, scaled.inputs), 0)
        leaf, beside = writes.leaf_of(average), writes.leaf_of(other)
        is_of_copy = beside in kept and original(case.query, beside) == leaf
        if leaf not in case.training.holders.keys() | case.training.trained or not (leaf == beside or is_of_copy):
            continue
        before = writes_by_any_name(case.query, leaf, until=event)
        is_scaled = before and case.query.tensors.writer(before[-1]) == _SCALING
        if write.op != "add_" or (is_scaled and case.at(before[-1]) == case.at(event)):
            made = case.query.tensors.maker(average)
            is_view = average != leaf and made is not None and case.at(made) != case.at(event)
            cause = made if is_view and made is not None else event
            by_line.setdefault(case.site(cause), {}).setdefault(leaf, (cause, beside))
    for site, found in by_line.items():
        leaves, events = tuple(found), sorted(event for event, _ in found.values())
        names, is_view = case.called(leaves), events[0] not in averaging
        are, them, their = ("is", "itself", "its") if len(found) == 1 else ("are", "themselves", "their")
        copies = [beside for leaf, (_, beside) in found.items() if beside != leaf]
        if copies:
            fact = f"{case.called(copies)} never change{'s' * (len(copies) == 1)}: this line writes to {names}, which "
            fact += f"{are} trained, and draws {'it' if len(found) == 1 else 'them'} back"
            cure = _swapped(case, site) or f"write to {case.called(copies)} here, not to {names}"
        else:
            shared = f"shares {their} memory" if is_view else "is the model itself"
            fact = f"{names} {are} averaged with {them}: the average {shared}, and is no copy"
            cure = f"copy.deepcopy({case.model_of(leaves[0]) or 'model'})  # for the average, where it is made"
            cure = "add .clone()  # here: each is to have memory of its own" if is_view else cure
        yield Found(fact, cure, (events[0],), site=site, tensors=(*leaves, *copies))


def _swapped(case: Case, site: int) -> Fix | None:
    """The statement `p.mul_(0.9).add_(q, alpha=0.1)` with its two names in each other's place: the first one, and the
    only other that is an argument as it is. None if the statement looks otherwise."""
    statement = statement_at(case.query, case.query.places.site(site))
    nodes = [node for node in ast.walk(statement) if isinstance(node, ast.Call)] if statement is not None else []
    given = [ast.unparse(call.args[0]) for call in nodes if call.args and not isinstance(call.args[0], ast.Constant)]
    old = ast.unparse(statement) if statement is not None else ""
    name, other = re.match(r"\w*", old)[0], given[0].partition(".")[0] if len(given) == 1 else ""  # type: ignore[index]
    if not name or not other.isidentifier():
        return None
    new = re.sub(rf"\b({name}|{other})\b", lambda found: other if found[1] == name else name, old)
    return Fix(new, typed_for(old, new))


def _copies(case: Case) -> list[tuple[int, int, int]]:
    """(event, target, source) of each copy into a tensor, by `copy_` or by load_state_dict."""
    ops = map(case.query.tensors.op, case.trace.events_named(Kind.OP, "op", ("copy_",)).tolist())
    found = [(op.index, op.outputs[0], op.inputs[1]) for op in ops if len(op.inputs) == 2 and op.outputs]
    mutated = case.trace.table(Kind.MUTATED)
    rows = np.flatnonzero(case.trace.named(mutated["how"], ("load_state_dict",)))
    found += zip(
        mutated.events[rows].tolist(), mutated["tensor"][rows].tolist(), mutated["source"][rows].tolist(), strict=True
    )
    return found
