"""`wrong-loss-input`: a loss that expects logits gets probabilities and normalises them a second time, or a loss that
expects log-probabilities gets other numbers and does not normalise at all. Or `log_softmax`, or the `logsumexp` of a
distribution, normalises what a softmax over the same dimension has normalised. Or the module of a loss is made from the
tensors, and never called with them.

Why it is bad: a loss that normalises twice has small gradients and its minimum in the wrong place; a loss that does
not normalise has no minimum.

Example:

    torch.manual_seed(0)
    w = torch.randn(3, 4, requires_grad=True)
    p = torch.softmax(torch.randn(5, 3) @ w, dim=1)
    loss = torch.nn.functional.cross_entropy(p, torch.tensor([0, 1, 2, 3, 0]))  # <- wrong-loss-input
    loss.backward()

Cure: give logits to `cross_entropy` and `binary_cross_entropy_with_logits`, log-probabilities to `nll_loss` and
`kl_div`, probabilities to `binary_cross_entropy`. Make the module of a loss first, then call it:
`nn.MSELoss()(prediction, target)`.

Not reported: a loss that is computed from probabilities on purpose and is no term of a root, and smoothed labels.
"""

import ast
import re
from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.fix import Edit, Fix, Spot, keyword_added, makes_edits, typed_for
from gradviz.diagnose.rule import ERROR, WARNING, Case, Found, Need, Rule, Site
from gradviz.events.kinds import Kind, OpRan
from gradviz.events.values import Stat
from gradviz.query import ops as op_sets
from gradviz.query.failures import Failure
from gradviz.query.flow import op_behind
from gradviz.query.functions_of_source import called
from gradviz.query.source_trees import statement_at
from gradviz.query.statements import wrong_values

_PASSING = op_sets.RESHAPING | op_sets.CONVERTING | op_sets.SELECTING
_LOG_TARGET = "log_target=True"
_LOG_SUMS = op_sets.LOG_SHARES | {"logsumexp"}
_EXPECTING = op_sets.OF_LOGITS | op_sets.OF_LOG_PROBABILITIES | _LOG_SUMS
_NEVER_POSITIVE = ("nll_loss", "ctc_loss", "kl_div")  # the losses whose input is never above 0
_DIM = re.compile(r"dim=\(?(-?\d+)")
_LOSS = "Loss"  # how PyTorch's modules of losses end
# The messages of PyTorch when the module of a loss gets tensors as its settings.
_MADE_OF_TENSORS = ("Boolean value of Tensor", "Loss.__init__() ")

_MODULES = {"Softmax", "Softmax2d", "Sigmoid"}  # modules of a single op
_LOGARITHM = {"softmax": "log_softmax", "sigmoid": "logsigmoid"}
_LOG_MODULES = {"Softmax": "LogSoftmax", "Softmax2d": "LogSoftmax", "Sigmoid": "LogSigmoid"}


def _uncalled(case: Case) -> Iterator[Found]:
    """The finding for the module of a loss that is made from the tensors and not called with them, if this ended the
    program."""
    for failure in case.failures:
        losses = [] if failure.handled or failure.site is None else _losses_made(case, failure)
        if len(losses) != 1:
            continue
        call = losses[0]
        name, settings = ast.unparse(call.func), ", ".join(map(ast.unparse, call.keywords))
        arguments = ", ".join(map(ast.unparse, call.args))
        site, event = _made_at(case, failure, call.lineno)
        text = f"{name}({settings})({arguments})"
        yield Found(
            f"{name} is made of the tensors in line {call.lineno}, and is not called with them",
            Fix(text, typed_for(ast.unparse(call), text)),
            (event,),
            site=site,
            severity=ERROR,
        )


def _losses_made(case: Case, failure: Failure) -> list[ast.Call]:
    """The calls that make the module of a loss from several arguments: in the statement of a failure with one of these
    messages, and where `backward` was called on the module."""
    is_of_tensors = any(told in failure.message for told in _MADE_OF_TENSORS)
    statement = statement_at(case.query, failure.site) if is_of_tensors else None
    wrong = (value for value in case.query.of(wrong_values) if value.attribute == "backward")
    nodes = [
        *(ast.walk(statement) if statement is not None else ()),
        *(value.origin for value in wrong if value.type.endswith(_LOSS)),
    ]
    calls = [node for node in nodes if isinstance(node, ast.Call) and len(node.args) > 1]
    return [call for call in calls if ast.unparse(call.func).endswith(_LOSS)]


