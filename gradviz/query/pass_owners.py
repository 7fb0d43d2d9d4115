"""The optimizers that a backward pass belongs to: the optimizers whose steps use its gradients next. A leaf is judged
by the passes of its own optimizers: a generator by the pass before its own step, not by that of the discriminator. Also
the names of optimizers, schedulers, the scaler and the roots of passes in the program."""

import ast
import re
from collections.abc import Iterable

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query.functions_of_source import nodes_of
from gradviz.query.query import Query
from gradviz.query.source_trees import assigned_before, backward_call, method_calls, names_read, statement_at, trees
from gradviz.query.training import BY_HAND, Training
from gradviz.sets import contained
from gradviz.tracefile import PassInfo, Site


class PassOwners:
    """The owners of the passes of one trace. Use `query.of(PassOwners)`."""

    def __init__(self, query: Query) -> None:
        self.query, self.training = query, query.of(Training)
        stepped, by_hand = self.training.stepped, self.training.by_hand[0]
        events = np.concatenate([stepped.events, by_hand])
        optimizers = np.concatenate([stepped["optimizer"], np.full(len(by_hand), BY_HAND)])
        order = np.argsort(events, kind="stable")
        self._events, self._optimizers = events[order], optimizers[order].astype(np.int64)
        self._of_pass = self._owners()

    def _owners(self) -> dict[int, set[int]]:
        """The optimizers of each pass: those that step after it, and before the first pass that begins after a step."""
        firsts = np.array([backward_pass.first for backward_pass in self.query.trace.passes], np.int64)
        begins = np.searchsorted(self._events, firsts)
        known = begins < len(self._events)
        ends = np.full(len(firsts), len(self._events))
        following = np.searchsorted(firsts, self._events[begins[known]])
        limits = np.append(firsts, self.query.trace.count)[following]
        ends[known] = np.searchsorted(self._events, limits)
        return {
            backward_pass.number: set(self._optimizers[begin:end].tolist())
            for backward_pass, begin, end in zip(self.query.trace.passes, begins.tolist(), ends.tolist(), strict=True)
        }

    def optimizers(self, pass_number: int) -> set[int]:
        """The optimizers that a pass belongs to; empty if no step follows it."""
        return self._of_pass.get(pass_number, set())

    def passes_of(self, leaf: int) -> list[PassInfo]:
        """The passes that belong to the optimizers of a leaf; only those that gave some parameter of these optimizers a
        gradient, if any did. All passes, if the leaf is in no optimizer or no pass belongs to it."""
        training, passes = self.training, self.query.trace.passes
        optimizers = frozenset(training.holders.get(leaf, set()) | training.owners.get(leaf, set()))
        belonging = [one for one in passes if optimizers & self.optimizers(one.number)]
        giving = self._giving_to(optimizers) if belonging else set()
        return [backward_pass for backward_pass in belonging if backward_pass.number in giving] or belonging or passes

    def _giving_to(self, optimizers: Iterable[int]) -> set[int]:
        """The passes that gave a gradient to some parameter of these optimizers."""
        wanted = set(optimizers)
        parts = (self.training.holders, self.training.owners)
        held = {leaf for part in parts for leaf, holders in part.items() if holders & wanted}
        came = self.query.trace.table(Kind.ACCUMULATED)
        return set(came["in_pass"][contained(came["tensor"], sorted(held))].tolist())


def optimizer_name(query: Query, optimizers: set[int]) -> str:
    """The program's name for the only one of these optimizers (of all, if the set is empty); empty if unknown."""
    held = query.trace.table(Kind.HOLDS)
    numbers = optimizers or set(held["optimizer"].tolist())
    if len(numbers) != 1:
        return ""
    sites = held.sites[held["optimizer"] == min(numbers)].tolist()
    return next((name for site in sites if (name := assigned_at(query, site))), "")


def scheduler_name(query: Query) -> str:
    """The program's name for its only scheduler; empty if unknown."""
    table = query.trace.table(Kind.SCHEDULED)
    made = {assigned_at(query, site) for site in table.sites[table["steps"] == 0].tolist()}
    return made.pop() if len(made) == 1 else ""


def scaler_name(query: Query) -> str:
    """The program's name for the scaler of its loss: the `s` of `s.scale(loss)`; empty if it has none or several."""
    names = {ast.unparse(scaler) for tree in query.of(trees).values() for _, scaler in method_calls(tree, "scale")}
    return names.pop() if len(names) == 1 else ""


def root_name(query: Query, pass_number: int) -> str:
    """The expression that backward() is called on in a pass, or in the first pass for 0; empty if unknown."""
    backward_pass = query.trace.find_pass(pass_number) or next(iter(query.trace.passes), None)
    if backward_pass is None:
        return ""
    call = backward_call(query, query.places.site(backward_pass.site))
    method = call.func if call is not None else None
    if isinstance(method, ast.Attribute) and method.attr == "backward":
        receiver = ast.unparse(method.value)
        if not receiver.endswith("autograd"):
            return receiver
    roots = query.passes.began(backward_pass.number).roots
    return (query.names.of(roots[0].tensor) or "") if len(roots) == 1 else ""


def steps_before_pass(query: Query, leaf: int, event: int) -> bool:
    """Whether an optimizer of a leaf steps after an event, and before a pass begins."""
    training, begun = query.of(Training), query.trace.table(Kind.PASS_BEGAN).events
    own = training.steps_of(training.holders.get(leaf, ()))
    return bool(own[own > event].min(initial=query.trace.count) < begun[begun > event].min(initial=query.trace.count))


