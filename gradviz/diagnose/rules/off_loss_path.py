"""`off-loss-path`: a leaf that should learn is used, but no result that is computed from it reaches a root. Also
reported: a penalty on the gradient of `autograd.grad(..., create_graph=True)`, or weights adapted by it, that reach no
root in each round of the training; a result that the program throws away, as of `a.masked_fill(mask, 0)` for
`a = a.masked_fill(mask, 0)`; a scalar with a graph that is computed again and again and assigned to a variable that no
line reads, or that each turn of a loop replaces.

Why it is bad: these results have no effect on training, and the leaf gets no gradient.

Example:

    torch.manual_seed(0)
    w = torch.randn(3, requires_grad=True)
    scale = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([w, scale], lr=0.1)
    x, y = torch.randn(8, 3), torch.randn(8)
    for step in range(3):
        penalty = (scale ** 2).sum()
        loss = ((x @ w - y) ** 2).mean()  # <- off-loss-path
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Cure: add the term to the loss, or return and use the result of the branch. The line of the finding is the last that
computes the root behind the result; else that of the pass, or, where the pass is in another function, of the result.

Not reported: results that are only logged; the losses before the last one of a refinement. A note only: what is
assigned to `_`, since hooks may take what is meant; the output that the last of several equal blocks makes for a next
block. Parameters in no optimizer that the program itself writes to again and again: it searches their values without
gradients.
"""

import ast
import itertools
import re
from collections.abc import Container, Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from gradviz.diagnose.fix import Fix, typed_as, typed_for
from gradviz.diagnose.loops import loops_at
from gradviz.diagnose.lost_change import lost_changes, written_in_place
from gradviz.diagnose.rule import NOTE, WARNING, Case, Found, Kind, Need, Rule
from gradviz.diagnose.without_gradient import lacking, lacks_gradient, learns_in_other_blocks
from gradviz.query.dropped_results import Dropped, are_used, dropped
from gradviz.query.flow import leaves_of, op_of, reach
from gradviz.query.functions_of_source import blocks_of, function_around, nodes_of
from gradviz.query.missing_gradients import Lack, Lacks
from gradviz.query.ops import CONVERTING, COPYING, SUMS
from gradviz.query.pass_owners import bound_in, missing_at, steps_before_pass
from gradviz.query.source_trees import assigned_before, assigned_to, following, names_read, statement_at, trees
from gradviz.query.statements import copied_in_loop, variables_of
from gradviz.sets import contained, distinct, grouped
from gradviz.tracefile import PassInfo, Site
from gradviz.words.escape import shortened

_LONGEST = 60  # characters of an expression
_UNWANTED = "_"  # a variable: the program calls a module for what its hooks take, and says so


@Rule(
    "off-loss-path",
    WARNING,
    "a result that never reaches the loss",
    needs=(Need.PASS, Need.DETAILS),
    follows=("detached-path", "stale-optimizer"),
)
def off_loss_path(case: Case) -> Iterator[Found]:
    by_place = grouped(
        (case.query.of(Lacks).computed_at(lack), lack) for lack in case.of(lacking) if lack.lack is Lack.OFF_PATH
    )
    for made, own in by_place.items():
        leaves = [lack.leaf for lack in own]
        result = case.called(case.query.tensors.op(own[0].event).outputs)
        if made is not None and made.place.unpacks and not result.isidentifier():
            result = f"a result of {result}"
        noted = all(lack.severity == NOTE or learns_in_other_blocks(case, lack.leaf) for lack in own)
        lost, cure = _overwritten(case, own[0].event)
        why = f"from {'it' if len(leaves) == 1 else 'them'}, reaches no root{lost}"
        found = _missing(case, made, own[0].event, tuple(leaves), result, why)
        yield replace(
            found,
            message=f"{lacks_gradient(case, leaves)}: {found.message}",
            fix=cure or found.fix,
            severity=NOTE if noted or result == _UNWANTED else WARNING,
        )
    lines = {site.place.line for site in by_place if site is not None}
    for one in case.query.of(dropped):
        if one.site.place.line not in lines and _is_of_training(case, one):
            yield _thrown_away(case, one)
    yield from _unused_penalties(case)
    yield from _unread_terms(case, lines)
    yield from _replaced_terms(case, lines)