def _made_at(case: Case, failure: Failure, line: int) -> tuple[Site | None, int]:
    """The place of a line and its last event; the place and the event of the failure if the line recorded nothing."""
    here = failure.site
    if here is None or here.place.line == line:
        return here, failure.event
    site = case.query.places.of_line(here.place.file, line)
    events = [] if site is None else np.flatnonzero(case.query.places.of_events == site.number).tolist()
    return (site, events[-1]) if events else (here, failure.event)


@Rule(
    "wrong-loss-input",
    WARNING,
    "probabilities where a loss expects logits, or no log-probabilities where it expects those",
    needs=(Need.DETAILS,),
    at_once=True,
)
def wrong_loss_input(case: Case) -> Iterator[Found]:
    yield from _uncalled(case)
    ops = case.trace.table(Kind.OP)
    wanted = {number: text for number, text in case.trace.strings.items() if text in _EXPECTING}
    seen: set[int] = set()
    cures: set[str] = set()
    of_program = ~case.query.passes.contains(ops.events)  # a derivative of a loss may call the loss itself
    for row, code in enumerate(ops["op"].tolist()):
        if code in wanted and of_program[row] and int(ops.sites[row]) not in seen:
            op = ops.object(int(ops.events[row]))
            loss, source = _loss_and_source(case, op)
            if loss in _LOG_SUMS and not _is_second(case, op, source):
                continue
            seen.add(op.site)
            given = source.op if source is not None else "data"
            largest = case.trace.states.statistic(Stat.MAX, op.inputs[0], op.index)
            if source is not None and given in op_sets.PROBABILITIES:
                expected = "log-probabilities" if loss in op_sets.OF_LOG_PROBABILITIES else "logits"
                is_called_there = case.query.places.is_in_library(op.index)  # by a trainer, whose line is no cure
                is_handed = is_called_there and not case.query.places.is_in_library(source.index)
                called = f"{loss} (called at {case.at(op.index)})" if is_handed else loss
                told = f"{called} expects {expected} and gets the result of {given}"
                cure = _of_probabilities(case, loss, source)
                text = cure.text if isinstance(cure, Fix) else cure
                if text not in cures:  # else the cure of another loss mends this one too
                    cures.add(text)
                    yield Found(told, cure, _events(op, source), site=source.site if is_handed else op.site)
            elif loss in _NEVER_POSITIVE and largest > 1e-4:
                yield Found(
                    f"{loss} expects log-probabilities, which are never above 0, and gets the result of {given} with "
                    "values above 0",
                    _of_data(case, op),
                    _events(op, source),
                    site=op.site,
                )
            elif loss == "kl_div":
                yield from _target(case, op)


def _is_second(case: Case, op: OpRan, source: OpRan | None) -> bool:
    """Whether an op normalises what a softmax normalised, over the same dimension; not as a part of `cross_entropy`."""
    if source is None or source.op not in op_sets.SHARES:
        return False
    readers = [case.query.tensors.op(event) for event in case.downstream.readers(op.outputs[0])]
    dim = _normalised(case, op)
    is_part = any(reader.op == "nll_loss" and reader.site == op.site for reader in readers)
    return dim is not None and dim == _normalised(case, source) and not is_part


def _normalised(case: Case, op: OpRan) -> tuple[int, int] | None:
    """The dimension that a softmax normalises, counted from the end, and its size."""
    shape, dim = case.query.tensors.shape(op.inputs[0]), _DIM.search(op.args)
    if not shape or dim is None:
        return None
    from_end = int(dim[1]) % len(shape) - len(shape)
    return from_end, shape[from_end]


def _target(case: Case, op: OpRan) -> Iterator[Found]:
    """The finding for a `kl_div` whose target has logarithms where it expects none, or none where it expects them."""
    source = _source(case, op.inputs[1]) if len(op.inputs) > 1 else None
    wants_logarithms = _LOG_TARGET in op.args.split(", ")
    wrong, right = (
        (op_sets.PROBABILITIES, "log-probabilities") if wants_logarithms else (op_sets.LOG_SHARES, "probabilities")
    )
    if source is None or source.op not in wrong:
        return
    added = f"log_target={not wants_logarithms}"
    yield Found(
        f"kl_div with log_target={wants_logarithms} expects {right} as its target, and gets the result of {source.op}",
        Fix(f"{added}  # in this call of kl_div", keyword_added("kl_div", added)),
        _events(op, source),
        site=op.site,
    )


