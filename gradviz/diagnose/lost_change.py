"""Updates that never reach their leaf: `p = p - lr * p.grad`, `p.sub(lr * p.grad)`, or an average
`old = old.data * 0.9 + new.data * 0.1`. The result is a new tensor that no op reads, and the leaf stays as it was."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from gradviz.diagnose.case import Case
from gradviz.events.kinds import Kind
from gradviz.query.dropped_results import are_used, dropped
from gradviz.query.flow import reach, sources
from gradviz.query.functions_of_source import nodes_of
from gradviz.query.ops import ADDING, SUBTRACTING
from gradviz.query.source_trees import names_read, statement_at, trees
from gradviz.query.writes import Writes

_CHANGING = ADDING | SUBTRACTING | {"addcmul", "addcdiv", "lerp"}
_NEAR = 3  # the most ops between a leaf and its new value
_LEAST = 2  # the fewest times that the line ran


class LostChange(NamedTuple):
    """The events of a line that computes new values of leaves and writes them nowhere, and the leaves."""

    events: tuple[int, ...]
    leaves: tuple[int, ...]


def lost_changes(case: Case) -> list[LostChange]:
    """The lines whose changes never reach a leaf: statements that drop the new value, or give it to a variable that
    no op reads. Use `case.of(lost_changes)`."""
    events = case.trace.events_named(Kind.OP, "op", _CHANGING)
    # in the graph, a result is no new value of a leaf
    dropped_at = {one.site.number for one in case.query.of(dropped) if not one.has_graph}
    written = set(case.query.of(Writes).changed.tolist())
    found = []
    for own in case.by_site(events).values():
        first = int(own[0])
        if len(own) < _LEAST or not (case.site(first) in dropped_at or _is_named(case, first)):
            continue
        behind = dict.fromkeys(leaf for event in own.tolist() for leaf in _leaves_behind(case, event))
        leaves = tuple(leaf for leaf in behind if leaf not in written)
        if leaves and not are_used(case.query, own.tolist()):
            found.append(LostChange(tuple(own.tolist()), leaves))
    return found


def own_step(case: Case, optimizer: int) -> tuple[str, ast.FunctionDef] | None:
    """The file and the method `step` of an optimizer that the program defines; None for any other optimizer."""
    name = case.training.optimizer_class(optimizer) if optimizer > 0 else ""
    for file, tree in case.query.of(trees).items():
        for node in nodes_of(tree):
            if isinstance(node, ast.ClassDef) and node.name == name:
                methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
                return next(((file, one) for one in methods if one.name == "step"), None)
    return None


def stepped_names(step: ast.FunctionDef) -> set[str]:
    """The variables of the loops over parameters in a method `step`."""
    loops = [node for node in ast.walk(step) if isinstance(node, ast.For)]
    targets = [loop.target for loop in loops if "param" in ast.unparse(loop.iter)]
    return {ast.unparse(node) for target in targets for node in ast.walk(target)}


def begins_with(value: ast.expr) -> str:
    """The tensor that an expression begins with: `p` for `p.data - b`, `p.mul(a).add(b)` and `torch.sub(p, b)`."""
    while isinstance(value, ast.BinOp | ast.Call):
        if isinstance(value, ast.BinOp):
            value = value.left
        elif isinstance(value.func, ast.Attribute) and ast.unparse(value.func.value) != "torch":
            value = value.func.value
        elif value.args:
            value = value.args[0]
        else:
            break
    return ast.unparse(value).removesuffix(".data")


def written_in_place(value: ast.expr) -> str:
    """A new value of a tensor, written into it: `p.mul_(a).add_(b)` for `p.mul(a).add(b)`, else `p.copy_(…)`."""
    tensor, text = begins_with(value), ast.unparse(value)
    whole = call = ast.parse(text, mode="eval").body
    while isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        call.func.attr = f"{call.func.attr.removesuffix('_')}_"
        call = call.func.value
    is_chain = ast.unparse(call).removesuffix(".data") == tensor
    return ast.unparse(whole) if is_chain else f"{tensor}.copy_({text})"


def _is_named(case: Case, event: int) -> bool:
    """Whether the value of an event is assigned to a variable as a new value: `old = old * 0.9 + new`, computed from
    it, or `new = p - rate * p.grad`, computed from a gradient."""
    site, op = case.place(event), case.query.tensors.op(event)
    statement = statement_at(case.query, site)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if site is None or not isinstance(statement, ast.Assign) or not isinstance(target, ast.Name):
        return False
    value = statement.value
    is_value = (value.lineno, value.col_offset) == (site.place.line, site.place.col)
    return is_value and (
        target.id in names_read(value)
        or any(case.training.stems_from_gradient(tensor, event) for tensor in op.inputs[1:] if tensor)
    )


def _leaves_behind(case: Case, event: int) -> Iterator[int]:
    """The parameters, and the leaves that get gradients, from whose values the op of an event was computed, at most a
    few ops before it, of the shape of its result."""
    leaves = {*case.trace.parameters, *case.trace.table(Kind.ACCUMULATED)["tensor"].tolist()}

    def onward(place: tuple[int, int]) -> list[tuple[int, int]]:
        tensor, depth = place
        if tensor in leaves or depth == _NEAR:
            return []
        behind = sources(case.query, tensor, through_memory=True)
        return [(source, depth + 1) for source in behind if source]

    inputs = [(tensor, 0) for tensor in case.query.tensors.op(event).inputs if tensor]
    behind = dict.fromkeys(tensor for tensor, _ in reach(inputs, onward))
    shape = case.query.tensors.shape
    results = [shape(output) for output in case.query.tensors.op(event).outputs if output]
    return (one for one in behind if one in leaves and shape(one) in results)