def _missing(case: Case, made: Site | None, event: int, leaves: tuple[int, ...], name: str, why: str) -> Found:
    """The finding for a result that a line computes, by an event, and no root uses: at the line where it is missing."""
    site, backward_pass = missing_at(case.query, made, leaves[0], event)
    cure: Fix | str = f"use {name} in the loss, or do not compute it"
    if name.isidentifier() and steps_before_pass(case.query, leaves[0], event):
        call = f"{name}.backward()"
        cure = Fix(f"{call}  # before the step", lambda spot: [spot.source.after(spot.statement, call)])
    if made is None or backward_pass is None:
        return Found(f"{name}, which is computed {why}", cure, (event,), site=site, tensors=leaves)
    message, events = f"{name}, which line {made.place.line} computes {why}", (backward_pass.first, event)
    return Found(message, cure, events, site=site, number=backward_pass.number, tensors=leaves)


def _overwritten(case: Case, event: int) -> tuple[str, Fix | None]:
    """The line that gives the variable of a result another value before any other line reads it, and the assignment
    that adds to it; empty and None if there is none."""
    for statement in following(case.query, case.place(event)):
        name = assigned_to(statement_at(case.query, case.place(event)))
        if isinstance(statement, ast.Assign) and name and assigned_to(statement) == name:
            value = ast.unparse(statement.value)
            if name not in names_read(statement):
                cure = f"{name} = {name} + {value}  # in place of {name} = {value}, line {statement.lineno}"
                added = typed_for(value, f"{name} + {value}", statement.lineno)
                return f": line {statement.lineno} gives {name} another value", Fix(cure, added)
        if not name or name in names_read(statement):
            break
    return "", None


def _replaced_terms(case: Case, found: Container[int]) -> Iterator[Found]:
    """Scalars with a graph, or vectors of them, that lines compute for one variable several times before a pass, of
    which only the last is used: each replaces the one before. Not if the last is of all data that the others are of: it
    may be the best, unless the variable begins as 0, like a sum."""
    ops, passes = case.trace.table(Kind.OP), case.trace.table(Kind.PASS_BEGAN)
    is_backward = case.trace.named(passes["how"], ("backward",))
    begun = passes.events[is_backward | ~is_backward.any()]  # a round may have adapted weights by autograd.grad
    states = case.trace.states
    terms = [number for number, form in case.trace.forms.items() if len(form.shape) <= 1]
    rows = states.rows_of(ops.lists("outputs").firsts, ops.events)
    is_term = ~(ops["in_pass"] > 0) & (rows >= 0) & contained(states.forms[rows], terms)
    named = ops.events[is_term & contained(ops.sites, sorted(case.query.places.with_names))]
    by_variable: dict[tuple[Site, str], list[np.ndarray]] = {}
    for number, events in case.by_site(named).items() if len(begun) else ():
        variables = variables_of(case.query, number)
        in_loops = (one for one in variables if loops_at(case, one[0]))
        if variables:
            by_variable.setdefault(next(in_loops, variables[-1]), []).append(events)
    for (place, name), of_sites in by_variable.items():
        events = np.sort(np.concatenate(of_sites))
        rounds = np.searchsorted(begun, events)
        is_last = np.append(rounds[1:] != rounds[:-1], True)
        lost = events[~is_last & (rounds < len(begun))]
        if place.place.line in found or len(distinct(rounds[~is_last])) < _ROUNDS:
            continue
        turn = rounds[~is_last][0]
        first = case.query.passes.by_number[int(passes["number"][passes.events == begun[turn]][0])]
        kept = events[is_last & (rounds < len(begun))].tolist()
        is_lost = not are_used(case.query, lost) and all(are_used(case.query, [one]) for one in kept)
        if not isinstance(statement := statement_at(case.query, place), ast.Assign) or not is_lost:
            continue
        values = [case.query.tensors.op(int(event)).outputs[0] for event in events[rounds == turn][:_MOST]]
        begins = assigned_before(case.query, place, name)
        is_sum = begins is not None and isinstance(begins.value, ast.Constant) and begins.value.value == 0
        if not _are_of_parts(case, values, is_sum and case.shape(values[0]) == ()):
            continue
        copied = copied_in_loop(case.query, place, name)
        if copied is not None:
            place, statement = copied[0] or place, copied[1]
            name = assigned_to(statement)
        elif "." in name:  # of several objects
            continue
        value = ast.unparse(statement.value)
        cure = f"{name} = {name} + {value}"
        yield Found(
            f"{name} gets {len(events)} values before {len(kept)} passes: each replaces the one before, and "
            "only the last before a pass is in its root",
            Fix(cure, typed_for(value, f"{name} + {value}")),
            (*([first.first] if copied is not None else []), int(lost[0]), int(kept[0])),
            site=place,
            number=first.number if copied is not None else 0,  # nothing is recorded where a value gets a second name
        )


