"""Who still needs a tensor that is being written over."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from gradviz.events.kinds import Kind, Mutated, OpRan, TensorMade
from gradviz.step.numbers import clean
from gradviz.step.stop import Stop

_LOOKED_AT = 10_000  # events before the write
_SHOWN = 8  # nodes


@lru_cache(maxsize=4)
def needing(stop: Stop, event: Mutated) -> tuple[str, ...]:
    """The nodes that saved the tensor at an earlier version and have not run yet, each with the expression and line of
    its op: their backward would refuse. Looks at the events shortly before the write."""
    trace = stop.facts.trace
    first = max(stop.k - _LOOKED_AT, 0)
    kinds = trace.kinds[first : stop.k]
    ops = first + np.flatnonzero(kinds == Kind.OP)
    if not len(ops) or not event.version:
        return ()
    links, counts = trace.links(ops)
    ran = trace.events["subject"][first + np.flatnonzero(kinds == Kind.RECEIVED)]
    written = _counted_together(stop, event.tensor)
    owners = np.unique(np.repeat(ops, counts)[np.isin(links, list(written))])
    found = []
    for index in owners[~np.isin(trace.events["subject"][owners], ran)][-_SHOWN:].tolist():
        op = trace.event(index)
        versions = [v for t, v in getattr(op, "saved", ()) if t in written and v < event.version]
        if isinstance(op, OpRan) and op.node and versions:
            found.append(f"{clean(op.grad_fn)}{_place(stop, op)} saved it at version {versions[0]}")
    return tuple(found)


def _counted_together(stop: Stop, tensor: int) -> set[int]:
    """The tensors of one memory, whose versions are one count; `.data` has a count of its own."""
    memory, names = stop.facts.moments.memory, stop.facts.names
    if tensor not in memory.shared:
        return {tensor}
    sharing = {tensor, *(t for t in sorted(memory.shared)[-_LOOKED_AT:] if memory.share(tensor, t, stop.k))}
    apart = {t for t in sharing if isinstance(maker := names.maker(t), TensorMade) and maker.how == "data"}
    return {tensor} if tensor in apart else sharing - apart


def _place(stop: Stop, op: OpRan) -> str:
    text = stop.facts.expression(op.site, 44)
    site = stop.facts.site(op.site)
    return (f" of {text}" if text else "") + (f", line {site.place.line}," if site is not None else "")
