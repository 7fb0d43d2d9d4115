"""`missing-create-graph`: a gradient that autograd.grad returned without create_graph=True becomes a term of a
loss, and no gradient flows back through it. The term is a scalar, as a penalty is; or it enters element by element, as
a derivative in a residual does, beside a result of the same model. Or backward() is called on
a `.grad` that a pass without create_graph=True made. Or create_graph=True is there, and the backward of a function on
the way makes no graph: a custom Function that computes with NumPy, an operator that brings its own backward along.

Why it is bad: without a graph of its own the gradient is a constant: the penalty counts in the loss, but no parameter
learns from it.

Example:

    x = torch.tensor(2.0, requires_grad=True)
    y = x ** 3
    (first,) = torch.autograd.grad(y, x)  # <- missing-create-graph
    second = first * 2
    second.backward()

Cure: pass `create_graph=True` to the `autograd.grad` or `backward` that computes the gradient. Where it is there,
compute the result by operations that can be differentiated twice.

Not reported: a gradient that is only printed, logged or used to scale a step. A note only: a gradient that moves
weights, which a loss then uses: MAML with create_graph=True forgotten looks like its first-order form. An input that a
gradient moves, and that a model then reads, looks like an attack.
"""

import ast
from collections.abc import Iterator
from itertools import islice

import numpy as np

from gradviz.diagnose.fix import Fix, typed_for
from gradviz.diagnose.rule import ERROR, NOTE, Case, Found, Need, Rule
from gradviz.diagnose.without_gradient import rootless
from gradviz.events.kinds import Kind, OpRan
from gradviz.query.flow import Downstream, leaves_behind, leaves_of, reach
from gradviz.query.ops import PRODUCTS, SHARING, SUMS
from gradviz.query.source_trees import backward_call
from gradviz.sets import distinct
from gradviz.tracefile import PassInfo, Site

_MOST, _NEAR = 64, 4  # the most results of a gradient that are looked at; with those that a rate scales


@Rule(
    "missing-create-graph",
    ERROR,
    "a gradient in a loss that was made without create_graph=True",
    needs=(Need.DETAILS,),
    at_once=True,
)
def missing_create_graph(case: Case) -> Iterator[Found]:
    yield from _of_leaves(case)
    yield from _returned_without_graph(case)


def _of_leaves(case: Case) -> Iterator[Found]:
    """Calls of backward() on the `.grad` of a leaf, if a pass without create_graph=True made this `.grad`."""
    came = case.trace.table(Kind.ACCUMULATED)
    for call in case.of(rootless):
        earlier = came.events[(came["grad"] == call.root) & (came.events < call.failure.event)]
        if not call.root or not len(earlier):
            continue
        event = came.object(int(earlier[-1]))
        began = case.query.passes.began(event.in_pass)
        site = case.place(began.index)
        if began.create_graph or began.how != "backward":
            continue
        name = case.words.called(event.tensor)
        yield Found(
            f"{name}.grad was made by a pass without create_graph=True ({case.at(began.index)}): it has no graph",
            _with_graph(case, site, "backward()"),
            (began.index, call.failure.event),
            site=site,
            number=event.in_pass,
            tensors=(event.tensor,),
            severity=case.severity_of(call.failure),
        )


