"""`not-updated`: leaves get gradients in two passes or more, and nothing ever changes them. It is an error if
the program computes the change and loses it (`p = p - lr * p.grad`). It is a warning if the optimizer of the leaves
never steps, if they were frozen when the optimizer was made, or if they are left out of the optimizer though they come
after the leaves that it trains, or are a body with random values before them.

Why it is bad: backward computes a gradient in each pass, and nothing uses it: the leaf stays as it was made.

Example:

    torch.manual_seed(0)
    x, y = torch.randn(12, 2), torch.randn(12)
    w = torch.zeros(2, requires_grad=True)
    for step in range(4):
        loss = (x @ w - y).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            w.sub(0.1 * w.grad)  # <- not-updated
        w.grad = None

Cure: hand the parameters to the optimizer, call its `step()`, or change the leaf in place: `p -= lr * p.grad`
under `torch.no_grad()`.

Not reported: a leaf that stays as it is while other leaves are trained is a note only. It may be meant: only the head
is trained, or the parameters are chosen by name. No points by which the program differentiates are named: they require
grad for `torch.autograd.grad`.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gradviz.diagnose.fix import Edit, Fix, Spot, makes_edits, typed_as, updated_in_place
from gradviz.diagnose.lost_change import begins_with, lost_changes, own_step, stepped_names, written_in_place
from gradviz.diagnose.own_words import with_indices
from gradviz.diagnose.rule import ERROR, NOTE, WARNING, Case, Found, Need, Rule
from gradviz.events.kinds import Kind, TensorMade
from gradviz.query.flow import Use, groups_behind, op_of
from gradviz.query.functions_of_source import nodes_of
from gradviz.query.ledger import Ledger
from gradviz.query.missing_gradients import PARAMETER, Lacks
from gradviz.query.ops import JOINING, PRODUCTS
from gradviz.query.pass_owners import PassOwners, call_with_first, first_argument, given_to, optimizer_name, seen_at
from gradviz.query.source_trees import assigned_to, in_place, names_read, statement_at, trees
from gradviz.query.training import BY_HAND, CLEARED
from gradviz.query.writes import Writes
from gradviz.sets import contained, distinct, grouped
from gradviz.tracefile import PassInfo, Site

_UNREACHED: tuple[str, Fix | str] = (
    "the step here is never reached",
    "if (i + 1) % k == 0: optimizer.step()  # a condition that comes true",
)


def _stepped(spot: Spot) -> list[Edit]:
    """`step()` of the only optimizer behind backward()."""
    source, statement = spot.source, spot.statement
    cleared = source.calls("zero_grad", within=source.function(statement))
    names = [name for _, _, name in spot.optimizers()] or [spot.receiver(call) for call in cleared]
    held = list(dict.fromkeys(names))
    if len(held) != 1:
        return []
    call = next(iter(spot.calls_here("backward")), None) or spot.backward_before(statement)
    return [source.after(source.statement(call), f"{held[0]}.step()")] if call is not None else []


_MISSING = "no step for them follows this pass", Fix("optimizer.step()  # after backward()", _stepped)
_OTHER = "this line steps an optimizer that steps at another line, too"


@Rule(
    "not-updated",
    NOTE,
    "leaves that get gradients and are never changed",
    needs=(Need.PASSES,),
    follows=("unregistered-parameter", "stale-optimizer", "recreated-parameter", "late-clip", "missing-detach"),
)
def not_updated(case: Case) -> Iterator[Found]:
    told: set[int] = set()
    for found in (*_lost(case), *_lost_in_steps(case), *_without_step(case), *_thawed(case), *_forgotten(case)):
        if not found.tensors or not told.issuperset(found.tensors):
            told.update(found.tensors)
            yield found
    told.update(_points(case))
    leaves = [leaf for leaf in case.query.of(Ledger).homeless if leaf not in told]
    if not leaves or not case.training.trained:
        return
    came = case.trace.table(Kind.ACCUMULATED)
    first = int(came.events[came["tensor"] == leaves[0]][0])
    made = case.query.tensors.maker(leaves[0])
    one = len({case.called([leaf]) for leaf in leaves}) == 1  # one that is made anew again and again
    yield Found(
        f"{case.called(leaves)} get{'s' * one} gradients, and no step ever changes {'it' if one else 'them'}",
        "give it to the optimizer, or requires_grad_(False) if it is not to be trained",
        (first,) if made is None else (made, first),
        tensors=tuple(leaves),
    )


def _points(case: Case) -> Iterator[int]:
    """The leaves, no Parameters, that require grad because the program differentiates by them: the points at which an
    equation is to hold."""
    for leaf in distinct(case.trace.table(Kind.PASS_BEGAN).lists("inputs").values).tolist():
        made = case.query.tensors.made(leaf)
        is_parameter = isinstance(made, TensorMade) and made.how == PARAMETER
        if not is_parameter and leaf not in case.trace.parameters:
            yield leaf


def _lost(case: Case) -> Iterator[Found]:
    for change in case.of(lost_changes):
        what = case.words.expression(case.site(change.events[0]), 40) or "the result"
        one = len(change.leaves) == 1
        yield Found(
            f"{what} is a new tensor that nothing reads: {case.called(change.leaves)} never change{'s' * one}",
            _in_place(case, change.events[0]),
            change.events[:2],
            tensors=change.leaves,
            severity=ERROR,
        )


def _lost_in_steps(case: Case) -> Iterator[Found]:
    """Optimizers of the program's own whose steps compute new values and drop them, by their source: PyTorch's recorder
    sees no op in a step."""
    rows = case.query.of(Ledger).rows
    for optimizer in distinct(rows.optimizers[rows.changes == 0]).tolist():
        of_it, own = rows.optimizers == optimizer, own_step(case, optimizer)
        steps = rows.steps[of_it & (rows.norms > 0)]
        before = [one for one in case.trace.passes if one.first < steps.max(initial=0)]
        if own is None or (rows.changes[of_it] != 0).any() or not before:
            continue
        leaves = tuple(distinct(rows.leaves[of_it]).tolist())
        for value in [*_dropped_in(own[1])][-1:]:
            changed = written_in_place(value)
            yield Found(
                f"{ast.unparse(value)} is a new tensor that nothing reads: {case.called(leaves)} never "
                f"change{'s' * (len(leaves) == 1)}",
                Fix(changed, typed_as(changed)),
                (before[-1].first, int(steps.max())),
                site=case.query.places.of_line(own[0], value.lineno),
                number=before[-1].number,
                tensors=leaves,
                severity=ERROR,
            )


def _dropped_in(step: ast.FunctionDef) -> Iterator[ast.expr]:
    """The values that a function computes from a parameter and drops, in order: a statement of its own, `p.add(grad)`,
    or the value of a variable that nothing reads, or that was the parameter."""
    parameters = stepped_names(step)
    for node in sorted(ast.walk(step), key=lambda node: getattr(node, "lineno", 0)):
        if isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Call | ast.BinOp):
            name, tensor = assigned_to(node), begins_with(node.value)
            is_dropped = not name or name == tensor or (name.isidentifier() and name not in names_read(step))
            if tensor in parameters and is_dropped:
                yield node.value


def _forgotten(case: Case) -> Iterator[Found]:
    for part in case.of(_left_out):
        name = case.training.optimizer_class(part.optimizer)
        one = len({case.called([leaf]) for leaf in part.leaves}) == 1
        begun = case.query.passes.by_number[part.number].first
        given = given_to(case.query, case.site(part.made))
        yield Found(
            f"{name} was made without {case.called(part.leaves)}: {'it gets' if one else 'they get'} gradients, and no "
            f"step ever changes {'it' if one else 'them'}",
            _with_all(case, part.made, name, part.leaves),
            (part.made, begun) if given is None else (begun, part.made),
            site=given and case.query.places.of_line(given[0], given[1].lineno, given[1].end_lineno or 0),
            number=part.number,
            tensors=part.leaves,
            severity=WARNING,
        )


def _in_place(case: Case, event: int) -> Fix | str:
    """The update at an event, which makes a new tensor, rewritten as an update in place."""
    statement = statement_at(case.query, case.place(event))
    if isinstance(statement, ast.Expr):
        text = f"with torch.no_grad(): {written_in_place(statement.value)}"
        return Fix(text, typed_as(text))
    target = ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
    update = in_place(statement, target)
    if (
        not update
        and isinstance(statement, ast.Assign)
        and any(isinstance(node, ast.Name) and node.id == target for node in ast.walk(statement.value))
    ):
        copied = f"{target}.data.copy_({ast.unparse(statement.value)})"
        return Fix(f"{copied}  # in place", typed_as(copied))
    text = f"with torch.no_grad(): {update}  # in place" if update else "update the leaf in place"
    return Fix(text, updated_in_place)


def _with_all(case: Case, made: int, name: str, leaves: tuple[int, ...]) -> Fix | str:
    """The call that made an optimizer, with the _left_out leaves added: the parameters of one more module, or all
    parameters of the model if the leaves are in several modules."""
    path = case.trace.parameters.get(leaves[0]) or case.words.called(leaves[0])
    if not path.replace(".", "_").isidentifier():
        return f"give {name} {case.called(leaves)}, too"
    (module, _), *more = case.query.modules.whole(leaves)
    module = module or path
    own, root = first_argument(case.query, case.site(made)), path.partition(".")[0]
    seen = seen_at(case.query, case.site(made), root)
    new = module if module == path else f"*{module}.parameters()"
    if own and (own.startswith("{") or len(case.trace.table(Kind.HOLDS).object(made).groups) > 1):
        listed = _listed(case, leaves).replace(f"{root}.", f"{seen}.")
        given = f'[{own}, {{"params": [{listed}]}}]'
    else:
        given = f"{seen}.parameters()" if more else f"[{own}, {new.replace(root, seen, 1)}]"
    call = call_with_first(case.query, case.site(made), given) if seen and (own or more) else ""
    if call and (assigned := given_to(case.query, case.site(made))) is not None:
        call = f"{assigned_to(assigned[1])} = {given}"
        return Fix(call, typed_as(call))
    also = "  # or requires_grad_(False) if it is not to be trained"
    if not call:
        return f"give {name} {new.removeprefix('*')}, too{also}"
    return Fix(f"{call}{also}", lambda spot: _given(spot, with_indices(given)))


def _given(spot: Spot, parameters: str) -> list[Edit]:
    """Other parameters for the optimizer that the statement makes."""
    made = [call for node, call, _ in spot.optimizers() if node is spot.statement and call.args]
    return [spot.source.replaced(made[0].args[0], parameters)] if made else []


def _listed(case: Case, leaves: tuple[int, ...]) -> str:
    """The text that lists some leaves for an optimizer: `*net.head.parameters()` for the leaves of a whole module."""
    parts = case.query.modules.whole(leaves)
    return ", ".join(f"*{path}.parameters()" if path and len(own) > 1 else case.called(own) for path, own in parts)


@makes_edits
def _added(spot: Spot, listed: str) -> list[Edit]:
    """The parameters of the module whose method the statement calls as a new group of the only optimizer; or, behind a
    loop over parameters, those that it lacks."""
    statement: ast.stmt = spot.statement
    held = [name for _, _, name in spot.optimizers()]
    call = statement.value if isinstance(statement, ast.Expr) else None
    module = spot.receiver(call) if isinstance(call, ast.Call) else ""
    loop = spot.source.loop(statement)
    if isinstance(loop, ast.For) and ast.unparse(loop.target) in ast.unparse(statement):
        statement, parameters = loop, f"[{listed}]"
    elif module:
        parameters = f"list({module}.parameters())"
    else:
        return []
    group = f'{held[0]}.add_param_group({{"params": {parameters}}})' if len(held) == 1 else ""
    return [spot.source.after(statement, group)] if group else []


# --- optimizers that never step, and the line of the step that is never reached


_CLEARED, _UNCLEARED = 3, 6  # the fewest passes without a step, with clearing between them and without it


def _without_step(case: Case) -> Iterator[Found]:
    """The optimizers that never step, of a run that came to its end."""
    if case.trace.meta.get("error") or case.trace.meta.get("stopped"):
        return
    held, came = case.trace.table(Kind.HOLDS), case.trace.table(Kind.ACCUMULATED)
    changed = [*case.query.of(Ledger).changed_between, *case.training.owners, *case.training.by_hand[1].tolist()]
    stepping = set(case.training.stepped["optimizer"].tolist())
    for row in np.unique(held["optimizer"], return_index=True)[1].tolist():
        made = int(held.events[row])
        if int(held["optimizer"][row]) in stepping:
            continue
        got = contained(came["tensor"], held.lists("parameters").of(row)) & (came.events > made)
        got &= ~contained(came["tensor"], changed)
        leaves, passes = distinct(came["tensor"][got]), distinct(came["in_pass"][got])
        if not len(leaves) or len(passes) < _least(case, leaves):
            continue
        last, other = _meant_for(case, passes, int(leaves[0]))
        unreached = _unreached(case, last)
        why, cure = _UNREACHED if unreached is not None else _MISSING
        others: tuple[int, ...] = ()
        if other is not None:
            unreached, why, cure = _apart_from_others(case, other), _OTHER, "step the other optimizer here"
            name = seen_at(case.query, case.site(other), optimizer_name(case.query, {int(held["optimizer"][row])}))
            if name and unreached == case.place(other):
                cure = Fix(f"{name}.step()", typed_as(f"{name}.step()"))
            others = case.training.stepped.object(other).parameters
        yield Found(
            f"{why}: {len(passes)} passes give gradients to {case.called(leaves.tolist())}, and their optimizer, made "
            f"at {case.at(made)}, never steps",
            cure,
            (last.first, made),
            site=unreached or last.site,
            number=last.number,
            tensors=(*leaves.tolist(), *others),
            severity=WARNING,
        )


def _meant_for(case: Case, passes: np.ndarray, leaf: int) -> tuple[PassInfo, int | None]:
    """The last of the passes of an optimizer that never steps, rather one before which its leaf is cleared, and that no
    step follows before the next pass. If each is followed by a step of another optimizer that also steps at another
    line: that step, too."""
    lives, cleared = case.training.lives, case.training.lives.whats == CLEARED
    fresh = lives.numbers[1:][cleared[:-1] & ~cleared[1:] & (lives.leaves[:-1] == leaf) & (lives.leaves[1:] == leaf)]
    kept = passes[contained(passes, fresh)] if contained(passes, fresh).any() else passes
    own = [case.query.passes.by_number[number] for number in kept.tolist()]
    stepped, firsts = case.training.stepped, [one.first for one in case.trace.passes]
    ends = [next((first for first in firsts if first > one.first), case.trace.count) for one in own]
    at = [int(np.searchsorted(stepped.events, one.first)) for one in own]
    is_followed = [row < len(stepped) and stepped.events[row] < end for row, end in zip(at, ends, strict=True)]
    if not all(is_followed):
        return own[len(own) - 1 - is_followed[::-1].index(False)], None
    sites = stepped.sites[at]
    elsewhere = (stepped["optimizer"] == stepped["optimizer"][at[0]]) & (stepped.sites != sites[0])
    is_other = len(set(sites.tolist())) == 1 and bool(elsewhere.any())
    return own[-1], int(stepped.events[at[-1]]) if is_other else None


def _apart_from_others(case: Case, step: int) -> Site | None:
    """The line of a step of an optimizer that leads to no other step of it: a caller, if all are in one function."""
    own, stepped = case.site(step), case.training.stepped
    sites = distinct(stepped.sites[stepped["optimizer"] == stepped.object(step).optimizer]).tolist()
    lines = case.query.places.line
    others = {lines(caller.number) for one in sites if one != own for caller in case.query.places.callers(one)}
    ways = case.query.places.callers(own)
    return next((caller for caller in ways if lines(caller.number) not in others), case.place(step))


def _least(case: Case, leaves: np.ndarray) -> int:
    """The fewest passes after which a step is missing."""
    assigned = case.trace.table(Kind.GRAD_ASSIGNED)
    cleared = case.trace.table(Kind.GRADS_CLEARED).lists("tensors").values
    set_here = assigned["tensor"][assigned.sites > 0]  # without a site: assigned before the recording
    has = contained(leaves, cleared).any() or contained(leaves, set_here).any()
    return _CLEARED if has else _UNCLEARED


def _unreached(case: Case, backward_pass: PassInfo) -> Site | None:
    """The first call of `step()` that never ran in the file of a pass. If the call, but not the pass, is under an `if`:
    the line of this condition. None if there is no such call."""
    site = case.query.places.site(backward_pass.site)
    tree = case.query.of(trees).get(site.place.file) if site is not None else None
    if site is None or tree is None:
        return None
    kinds = (case.training.stepped, case.scheduled)
    ran = {
        caller.place.line
        for table in kinds
        for number in distinct(table.sites).tolist()
        for caller in case.query.places.callers(number)
    }
    pass_line = site.place.line
    lines = sorted(set(_steps(tree)) - ran, key=lambda line: (line < pass_line, line))
    for line in lines[:1]:
        conditions = [
            node.lineno
            for node in nodes_of(tree)
            if isinstance(node, ast.If) and _spans(node, line) and not _spans(node, pass_line)
        ]
        return case.query.places.of_line(site.place.file, max(conditions, default=line))
    return None


def _spans(node: ast.If, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or 0)


def _steps(tree: ast.Module) -> Iterator[int]:
    """The lines that call `step()` of an optimizer, or of a scaler with an optimizer, known by `opt` in its name."""
    for node in nodes_of(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        named = any("opt" in ast.unparse(part).lower() for part in (node.func.value, *node.args))
        if node.func.attr == "step" and named:
            yield node.lineno


# --- parameters that require grad only after their optimizer was made


def _thawed(case: Case) -> Iterator[Found]:
    """The parameters in no optimizer at which a line switched requires_grad on after an optimizer was made. An input
    that requires grad is no parameter: the program wants its own gradient."""
    changed, held = case.trace.table(Kind.REQUIRES_GRAD_CHANGED), case.trace.table(Kind.HOLDS)
    by_line: dict[int, dict[int, int]] = {}  # the leaves of each line, with the first event of each
    for leaf in filter(case.trace.parameters.get, case.query.of(Ledger).homeless if len(held) else ()):
        for event in changed.events[changed["tensor"] == leaf].tolist():
            if event > held.events[0] and case.query.tensors.requires_grad(leaf, event):
                by_line.setdefault(int(case.trace.events["site"][event]), {})[leaf] = event
                break
    for own in by_line.values():
        leaves, first = tuple(own), min(own.values())
        row = int((held.events < first).sum()) - 1
        name, made = case.training.optimizer_class(int(held["optimizer"][row])), int(held.events[row])
        one = len(leaves) == 1
        yield Found(
            f"{case.called(leaves)} require{'s' * one} grad from here on, and no step ever changes "
            f"{'it' if one else 'them'}: {name} was made before, at {case.at(made)}, without {'it' if one else 'them'}",
            Fix(
                f'optimizer.add_param_group({{"params": [{_listed(case, leaves)}]}})  # here, or give it all '
                "parameters when it is made",
                _added(with_indices(_listed(case, leaves))),
            ),
            (first, made),
            tensors=leaves,
            severity=WARNING,
        )


# --- parameters that were left out of an optimizer


_TRAINED, _LEFT_OUT = 1, 2  # bits


class Forgotten(NamedTuple):
    """Leaves of a model that are in no optimizer. `number` is the first pass that gave them gradients, `optimizer` the
    optimizer of the other leaves, `made` the event at which it was made."""

    leaves: tuple[int, ...]
    number: int
    optimizer: int
    made: int


class _Place(NamedTuple):
    """The place of some leaves in a pass, relative to the trained leaves: whether some of them, or all of them, come
    after trained leaves; whether trained leaves come after them (`before`); whether these trained leaves are in a
    product with data (`is_layer`); whether the leaves read results of trained leaves joined with data, as a critic that
    reads a state and an action (`takes_data`)."""

    some_after: bool
    all_after: bool
    before: bool
    is_layer: bool
    takes_data: bool


def _left_out(case: Case) -> list[Forgotten]:
    """The parts of models that were _left_out, one entry for each optimizer. Use `case.of(_left_out)`."""
    found: dict[int, Forgotten] = {}
    homeless = (leaf for leaf in case.query.of(Ledger).homeless if leaf in case.trace.parameters)
    for leaves in grouped((case.model_of(leaf), leaf) for leaf in homeless).values():
        number, optimizers = _first_pass(case, leaves)
        others = {leaf for leaf, own in case.training.owners.items() if own & optimizers}
        others &= case.trace.parameters.keys()
        if not others:
            continue
        for part in _parts(case, leaves, others, number):
            place = _place(case, number, set(part), others)
            if _is_forgotten(case, part, others, place):
                optimizer = _nearest(case, part, optimizers)
                before = found[optimizer].leaves if optimizer in found else ()
                found[optimizer] = Forgotten((*before, *part), number, optimizer, _made(case, optimizer))
    found_parts = [*found.values(), *_apart(case, {leaf for one in found.values() for leaf in one.leaves})]
    # a part of a model with something forgotten is no fault of its own
    known, points = {leaf for one in found_parts for leaf in one.leaves}, {*_points(case)}
    rest = [leaf for leaf in case.query.of(Ledger).homeless if leaf not in known | points]
    for at, one in enumerate(found_parts):
        models = {case.model_of(leaf) for leaf in one.leaves}
        more = [
            leaf for leaf in rest if case.model_of(leaf) in models and one.optimizer in _first_pass(case, [leaf])[1]
        ]
        found_parts[at] = one._replace(leaves=(*one.leaves, *more))
    return found_parts


def _apart(case: Case, known: set[int]) -> Iterator[Forgotten]:
    """The leaves beside what an optimizer trains in the same pass that are like it: parameters of their own, or the
    parameters of a model like one that it trains, made by the same line."""
    by_optimizer: dict[int, list[int]] = {}
    ledger, points = case.query.of(Ledger), {*_points(case)}
    leaves = [leaf for leaf in ledger.homeless if leaf not in known | points]
    sources = [ast.unparse(tree) for tree in case.query.of(trees).values()] if leaves else []
    for leaf in leaves:
        _, optimizers = _first_pass(case, [leaf])
        looked_at = re.compile(rf"(?<!\w){re.escape(case.words.called(leaf))}\.grad\b")
        read = leaf in ledger.reads[0] or any(map(looked_at.search, sources))
        others = {other for other, own in case.training.owners.items() if own & optimizers}
        is_spare = len(optimizers) == 1 and not read and not case.query.of(Writes).has_loaded_values(leaf)
        if is_spare and any(_is_like(case, leaf, one) for one in others):
            by_optimizer.setdefault(min(optimizers), []).append(leaf)
    for optimizer, own in by_optimizer.items():
        number, _ = _first_pass(case, own)
        yield Forgotten(tuple(own), number, optimizer, _made(case, optimizer))


def _is_like(case: Case, leaf: int, trained: int) -> bool:
    """Whether a leaf of no module is a Parameter, a number, or made by the function that made a trained leaf of no
    module; or a leaf of a module has the place in its model that the trained leaf of another model has."""
    made, other = (case.query.tensors.made(one) for one in (leaf, trained))
    names = [case.trace.parameters.get(one, "") for one in (leaf, trained)]
    if not isinstance(made, TensorMade) or other is None:
        return False
    if names[0]:
        (model, _, path), (twin, _, of_twin) = (name.partition(".") for name in names)
        same_line = case.query.places.line(made.site) == case.query.places.line(other.site)
        return same_line and model != twin and path == of_twin != ""
    functions = [site.place.function for one in (made, other) if (site := case.query.places.site(one.site))]
    is_beside = not names[1] and len(functions) == 2 and functions[0] == functions[1] != "<module>"
    return made.how == PARAMETER or case.query.tensors.shape(leaf) == () or is_beside


def _nearest(case: Case, leaves: list[int], optimizers: set[int]) -> int:
    """The optimizer that leaves were left out of: first choice is an optimizer of another part of their model, then the
    one of the most models: a list of parts may lack one; then that of the most leaves of their model."""
    models = {number: Counter[str]() for number in optimizers}
    for leaf, owners in case.training.owners.items():
        for number in owners & optimizers:
            models[number][case.model_of(leaf)] += 1
    counts = {number: own[case.model_of(leaves[0])] for number, own in models.items()}
    return min(optimizers, key=lambda one: (not counts[one], -len(models[one]), -counts[one], one))


def _is_forgotten(case: Case, leaves: list[int], others: set[int], place: _Place) -> bool:
    """Whether leaves were left out by mistake, judged by their place in the pass and their values."""
    if not place.is_layer:
        return False
    near = any(case.model_of(leaf) == case.model_of(leaves[0]) for leaf in others)
    parts = [{_part(case, leaf) for leaf in group} for group in (leaves, others)]
    is_part = parts[0].isdisjoint(parts[1])
    if near and place.some_after and (is_part or not place.before):
        return True
    is_first = place.before and not place.some_after  # a body with random values before a head that learns
    beside = not place.before and not place.takes_data and (place.all_after or not place.some_after)
    own, around = ({case.trace.parameters[leaf].rpartition(".")[0] for leaf in group} for group in (leaves, others))
    # the biases of layers whose weights learn
    are_biases = own <= around and all(len(case.shape(leaf)) == 1 for leaf in leaves)
    are_loaded = any(map(case.query.of(Writes).has_loaded_values, leaves))
    return (are_biases or ((is_first or beside) and own.isdisjoint(around))) and not are_loaded


def _parts(case: Case, leaves: list[int], others: set[int], number: int) -> Iterator[list[int]]:
    """The leaves of a model as one group; as one group for each part, if trained leaves come after some of them."""
    if not _place(case, number, set(leaves), others).before:
        yield leaves
        return
    by_part = grouped((_part(case, leaf), leaf) for leaf in leaves)
    yield from by_part.values()


def _part(case: Case, leaf: int) -> str:
    """The part of the model that a parameter belongs to: `net.head` for `net.head.weight`."""
    return ".".join(case.trace.parameters[leaf].split(".")[:2])


def _first_pass(case: Case, leaves: list[int]) -> tuple[int, set[int]]:
    """The first pass that gave some leaves gradients and belongs to an optimizer, with its optimizers. If no pass
    belongs to an optimizer: the first pass, and an empty set."""
    came = case.trace.table(Kind.ACCUMULATED)
    numbers = came["in_pass"][contained(came["tensor"], leaves)].tolist()
    owners = case.query.of(PassOwners).optimizers
    first = next((number for number in numbers if owners(number) - {BY_HAND}), numbers[0])
    return first, owners(first) - {BY_HAND}


def _place(case: Case, number: int, leaves: set[int], others: set[int]) -> _Place:
    """The place of leaves in a pass, relative to the `others`."""
    began = case.query.passes.began(number)
    root = next((root.tensor for root in began.roots if root.tensor), 0)
    ways = case.query.of(Lacks).ways(root, began.index)
    bits = dict.fromkeys(others, _TRAINED) | dict.fromkeys(leaves, _LEFT_OUT)
    behind = groups_behind(case.query, ways, bits)
    after: list[bool] = []
    before = is_layer = takes_data = False
    for use in ways.uses:
        above = 0
        for tensor in use.data:
            above |= behind.get(tensor, 0)
        if use.leaves & leaves:
            after.append(bool(above & _TRAINED))
            takes_data |= bool(above & _TRAINED) and _is_joined_with_data(case, use)
        if use.leaves & others:
            before |= bool(above & _LEFT_OUT)
            is_layer |= case.query.tensors.op(use.event).op in PRODUCTS
    return _Place(any(after), bool(after) and all(after), before, is_layer, takes_data)


def _is_joined_with_data(case: Case, use: Use) -> bool:
    """Whether a use reads a tensor that was joined from computed values and data."""
    makers = [maker for tensor in use.data if (maker := op_of(case.query, tensor)) is not None and maker.op in JOINING]
    requires_grad = case.query.tensors.requires_grad
    return any(not requires_grad(source, maker.index) for maker in makers for source in maker.inputs)


def _made(case: Case, optimizer: int) -> int:
    """The event at which an optimizer was made; its first step if it is not in the trace."""
    made, steps = case.training.made_at(optimizer), case.training.stepped.events
    return made if made < case.trace.count else int(steps[0])
