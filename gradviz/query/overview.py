"""Sums up a trace in a few numbers, for `info` and for the summary after a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradviz.events.kinds import LEAF, REQUIRES_GRAD, TensorMade
from gradviz.query.passes import ranges
from gradviz.query.query import Query
from gradviz.sets import distinct
from gradviz.tracefile.contents import NOT_PLAIN
from gradviz.tracefile.whitelist import GONE


@dataclass(frozen=True, slots=True)
class LeafInfo:
    """A leaf at the end of the run. `has_grad` is whether its `.grad` is not None, `is_cleared` whether it is None
    because it was cleared. `file` and `line` are where it was made, "" and 0 for a leaf from before the recording."""

    tensor: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    has_grad: bool
    is_cleared: bool
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Overview:
    """Counts over a run. `shapes` is the number of different graph structures among its passes."""

    events: int
    ops: int
    nodes: int
    passes: int
    kept: str  # the passes of the run that are in the trace, if not all are: `19 to 22, 56 to 60`
    detailed: int  # the number of passes with recorded nodes
    shapes: int
    leaves: list[LeafInfo]
    error: dict[str, Any] | None
    of_others: bool = False  # whether processes that the run started have ended: a trace has one process
    stopped: str = ""  # why the recording ended before the run, if it did

    @property
    def wanting(self) -> list[LeafInfo]:
        """The leaves that require grad."""
        return [leaf for leaf in self.leaves if leaf.requires_grad]


@dataclass(frozen=True, slots=True)
class Holdings:
    """The private contents of a trace: the number of source files, of tensors with elements (None if there are some
    that were not counted), of error messages, and of lines that the program printed."""

    files: int
    tensors: int | None
    messages: int
    printed: int


def holdings(query: Query) -> Holdings:
    """The private contents of a trace. The tensors of a long run are not counted: that would read all of it."""
    trace = query.trace
    messages = {error.message for error in trace.errors} - {"", GONE}
    tensors: int | None = 0
    if trace.meta.get("values") != "none" and not trace.meta.get("redacted"):
        tensors = len(distinct(trace.states.in_full)) if trace.is_whole else None
    return Holdings(trace.source_files, tensors, len(messages), len(trace.printed))


def overview(query: Query) -> Overview:
    """The overview of a trace."""
    trace = query.trace
    numbers = trace.pass_numbers
    return Overview(
        events=trace.count,
        ops=trace.ops_told,
        nodes=trace.nodes_told,
        passes=len(numbers),
        kept="" if len(numbers) == trace.passes_begun else ranges(numbers),
        detailed=trace.passes_in_detail,
        shapes=trace.shapes,
        leaves=leaves(query),
        error=error(query),
        of_others="children" in trace.meta,
        stopped=trace.meta.get("stopped", ""),
    )


def leaves(query: Query) -> list[LeafInfo]:
    """The leaves of a run: all that require grad, and named leaves that do not, one for each line and name. Of the
    leaves that a site makes repeatedly it is the first."""
    trace, names = query.trace, query.names
    at = trace.count - 1
    infos: list[LeafInfo] = []
    seen: set[tuple[str, int]] = set()
    for tensor in _candidates(query):
        requires_grad = query.tensors.requires_grad(tensor, at)
        maker = query.tensors.made(tensor)
        is_earlier = (
            isinstance(maker, TensorMade) and maker.how == "earlier"
        )  # the site of an earlier tensor is where it was first used
        site = None if maker is None or is_earlier else trace.sites.get(maker.site)
        place = (site.place.file, site.place.line) if site is not None else ("", 0)
        name = names.of(tensor)
        if not requires_grad:
            if name is None or (name, place[1]) in seen:
                continue
            seen.add((name, place[1]))
        snapshot = trace.snapshot(tensor)
        if snapshot is not None:
            infos.append(
                LeafInfo(
                    tensor,
                    query.labels.of(tensor),
                    snapshot.shape,
                    snapshot.dtype,
                    requires_grad,
                    bool(query.tensors.grad(tensor, at)),
                    requires_grad and query.tensors.is_grad_cleared(tensor, at),
                    *place,
                )
            )
    return infos


def _candidates(query: Query) -> list[int]:
    """Leaves made by TENSOR events, except gradient roots and results of `.data`: leaves with a name, the first leaf of
    each site, and all leaves that require grad."""
    trace, at = query.trace, query.trace.count - 1
    first_made, required = trace.leaves_told
    trace.reach_tensors([*first_made, *trace.parameters, *trace.variables, *required], at)
    plain = {}
    for tensor in {*first_made, *trace.parameters, *trace.variables}:
        made = query.tensors.made(tensor)
        if isinstance(made, TensorMade) and made.how not in NOT_PLAIN:
            plain[tensor] = made.index
    ordered = dict.fromkeys([*sorted(plain, key=plain.__getitem__), *sorted(required)])
    flags = {tensor: query.tensors.told_flags(tensor, at) for tensor in ordered}
    views = set(query.tensors.views_of_leaves.tolist())
    return [
        tensor
        for tensor in ordered
        if tensor not in views and flags[tensor] & LEAF and (tensor in plain or flags[tensor] & REQUIRES_GRAD)
    ]


def error(query: Query) -> dict[str, Any] | None:
    """The failure of the run: type, message, file and line, and the node if a pass failed. None if it did not fail."""
    trace = query.trace
    if trace.meta.get("ended") == "error":
        message = trace.meta.get("error", "")
        node = next((e.node for e in trace.errors[::-1] if e.node and e.message in message), 0)
        made = query.nodes.event(node)
        site = trace.sites.get(made.site) if made is not None else None
        line = trace.meta.get("error_line", "0")
        return {
            "type": trace.meta.get("error_type", ""),
            "message": message.partition(": ")[2] or message,
            "file": trace.meta.get("error_file", ""),
            "line": int(line) if line.isdecimal() else 0,
            "node": node or None,
            "node_line": site.place.line if site is not None else None,
        }
    if trace.meta.get("ended") == "" and not trace.is_being_recorded:
        return {"type": "Killed", "message": "the end of the run was not recorded"}
    return None