def _are_of_parts(case: Case, scalars: list[int], is_sum: bool) -> bool:
    """Whether scalars, made one after another, have a graph and are meant as terms of a sum, or are of different
    leaves, or each is of data, without a graph, that the last is not of."""
    requires_grad, end = case.query.tensors.requires_grad, case.trace.count - 1
    if not all(requires_grad(scalar, end) for scalar in scalars):
        return False

    def onward(tensor: int) -> tuple[int, ...]:
        made = op_of(case.query, tensor) if requires_grad(tensor, end) else None
        return made.inputs if made is not None else ()

    leaves = [frozenset(leaves_of(case.query, scalar)) for scalar in scalars]
    if is_sum or len(set(leaves)) == len(leaves) or case.shape(scalars[0]):
        return is_sum or len(set(leaves)) == len(leaves)
    behind = [{one for one in reach([scalar], onward) if not requires_grad(one, end)} for scalar in scalars]
    return all(own - behind[-1] for own in behind[:-1])


# --- results that the program drops


def _is_of_training(case: Case, one: Dropped) -> bool:
    """Whether what is dropped has a graph or is a new value of a leaf or of a gradient, and is no copy, for which the
    program may wait, no change of a leaf that is lost, and no collective."""
    changes = {event for change in case.of(lost_changes) for event in change.events}
    op = case.query.tensors.op(one.events[0])
    if case.query.tensors.are_collectives[np.searchsorted(case.trace.table(Kind.OP).events, op.index)]:
        return False
    leaf, shape = op.inputs[0] if op.inputs else 0, case.query.tensors.shape
    is_alike = bool(leaf and op.outputs) and shape(leaf) == shape(op.outputs[0])  # `image.clamp(0, 1)`
    is_leaf = is_alike and case.query.tensors.is_leaf_that_requires_grad(leaf, op.index)
    is_update = is_leaf or (is_alike and (op.op in SUMS or case.training.stems_from_gradient(leaf, op.index)))
    return (one.has_graph or is_update) and op.op not in CONVERTING | COPYING and changes.isdisjoint(one.events)


def _thrown_away(case: Case, one: Dropped) -> Found:
    text, op = ast.unparse(one.statement), case.query.tensors.op(one.events[0])
    names = {case.query.names.of(tensor) for tensor in op.inputs if tensor}
    parts = [part for part in ast.walk(one.statement) if isinstance(part, ast.expr)]
    in_order = map(ast.unparse, sorted(parts, key=lambda part: (part.lineno, part.col_offset)))
    target = next((part for part in in_order if part in names), "")
    cure = f"{target} = {text}" if one.has_graph else written_in_place(one.statement.value)
    return Found(
        f"the result of {shortened(text, _LONGEST)} is thrown away: nothing reads it",
        Fix(cure, typed_as(cure)) if target or not one.has_graph else "use the result, or leave out the line",
        one.events[:2],
    )


# --- terms that no line reads


