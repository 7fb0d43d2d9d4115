"""`wrong-mode`: a model with dropout or batch norm is evaluated in training mode, or is trained in evaluation mode; it
is evaluated with running statistics that counted no batch, as an average of weights without `update_bn`; or dropout is
applied in evaluation mode, by a function or by a layer that the forward makes anew.

The mode alone is not enough for a finding. An evaluation runs without gradients, between passes of the same model, on
another input each time, and its results are used and reach no root. A training has passes through modules whose
parameters are stepped on.

Why it is bad: results change from call to call and depend on the other rows of the batch, and the test data enter the
statistics of batch norm; or dropout is off for the rest of the training.

Example:

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        x, y = torch.randn(8, 4), torch.randint(0, 2, (8,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            x, y = torch.randn(8, 4), torch.randint(0, 2, (8,))
            loss = torch.nn.functional.cross_entropy(model(x), y)  # <- wrong-mode

Cure: call `model.eval()` before the evaluation and `model.train()` after it.

Not reported: an evaluation before the training; Monte Carlo dropout, which repeats one input, or whose layers alone are
in training mode; a frozen part that stays in evaluation mode. A batch norm that is in evaluation mode from the first
pass, with statistics that were counted or loaded before, is a note only, as is a frozen module whose batch norm is in
training mode, unless the same run has trained it before and calls it without gradients now, as it does a teacher.
"""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from gradviz.diagnose.fix import Edit, Edits, Fix, Spot, makes_edits, typed_for
from gradviz.diagnose.lost_change import lost_changes
from gradviz.diagnose.rule import ERROR, NOTE, WARNING, Case, Found, Need, Rule, Site
from gradviz.diagnose.visits import Visit, visits
from gradviz.events.kinds import Kind, OpRan, ScopeEntered
from gradviz.events.values import Stat
from gradviz.query.functions_of_source import called, function_around
from gradviz.query.ops import DROPOUTS
from gradviz.query.pass_owners import seen_at
from gradviz.query.source_trees import method_calls, trees
from gradviz.query.writes import Writes
from gradviz.sets import contained, distinct, grouped

_RUNNING_MEAN, _RUNNING_VARIANCE = 1, 2  # the inputs of batch norm with its running statistics
_INPUT_AND_RATE = 2  # the arguments of dropout without the mode
_LOOKED_AT = 200  # the most ops of a call that are looked at
_DROPS = "drops units at random"
_MIXES = "takes the statistics of the batch, and updates its own"


@Rule(
    "wrong-mode",
    WARNING,
    "dropout or batch norm in training mode while evaluating, or the other way round",
    needs=(Need.DETAILS, Need.TRAINING),
)
def wrong_mode(case: Case) -> Iterator[Found]:
    roots = case.of(visits)
    yield from _evaluated_in_training_mode(case, roots)
    yield from _trained_in_evaluation_mode(case, roots)
    yield from _without_statistics(case, roots)
    yield from _dropout_that_is_always_on(case)
    yield from _statistics_of_what_is_frozen(case)


def _evaluated_in_training_mode(case: Case, roots: list[Visit]) -> Iterator[Found]:
    trained = {visit.name for visit in roots if visit.has_grad and visit.in_pass and visit.training}
    read = {tensor for visit in roots for tensor in visit.inputs}
    # a generator is only sampled
    trained -= {visit.name for visit in roots if visit.in_pass and visit.result in read}
    wrong: dict[int, list[Visit]] = {}
    for visit in roots:
        if visit.training and not visit.has_grad and visit.name in trained and visit.moody and visit.is_evaluation:
            wrong.setdefault(visit.site, []).append(visit)
    for site, own in wrong.items():
        # the same input several times in a row samples its outputs
        repeated = any(a.input == b.input and a.rounds == b.rounds for a, b in pairwise(own))
        if repeated:
            continue
        first = own[0]
        yield Found(
            f"{first.name} is evaluated in training mode: its {first.moody} "
            f"{_DROPS if 'Drop' in first.moody else _MIXES}",
            Fix(
                f"{first.name}.eval()  # before the evaluation, and {first.name}.train() after it",
                _in_evaluation_mode(first.name),
            ),
            (first.event,),
            site=site,
        )


