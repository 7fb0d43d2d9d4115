"""`wrong-axis`: a softmax is taken over one axis, and the op that reads its result expects another axis: the product of
attention weights with values, `nll_loss`, `ctc_loss`, `gather`, or `kl_div`, by its other side. Or a softmax or
`normalize` is taken over the axis of the samples, as each op keeps it up to a mean, or a convolution has it first.

Why it is bad: the weights do not add up to one, or are no probabilities of the classes. The loss may fall all the
same, because all examples of a batch are mixed.

Example:

    torch.manual_seed(0)
    query, value = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD([*query.parameters(), *value.parameters()], lr=0.1)
    for step in range(3):
        x = torch.randn(2, 5, 4)
        scores = query(x) @ x.transpose(1, 2)
        weights = torch.softmax(scores, dim=1)  # <- wrong-axis
        loss = (weights @ value(x)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Cure: take the softmax over the axis that its reader expects: `dim=-1` for `weights @ values`, the axis of the classes
for a loss.

Not reported: a softmax of parameters alone (a matrix of transitions); a softmax that multiplies a single column (a
state, which then keeps its sum); a softmax that is transposed or normalised again before it is read; an axis of one
entry; a softmax over the first axis that a later op sums over, as attention over time does, or of a square of pairs, as
in a contrastive loss by rows and columns. Where the sizes of two axes are the same, a transpose hides which is which.
"""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from gradviz.diagnose.fix import makes_edits
from gradviz.diagnose.rule import WARNING, Case, Edit, Fix, Found, Need, Rule, Site, Spot
from gradviz.events.kinds import Kind, OpRan
from gradviz.query import ops as op_sets
from gradviz.query.flow import NEAR, is_mean, op_behind, op_of, reach
from gradviz.query.functions_of_source import called, nodes_of
from gradviz.query.source_trees import trees
from gradviz.sets import contained

_OVER, _SCALED = op_sets.SHARES | op_sets.LOG_SHARES, {"normalize"}
_MODULES = ("Softmax", "LogSoftmax")
_MATRIX = 2  # axes
_MOVING = op_sets.TRANSPOSING | {"permute", "movedim", "moveaxis"}
_SUMMING = op_sets.MATRIX_PRODUCTS  # ops that sum over the last axis of their first input
_SAME_PLACES = (
    op_sets.CONVERTING
    | op_sets.DROPOUTS
    | op_sets.MULTIPLYING
    | op_sets.LOGARITHMS
    | op_sets.NEGATING
    | op_sets.CLAMPING
    | {"masked_fill", "contiguous"}
)
_ALIKE = _SAME_PLACES | op_sets.SUMS | op_sets.DIVIDING | op_sets.LOSSES | op_sets.JOINING | _OVER  # one by one
_SHAPING = op_sets.SELECTING | {"reshape", "view", "unsafe_view", "expand"}
_FAR = 8  # ops between a softmax and its reader
_DIM, _MOVED = re.compile(r"\bdim=(-?\d+)"), re.compile(r"\bdim0=(-?\d+), dim1=(-?\d+)")


class Axis(NamedTuple):
    """An axis of a tensor, counted from the end: -1 is the last axis. `dimensions` is the number of axes of the tensor.
    `is_sure` is False if a reshape may have moved the axis."""

    from_end: int
    dimensions: int
    is_sure: bool = True


@Rule("wrong-axis", WARNING, "a softmax over another axis than its reader goes by", needs=(Need.DETAILS, Need.PASS))
def wrong_axis(case: Case) -> Iterator[Found]:
    ops = case.trace.table(Kind.OP)
    softmaxes = case.trace.named(ops["op"], tuple(_OVER | _SCALED))
    softmaxes &= contained(ops.events, case.trace.table(Kind.NODE)["op"])
    for event in case.first_of_sites(ops.events[softmaxes]):
        op = case.query.tensors.op(event)
        axis = _axis(case, op)
        if axis is None or not _is_of_data(case, op):
            continue
        readers = _readers(case, op.outputs[0], axis) if op.op in _OVER else ()
        for reader, wanted, why in (*readers, *_of_samples(case, op, axis), *_of_layer(case, op, axis)):
            compared = case.query.tensors.op(reader)
            # of two softmaxes the one that is not over the last axis, where classes usually are
            is_other = compared.op == "kl_div" and axis.from_end == -1
            wrong = (_softmax_of(case, compared.inputs[1]) if is_other else None) or op
            wanted = wanted if wrong is op else axis.from_end
            yield Found(
                f"{wrong.op} is taken over dim={_said(wrong)} of {case.shape(wrong.outputs[0])}, but "
                f"{case.at(reader)} {why}",
                Fix(f"dim={wanted}  # of {wrong.op}, in place of dim={_said(wrong)}", _over(wanted)),
                (wrong.index, reader),
                site=_made_at(case, wrong),
            )
            break