def _unread_terms(case: Case, found: Container[int]) -> Iterator[Found]:
    """Scalars with a graph, or vectors of them, that the program assigns to a variable again and again. No line reads
    the variable, but to give it its next value, or none reads it before it gets another. Lines that are `found` are
    left out."""
    begun = case.trace.table(Kind.PASS_BEGAN).events
    for name, made, events in itertools.chain(_unread_values(case), _unread_returns(case)):
        rounds = np.searchsorted(begun, events)
        last = events[np.append(rounds[1:] != rounds[:-1], True)[: len(events)]]
        if len(last) < _ROUNDS or are_used(case.query, last):
            continue
        op = case.query.tensors.op(int(last[0]))
        result, requires_grad = op.outputs[0] if op.outputs else 0, case.query.tensors.requires_grad
        of_root = any(one in case.query.passes.roots for one in op.inputs if one)
        if not result or of_root or len(case.shape(result)) > 1 or not requires_grad(result, op.index):
            continue
        leaves = tuple(leaf for leaf in leaves_of(case.query, result) if leaf in case.training.trained)
        site = next((one for one in case.query.places.callers(case.site(op.index)) if one.place.line in made), None)
        if leaves and site is not None and site.place.line not in found:
            nothing = f"{case.called(leaves)} learn{'s' * (len(leaves) == 1)} nothing from it"
            lost, cure = _overwritten(case, op.index)
            why = f"with its graph, is read by no line{lost}: {nothing}"
            term = _missing(case, site, op.index, leaves, name, why)
            yield replace(term, fix=cure or term.fix)


def _unread_values(case: Case) -> Iterator[tuple[str, range, np.ndarray]]:
    """The variables that no line reads of the assignments in the sources, their lines, and the ops that ran there."""
    ops = case.trace.table(Kind.OP)
    callers = {number: case.query.places.callers(number) for number in distinct(ops.sites).tolist()}
    lines_of = {number: {(one.place.file, one.place.line) for one in around} for number, around in callers.items()}
    unread = ((file, one) for file, tree in case.query.of(trees).items() for one in _unread_in(tree))
    for file, statement in unread:
        lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
        sites = [number for number, around in lines_of.items() if any((file, line) in around for line in lines)]
        if sites:
            yield assigned_to(statement), lines, ops.events[~(ops["in_pass"] > 0) & contained(ops.sites, sites)]


def _unread_returns(case: Case) -> Iterator[tuple[str, range, np.ndarray]]:
    """The variables that get one of several values that a function returns and that no line reads, their lines, and
    the ops that made the values: scalars."""
    ops = case.trace.table(Kind.OP)
    named = ops.events[~(ops["in_pass"] > 0) & contained(ops.sites, sorted(case.query.places.with_names))]
    for number, events in case.by_site(named).items():
        variables = variables_of(case.query, number)
        if len(variables) <= 1 or variables[-1][1].startswith(_UNWANTED):
            continue
        place, name = variables[-1][0].place, variables[-1][1]
        tree = case.query.of(trees)[place.file]
        result = case.query.tensors.op(int(events[0])).outputs
        if result and case.shape(result[0]) == () and name not in _readers(function_around(tree, place.line) or tree):
            yield name, range(place.line, place.line + 1), events


@lru_cache(maxsize=32)  # all ranks of a run have the same files
def _unread_in(tree: ast.Module) -> list[ast.Assign | ast.AugAssign]:
    functions = [node for node in nodes_of(tree) if isinstance(node, ast.FunctionDef)]
    readers: dict[ast.AST, dict[str, set[str]]] = {one: _readers(one) for one in (tree, *functions)}
    found: list[ast.Assign | ast.AugAssign] = []
    replaced = {*_replaced_in(tree)}
    for node in nodes_of(tree):
        if not isinstance(node, ast.Assign | ast.AugAssign):
            continue
        name = assigned_to(node)
        around = [one for one in functions if one.lineno <= node.lineno <= (one.end_lineno or 0)]
        is_read = not readers[around[-1] if around else tree].get(name, set()) <= {name}
        is_number = _NUMBER.search(ast.unparse(node.value))
        if name.isidentifier() and not (is_read and node not in replaced) and not is_number:
            found += [node] * (not name.startswith(_UNWANTED))
    return found


def _replaced_in(tree: ast.Module) -> Iterator[ast.stmt]:
    """The assignments to a variable that a later one of the same block replaces before any statement reads it."""
    for statement, block in blocks_of(tree).items():
        name = assigned_to(statement) if isinstance(statement, ast.Assign) else ""
        for later in block[block.index(statement) + 1 :] if name else ():
            if not isinstance(later, ast.Assign | ast.Expr) or name in names_read(later):
                break
            if assigned_to(later) == name:
                yield statement
                break


