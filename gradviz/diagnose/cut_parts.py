"""Parts of a result that are cut off, and then joined with the rest, which still has its graph:
`torch.cat([h[:1], h[1:].detach()])`. The leaves get a gradient from the rest, so that nothing else shows the cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradviz.diagnose.case import Case
from gradviz.events.kinds import Kind, OpRan
from gradviz.query.flow import chain, computed_alike, leaves_of, op_of
from gradviz.query.ops import COPYING, JOINING, RESHAPING, SELECTING, SHARING, SPLITTING
from gradviz.sets import contained

_VIEWING = COPYING | RESHAPING | SELECTING | SHARING | SPLITTING | {"narrow"}


@dataclass(frozen=True, slots=True)
class CutPart:
    """`event` cuts a part off the tensor `whole`, and the op `joined` joins the part with the rest. `leaves` are the
    trained leaves behind the whole."""

    event: int
    whole: int
    joined: int
    leaves: tuple[int, ...]


def cut_parts(case: Case) -> list[CutPart]:
    """The parts that are cut off and joined again, one for each line. Use `case.of(cut_parts)`."""
    ops, ran = case.trace.table(Kind.OP), case.query.nodes.ops_that_ran
    joins = ops.events[case.trace.named(ops["op"], JOINING) & contained(ops.events, ran)]
    found: dict[int, CutPart] = {}
    for events in case.by_site(joins).values():
        for part in _of_join(case, case.query.tensors.op(int(events[0]))):
            found.setdefault(case.site(part.event), part)
    return list(found.values())


def _of_join(case: Case, join: OpRan) -> Iterator[CutPart]:
    """The inputs of a join that are cut-off parts of a tensor, if another input is an open part of the same tensor."""
    inputs = [tensor for tensor in join.inputs if tensor]
    wholes = [
        _whole(case, tensor) for tensor in inputs if case.query.tensors.requires_grad(tensor, join.index)
    ]
    for tensor in inputs:
        cut = None if case.query.tensors.requires_grad(tensor, join.index) else _cut(case, tensor)
        if cut is None:
            continue
        event, source = cut
        whole = _whole(case, source)
        if op_of(case.query, whole) is None or not any(
            computed_alike(case.query, whole, other) for other in wholes
        ):
            continue
        leaves = [leaf for leaf in leaves_of(case.query, whole) if leaf in case.training.trained]
        if leaves:
            yield CutPart(event, whole, join.index, tuple(leaves))


def _cut(case: Case, tensor: int) -> tuple[int, int] | None:
    """(event, source): the view op that cuts a tensor off, and the tensor that it is a view of; else None."""
    views = ((view.index, view.inputs[0]) for view in _views_behind(case, tensor))
    return next(
        ((event, source) for event, source in views if case.query.tensors.requires_grad(source, event)), None
    )


def _whole(case: Case, tensor: int) -> int:
    """The tensor at the beginning of a chain of views; the tensor itself if it is no view."""
    for view in _views_behind(case, tensor):
        tensor = view.inputs[0]
    return tensor


def _views_behind(case: Case, tensor: int) -> Iterator[OpRan]:
    """The view ops behind a tensor, the last op first."""
    return chain(case.query, tensor, lambda op: op.op in _VIEWING)