def _of_layer(case: Case, op: OpRan, axis: Axis) -> Iterator[tuple[int, int, str]]:
    """The convolution behind a softmax over its first axis, that of the samples. Not where a later op sums over it, as
    attention over the frames of a film does."""
    shape, layer = case.shape(op.outputs[0]), op_behind(case.query, op.inputs[0], _SAME_PLACES)
    is_of_samples = axis.from_end == -len(shape) and layer is not None and layer.op in op_sets.CONVOLUTIONS
    if not is_of_samples or layer is None or len(case.shape(layer.inputs[1])) != len(shape):
        return
    kept = reach([op.outputs[0]], lambda one: _keeping_first(case, one, shape[0]), NEAR)
    readers = [case.query.tensors.op(event) for one in kept for event in case.downstream.readers(one)]
    if not any(one.op in op_sets.REDUCTIONS and _said(one) in ("0", str(-len(shape))) for one in readers):
        yield layer.index, 1, "is a convolution, whose first axis is that of the samples"


def _made_at(case: Case, op: OpRan) -> Site | None:
    """The only line of the program that makes a module of the class of the one that ran an op, `nn.Softmax(dim=0)`;
    None if it is not known."""
    module = next(iter(case.query.scopes.around(op.index, op.thread)[::-1]), None)
    made = [
        (file, call.lineno)
        for file, tree in case.query.of(trees).items()
        for call in nodes_of(tree)
        if isinstance(call, ast.Call) and module is not None and called(call) == module.type in _MODULES
    ]
    return case.query.places.of_line(*made[0]) if len(made) == 1 else None


def _of_samples(case: Case, op: OpRan, axis: Axis) -> Iterator[tuple[int, int, str]]:
    """The op that takes the mean over the first axis of a result, if a softmax is taken over this axis and each op up
    to that one keeps it: it is the axis of the samples. Not for weights of samples, a square of pairs, or a softmax
    over each axis of the same scores."""
    shape, asked = case.shape(op.outputs[0]), [*map(case.query.tensors.op, case.downstream.readers(op.inputs[0]))]
    is_of_pairs = op.op in _OVER and len(shape) == _MATRIX and shape[0] == shape[1]
    is_first = len(shape) > 1 and axis.from_end == -len(shape) and max(shape[1:]) > 1
    if not is_first or is_of_pairs or any(one.op in _OVER and _said(one) != _said(op) for one in asked):
        return
    for tensor in reach([op.outputs[0]], lambda one: _keeping_first(case, one, shape[0]), NEAR):
        for reader in map(case.query.tensors.op, case.downstream.readers(tensor)):
            among = [case.shape(one)[:1] for one in reader.inputs if one]
            is_each = reader.op in op_sets.MEANS and case.shape(tensor) == shape[:1]
            is_loss = reader.op in op_sets.LOSSES and among[:2] == [shape[:1]] * 2
            if (is_each or is_loss) and is_mean(reader) and case.shape(reader.outputs[0]) == ():
                last = max(place for place in range(1, len(shape)) if shape[place] > 1) - len(shape)
                yield reader.index, _as_said(last, axis), "is a mean over this axis, which is that of the samples"
                return


def _keeping_first(case: Case, tensor: int, size: int) -> Iterator[int]:
    """The results of ops that read a tensor and keep its first axis, of this size, in its place."""
    shape = case.shape(tensor)
    for op in map(case.query.tensors.op, case.downstream.readers(tensor)):
        result = op.outputs[0] if op.outputs and not op.in_pass and case.query.nodes.of_op(op.index) else 0
        after = case.shape(result) if result else ()
        is_kept = (op.rule.elementwise or op.op in _ALIKE) and len(after) == len(shape)
        is_kept |= op.op in op_sets.PRODUCTS and tensor in op.inputs[: 1 + (op.op == "addmm")]
        is_kept |= op.op in op_sets.RESHAPING and (op.op not in _MOVING or shape.count(size) == 1)
        is_kept |= op.op in op_sets.SELECTING and bool(after)
        dim = _DIM.search(op.args)
        is_kept |= (
            op.op in op_sets.REDUCTIONS | op_sets.LOG_PROBABILITIES
            and dim is not None
            and int(dim[1]) not in (0, -len(shape))
        )
        if is_kept and after[:1] == (size,):
            yield result


def _said(op: OpRan) -> str:
    dim = _DIM.search(op.args)
    return dim[1] if dim is not None else ""


def _axis(case: Case, op: OpRan) -> Axis | None:
    """The axis in the arguments of an op (`dim=`); None if it is not known, or has one entry."""
    found, shape = _DIM.search(op.args), case.shape(op.outputs[0]) if op.outputs else ()
    if found is None or not shape:
        return None
    dim = int(found[1])
    from_end = dim if dim < 0 else dim - len(shape)
    return Axis(from_end, len(shape)) if -len(shape) <= from_end and shape[from_end] > 1 else None


