"""`integer-leaf`: the program asks a tensor of integers to require grad.

Why it is bad: a derivative is a limit of small changes. An integer has no small change, so PyTorch raises.

Example:

    x = torch.tensor([1, 2], requires_grad=True)  # <- integer-leaf
    (x ** 2).sum().backward()

Cure: make the tensor from floating-point numbers: `torch.tensor([1.0, 2.0], requires_grad=True)`.

Not reported: integers that are indices, labels or counts and do not require grad.
"""

import ast
import re
from collections.abc import Iterator

from gradviz.diagnose.rule import ERROR, Case, Edit, Fix, Found, Rule, Spot
from gradviz.query.source_trees import method_calls, statement_at

_MESSAGE = re.compile("only Tensors of floating point (and complex )?dtype can require gradients", re.IGNORECASE)


@Rule("integer-leaf", ERROR, "a tensor of integers that is to require grad")
def integer_leaf(case: Case) -> Iterator[Found]:
    for failure in case.failures:
        if _MESSAGE.search(failure.message) is None:
            continue
        call = _floating(statement_at(case.query, failure.site))
        yield Found(
            "integers and truth values cannot require grad: they have no small change to differentiate by",
            Fix(call, _of_floating_point) if call else "make the tensor with dtype=torch.float32",
            (failure.event,),
            site=failure.site,
            severity=case.severity_of(failure),
        )


def _floating(statement: ast.stmt | None) -> str:
    """The call of `tensor(...)` in a statement, its integers written as floating-point numbers. Empty unless the
    statement has exactly one such call, all of whose numbers are integers."""
    calls = [call for call, _ in method_calls(statement, "tensor")]
    if len(calls) != 1:
        return ""
    (call,) = calls
    if not call.args or any(keyword.arg == "dtype" for keyword in call.keywords):
        return ""
    numbers = [node for node in ast.walk(call.args[0]) if isinstance(node, ast.Constant)]
    if not numbers or not all(type(node.value) is int for node in numbers):
        return ""
    return ast.unparse(_Floating().visit(ast.parse(ast.unparse(call), mode="eval")))


class _Floating(ast.NodeTransformer):
    """Writes the integers of an expression as floating-point numbers."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant(float(node.value)) if type(node.value) is int else node


def _of_floating_point(spot: Spot) -> list[Edit]:
    """`torch.tensor([1.0, 2.0])` in place of `torch.tensor([1, 2])`."""
    calls = spot.calls_here("tensor")
    return [
        spot.source.replaced(node, str(float(node.value)))
        for node in (ast.walk(calls[0].args[0]) if len(calls) == 1 and calls[0].args else ())
        if isinstance(node, ast.Constant) and type(node.value) is int
    ]
