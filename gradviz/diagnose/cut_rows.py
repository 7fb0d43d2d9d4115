"""Rows of a weight that never get a gradient, because the part of a result that they compute is cut off: the keys of a
fused `q, k, v = self.qkv(x).chunk(3, -1)` behind `k.detach()`. The other rows learn, which hides it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.events.kinds import Kind, OpRan
from gradviz.events.values import Stat
from gradviz.query.flow import chain, op_of
from gradviz.query.ops import PRODUCTS, SHARING
from gradviz.sets import distinct

_LEAST = 2  # the fewest passes, and the fewest dimensions of a matrix
_NEAR = 64  # the most results of a leaf that are looked at
_ALMOST = 0.999
_VIEWS = 6  # the most views between a result and a part of it


@dataclass(frozen=True, slots=True)
class CutRows:
    """The op that cuts a part of a result off, the leaf whose rows compute that part, and their share of the leaf."""

    event: int
    leaf: int
    share: float


def cut_rows(case: Case) -> list[CutRows]:
    """The parts that are cut off, one for each line. Use `case.of(cut_rows)`."""
    found: dict[int, CutRows] = {}
    for leaf, zeros in _partly_zero(case):
        for one in _cut_parts(case, leaf, zeros):
            found.setdefault(case.site(one.event), one)
    return list(found.values())


def _partly_zero(case: Case) -> Iterator[tuple[int, float]]:
    """The trained matrices with some zeros in every gradient, each with the smallest share of zeros."""
    came = case.trace.table(Kind.ACCUMULATED)
    states = case.trace.states
    rows = states.rows_of(came["gradient"], came.events)
    for leaf in distinct(came["tensor"]).tolist():
        form = states.form(states.first(leaf))
        own = rows[came["tensor"] == leaf]
        if leaf not in case.training.trained or form is None or len(form.shape) < _LEAST or len(own) < _LEAST:
            continue
        if (own < 0).any() or not prod(form.shape):
            continue
        zeros = float(np.min(states.stats[own, Stat.ZEROS])) / prod(form.shape)
        if 0 < zeros < _ALMOST:
            yield leaf, zeros


def _cut_parts(case: Case, leaf: int, zeros: float) -> Iterator[CutRows]:
    """The ops that cut off a part of a result, if the part's rows are no more than the share `zeros` of the leaf."""
    results = case.downstream.results(leaf, _NEAR)
    for source, readers in results.items():
        whole = _whole(case, source)
        share = case.trace.states.size_of(source) / whole if whole else 1.0
        for event in readers if share < 1 and zeros >= _ALMOST * share else ():
            op = case.query.tensors.op(event)
            if op.op in SHARING and op.outputs and _is_a_cut(case, op, source):
                yield CutRows(event, leaf, share)


def _whole(case: Case, tensor: int) -> int:
    """The number of elements of the layer's result that a tensor is a part of, by views alone; 0 if there is none."""

    def is_view(op: OpRan) -> bool:
        return (
            op.op not in PRODUCTS and len(op.inputs) == 1 and op.rule is not None and not op.rule.elementwise
        )

    for view in chain(case.query, tensor, is_view, _VIEWS):
        tensor = view.inputs[0]
    made = op_of(case.query, tensor)
    is_product = made is not None and made.op in PRODUCTS and made.op != "embedding"
    return case.trace.states.size_of(tensor) if is_product else 0


def _is_a_cut(case: Case, op: OpRan, source: int) -> bool:
    """Whether an op drops the graph of its source, other ops read its result, and no other op reads the source."""
    wanting = case.query.tensors.requires_grad(source, op.index)
    is_read = any(case.downstream.readers(out) for out in op.outputs)
    others = [reader for reader in case.downstream.readers(source) if reader != op.index]
    return bool(wanting) and is_read and not others and not case.query.nodes.of_op(op.index)
