"""What is in a trace, in a few numbers: for `info` and for the summary after a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.events.listener import LEAF, REQUIRES_GRAD
from gradviz.graph.names import Names
from gradviz.tracefile import Trace


@dataclass(frozen=True, slots=True)
class LeafInfo:
    """A leaf at the end of the run. `has_grad` tells whether its `.grad` is there."""

    tensor: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    has_grad: bool
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Overview:
    """Counts of a run. `shapes` is how many different structures its passes have."""

    events: int
    ops: int
    nodes: int
    passes: int
    shapes: int
    leaves: list[LeafInfo]
    error: dict[str, Any] | None

    @property
    def wanting(self) -> list[LeafInfo]:
        """The leaves that require grad."""
        return [leaf for leaf in self.leaves if leaf.requires_grad]


def overview(trace: Trace) -> Overview:
    """The overview of a trace."""
    ops = trace.indices(Kind.OP)
    nodes = np.unique(
        np.concatenate([trace.events["subject"][ops], trace.events["subject"][trace.indices(Kind.RECEIVED)]])
    )
    digests = Counter(run.digest for run in trace.passes if run.digest)
    return Overview(
        events=trace.count,
        ops=len(ops),
        nodes=int(np.count_nonzero(nodes)),
        passes=len(trace.passes),
        shapes=len(digests),
        leaves=leaves(trace),
        error=error(trace),
    )


def leaves(trace: Trace) -> list[LeafInfo]:
    """The leaves of a run: all that require grad, and those with a name that do not, once a place."""
    names = Names(trace)
    with_grad = tensors_with_grad(trace)
    flags = final_flags(trace)
    found: list[LeafInfo] = []
    seen: set[tuple[str, int]] = set()
    for tensor in _candidates(trace, flags):
        requires_grad = bool(flags[tensor] & REQUIRES_GRAD)
        maker = names.maker(tensor)
        site = trace.sites.get(maker.site) if maker is not None else None
        place = (site.place.file, site.place.line) if site is not None else ("", 0)
        name = names.of(tensor)
        if not requires_grad:
            if name is None or (name, place[1]) in seen:
                continue
            seen.add((name, place[1]))
        snapshot = trace.snapshot(tensor)
        if snapshot is not None:
            label, has_grad = names.label(tensor), tensor in with_grad
            info = LeafInfo(tensor, label, snapshot.shape, snapshot.dtype, requires_grad, has_grad, *place)
            found.append(info)
    return found


def final_flags(trace: Trace) -> dict[int, int]:
    """The flags of every tensor that did not come from an op, and of those whose flags were changed."""
    events = trace.events
    told = trace.indices(Kind.TENSOR, Kind.REQUIRES_GRAD_CHANGED, Kind.MUTATED)
    flags = (events["head"][told] >> 8) & 0xFF
    return dict(zip(events["subject"][told].tolist(), flags.tolist(), strict=True))


def _candidates(trace: Trace, flags: dict[int, int]) -> list[int]:
    made = trace.indices(Kind.TENSOR)
    seeds = {number for number, text in trace.strings.items() if text in ("gradient", "data")}
    plain = [
        tensor
        for tensor, how in zip(
            trace.events["subject"][made].tolist(), trace.events["name"][made].tolist(), strict=True
        )
        if how not in seeds
    ]
    changed = [tensor for tensor in flags if flags[tensor] & REQUIRES_GRAD]
    return [tensor for tensor in dict.fromkeys([*plain, *changed]) if flags[tensor] & LEAF]


def tensors_with_grad(trace: Trace) -> set[int]:
    """The tensors whose `.grad` is there at the end of the run."""
    events = trace.events
    told = trace.indices(Kind.ACCUMULATED, Kind.RETAINED, Kind.GRAD_ASSIGNED)
    last = dict(zip(events["subject"][told].tolist(), events["object"][told].tolist(), strict=True))
    return {tensor for tensor, grad in last.items() if grad}


def error(trace: Trace) -> dict[str, Any] | None:
    """How the run failed: type, message, file and line, and the node of a failing pass; None if it did not."""
    if trace.meta.get("ended") == "error":
        message = trace.meta.get("error", "")
        node = trace.errors[-1].node if trace.errors and trace.errors[-1].message in message else 0
        made = trace.node_event(node)
        site = trace.sites.get(trace.event(made).site) if made is not None else None
        return {
            "type": trace.meta.get("error_type", ""),
            "message": message.partition(": ")[2] or message,
            "file": trace.meta.get("error_file", ""),
            "line": int(trace.meta.get("error_line", 0)),
            "node": node or None,
            "node_line": site.place.line if site is not None else None,
        }
    if trace.meta.get("ended") == "":
        return {"type": "Killed", "message": "the run did not end: it was killed, or is still running"}
    return None
