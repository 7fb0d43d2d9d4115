"""Cures for a loss that gets probabilities, or no logarithms: the expression to type, and the expression that it
replaces."""

from __future__ import annotations

import ast

from gradviz.diagnose.case import Case
from gradviz.events.kinds import OpRan
from gradviz.query.ops import OF_LOG_PROBABILITIES
from gradviz.query.source_trees import expression_at
from gradviz.words.escape import clean

_MODULES = {"Softmax", "Softmax2d", "Sigmoid"}  # modules of a single op
_LOGARITHM = {"softmax": "log_softmax", "sigmoid": "logsigmoid"}
_LOG_MODULES = {"Softmax": "LogSoftmax", "Softmax2d": "LogSoftmax", "Sigmoid": "LogSigmoid"}


def of_probabilities(case: Case, loss: str, source: OpRan) -> str:
    """The cure for a loss that gets the result of `source`, a softmax or sigmoid."""
    wants_logarithms = loss in OF_LOG_PROBABILITIES
    call = _call(case, source.site)
    module = next(reversed(case.query.scopes.around(source.index, source.thread)), None)
    where = case.words.at_line(source.site)
    if module is not None and module.type in _MODULES and not _is_called(call, module.name):
        name = f"{module.name} ({module.type})"
        other = _LOG_MODULES[module.type]
        return (
            f"put torch.nn.{other} in the place of {name}"
            if wants_logarithms
            else f"leave out {name}: it is part of {loss}"
        )
    value = _value(call)
    if call is None or value is None:
        return f"hand {loss} what goes into {source.op}{where}"
    text = clean(ast.unparse(call))
    if not wants_logarithms:
        return f"{clean(ast.unparse(value))}  # in place of {text}{where}: {source.op} is part of {loss}"
    return f"{_in_logarithms(call, value, source.op)}  # in place of {text}{where}"


def of_data(case: Case, op: OpRan) -> str:
    """The cure for an `nll_loss` or a `ctc_loss` that gets no logarithms. Classes are in the second dimension of what
    the first gets, and in the last of what the second gets."""
    dim, other = (-1, "") if op.op == "ctc_loss" else (1, ", or use cross_entropy")
    call = _call(case, op.site)
    if call is None or not call.args:
        return f"take torch.log_softmax(..., dim={dim}) of what {op.op} gets{other}"
    inside = ast.unparse(call.args[0])
    call.args[0] = ast.parse(f"torch.log_softmax({inside}, dim={dim})", mode="eval").body
    return clean(ast.unparse(call))


def _call(case: Case, site: int) -> ast.Call | None:
    expression = expression_at(case.query, site)
    return expression if isinstance(expression, ast.Call) else None


def _is_called(call: ast.Call | None, module: str) -> bool:
    """Whether a call is the call of the module with this name: `self.softmax(x)`."""
    return (
        call is not None
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == module.rpartition(".")[2]
    )


def _value(call: ast.Call | None) -> ast.expr | None:
    """The expression that a softmax is applied to: `x` in `torch.softmax(x, 1)` and in `x.softmax(1)`."""
    if call is None:
        return None
    function = call.func
    of_method = isinstance(function, ast.Attribute) and function.attr.rstrip("_") in _LOGARITHM
    is_plain = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name | ast.Attribute)
    first = call.args[0] if call.args else None
    is_axis = isinstance(first, ast.Constant | ast.UnaryOp) or first is None
    if of_method and isinstance(function, ast.Attribute) and is_axis:
        return function.value
    return first if is_plain or isinstance(function, ast.Name) else None


def _in_logarithms(call: ast.Call, value: ast.expr, op: str) -> str:
    """The call of the logarithm of a softmax or sigmoid, with the same argument and axis."""
    inside = ast.unparse(value)
    if op.rstrip("_").endswith(("sigmoid", "expit")):
        return clean(f"torch.nn.functional.logsigmoid({inside})")
    axes = [
        given for given in (*call.args, *(keyword.value for keyword in call.keywords)) if given is not value
    ]
    dim = ast.unparse(axes[0]) if axes else "-1"
    return clean(f"{_owner(call, value)}.log_softmax({inside}, dim={dim})")


def _owner(call: ast.Call, value: ast.expr) -> str:
    """The module that a program calls softmax of: a program that imports `F` may not know `torch`."""
    function = call.func
    is_plain = isinstance(function, ast.Attribute) and function.attr == "softmax"
    if is_plain and isinstance(function, ast.Attribute) and function.value is not value:
        owner = ast.unparse(function.value)
        return owner if owner.partition(".")[0] != "self" else "torch"
    return "torch"
