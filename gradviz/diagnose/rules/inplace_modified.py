"""`inplace-modified`: a tensor that a node had saved was changed in place before the node ran, or a leaf that
requires grad was changed in place with grad mode on.

Why it is bad: backward would compute with values that forward never used. PyTorch sees that the version of the tensor
has changed, and raises.

Example:

    w = torch.zeros(3, requires_grad=True)
    w += 1.0  # <- inplace-modified

Cure: write the op out of place (`x = x + 1`), or change the tensor before it is used or after the pass. A
leaf is changed under `torch.no_grad()`.

Not reported: a change of a tensor that no node saved, and a change after the last pass that needs it.
"""

import ast
import re
from collections.abc import Iterator
from functools import partial
from math import prod

from gradviz.diagnose.constants import carried_into
from gradviz.diagnose.cut_cures import switches_grad_off
from gradviz.diagnose.fix import Edit, Fix, Spot, bracketed, detached_in_each_round, under_no_grad
from gradviz.diagnose.own_words import by_expressions
from gradviz.diagnose.rule import ERROR, Case, Found, Rule, Site
from gradviz.events.kinds import Kind, NodeMade
from gradviz.query.failures import Failure
from gradviz.query.flow import leaves_behind
from gradviz.query.functions_of_source import called, nodes_of
from gradviz.query.pass_owners import root_name
from gradviz.query.passes import each_left_out, recording
from gradviz.query.source_trees import statement_at, trees
from gradviz.query.writes import Writes, counts_apart
from gradviz.sets import distinct

_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}
_ONLY_IN_PLACE = {"zero_", "fill_", "copy_", "normal_", "uniform_", "random_", "exponential_", "bernoulli_", "set_"}
_OUT_OF_PLACE = "make a new tensor in place of changing {name}; or call backward() before it is changed"
_SAVED = "modified by an inplace operation"
_LEAF = ("a leaf Variable that requires grad", "a view of a leaf Variable that requires grad")


@Rule(
    "inplace-modified",
    ERROR,
    "a saved tensor, or a leaf, changed in place",
    follows=("missing-detach", "stale-graph"),
    at_once=True,
)
def inplace_modified(case: Case) -> Iterator[Found]:
    for error in case.failures:
        if _SAVED in error.message:
            yield _of_saved(case, error)
        elif any(text in error.message for text in _LEAF):
            yield Found(
                "a leaf that requires grad is changed in place while grad mode is on: it would be no leaf any more",
                _without_grad(case, error),
                (error.event,),
                site=error.site,
                severity=case.severity_of(error),
            )


def _without_grad(case: Case, error: Failure) -> Fix:
    """The statement that changes the leaf, under no_grad()."""
    statement = statement_at(case.query, error.site)
    if statement is None or not _only_changes(statement):
        if rewritten := _out_of_place(statement):
            return Fix(rewritten, _with_a_new_tensor)
        return Fix("make a new tensor, as y = x + 1 does, or update it under torch.no_grad()", under_no_grad)
    return Fix(f"with torch.no_grad(): {ast.unparse(statement)}", under_no_grad)


def _out_of_place(statement: ast.stmt | None) -> str:
    """The first in-place call of a statement, rewritten to make a new tensor: `w.mul(2)` for `w.mul_(2)`. Empty if
    there is none."""
    for node in ast.walk(statement) if statement is not None else ():
        if not isinstance(node, ast.Call) or called(node) in _ONLY_IN_PLACE:
            continue
        method = node.func
        if isinstance(method, ast.Attribute) and method.attr.endswith("_"):
            new = ast.Attribute(method.value, method.attr.removesuffix("_"), ast.Load())
            call = ast.unparse(ast.Call(new, node.args, node.keywords))
            return f"{call}  # a new tensor, not {ast.unparse(node)}"
    return ""


def _only_changes(statement: ast.stmt) -> bool:
    """Whether a statement changes a tensor and makes none that forward needs: `w -= g`, `w[0] = 1`, `w.add_(1)`."""
    if isinstance(statement, ast.Assign):
        return all(isinstance(target, ast.Subscript) for target in statement.targets)
    call = statement.value if isinstance(statement, ast.Expr) else None
    writes = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr.endswith("_")
    return writes or isinstance(statement, ast.AugAssign)


