"""`unused-input`: torch.autograd.grad is called for the gradient of a tensor that its root was not computed from, or
that does not require grad. The line is that of the call, or the one that cuts the root off from the tensor.

Why it is bad: this gradient does not exist, and grad() raises.

Example:

    x = torch.tensor(2.0, requires_grad=True)
    w = torch.tensor(3.0, requires_grad=True)
    y = x ** 2
    gx, gw = torch.autograd.grad(y, [x, w])  # <- unused-input

Cure: compute the root from the tensor too, or pass `allow_unused=True`: the gradient is None then. If the tensor does
not require grad, let it require grad before the root is computed.

Not reported: a call with `allow_unused=True` or `materialize_grads=True`.
"""

import ast
from collections.abc import Iterator

from gradviz.diagnose.cut_cures import how_cut
from gradviz.diagnose.fix import Fix, as_leaf, keyword_added
from gradviz.diagnose.rule import ERROR, Case, Found, Rule
from gradviz.query.failures import Failure
from gradviz.query.flow import place_of_cut, shortest_way
from gradviz.query.missing_gradients import Lacks
from gradviz.query.source_trees import backward_call

_WITHOUT = "One of the differentiated Tensors does not require grad"
_MESSAGE = "to not have been used in the graph"


@Rule("unused-input", ERROR, "torch.autograd.grad of a tensor that the root was not computed from")
def unused_input(case: Case) -> Iterator[Found]:
    for failure in case.failures:
        if _WITHOUT in failure.message:
            yield from _without_grad(case, failure)
        if _MESSAGE not in failure.message:
            continue
        call = backward_call(case.query, failure.site)
        root, asked = _arguments(call)
        root, severity = root or "the root", case.severity_of(failure)
        for tensor, event in _cuts(case, failure):
            why, cure = how_cut(case, event)
            message = f"{case.at(failure.event)} asks for the gradient of {root} with respect to "
            message += f"{case.words.called(tensor)}, and the path between them is cut here, {why}"
            yield Found(message, cure, (event, failure.event), site=place_of_cut(case.query, event), severity=severity)
            break
        else:
            unused = [name for name in asked if not _is_behind(case, name, root, failure.event)]
            message = f"torch.autograd.grad() is asked for the gradient of {', '.join(unused) or 'an input'}, and "
            message += f"{root} was not computed from {'them' if len(unused) > 1 else 'it'}"
            text = _with_unused(call) or "pass allow_unused=True to grad(): the gradient is None then"
            cure = Fix(text, keyword_added("grad", "allow_unused=True"))
            yield Found(message, cure, (failure.event,), site=failure.site, severity=severity)


def _cuts(case: Case, failure: Failure) -> Iterator[tuple[int, int]]:
    """The tensors that the last pass from the line of a failure asks for, each with the event that cuts it off."""
    passes = [one.number for one in case.trace.passes if failure.site and one.site == failure.site.number]
    for began in map(case.query.passes.began, passes[-1:]):
        cuts = ((one, case.query.of(Lacks).cut_from(one, began.roots[0].tensor, began.index)) for one in began.inputs)
        yield from ((tensor, cut.index) for tensor, cut in cuts if cut is not None)


def _without_grad(case: Case, failure: Failure) -> Iterator[Found]:
    """The finding for a call that asks for the gradient of a tensor that does not require grad."""
    root, asked = _arguments(backward_call(case.query, failure.site))
    called = tuple(case.query.names.tensor_called(name, failure.event) for name in asked)
    inputs = case.query.passes.began(failure.number).inputs if failure.number else called
    for place, tensor in enumerate(inputs):
        if tensor and not case.query.tensors.requires_grad(tensor, failure.event):
            name = asked[place] if len(asked) == len(inputs) else case.words.called(tensor)
            yield Found(
                f"torch.autograd.grad() is asked for the gradient of {name}, which does not require grad",
                Fix(f"{name}.requires_grad_()  # before {root} is computed", as_leaf(name)),
                (failure.event,),
                site=failure.site,
                severity=case.severity_of(failure),
            )
            return


def _arguments(call: ast.Call | None) -> tuple[str, list[str]]:
    """The source of the root and of the inputs of a call of grad(); empty if the call is not known."""
    if call is None:
        return "", []
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    arguments = [*call.args, *[None] * 2]
    root, inputs = arguments[0] or keywords.get("outputs"), arguments[1] or keywords.get("inputs")
    if root is None or inputs is None:
        return "", []
    asked = inputs.elts if isinstance(inputs, ast.List | ast.Tuple) else [inputs]
    return ast.unparse(root), [ast.unparse(element) for element in asked]


def _with_unused(call: ast.Call | None) -> str:
    """The call with `allow_unused=True`; empty if the call is not known."""
    if call is None:
        return ""
    keywords = [*call.keywords, ast.keyword("allow_unused", ast.Constant(True))]
    text = ast.unparse(ast.Call(call.func, call.args, keywords))
    return f"{text}  # the gradient is None then"


def _is_behind(case: Case, name: str, root: str, event: int) -> bool:
    """Whether a root was computed from a tensor, both given by their names in the source. True if a name is not
    known."""
    tensor, of = (case.query.names.tensor_called(own, event) for own in (name, root))
    return not tensor or not of or bool(shortest_way(case.query, tensor, of))
