"""The nodes that still need the old value of a tensor that is changed in place."""

from __future__ import annotations

from collections.abc import Sequence

from gradviz.events.field_types import Saved
from gradviz.events.kinds import Kind, NodeMade, OpRan
from gradviz.query.query import Query
from gradviz.sets import contained, distinct

_LOOKED_AT = 10_000  # the most events before the write that are searched
_SHOWN = 8  # the most nodes


def needing(query: Query, tensor: int, k: int) -> list[tuple[NodeMade, Saved]]:
    """The nodes that saved an earlier version of a tensor that event k changes and that have not run yet, each with the
    saved tensor. Their backward would fail. Only events shortly before k are searched."""
    version = query.tensors.version(tensor, k)
    if not version:
        return []
    first = max(k - _LOOKED_AT, 0)
    query.trace.reach(first, k)
    nodes, received = query.trace.table(Kind.NODE), query.trace.table(Kind.RECEIVED)
    saved = nodes.lists("saved")
    window = (nodes.events[saved.owners] >= first) & (nodes.events[saved.owners] < k)
    window &= saved.elements[:, 1] < version
    ran = received["node"][(received.events >= first) & (received.events < k)]
    window[window] = ~contained(nodes["node"][saved.owners[window]], ran)
    written = _counted_together(query, tensor, distinct(saved.elements[window, 0]).tolist(), k)
    window &= contained(saved.elements[:, 0], list(written))
    pairs = []
    for event in nodes.events[distinct(saved.owners[window])][-_SHOWN:].tolist():
        node = nodes.object(event)
        kept = next(s for s in node.saved if s.tensor in written and s.version < version)
        if kept.version == query.tensors.version(
            kept.tensor, node.index
        ):  # else the node's op itself wrote over the tensor, and saved a copy
            pairs.append((node, kept))
    return pairs


def _counted_together(query: Query, tensor: int, others: Sequence[int], k: int) -> set[int]:
    """The tensor, and those of `others` on the same memory that share its version counter. A result of `.data` has its
    own counter."""
    sharing = {tensor, *(other for other in others if query.memory.share(tensor, other, k))}
    apart = {t for t in sharing if counts_apart(query, t)}
    return {tensor} if tensor in apart else sharing - apart


def counts_apart(query: Query, tensor: int) -> bool:
    """Whether a tensor is an alias with its own version counter, as `.data` makes: the result of that op, or a TENSOR
    event with a base."""
    made = query.tensors.made(tensor)
    if made is None or not query.trace.states.base(tensor):
        return False
    return made.op == "data" if isinstance(made, OpRan) else True