def _of_saved(case: Case, error: Failure) -> Found:
    """The finding for the first write to a saved tensor of the node, after the node was made."""
    made = case.query.nodes.event(error.node)
    write = None if made is None else _first_write(case, error, made)
    is_known = bool(case.query.nodes.name(error.node))
    saver = case.words.node_name(error.node) if is_known else "an op of this pass"
    carried = carried_into(case, error.node, error.number) if error.node and error.number else 0
    why = f"; {case.words.called(carried)} leads to it from an earlier round" if carried else ""
    cure = _between_rounds(case, carried) if carried else None
    of_node = partial(Found, node=error.node, number=error.number, severity=case.severity_of(error))
    if made is not None and write is None and (call := _itself(case, made, error.event)):
        return of_node(
            f"{call} changes in place what its own {saver} saved: PyTorch has no gradient of it",
            Fix("compute the result by other operations"),
            (made.op, error.event, made.index),
            site=case.place(made.op),
        )
    if made is None and (found := _only_write(case, error)) is not None:
        return found
    if made is None or write is None:
        is_whole = error.node and error.number and case.query.passes.by_number[error.number].recorded
        if error.number and not (is_known or is_whole) and each_left_out(case.trace):
            how = recording(case.trace, f"--passes {error.number}")
            why += f"; pass {error.number} was not watched from its beginning: {how} records it"
        return of_node(
            f"a tensor that {saver} saved was changed in place before its backward{why}",
            cure or Fix("make a new tensor in place of changing a saved one", _with_a_new_tensor),
            (error.event,),
            site=_round_of(case, carried, error.number) or error.site,
        )
    event, tensor, version = write
    base = _base(case, tensor)
    name = case.words.called(base if base in case.trace.parameters else tensor)
    saved = "what it was" if version < 0 else f"version {version} of it"
    maker = case.query.tensors.maker(carried) if carried else None
    writer = case.words.expression(case.site(event), 40) or case.query.tensors.writer(event)
    return of_node(
        f"{writer} changes {name} in place, but {saver} ({case.at(made.index)}) saved {saved} for its backward{why}",
        cure or _computed_later(case, event, error.number) or Fix(_OUT_OF_PLACE.format(name=name), _with_a_new_tensor),
        (*((maker,) if maker is not None else ()), event, error.event, made.index),
        site=_round_of(case, carried, error.number) or case.place(event),
        tensors=tuple(dict.fromkeys((tensor, base))),
    )


def _itself(case: Case, made: NodeMade, end: int) -> str:
    """The text of the call that made a node whose result it does not return, if nothing has written to the memory of
    what it returned. Empty for a call that returned what the node gave, and where a pass was not recorded."""
    if made.op < 0 or any(made.outputs) or not all(one.recorded for one in case.trace.passes):
        return ""
    is_written = any(_written(case, given, made.op, end) for given in case.query.tensors.op(made.op).outputs)
    return "" if is_written else case.words.expression(case.site(made.op), 60)


def _between_rounds(case: Case, carried: int) -> Fix:
    name = case.words.called(carried)
    code = by_expressions(case, name)
    site = case.place(case.query.tensors.maker(carried))
    if site is not None and len(site.place.names) > 1 and name not in site.place.names:
        return Fix(f"detach() what {name} gives to the next round")
    return Fix(f"{name}.detach()  # between two rounds", detached_in_each_round(code))


def _computed_later(case: Case, write: int, pass_number: int) -> str:
    """The root to be computed below the step of an optimizer that changes a saved parameter; empty for another write.
    The step below backward() would use gradients of both losses."""
    is_step = bool((case.query.of(Writes).of_optimizers == write).any())
    step, root = case.words.expression(case.site(write), 80), root_name(case.query, pass_number)
    return f"compute {root} below {step}, with the changed parameters" if is_step and step and root else ""


def _round_of(case: Case, carried: int, number: int) -> Site | None:
    """The line that makes the tensor that is carried into the next round, in the function that begins the pass or in
    one of its callers. None if nothing is carried."""
    maker = case.query.tensors.maker(carried) if carried else None
    if maker is None:
        return None
    places = case.query.places
    rounds = {
        (f.place.file, f.place.function) for f in places.callers(case.site(case.query.passes.began(number).index))
    }
    frames = places.callers(case.site(maker))
    return next((frame for frame in frames if (frame.place.file, frame.place.function) in rounds), None)


def _only_write(case: Case, error: Failure) -> Found | None:
    """The finding in a pass of which only the graph is known: one variable of the program had the tensor, and one
    statement of the file alone writes to it by the operation of which PyTorch's message says that it gave its value."""
    mutated = case.trace.table(Kind.MUTATED)
    own = (mutated["in_pass"] == error.number) & (mutated.sites == 0) & (mutated.events < error.event)
    tree = case.query.of(trees).get(error.site.place.file) if error.site is not None and error.number else None
    if tree is None or error.site is None or not own.any():
        return None
    event = case.query.tensors.mutation(int(mutated.events[own][-1]))
    name = case.words.called(event.tensor)
    how = event.how.rpartition(":")[2].lower()
    writing = [node for node in nodes_of(tree) if isinstance(node, ast.stmt) and how in _writes(node, name)]
    if len(writing) != 1:
        return None
    saved = re.search(r"expected version \d+", error.message)
    return Found(
        f"{ast.unparse(writing[0])} changes {name} in place, but an op of this pass saved it for its backward"
        f"{f' ({saved[0]})' if saved is not None else ''}",
        Fix(_OUT_OF_PLACE.format(name=name), _with_a_new_tensor),
        (event.index, error.event),
        site=case.query.places.of_line(error.site.place.file, writing[0].lineno),
        number=error.number,
        severity=case.severity_of(error),
    )


