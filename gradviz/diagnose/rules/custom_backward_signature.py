"""`custom-backward-signature`: the backward of a custom Function returned the wrong number or shape of
gradients. The finding names the line of the `return`, or the line of the call if the source was not kept.

Why it is bad: PyTorch takes the values that backward returns as the gradients of the inputs, in order. It raises if
their number or a shape does not fit.

Example:

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.factor = factor
            return x * factor
        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.factor  # <- custom-backward-signature

    x = torch.ones(3, requires_grad=True)
    y = Scale.apply(x, 2.0)
    y.sum().backward()

Cure: return one gradient for each argument of forward, with the shape of the argument, or `None` for an argument
that needs no gradient.

Not reported: further values after the gradients of the inputs, if they are `None`, which PyTorch permits.
"""

import ast
from collections.abc import Iterator

from gradviz.diagnose.rule import ERROR, Case, Edit, Fix, Found, Rule, Spot
from gradviz.query.statements import returned_at

_MESSAGES = ("returned an incorrect number of gradients", "returned an invalid gradient")


@Rule(
    "custom-backward-signature",
    ERROR,
    "a custom Function whose backward returns the wrong number or shape of gradients",
    at_once=True,
)
def custom_backward_signature(case: Case) -> Iterator[Found]:
    for error in case.failures:
        if any(text in error.message for text in _MESSAGES):
            made = case.query.nodes.event(error.node)
            called = f"; called at {case.at(made.index)}" if made is not None else ""
            yield Found(
                error.message.splitlines()[0] + called,
                Fix(
                    "return one gradient of the same shape for each input of forward, None where there is none",
                    _one_for_each_input,
                ),
                (error.event, made.index) if made is not None else (error.event,),
                site=returned_at(case.query, made.grad_fn.removesuffix("Backward")) if made is not None else 0,
                node=error.node,
                number=error.number,
                severity=case.severity_of(error),
            )


def _one_for_each_input(spot: Spot) -> list[Edit]:
    """A backward that returns one gradient for each input of its forward."""
    source, statement = spot.source, spot.statement
    if not isinstance(statement, ast.Return) or statement.value is None:
        return []
    owner = next((node for node in source.around(statement) if isinstance(node, ast.ClassDef)), None)
    methods = [node for node in (owner.body if owner else []) if isinstance(node, ast.FunctionDef)]
    forwards = [method for method in methods if method.name == "forward"]
    if not forwards:
        return []
    has_context = all(method.name != "setup_context" for method in methods)
    wanted = len(forwards[0].args.args) - has_context
    value = statement.value
    parts = [source.code(e) for e in value.elts] if isinstance(value, ast.Tuple) else [source.code(value)]
    return [source.replaced(value, ", ".join((parts + ["None"] * wanted)[:wanted]))]