@makes_edits
def _in_evaluation_mode(spot: Spot, model: str) -> list[Edit]:
    """`model.eval()` before a statement and `model.train()` behind it."""
    source, statement = spot.source, spot.statement
    if not re.fullmatch(r"[\w.]+", model):
        return []
    for outer in source.around(statement):
        code = source.code(outer.items[0].context_expr) if isinstance(outer, ast.With) else ""
        mode = re.search(r"set_grad_enabled\((\w+)\)", code)
        if mode is not None and isinstance(outer, ast.With):
            return [source.before(outer, f"{model}.train({mode[1]})")]
    before = source.before(statement, f"{model}.eval()")
    is_last = isinstance(statement, ast.Return)
    return [before] if is_last else [before, source.after(statement, f"{model}.train()")]


def _in_training_mode(model: str, line: int) -> Edits:
    """`model.train()` before the statement at a line."""
    text, is_named = f"{model}.train()", re.fullmatch(r"[\w.]+", model) is not None
    return lambda spot: [spot.source.before(spot.source.statement_at(line) or spot.statement, text)] * is_named


def _trained_in_evaluation_mode(case: Case, roots: list[Visit]) -> Iterator[Found]:
    kinds = {visit.name: visit.kinds for visit in roots if visit.kinds}  # a function in evaluation mode leaves no op
    by_name = grouped((one.name, one) for one in roots if one.has_grad and one.in_pass and one.name in kinds)
    stepped = {case.model_of(leaf) for leaf in case.training.trained}
    for name, own in by_name.items():
        requires_grad = case.query.tensors.requires_grad
        off = [one for one in own if not one.training and any(requires_grad(p, one.event) for p in one.parameters)]
        off = [one for one in off if _training_passes(case, one)] or off  # rather than an attack
        if not off or case.training.trained.isdisjoint(off[0].parameters):
            continue
        before = [visit for visit in own if visit.training and visit.event < off[0].event]
        between = (visit for visit in roots if before and before[-1].event < visit.event < off[0].event)
        if name not in stepped and not any(one.name == name and one.is_evaluation for one in between):
            continue  # a part may be meant to stay so
        later = [visit for visit in own if visit.training and visit.event > off[0].event]
        if later or (before and all(visit.moody == off[0].moody for visit in before)):
            continue  # it trains again, or its layers are in the same modes as before
        (file, line), number = case.query.places.line(off[0].site), next(iter(_training_passes(case, off[0])), 0)
        left = _left_at(case, file, [one for one in roots if one.name == name]) if before and number else None
        train = _in_training_mode(name, line) if name in stepped else None  # an evaluation calls a part at its line
        yield Found(
            f"{name} is trained in evaluation mode"
            + (f" (line {line})" if left is not None else "")
            + (", from its evaluation on" if before else "")
            + f": its {kinds[name]} {'does' if ' and ' not in kinds[name] else 'do'} not work as in training",
            Fix(f"{name}.train()  # before the training loop, and after each evaluation", train),
            (case.query.passes.by_number[number].first if left else off[0].event,),
            site=left or off[0].site,
            number=number if left else 0,
            severity="" if before else WARNING if "Drop" in kinds[name] or _never_counted(case, off[0]) else NOTE,
        )


def _left_at(case: Case, file: str, calls: list[Visit]) -> Site | None:
    """The line that puts a model into evaluation mode: the only call of `eval()`, or of `train(mode)`, in the sources;
    else the only one, or the only one of a variable of its name, above its first evaluation in the same function. None
    if there is none in a file, or if it is not known which."""
    switches = [
        (path, call.lineno, ast.unparse(owner).rpartition(".")[2])
        for path, tree in case.query.of(trees).items()
        for call, owner in (*method_calls(tree, "eval"), *(one for one in method_calls(tree, "train") if one[0].args))
    ]
    evaluation = next((one for one in calls if one.is_evaluation and not one.training), None)
    if evaluation is not None and len(switches) > 1:
        (path, line), name = case.query.places.line(evaluation.site), evaluation.name.rpartition(".")[2]
        tree = case.query.of(trees).get(path)
        function = function_around(tree, line)
        first = function.lineno if function is not None else 0
        near = [one for one in switches if one[0] == path and first <= one[1] < line]
        switches = [one for one in near if one[2] == name] or near
    return case.query.places.of_line(*switches[0][:2]) if [path for path, *_ in switches] == [file] else None


