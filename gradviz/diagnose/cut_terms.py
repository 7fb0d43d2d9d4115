"""Terms of a loss that give no gradient, though they were computed from trained leaves: `fit + kl.item()`,
`fit + kl.detach()`. These leaves may get gradients from other terms, so that nothing else shows the cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradviz.diagnose.case import Case
from gradviz.diagnose.cut_uses import cut_behind
from gradviz.events.kinds import Kind, OpRan, TensorMade
from gradviz.query.copies import copied_from
from gradviz.query.lack import FROM_OUTSIDE
from gradviz.query.ops import SHARING, SUMS
from gradviz.query.plain_numbers import numbers_read
from gradviz.query.upstream import leaves_of
from gradviz.sets import contained


@dataclass(frozen=True, slots=True)
class CutTerm:
    """A term that is added to a loss without its graph. `event` reads or cuts `tensor`, which the source has as
    `reading`; `leaves` are the trained leaves behind it."""

    event: int
    tensor: int
    reading: str
    leaves: tuple[int, ...]


def cut_terms(case: Case) -> list[CutTerm]:
    """The terms of losses that are cut off, one for each line. Use `case.of(cut_terms)`."""
    ops, made, received = (case.trace.table(kind) for kind in (Kind.OP, Kind.NODE, Kind.RECEIVED))
    ran = contained(made["node"], received["node"])
    adding = ops.events[case.trace.named(ops["op"], SUMS) & contained(ops.events, made["op"][ran])]
    used = set(received["node"].tolist())
    found: list[CutTerm] = []
    for events in case.by_site(adding).values():
        op = case.query.tensors.op(int(events[0]))
        if not op.outputs or case.query.tensors.shape(op.outputs[0]) != ():
            continue
        found += _without_any_graph(case, op)
        for event, tensor, reading in _read_without_graph(case, op):
            leaves = _learning_behind(case, tensor)
            if leaves and used.isdisjoint(case.query.nodes.of_tensors.of(tensor)[1].tolist()):
                found.append(CutTerm(event, tensor, reading, leaves))
    return found


def _without_any_graph(case: Case, op: OpRan) -> Iterator[CutTerm]:
    """The terms of an addition that were computed since the last pass without a graph: `loss_of(net(x).detach())`."""
    since = max(
        (
            case.query.passes.last(backward_pass)
            for backward_pass in case.trace.passes
            if backward_pass.first < op.index
        ),
        default=-1,
    )
    for source in filter(None, op.inputs):
        maker = case.query.tensors.made(source)
        is_plain = isinstance(maker, OpRan) and maker.op not in SHARING
        if case.query.tensors.shape(source) != ():
            continue
        if isinstance(maker, TensorMade) and maker.how in FROM_OUTSIDE and maker.index > since:
            copied = copied_from(case.query, maker)
            has_graph = bool(copied) and case.query.tensors.requires_grad(copied, maker.index)
            if has_graph and (behind := _learning_behind(case, copied)):
                yield CutTerm(maker.index, source, case.words.called(source), behind)
            continue
        if not is_plain or case.query.tensors.requires_grad(source, op.index):
            continue
        cut = cut_behind(case, source, since, case.training.trained)
        if cut is not None:
            yield CutTerm(cut[0], source, case.words.called(source), tuple(sorted(cut[1])))


def _learning_behind(case: Case, tensor: int) -> tuple[int, ...]:
    """The trained leaves that a tensor was computed from."""
    return tuple(leaf for leaf in leaves_of(case.query, tensor) if leaf in case.training.trained)


def _read_without_graph(case: Case, op: OpRan) -> Iterator[tuple[int, int, str]]:
    """The tensors that require grad and that an addition uses as a number or detached: (the event that reads or
    detaches the tensor, the tensor, its text in the source)."""
    for tensor, reading in numbers_read(case.query, op.index):
        yield op.index, tensor, reading
    for source in filter(None, op.inputs):
        maker = case.query.tensors.made(source)
        if isinstance(maker, OpRan) and maker.op in SHARING and case.query.tensors.shape(source) == ():
            for tensor in filter(None, maker.inputs[:1]):
                if case.query.tensors.requires_grad(tensor, op.index):
                    yield maker.index, tensor, case.words.called(source)