def missing_at(query: Query, site: Site | None, leaf: int, event: int) -> tuple[Site | None, PassInfo | None]:
    """The line at which a result that reaches no root is missing: behind its line, in the same function, or in the
    caller of a function that returns it, the last assignment to the root of the next pass for a leaf, else the pass;
    and the first such pass. The line of the result, and None, if there is none, or if an optimizer of the leaf steps
    first, after the `event` that computes the result."""
    if steps_before_pass(query, leaf, event):
        return site, None
    later: dict[int, tuple[Site, PassInfo]] = {}
    passes = [(there, one) for one in query.of(PassOwners).passes_of(leaf) if (there := query.places.site(one.site))]
    here = site
    for here in query.places.callers(site.number) if site is not None else ():
        for there, one in passes:
            now, before = there.place, here.place
            if (now.file, now.function) == (before.file, before.function) and now.line > before.end_line:
                later.setdefault(there.place.line, (there, one))
        if later or not isinstance(statement_at(query, here), ast.Return):
            break
    if here is None or not later:
        return site, None
    there, backward_pass = later[min(later)]
    call = backward_call(query, there)
    # `loss.backward()`; `accelerator.backward(loss)` and `self.manual_backward(loss)`, whose statement names the root
    parts = () if call is None else (call.func.value if isinstance(call.func, ast.Attribute) else call.func, *call.args)
    names = {name for part in parts or filter(None, [statement_at(query, there)]) for name in names_read(part)}
    if not names.isdisjoint(here.place.names):
        return site, None  # a term that another value of the root has replaced
    made = [assigned_before(query, there, name) for name in names]
    lines = [one.lineno for one in made if one is not None and one.lineno > here.place.line]
    return query.places.of_line(here.place.file, max(lines)) if lines else there, backward_pass


def call_with_first(query: Query, site: int, first: str) -> str:
    """The call at a site with another first argument: `SGD(first, lr=0.1)`; empty if the source does not show it."""
    call = _call_at(query, site)
    if call is None:
        return ""
    return ast.unparse(ast.Call(call.func, [ast.Name(first, ast.Load()), *call.args[1:]], call.keywords))


def first_argument(query: Query, site: int) -> str:
    """The first argument of the call at a site, or the value of its variable, for use in a list: the inside of a list,
    else `*argument`. Empty if unknown."""
    call, assigned = _call_at(query, site), given_to(query, site)
    if call is None:
        return ""
    value = call.args[0] if assigned is None else assigned[1].value
    return ast.unparse(value)[1:-1] if isinstance(value, ast.List) else f"*{ast.unparse(value)}"


def given_to(query: Query, site: int) -> tuple[str, ast.Assign] | None:
    """The file and the assignment that made the variable that is the first argument of the call at a site: the list of
    the parameters of an optimizer. None if it is no variable, is assigned elsewhere, or is filled behind its
    assignment."""
    call, place = _call_at(query, site), query.places.site(site)
    name = call.args[0].id if call is not None and isinstance(call.args[0], ast.Name) else ""
    assigned = assigned_before(query, place, name)
    if assigned is None or place is None:
        return None
    between = query.trace.source(place.place.file)[assigned.lineno : place.place.line - 1]
    is_filled = any(re.search(rf"\b{re.escape(name)}(\.\w+\(|\s*\+=)", line) for line in between)
    return None if is_filled else (place.place.file, assigned)


def _call_at(query: Query, site: int) -> ast.Call | None:
    """The call with arguments whose value the statement at a site assigns; None for another statement."""
    statement = statement_at(query, query.places.site(site))
    value = statement.value if isinstance(statement, ast.Assign) else None
    return value if isinstance(value, ast.Call) and value.args else None


def seen_at(query: Query, site: int, name: str) -> str:
    """The name by which a line sees a variable of the program: the name itself, or `self.name` in a method of a class
    that has this attribute; empty if the line sees neither."""
    place = query.places.site(site)
    tree = query.of(trees).get(place.place.file) if place is not None else None
    if place is None or tree is None:
        return name
    kinds, line = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, place.place.line
    inside = (node for node in nodes_of(tree) if isinstance(node, kinds))
    around = [tree, *(node for node in inside if node.lineno <= line <= (node.end_lineno or 0))]
    if any(name in bound_in(scope) for scope in around if not isinstance(scope, ast.ClassDef)):
        return name
    of_self = f"self.{name.removeprefix('self.')}"
    classes = (ast.walk(scope) for scope in around if isinstance(scope, ast.ClassDef))
    seen = (ast.unparse(node) for nodes in classes for node in nodes if isinstance(node, ast.Attribute))
    return of_self if of_self in seen else ""


def bound_in(scope: ast.AST) -> set[str]:
    """The names that a function or a module binds, without those of the scopes inside of it."""
    names = {one.arg for one in ast.walk(scope.args) if isinstance(one, ast.arg)} if hasattr(scope, "args") else set()
    waiting = [*ast.iter_child_nodes(scope)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        if isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        waiting += ast.iter_child_nodes(node)
    return names


def assigned_at(query: Query, site: int) -> str:
    """The variable or attribute that the value of a call is assigned to; empty if there is none, or several."""
    place = query.places.site(query.places.named_at(site)) if site else None
    statement = statement_at(query, place)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return ""
    target = statement.targets[0]
    return ast.unparse(target) if isinstance(target, ast.Name | ast.Attribute) else ""