def _readers(scope: ast.AST) -> dict[str, set[str]]:
    """The variables that a function or a file reads, in functions inside of it too; with each, the targets of the
    statements that read it, empty for a statement that is no assignment."""
    found: dict[str, set[str]] = {}
    waiting: list[tuple[ast.AST, str]] = [(scope, "")]
    while waiting:
        node, target = waiting.pop()
        if isinstance(node, ast.FunctionDef) and node is not scope:
            own = _readers(node)
            for name in own.keys() - bound_in(node):
                found.setdefault(name, set()).update(own[name])
            continue
        if isinstance(node, ast.stmt):
            target = assigned_to(node) if isinstance(node, ast.Assign | ast.AugAssign) else ""
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.setdefault(node.id, set()).add(target)
        waiting += ((part, target) for part in ast.iter_child_nodes(node))
    return found


# --- penalties that reach no root


_LEAST = 3  # passes from one line
_NUMBER = re.compile(r"\.(item|tolist|numpy)\(\)$|^(float|int|round)\(")  # a value that is no tensor
_ROUNDS = 2  # the fewest in which a term is computed
_MOST = 256  # the most results of a gradient that are looked at


def _unused_penalties(case: Case) -> Iterator[Found]:
    """The first penalty of each line whose penalties are in no loss. None if some passes were not recorded in
    detail: they may go through a penalty."""
    began = case.trace.table(Kind.PASS_BEGAN)
    numbers = began["number"][case.trace.named(began["how"], ("grad",)) & began["create_graph"].astype(bool)]
    if not len(numbers) or not all(one.recorded for one in case.trace.passes):
        return
    by_site = grouped((one.site, one) for one in case.trace.passes if one.number in numbers)
    for passes in by_site.values():
        if len(passes) < _LEAST or _are_used(case, [one.number for one in passes]):
            continue
        event, tensor = _penalty(case, passes[0])
        leaves = tuple(leaf for leaf in leaves_of(case.query, tensor) if leaf in case.training.trained)
        if leaves and tensor not in case.query.passes.roots and _is_one_for_each_step(case, passes, leaves):
            made = case.query.places.site(case.query.places.named_at(case.site(event)))
            why = f"from the gradient of pass {passes[0].number} with its graph (create_graph=True), reaches no root: "
            why += "no step takes it into account"
            yield _missing(case, made, event, leaves, case.words.called(tensor), why)


def _are_used(case: Case, numbers: list[int]) -> bool:
    """Whether some pass goes through a node that one of these passes made."""
    ops, made, received = (case.trace.table(kind) for kind in (Kind.OP, Kind.NODE, Kind.RECEIVED))
    inside = ops.events[contained(ops["in_pass"], numbers)]
    nodes = made["node"][contained(made["op"], inside)]
    return bool(contained(received["node"], nodes).any())


def _penalty(case: Case, backward_pass: PassInfo) -> tuple[int, int]:
    """The last scalar with a graph that is computed from the gradients of a pass, or the last new value of a trained
    leaf, and the op that made it: (op, tensor), or (−1, 0) if there is none."""
    produced = case.trace.table(Kind.PRODUCED)
    flows = produced.lists("flows")
    gradients = distinct(flows.elements[(produced["in_pass"] == backward_pass.number)[flows.owners], 1])
    last = -1, 0
    for gradient in gradients.tolist():
        has_graph = gradient and case.query.tensors.requires_grad(gradient, case.trace.count)
        for tensor in case.downstream.results(gradient, _MOST) if has_graph else ():
            event = case.query.tensors.maker(tensor)
            op = op_of(case.query, tensor)
            if event is None or op is None or op.in_pass or not case.query.tensors.requires_grad(tensor, event):
                continue
            is_new_value = op.op in SUMS and not case.training.trained.isdisjoint(op.inputs)
            if is_new_value or case.query.tensors.shape(tensor) == ():
                last = max(last, (event, tensor))
    return last


def _is_one_for_each_step(case: Case, passes: list[PassInfo], leaves: tuple[int, ...]) -> bool:
    """Whether such passes come before each step of the optimizers that train the leaves: an evaluation now and then
    does not."""
    optimizers = {optimizer for leaf in leaves for optimizer in case.training.holders.get(leaf, ())}
    stepped = case.training.stepped
    steps = np.sort(stepped.events[contained(stepped["optimizer"], sorted(optimizers))])
    before = distinct(np.searchsorted(steps, [one.first for one in passes]))
    return min(len(steps), len(before)) >= _LEAST and bool((np.diff(before) == 1).all())
