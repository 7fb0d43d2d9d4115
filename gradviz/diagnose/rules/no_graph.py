"""`no-graph`: backward() was called on a tensor that does not require grad, because no tensor that it was computed
from requires grad; or on a plain number that was read from a tensor.

Why it is bad: there is no graph, so there is nothing to differentiate, and backward() raises.

Example:

    x = torch.tensor([1.0, 2.0])
    y = (x ** 2).sum()
    y.backward()  # <- no-graph

Cure: make the leaf with `requires_grad=True`, or compute the loss from the parameters of the model. Call backward() on
the tensor itself, before `.item()` or `float()`.

Not reported: a root that was cut off from leaves that require grad, which is `detached-path` or `frozen-parameter`.
"""

import ast
from collections.abc import Iterator

from gradviz.diagnose.cut_cures import of_tensors
from gradviz.diagnose.fix import Edit, Fix, Spot, as_leaf, typed_for
from gradviz.diagnose.rule import ERROR, Case, Found, Rule
from gradviz.diagnose.without_gradient import rootless
from gradviz.query.flow import Ways
from gradviz.query.functions_of_source import nodes_of
from gradviz.query.source_trees import assigned_to, backward_call, trees
from gradviz.query.statements import WrongValue, wrong_values

_NUMBERS = ("float", "int", "complex", "bool")


@Rule(
    "no-graph",
    ERROR,
    "backward() on a tensor that does not require grad",
    follows=("detached-path", "frozen-parameter", "missing-create-graph"),
    at_once=True,
)
def no_graph(case: Case) -> Iterator[Found]:
    yield from _on_numbers(case)
    for failed in case.of(rootless):
        name = case.words.called(failed.root) if failed.root else "the root"
        leaves = Ways(case.query, failed.root, failed.failure.event).leaves if failed.root else []
        named = [leaf for leaf in leaves if case.query.names.of(leaf)]
        behind = f": none of its leaves does ({case.called(named)})" if named else ""
        first = case.words.called(named[0]) if named else "x"
        call = backward_call(case.query, failed.failure.site)
        is_grad = call is not None and ast.unparse(call.func).endswith("grad")
        yield Found(
            f"{'torch.autograd.grad()' if is_grad else 'backward()'} is called on {name}, which does not require grad"
            + ("" if failed.cut else behind),
            Fix(f"{first}.requires_grad_()  # before the forward computation", as_leaf(first)),
            (failed.failure.event,),
            site=failed.failure.site,
            severity=case.severity_of(failed.failure),
        )


def _on_numbers(case: Case) -> Iterator[Found]:
    """The call of backward() on a plain number that ended the program."""
    for value in case.query.of(wrong_values):
        if value.attribute != "backward" or value.type not in _NUMBERS:
            continue
        tensor = _read_from(value.origin)
        written = ast.unparse(value.expression)
        of = f"the number of {tensor}" if tensor else "a plain number"
        yield Found(
            f"backward() is called on {written}, which is {of} ({value.type}): a number has no graph",
            _on_tensor(tensor, value) if tensor else _of_torch(case, value, written),
            (value.failure.event,),
            site=value.failure.site,
        )
        return


def _on_tensor(tensor: str, value: WrongValue) -> Fix:
    """`loss.backward()` in place of `loss.item().backward()`; or the tensor where its number is given a name."""
    number, line = ast.unparse(value.origin), value.origin.lineno
    if value.failure.site is not None and line != value.failure.site.place.line:
        return Fix(f"{tensor}  # in place of {number}, line {line}", typed_for(number, tensor, line))

    def edits(spot: Spot) -> list[Edit]:
        calls = spot.calls_here("backward")
        roots = [call.func.value for call in calls if isinstance(call.func, ast.Attribute)]
        return [spot.source.replaced(roots[0], tensor)] if len(roots) == 1 else []

    return Fix(f"{tensor}.backward()", edits)


def _of_torch(case: Case, value: WrongValue, written: str) -> Fix | str:
    """The first call of `math` in the expression that computed a number, as a call of `torch`; or the line that adds
    the number of a tensor to it, rewritten to add the tensor; else general advice."""
    for node in ast.walk(value.origin):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("math."):
            call = ast.unparse(node)
            return _typed_once(call, f"torch.{call.removeprefix('math.')}")
    tree = case.query.of(trees).get(value.failure.site.place.file) if value.failure.site is not None else None
    nodes = nodes_of(tree) if tree is not None else iter(())
    for node in (one for one in nodes if isinstance(one, ast.stmt)):
        typed = of_tensors(node) if assigned_to(node) == written else ""
        if typed:
            return f"{typed}  # at line {node.lineno}"
    return f"compute {written} of tensors, without .item() and float()"


def _typed_once(old: str, new: str) -> Fix:
    """Another expression in place of the only one of the file that `ast.unparse` writes as `old`."""

    def edits(spot: Spot) -> list[Edit]:
        calls = [node for node in ast.walk(spot.source.tree) if isinstance(node, ast.Call)]
        same = [node for node in calls if ast.unparse(node) == old]
        return [spot.source.replaced(same[0], new)] if len(same) == 1 else []

    return Fix(f"{new}  # not {old}", edits)


def _read_from(origin: ast.expr) -> str:
    """The source of the tensor that an expression reads as a number (`.item()`, `float()`); empty for any other
    expression."""
    if not isinstance(origin, ast.Call):
        return ""
    function = origin.func
    if isinstance(function, ast.Attribute) and function.attr == "item" and not origin.args:
        return ast.unparse(function.value)
    is_number = isinstance(function, ast.Name) and function.id in _NUMBERS and len(origin.args) == 1
    return ast.unparse(origin.args[0]) if is_number else ""