def _training_passes(case: Case, visit: Visit) -> list[int]:
    """The passes through the result of a call that give gradients to leaves."""
    received, came = case.trace.table(Kind.RECEIVED), case.trace.table(Kind.ACCUMULATED)
    node = case.query.nodes.of_tensors.last(visit.result, case.trace.count)
    through = received["in_pass"][received["node"] == node]
    return distinct(through[contained(through, came["in_pass"])]).tolist()


def _without_statistics(case: Case, roots: list[Visit]) -> Iterator[Found]:
    """Findings for models that are evaluated with values from the training, and with the running statistics that their
    batch norm begins with."""
    changed = set(case.query.of(Writes).changed.tolist())
    seen = {visit.name for visit in roots if visit.in_pass and not visit.training}  # it is trained so, too
    for visit in roots:
        is_evaluation = visit.is_evaluation and not visit.training and not visit.in_pass and visit.rounds > 0
        if not is_evaluation or visit.name in seen or changed.isdisjoint(visit.parameters):
            continue
        if _never_counted(case, visit):
            seen.add(visit.name)
            yield Found(
                f"{visit.name} is evaluated while the running statistics of its batch norm are still a mean of 0 and a "
                "variance of 1: no batch was counted, and nothing is normalised",
                f"torch.optim.swa_utils.update_bn(loader, {visit.name})  # before the evaluation, with the batches of "
                "the training",
                (visit.event,),
                site=visit.site,
                tensors=visit.parameters,
            )


def _never_counted(case: Case, visit: Visit) -> bool:
    """Whether the first batch norm of a call still has its first running statistics, a mean of 0 and a variance of 1:
    no batch was counted and no statistics were loaded, so that it normalises nothing."""
    ops = case.trace.table(Kind.OP)
    states = case.trace.states
    begins = int(np.searchsorted(ops.events, visit.event))
    for event in ops.events[begins : begins + _LOOKED_AT].tolist():
        op = ops.object(event)
        if op.op == "batch_norm" and len(op.inputs) > _RUNNING_VARIANCE and op.inputs[_RUNNING_VARIANCE]:
            statistics = np.array(op.inputs[_RUNNING_MEAN : _RUNNING_VARIANCE + 1])
            if any(map(case.query.of(Writes).touched, statistics.tolist())):
                return False
            rows = states.rows_of(statistics, np.full(len(statistics), op.index))
            mean, variance = states.stats[rows, Stat.RMS] if (rows >= 0).all() else (np.nan, np.nan)
            return bool(mean == 0 and variance == 1)
    return False


def _dropout_that_is_always_on(case: Case) -> Iterator[Found]:
    """Findings for `F.dropout(x)` without `training=self.training`, and for `nn.Dropout()(x)`, in a module that is in
    evaluation mode."""
    for events in case.by_site(case.trace.events_named(Kind.OP, "op", DROPOUTS)).values():
        for event in events.tolist():
            op = case.query.tensors.op(event)
            if "training=True" not in op.args or "p=0.0" in op.args.split(", ") or op.grad_enabled:
                continue
            around = case.query.scopes.around(event, op.thread)
            in_evaluation = _in_evaluation(around)
            if in_evaluation is not None:
                made = "Drop" in around[-1].type
                old, new = _by_the_mode(case, op.site)
                cure = f"{new or 'F.dropout(x, p, training=self.training)'}  # or an nn.Dropout that __init__ makes"
                yield Found(
                    f"dropout drops units though {in_evaluation.name or in_evaluation.type} is in evaluation mode"
                    + f": the {around[-1].type} of this line is no part of it" * made,
                    Fix(cure, typed_for(old, new)),
                    (event,),
                    severity=ERROR,
                )
                break


def _by_the_mode(case: Case, site: int) -> tuple[str, str]:
    """The call at a site that drops units, by a function or by a layer that is made there, and the call that drops them
    in training mode alone; empty if there is no such call in a method."""
    call = case.query.places.tree(site)
    if not isinstance(call, ast.Call) or seen_at(case.query, site, "self") != "self":
        return "", ""
    name, function, given, named = called(call), ast.unparse(call.func), call.args, call.keywords
    if isinstance(call.func, ast.Call):
        name, function = called(call.func).lower(), "torch.nn.functional.dropout"
        given, named = [*given, *call.func.args], call.func.keywords
    if name != "dropout" or len(given) > _INPUT_AND_RATE:
        return "", ""
    others = (one for one in named if one.arg != "training")
    arguments = ", ".join([*map(ast.unparse, [*given, *others]), "training=self.training"])
    return ast.unparse(call), f"{function}({arguments})"


