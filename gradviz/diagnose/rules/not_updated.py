"""`not-updated`: leaves get gradients in two passes or more, and nothing ever changes them. It is an error if
the program computes the change and loses it (`p = p - lr * p.grad`). It is a warning if the optimizer of the leaves
never steps, if they were frozen when the optimizer was made, or if they are left out of the optimizer though they
come after the leaves that it trains.

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

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR, NOTE, WARNING
from gradviz.diagnose.forgotten import forgotten
from gradviz.diagnose.homeless import homeless
from gradviz.diagnose.lost_change import lost_averages, lost_changes
from gradviz.diagnose.never_stepped import never_stepped
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.diagnose.thawed import thawed
from gradviz.events.kinds import Kind, TensorMade
from gradviz.query.lack import PARAMETER
from gradviz.query.own_names import call_with_first, first_argument, seen_at
from gradviz.query.source_trees import in_place, statement_at
from gradviz.sets import distinct
from gradviz.words.escape import clean

_UNREACHED = (
    "the step here is never reached",
    "if (i + 1) % k == 0: optimizer.step()  # a condition that comes true",
)
_MISSING = "no step follows this pass", "optimizer.step()  # after backward()"


def _search(case: Case) -> Iterator[Found]:
    told: set[int] = set()
    for found in (*_lost(case), *_without_step(case), *_thawed(case), *_forgotten(case)):
        told.update(found.tensors)
        yield found
    told.update(_points(case))
    leaves = [leaf for leaf in case.of(homeless) if leaf not in told]
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
    by_gradient = case.of(lost_changes)
    first = {change.events[0] for change in by_gradient}
    for change in (*by_gradient, *(lost for lost in case.of(lost_averages) if lost.events[0] not in first)):
        what = case.words.expression(case.site(change.events[0]), 40) or "the result"
        one = len(change.leaves) == 1
        yield Found(
            f"{what} is a new tensor that nothing reads: {case.called(change.leaves)} never change{'s' * one}",
            _in_place(case, change.events[0]),
            change.events[:2],
            tensors=change.leaves,
            severity=ERROR,
        )


def _without_step(case: Case) -> Iterator[Found]:
    for idle in case.of(never_stepped):
        why, cure = _UNREACHED if idle.unreached is not None else _MISSING
        yield Found(
            f"{why}: {idle.passes} passes give gradients to {case.called(idle.leaves)}, and their optimizer, made at "
            f"{case.at(idle.made)}, never steps",
            cure,
            (idle.backward_pass.first, idle.made),
            site=idle.unreached or idle.backward_pass.site,
            number=idle.backward_pass.number,
            tensors=idle.leaves,
            severity=WARNING,
        )


def _forgotten(case: Case) -> Iterator[Found]:
    for part in case.of(forgotten):
        name = clean(case.training.optimizer_class(part.optimizer))
        one = len({case.called([leaf]) for leaf in part.leaves}) == 1
        beside = "comes" if one else "come"
        yield Found(
            f"{name} was made without {case.called(part.leaves)}: {'it gets' if one else 'they get'} gradients"
            f"{f' and {beside} after what {name} trains' * part.comes_after}, and no step ever changes "
            f"{'it' if one else 'them'}",
            f"{_with_all(case, part.made, name, part.leaves)}  # or requires_grad_(False) if it is not to be trained",
            (part.made, case.query.passes.by_number[part.number].first),
            number=part.number,
            tensors=part.leaves,
            severity=WARNING,
        )


def _reads(expression: ast.expr, name: str) -> bool:
    """Whether an expression reads a variable, which then stood for a tensor before it was assigned to."""
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(expression))


def _in_place(case: Case, event: int) -> str:
    """The update at an event, which makes a new tensor, rewritten as an update in place."""
    statement = statement_at(case.query, case.place(event))
    target = ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
    update = in_place(statement, target)
    if not update and isinstance(statement, ast.Assign) and _reads(statement.value, target):
        return clean(f"{target}.data.copy_({ast.unparse(statement.value)})  # in place")
    return f"with torch.no_grad(): {clean(update)}  # in place" if update else "update the leaf in place"


def _with_all(case: Case, made: int, name: str, leaves: tuple[int, ...]) -> str:
    """The call that made an optimizer, with the forgotten leaves added: the parameters of one more module, or all
    parameters of the model if the leaves are in several modules."""
    path = case.trace.parameters[leaves[0]]
    (module, _), *more = case.query.modules.whole(leaves)
    own, root = first_argument(case.query, case.site(made)), path.partition(".")[0]
    seen = clean(seen_at(case.query, case.site(made), root))
    new = clean(module) if module == path else f"*{clean(module)}.parameters()"
    if len(case.trace.table(Kind.HOLDS).object(made).groups) > 1 and own:
        listed = _listed(case, leaves).replace(f"{clean(root)}.", f"{seen}.")
        given = f'[{own}, {{"params": [{listed}]}}]'
    else:
        given = f"{seen}.parameters()" if more else f"[{own}, {new.replace(clean(root), seen, 1)}]"
    call = call_with_first(case.query, case.site(made), given) if seen and (own or more) else ""
    return clean(call) or f"give {name} {new.removeprefix('*')}, too"


def _listed(case: Case, leaves: tuple[int, ...]) -> str:
    """The text that lists some leaves for an optimizer: `*net.head.parameters()` for the leaves of a whole module."""
    parts = case.query.modules.whole(leaves)
    return ", ".join(
        f"*{clean(path)}.parameters()" if path and len(own) > 1 else case.called(own) for path, own in parts
    )


def _thawed(case: Case) -> Iterator[Found]:
    for late in case.of(thawed):
        name, one = clean(case.training.optimizer_class(late.optimizer)), len(late.leaves) == 1
        yield Found(
            f"{case.called(late.leaves)} require{'s' * one} grad from here on, and no step ever changes "
            f"{'it' if one else 'them'}: {name} was made before, at {case.at(late.made)}, without "
            f"{'it' if one else 'them'}",
            f'optimizer.add_param_group({{"params": [{_listed(case, late.leaves)}]}})  # here, or give it all '
            "parameters when it is made",
            (late.event, late.made),
            tensors=late.leaves,
            severity=WARNING,
        )


RULE = Rule(
    "not-updated",
    NOTE,
    "leaves that get gradients and are never changed",
    _search,
    needs=(Need.PASSES,),
    follows=(
        "unregistered-parameter",
        "stale-optimizer",
        "recreated-parameter",
        "late-clip",
        "missing-detach",
    ),
)