def _is_of_data(case: Case, op: OpRan) -> bool:
    """Whether a softmax is taken of a result of several tensors, not of a parameter alone."""
    for _ in range(_FAR):
        sources = [tensor for tensor in op.inputs if tensor]
        if len(sources) > 1:
            return True
        made = op_of(case.query, sources[0]) if sources else None
        if made is None:
            return False
        op = made
    return False


def _readers(case: Case, tensor: int, axis: Axis) -> Iterator[tuple[int, int, str]]:
    """The ops that read a softmax by another axis: the event, the axis that the op expects, and a sentence of how."""
    waiting = [(tensor, axis)]
    for _ in range(_FAR):
        following = []
        for source, at in waiting:
            for event in case.downstream.readers(source):
                op = case.query.tensors.op(event)
                yield from _by_another_axis(case, op, source, at)
                onwards = _onwards(case, op, source, at)
                if onwards is not None:
                    following.append((op.outputs[0], onwards))
        waiting = following


def _by_another_axis(case: Case, op: OpRan, source: int, axis: Axis) -> Iterator[tuple[int, int, str]]:
    shape = case.shape(source)
    is_summed = op.op in _SUMMING and op.inputs[0] == source and shape[-1] > 1
    by = case.shape(op.inputs[1]) if is_summed else ()
    is_summed = is_summed and len(by) != 1 and by[-1:] != (1,)
    if is_summed and axis.from_end != -1:
        yield op.index, -1, "sums over the last axis: these weights do not add up to one"
    if op.op == "ctc_loss" and op.inputs[0] == source and axis.from_end != -1:
        yield op.index, -1, "takes the last axis for that of the classes"
    if op.op == "nll_loss" and op.inputs[0] == source and (axis.is_sure or len(shape) <= 2):
        classes = 1 - len(shape) if len(shape) > 1 else -1
        if axis.from_end != classes:
            yield op.index, _as_said(classes, axis), "takes another axis for that of the classes"
    if op.op == "gather" and op.inputs[0] == source and axis.is_sure:
        chosen = _DIM.search(op.args)
        dim = int(chosen[1]) if chosen is not None else axis.from_end
        from_end = dim if dim < 0 else dim - len(shape)
        if from_end != axis.from_end:
            yield op.index, _as_said(from_end, axis), "chooses along another axis"
    if op.op == "kl_div" and op.inputs[0] == source and axis.is_sure:
        compared = _softmax_of(case, op.inputs[1])
        other = _axis(case, compared) if compared is not None else None
        if other is not None and other.from_end != axis.from_end:
            yield op.index, other.from_end, "compares it with probabilities over another axis"


def _as_said(from_end: int, axis: Axis) -> int:
    """An axis as a program writes it: -1 for the last axis, and counted from the beginning for any other axis."""
    return from_end if from_end == -1 else from_end + axis.dimensions


def _softmax_of(case: Case, tensor: int) -> OpRan | None:
    """The softmax that a tensor comes from by ops that keep each element in its place; None if there is none."""
    for _ in range(_FAR):
        op = op_of(case.query, tensor)
        if op is None or op.op in _OVER:
            return op
        if op.op not in _SAME_PLACES or not op.inputs:
            return None
        tensor = op.inputs[0]
    return None


def _onwards(case: Case, op: OpRan, source: int, axis: Axis) -> Axis | None:
    """The place of an axis after an op; None if the place is not known."""
    if not op.outputs or not op.inputs or op.inputs[0] != source:
        return None
    before, after = case.shape(source), case.shape(op.outputs[0])
    if op.op in _SAME_PLACES and before == after:
        others = [tensor for tensor in op.inputs[1:] if tensor]
        is_mask = not any(case.query.tensors.requires_grad(tensor, op.index) for tensor in others)
        return axis if is_mask else None
    moved = _MOVED.search(op.args) if op.op in _MOVING else None
    if moved is not None and before:
        one, other = (int(dim) % len(before) - len(before) for dim in moved.groups())
        return axis._replace(from_end={one: other, other: one}.get(axis.from_end, axis.from_end))
    if op.op in _SHAPING and before and after and before[-1] == after[-1]:
        is_same = before == after or (op.op in op_sets.SELECTING and len(before) == len(after))
        if is_same or axis.from_end == -1:
            return axis._replace(is_sure=axis.is_sure and is_same, dimensions=len(after))
        return Axis(max(axis.from_end, -len(after)), len(after), is_sure=False) if len(after) > 1 else None
    return None


@makes_edits
def _over(spot: Spot, wanted: int) -> list[Edit]:
    """Another axis in place of the axis of a softmax."""
    for call in spot.calls_here("softmax", "log_softmax", "normalize", *_MODULES):
        named = [keyword.value for keyword in call.keywords if keyword.arg == "dim"]
        numbers = [node for node in call.args if isinstance(node, ast.Constant | ast.UnaryOp)]
        if named or numbers:
            return [spot.source.replaced((named or numbers)[0], str(wanted))]
    return []
