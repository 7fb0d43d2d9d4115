"""Frozen modules whose batch norm is in training mode: the running statistics go on to change, though no parameter
does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.lost_change import lost_averages
from gradviz.events.kinds import Kind, OpRan, ScopeEntered
from gradviz.query.writes import Writes

_RUNNING_MEAN, _WEIGHT = 1, 3  # the inputs of batch norm
_LEAST = 2  # calls


@dataclass(frozen=True, slots=True)
class FrozenStatistics:
    """The outermost frozen module around some batch norms, its first call, and the weights of these batch norms."""

    module: ScopeEntered
    weights: tuple[int, ...]


def frozen_statistics(case: Case) -> list[FrozenStatistics]:
    """The frozen modules whose running statistics change between passes, one for each line. A module is not meant to be
    frozen if an average for it is lost. Use `case.of(frozen_statistics)`."""
    followers = {leaf for lost in case.of(lost_averages) for leaf in lost.leaves}
    ops = case.trace.table(Kind.OP)
    norms = ops.events[case.trace.named(ops["op"], ("batch_norm",))]
    calls: dict[int, list[OpRan]] = {}
    for event in norms[~case.query.passes.contains(norms)].tolist():
        op = ops.object(event)
        if len(op.inputs) > _WEIGHT and op.inputs[_RUNNING_MEAN] and "training=True" in op.args:
            calls.setdefault(op.inputs[_WEIGHT], []).append(op)
    found: dict[int, tuple[ScopeEntered, list[int]]] = {}
    for weight, own in calls.items():
        module = _frozen_module(case, weight, own) if weight and weight not in followers else None
        if module is not None:
            found.setdefault(module.site, (module, []))[1].append(weight)
    return [FrozenStatistics(module, tuple(weights)) for module, weights in found.values()]


def _frozen_module(case: Case, weight: int, calls: list[OpRan]) -> ScopeEntered | None:
    """The outermost module around the calls of a batch norm that is frozen from the first of these calls on; None if
    the batch norm is not frozen for good, or if no pass runs between its calls."""
    frozen = [op for op in calls if not case.query.tensors.requires_grad(weight, op.index)]
    if (
        len(frozen) < _LEAST
        or frozen != calls[-len(frozen) :]
        or _changes_after(case, weight, frozen[0].index)
    ):
        return None
    first, last = frozen[0].index, frozen[-1].index
    if not any(first < backward_pass.first < last for backward_pass in case.trace.passes):
        return None
    around = case.query.scopes.around(first, frozen[0].thread)
    return next((scope for scope in around if _is_frozen(case, scope)), None)


def _changes_after(case: Case, leaf: int, event: int) -> bool:
    """Whether a leaf gets a gradient or a value after an event: its network takes turns with another one, or follows
    it."""
    came, writes = case.trace.table(Kind.ACCUMULATED), case.query.of(Writes)
    gets = np.any(came["tensor"][came.events > event] == leaf)
    return bool(gets or np.any(writes.leaves[writes.events > event] == leaf))


def _is_frozen(case: Case, scope: ScopeEntered) -> bool:
    """Whether the call of a module with a name reads parameters, and none of them requires grad."""
    begun, ended = scope.index, _end(case, scope)
    own = [
        leaf
        for leaf in case.trace.parameters
        if any(begun < op < ended for op in case.downstream.readers(leaf))
    ]
    return bool(scope.name and own) and not any(case.query.tensors.requires_grad(leaf, begun) for leaf in own)


def _end(case: Case, scope: ScopeEntered) -> int:
    left = case.trace.table(Kind.SCOPE_LEFT)
    return int(left.events[left["scope"] == scope.scope].min(initial=case.trace.count))