def _writes(statement: ast.stmt, name: str) -> set[str]:
    """The operations by which a statement writes to a variable in place: `add` for `h += 1` and `h.add_(1)`."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    parts = {"copyslices" for one in targets if isinstance(one, ast.Subscript) and ast.unparse(one.value) == name}
    if isinstance(statement, ast.AugAssign) and ast.unparse(statement.target) == name:
        parts.add(type(statement.op).__name__.lower().replace("mult", "mul"))
    for call in ast.walk(statement) if isinstance(statement, ast.Expr | ast.Assign) else ():
        if isinstance(call, ast.Call) and called(call).endswith("_") and isinstance(call.func, ast.Attribute):
            parts |= {called(call).replace("_", "")} if ast.unparse(call.func.value) == name else set()
    return parts


def _first_write(case: Case, error: Failure, made: NodeMade) -> tuple[int, int, int] | None:
    """(event, tensor, saved version) of the first write to a tensor that a node had saved, with as many elements as
    PyTorch's message says; a write that leaves the version is none, as that to running statistics. If the source does
    not know what the node saved: of the first write to such a leaf behind the node; its version is -1. None if there is
    no write."""
    shape = re.search(r"Tensor \[([\d, ]+)\]", error.message)
    size = prod(int(length) for length in shape[1].split(",")) if shape is not None else 0
    tensors = case.query.tensors
    for tensor, version in dict.fromkeys(made.saved):
        if size in (0, case.trace.states.size_of(tensor)):
            for event in _written(case, tensor, made.index, error.event):
                if not tensors.is_written(tensor, event) or tensors.version(tensor, event) != version:
                    return event, tensor, version
    for leaf in leaves_behind(case.query, [error.node]) if size else ():
        for event in case.query.tensors.writes(leaf) if case.trace.states.size_of(leaf) == size else ():
            if made.index < event < error.event:
                return event, leaf, -1
    return None


def _written(case: Case, tensor: int, since: int, until: int) -> list[int]:
    """The events between two others that made a tensor or wrote to its memory, in order."""
    events = (*case.query.tensors.value_events(tensor).tolist(), *_through_others(case, tensor))
    return sorted(event for event in events if since < event < until)


def _through_others(case: Case, tensor: int) -> list[int]:
    """The writes to the base of a tensor and to other views of the base, if they count the same version. Results of
    `.data` do not."""
    states, base = case.trace.states, _base(case, tensor)
    if counts_apart(case.query, tensor):
        return []
    sharing = {base, *distinct(states.tensors[states.bases == base]).tolist()} - {tensor}
    together = [other for other in sharing if not counts_apart(case.query, other)]
    return sorted(event for other in together for event in case.query.tensors.writes(other))


def _base(case: Case, tensor: int) -> int:
    """The tensor whose memory a tensor shares, or the tensor itself if it shares none."""
    return case.trace.states.base(tensor) or tensor


def _with_a_new_tensor(spot: Spot) -> list[Edit]:
    """`y = y + 1` in place of `y += 1`, `y = y.add(1)` of `y.add_(1)`, `y = y.clone()` before `y[0] = 1`. None under
    no_grad, where the new tensor would be cut off."""
    source, statement = spot.source, spot.statement
    blocks = [one for one in source.around(statement) if isinstance(one, ast.With)]
    if any(switches_grad_off(source, one.items[0].context_expr) for one in blocks):
        return []
    written = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
    if isinstance(written, ast.Subscript) and isinstance(written.value, ast.Name):
        name = written.value.id
        return [source.before(statement, f"{name} = {name}.clone()")]
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        target = statement.target.id
        sign = _SIGNS.get(type(statement.op))
        code = f"{target} = {target} {sign} {bracketed(source, statement.value)}"
        return [source.replaced(statement, code)] if sign is not None else []
    for call in (node for node in ast.walk(statement) if isinstance(node, ast.Call)):
        name = called(call)
        if isinstance(call.func, ast.Attribute) and name.endswith("_") and not name.startswith("_"):
            if not isinstance(call.func.value, ast.Name):
                return []
            arguments = source.text[source.span(call.func)[1] : source.span(call)[1]]
            new = f"{source.code(call.func)[:-1]}{arguments}"
            alone = isinstance(statement, ast.Expr) and statement.value is call
            if name in _ONLY_IN_PLACE:
                return [source.before(statement, f"{call.func.value.id} = {call.func.value.id}.clone()")] * alone
            return [source.replaced(call, f"{call.func.value.id} = {new}" if alone else new)]
    return []