def _in_evaluation(around: list[ScopeEntered]) -> ScopeEntered | None:
    """The module in evaluation mode whose forward drops units, by a function or by a dropout layer that is no part of
    the module, as one that the forward makes anew; None if there is none. A layer of the model that is in training mode
    on purpose samples its outputs."""
    if around and "Drop" not in around[-1].type:
        return None if around[-1].training else around[-1]
    if len(around) < 2 or not around[-1].training or around[-2].training:
        return None
    return None if around[-1].name.startswith(f"{around[0].name}.") else around[-2]


# --- frozen modules whose batch norm counts on


_FIRST_STATISTIC, _WEIGHT = 1, 3  # the inputs of batch norm
_LEAST = 2  # calls


def _statistics_of_what_is_frozen(case: Case) -> Iterator[Found]:
    """Notes on frozen modules whose batch norm counts on between passes, one for each line. A module is not meant to be
    frozen if an average for it is lost."""
    followers = {leaf for lost in case.of(lost_changes) for leaf in lost.leaves}
    norms = case.trace.events_named(Kind.OP, "op", ("batch_norm",))
    calls: dict[int, list[OpRan]] = {}
    for op in map(case.query.tensors.op, norms[~case.query.passes.contains(norms)].tolist()):
        if len(op.inputs) > _WEIGHT and op.inputs[_FIRST_STATISTIC] and "training=True" in op.args:
            calls.setdefault(op.inputs[_WEIGHT], []).append(op)
    found: dict[int, tuple[ScopeEntered, list[int]]] = {}
    for weight, own in calls.items():
        module = _frozen_module(case, weight, own) if weight and weight not in followers else None
        if module is not None:
            found.setdefault(module.site, (module, []))[1].append(weight)
    for module, weights in found.values():
        yield Found(
            f"{module.name} is frozen, and in training mode: its batch norm {_MIXES}, so that its results change from "
            "call to call",
            Fix(
                f"{module.name}.eval()  # and again after each train() of a module around it",
                _in_evaluation_mode(module.name),
            ),
            (module.index,),
            tensors=tuple(weights),
            severity=WARNING if _is_teacher(case, module, weights) else NOTE,
        )


def _is_teacher(case: Case, module: ScopeEntered, weights: list[int]) -> bool:
    """Whether a module was trained before, and is called without gradients from a call on."""
    came, made = case.trace.table(Kind.ACCUMULATED), case.trace.table(Kind.NODE)
    was_trained = contained(weights, came["tensor"][came.events < module.index]).all()
    return bool(was_trained) and not ((made.events > module.index) & (made.events < _end_of(case, module))).any()


def _frozen_module(case: Case, weight: int, calls: list[OpRan]) -> ScopeEntered | None:
    """The outermost module around the calls of a batch norm that is frozen from the first of these calls on; None if
    the batch norm is not frozen for good, or if no pass runs between its calls."""
    frozen = [op for op in calls if not case.query.tensors.requires_grad(weight, op.index)]
    if len(frozen) < _LEAST or frozen != calls[-len(frozen) :]:
        return None
    first, last = frozen[0].index, frozen[-1].index
    came, writes = case.trace.table(Kind.ACCUMULATED), case.query.of(Writes)
    later = came["tensor"][came.events > first], writes.leaves[writes.events > first]
    if any((leaves == weight).any() for leaves in later):  # it takes turns with another network, or follows it
        return None
    if not any(first < backward_pass.first < last for backward_pass in case.trace.passes):
        return None
    around = case.query.scopes.around(first, frozen[0].thread)
    return next((scope for scope in around if _is_frozen_scope(case, scope)), None)


def _is_frozen_scope(case: Case, scope: ScopeEntered) -> bool:
    """Whether the call of a module with a name reads parameters, and none of them requires grad."""
    begun, ended = scope.index, _end_of(case, scope)
    own = [leaf for leaf in case.trace.parameters if any(begun < op < ended for op in case.downstream.readers(leaf))]
    return bool(scope.name and own) and not any(case.query.tensors.requires_grad(leaf, begun) for leaf in own)


def _end_of(case: Case, scope: ScopeEntered) -> int:
    left = case.trace.table(Kind.SCOPE_LEFT)
    return int(left.events[left["scope"] == scope.scope].min(initial=case.trace.count))