def _returned_without_graph(case: Case) -> Iterator[Found]:
    """Gradients that autograd.grad returned without a graph and that become terms of a loss."""
    table = case.trace.table(Kind.PASS_BEGAN)
    numbers = set(table["number"][case.trace.named(table["how"], ("grad",))].tolist())
    passes = [backward_pass for backward_pass in case.trace.passes if backward_pass.number in numbers]
    if not passes:
        return
    below = case.downstream
    failed = {call.root for call in case.of(rootless) if not call.frozen}
    found: list[tuple[bool, Found]] = []
    for site in dict.fromkeys(backward_pass.site for backward_pass in passes):
        backward_pass = next(backward_pass for backward_pass in passes if backward_pass.site == site)
        if case.query.passes.began(backward_pass.number).create_graph:
            found += islice(_made_without(case, backward_pass), 1)
            continue
        for gradient in _returned(case, backward_pass.first, case.query.passes.last(backward_pass)):
            term = _term(case, below, gradient, failed)
            if term < 0:
                term = _residual(case, below, backward_pass, gradient)
            adapted = _adapted(case, below, backward_pass, gradient) if term < 0 else -1
            if adapted >= 0 or term >= 0:
                roots = case.query.passes.began(backward_pass.number).roots
                leaves = sorted(leaves_behind(case.query, [root.node for root in roots]))
                told = _without(case, backward_pass, max(adapted, term), leaves, is_step=adapted >= 0)
                found.append((not case.training.trained.isdisjoint(leaves), told))
                break
    # A gradient of data alone is a target beside a gradient that parameters have a part in.
    has_trained = any(of_trained for of_trained, _ in found)
    yield from (told for of_trained, told in found if of_trained or not has_trained)


def _made_without(case: Case, backward_pass: PassInfo) -> Iterator[tuple[bool, Found]]:
    """The finding for a pass with create_graph=True in which a node whose backward PyTorch does not differentiate by
    itself gave a gradient without a graph that becomes a term of a loss, and whether trained leaves lie behind it."""
    produced, requires_grad = case.trace.table(Kind.PRODUCED), case.query.tensors.requires_grad
    for number in produced.events[produced["in_pass"] == backward_pass.number].tolist():
        event = produced.object(number)
        made = case.query.nodes.event(event.node)
        if made is None or not made.grad_fn.endswith("Backward"):  # PyTorch's own end with a digit
            continue
        given = filter(None, (flow.gradient for flow in event.flows))
        without = [gradient for gradient in given if not requires_grad(gradient, case.trace.count)]
        term = max((_term(case, case.downstream, gradient, set()) for gradient in without), default=-1)
        if term >= 0:
            leaves = sorted(leaves_behind(case.query, [event.node]))
            yield (
                not case.training.trained.isdisjoint(leaves),
                Found(
                    f"the gradient of pass {backward_pass.number} is a term of a loss ({case.at(term)}), but it has no "
                    f"graph, though create_graph=True asks for it: {made.grad_fn} ({case.at(made.index)}) makes none",
                    "compute the result by operations that can be differentiated twice",
                    (backward_pass.first, made.index, term),
                    site=backward_pass.site,
                    number=backward_pass.number,
                    tensors=tuple(leaves),
                ),
            )


def _without(case: Case, backward_pass: PassInfo, term: int, leaves: list[int], is_step: bool) -> Found:
    site = case.query.places.site(backward_pass.site)
    use = "moves weights on the way to a loss" if is_step else "is a term of a loss"
    return Found(
        f"the gradient of pass {backward_pass.number} {use} ({case.at(term)}), but it was "
        "made without create_graph=True: no gradient flows back through it" + ", as in first-order methods" * is_step,
        _with_graph(case, site, "the autograd.grad() that computes the gradient"),
        (backward_pass.first, term),
        site=backward_pass.site,
        number=backward_pass.number,
        tensors=tuple(leaves),
        severity=NOTE if is_step else "",
    )


def _with_graph(case: Case, site: Site | None, otherwise: str) -> Fix | str:
    """The call at a site that begins a pass, with `create_graph=True`."""
    call = backward_call(case.query, site)
    if call is None:
        return f"pass create_graph=True to {otherwise}"
    kept = [keyword for keyword in call.keywords if keyword.arg != "create_graph"]
    keywords = [*kept, ast.keyword("create_graph", ast.Constant(True))]
    text = ast.unparse(ast.Call(call.func, call.args, keywords))
    return Fix(text, typed_for(ast.unparse(call), text))


