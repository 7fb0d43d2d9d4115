"""`nonscalar-backward`: backward() was called on a tensor of more than one element without a gradient, or with
a gradient of another shape.

Why it is bad: a pass begins with the gradient of its root. For a scalar this gradient is 1. For several elements
PyTorch cannot know it: the program has to give one number for each element.

Example:

    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = x * 2
    y.backward()  # <- nonscalar-backward

Cure: reduce the tensor first (`.sum()`, `.mean()`), or pass a gradient of its shape:
`y.backward(torch.ones_like(y))`.

Not reported: a tensor of one element, whatever its shape.
"""

import ast
import re
from collections.abc import Iterator

from gradviz.diagnose.fix import Edit, Fix, Spot, bracketed
from gradviz.diagnose.rule import ERROR, Case, Found, Rule
from gradviz.query.failures import Failure
from gradviz.query.source_trees import backward_call

_MISSING = "can be implicitly created only for scalar outputs"
_SHAPES = re.compile(
    r"grad_output\[\d+\] has a shape of torch\.Size\((.*?)\) and output\[\d+\] has a shape of "
    r"torch\.Size\((.*?)\)"
)
_LONGEST = 40


@Rule(
    "nonscalar-backward",
    ERROR,
    "backward() on a tensor of more than one element, without a gradient of its shape",
    at_once=True,
)
def nonscalar_backward(case: Case) -> Iterator[Found]:
    for error in case.failures:
        shapes = _SHAPES.search(error.message)
        if _MISSING not in error.message and shapes is None:
            continue
        root = _root(case, error)
        what = root or "the root"
        if shapes is None:
            message = f"backward() without a gradient needs a scalar root, and {root or 'this one'} has more elements"
            cure: Fix | str = Fix(
                f"{root}.sum().backward()  # or .mean()" if root else "call .sum() or .mean() before backward()",
                _reduced,
            )
        else:
            message = f"the gradient given for {what} has the shape {shapes[1]}, and {what} has the shape {shapes[2]}"
            cure = f"{root}.backward(torch.ones_like({root}))  # or with other weights of its shape"
            cure = cure if root else f"give a gradient of the shape {shapes[2]}"
        yield Found(message, cure, (error.event,), site=error.site, severity=case.severity_of(error))


def _root(case: Case, error: Failure) -> str:
    """The expression that backward() is called on; empty if the source is not known or the expression is long."""
    call = backward_call(case.query, error.site)
    method = call.func if call is not None else None
    if not isinstance(method, ast.Attribute) or method.attr != "backward":
        return ""
    text = ast.unparse(method.value)
    return text if len(text) <= _LONGEST and not text.endswith("autograd") else ""


def _reduced(spot: Spot) -> list[Edit]:
    """`loss.mean().backward()`."""
    for call in spot.calls_here("backward"):
        if not call.args and not call.keywords and isinstance(call.func, ast.Attribute):
            root = call.func.value
            return [spot.source.replaced(root, f"{bracketed(spot.source, root)}.mean()")]
    return []