def _loss_and_source(case: Case, op: OpRan) -> tuple[str, OpRan | None]:
    """The loss that the program called, and the op that made its input. cross_entropy runs log_softmax and nll_loss."""
    source = _source(case, op.inputs[0]) if op.inputs else None
    if op.op == "nll_loss" and source is not None and source.op in op_sets.LOG_SHARES and source.site == op.site:
        return "cross_entropy", _source(case, source.inputs[0])
    return op.op, source


def _source(case: Case, tensor: int) -> OpRan | None:
    """The op that made the elements of a tensor, and in the same line those of all its parts."""
    source = op_behind(case.query, tensor, _PASSING)
    if source is None or source.op not in op_sets.JOINING or not source.inputs:
        return source
    parts = [_source(case, part) for part in source.inputs]
    made = {(part.op, part.site) for part in parts if part is not None}
    return parts[0] if len(made) == 1 and None not in parts else source


def _events(op: OpRan, source: OpRan | None) -> tuple[int, ...]:
    return (op.index,) if source is None else (op.index, source.index)


def _of_probabilities(case: Case, loss: str, source: OpRan) -> Fix | str:
    """The cure for a loss that gets the result of `source`, a softmax or sigmoid."""
    wants_logarithms = loss in op_sets.OF_LOG_PROBABILITIES
    call = _call(case, source.site)
    module = next(reversed(case.query.scopes.around(source.index, source.thread)), None)
    where = case.words.at_line(source.site)
    called = "" if call is None else ast.unparse(call.func)
    if module is not None and module.type in _MODULES and not called.endswith(f".{module.name.rpartition('.')[2]}"):
        name = f"{module.name} ({module.type})"
        other = _LOG_MODULES[module.type]
        if wants_logarithms:
            return Fix(f"put torch.nn.{other} in the place of {name}", _module_in_place_of(module.type, other))
        return Fix(f"leave out {name}: it is part of {loss}", _module_in_place_of(module.type, "Identity()"))
    value = _value(call)
    if call is None or value is None:
        return f"hand {loss} what goes into {source.op}{where}"
    old, new, why = ast.unparse(call), ast.unparse(value), f": {source.op} is part of {loss}"
    if wants_logarithms:
        new, why = _in_logarithms(call, value, source.op), ""
    line = case.query.places.line(source.site)[1]
    return Fix(f"{new}  # in place of {old}{where}{why}", typed_for(old, new, line))


@makes_edits
def _module_in_place_of(spot: Spot, old: str, new: str) -> list[Edit]:
    """Another module in place of the only one of its class that the file makes; with brackets, without its
    arguments."""
    nodes = ast.walk(spot.source.tree)
    made = [node for node in nodes if isinstance(node, ast.Call) and called(node) == old]
    if len(made) != 1:
        return []
    replaced = made[0] if new.endswith(")") else made[0].func
    return [spot.source.replaced(replaced, f"torch.nn.{new}")]


def _of_data(case: Case, op: OpRan) -> Fix | str:
    """The cure for an `nll_loss` or a `ctc_loss` that gets no logarithms. Classes are in the second dimension of what
    the first gets, and in the last of what the second gets."""
    dim, other = (-1, "") if op.op == "ctc_loss" else (1, ", or use cross_entropy")
    call = _call(case, op.site)
    if call is None or not call.args:
        return f"take torch.log_softmax(..., dim={dim}) of what {op.op} gets{other}"
    old, inside = ast.unparse(call), ast.unparse(call.args[0])
    call.args[0] = ast.parse(f"torch.log_softmax({inside}, dim={dim})", mode="eval").body
    new = ast.unparse(call)
    return Fix(new, typed_for(old, new))


def _call(case: Case, site: int) -> ast.Call | None:
    expression = case.query.places.tree(site)
    return expression if isinstance(expression, ast.Call) else None


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
        return f"torch.nn.functional.logsigmoid({inside})"
    axes = [given for given in (*call.args, *(keyword.value for keyword in call.keywords)) if given is not value]
    dim = ast.unparse(axes[0]) if axes else "-1"
    return f"{_owner(call, value)}.log_softmax({inside}, dim={dim})"


def _owner(call: ast.Call, value: ast.expr) -> str:
    """The module that a program calls softmax of: a program that imports `F` may not know `torch`."""
    function = call.func
    is_plain = isinstance(function, ast.Attribute) and function.attr == "softmax"
    if is_plain and isinstance(function, ast.Attribute) and function.value is not value:
        owner = ast.unparse(function.value)
        return owner if owner.partition(".")[0] != "self" else "torch"
    return "torch"