def _returned(case: Case, first: int, last: int) -> list[int]:
    """The gradients that flowed in a pass, and their sums at the nodes: what grad() returns for a tensor that several
    ops read is a sum."""
    produced, received = case.trace.table(Kind.PRODUCED), case.trace.table(Kind.RECEIVED)
    flows, sums = produced.lists("flows"), received.lists("gradients")
    gradients = [
        tensors[(events >= first) & (events <= last)]
        for events, tensors in (
            (produced.events[flows.owners], flows.elements[:, 1]),
            (received.events[sums.owners], sums.elements[:, 0]),
        )
    ]
    return [tensor for tensor in distinct(np.concatenate(gradients)).tolist() if tensor]


def _term(case: Case, below: Downstream, gradient: int, failed: set[int]) -> int:
    """The op that adds a scalar, computed from a gradient, to a tensor that requires grad, or the op that makes a root
    that backward() failed on; −1 if there is none."""
    for tensor, readers in below.results(gradient, _MOST).items():
        if not gradient or tensor == gradient or case.query.tensors.requires_grad(tensor, case.trace.count):
            continue
        if tensor in failed:
            return case.query.tensors.maker(tensor) or -1
        for event in readers:
            op = case.query.tensors.op(event)
            if op.op in SUMS and case.query.tensors.shape(tensor) == () and _makes_graph(case, op):
                return event
    return -1


def _residual(case: Case, below: Downstream, backward_pass: PassInfo, gradient: int) -> int:
    """The op on the way to a root that adds a result of the gradient to a result of the same model; −1 if there is
    none. Two cases do not count: a gradient that is added to its own tensor is a step of descent, and a gradient that
    the program detaches is meant as a constant."""
    began = case.query.passes.began(backward_pass.number)
    asked = {tensor for tensor in began.inputs if tensor}
    if asked & case.training.trained:  # the program compares gradients of weights: one side is a constant
        return -1
    models: set[str | int] | None = None
    for tensor, readers in _without_graph(case, below, gradient).items():
        for event in readers:
            op = case.query.tensors.op(event)
            if op.op in SHARING:
                return -1
            others = [t for t in op.inputs if t and t != tensor]
            if op.op not in SUMS or not others or asked & set(others) or not _makes_graph(case, op):
                continue
            if models is None:
                trained = case.training.trained & {*leaves_behind(case.query, [r.node for r in began.roots])}
                models = {case.model_of(leaf) or leaf for leaf in trained}
            beside = case.training.trained.intersection(leaves_of(case.query, *others))
            if not models & {case.model_of(leaf) or leaf for leaf in beside}:
                continue
            reached = {one: after for result in op.outputs for one, after in below.results(result, _MOST).items()}
            onward = (case.query.tensors.op(after) for own in reached.values() for after in own)
            # what a layer reads is an input that the gradient moves, as of an attack
            is_read = any(one.op in PRODUCTS and not case.training.trained.isdisjoint(one.inputs) for one in onward)
            if not is_read and not case.query.passes.roots.isdisjoint(reached):
                return event
    return -1


def _adapted(case: Case, below: Downstream, backward_pass: PassInfo, gradient: int) -> int:
    """The op on the way to a root that moves a trained leaf by its gradient; −1 if there is none."""
    asked = case.training.trained.intersection(case.query.passes.began(backward_pass.number).inputs)
    for readers in below.results(gradient, _NEAR).values() if asked else ():
        for op in map(case.query.tensors.op, readers):
            is_step = op.op in SUMS and not asked.isdisjoint(op.inputs) and _makes_graph(case, op)
            if is_step and not case.query.passes.roots.isdisjoint(below.results(op.outputs[0])):
                return op.index
    return -1


def _without_graph(case: Case, below: Downstream, gradient: int) -> dict[int, list[int]]:
    """The tensors that are computed from a gradient and have no graph, each with the ops that read it."""

    def is_without(tensor: int) -> bool:
        return not case.query.tensors.requires_grad(tensor, case.trace.count)

    behind = reach([gradient], lambda tensor: filter(is_without, below.onward(tensor)), _MOST)
    return {tensor: below.readers(tensor) for tensor in behind if is_without(tensor)}


def _makes_graph(case: Case, op: OpRan) -> bool:
    return bool(case.query.nodes.of_op(op.index))
