"""The text of a node: lines, each with a role (see style.LINES)."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from gradviz.graph.groups import PLACE
from gradviz.graph.model import LEAF, OP, RECEIVE, SEND, TENSOR, Apart, Exchange, Node
from gradviz.pictures.boxes import box_lines
from gradviz.pictures.default_arguments import shown_arguments
from gradviz.query.ops import FILLED, operator_of
from gradviz.tracefile import Snapshot
from gradviz.words.escape import plain, plain_name
from gradviz.words.numbers import BRIEF as BRIEF_VALUE
from gradviz.words.numbers import has_odd, plural, value_label
from gradviz.words.rank_names import called_ranks, told_apart

Line = tuple[str, str]
_MOST_APART = 3  # the most different values of ranks at a node
MOST_EXCHANGES = 4  # the most exchanges between ranks that a node lists


FULL, OVERVIEW, BRIEF = "full", "overview", "brief"  # the levels of detail of a node's text


def lines_of(node: Node, show: str, detail: str = FULL, uses: int = 0) -> list[Line]:
    """The lines of a node in a picture that shows `show` (both, forward, backward).

    An `overview` omits the line that the node's look already shows; a `brief` picture omits all such lines, and
    values. `uses` is the number of ops that read the node."""
    lines = (_briefly if detail == BRIEF else _WRITERS[node.kind])(node, show)
    if detail == OVERVIEW and node.kind in (LEAF, TENSOR):
        lines = [line for line in lines if line[1] not in _TOLD_BY_LOOK]
    if uses > 1 and node.is_leaf and node.requires_grad:
        lines.append(("fact", f"used {uses:,}×"))
    role = "args" if node.kind == OP or node.op == PLACE else "fact"
    lines += [(role, exchange_told(one)) for one in node.exchanges[:MOST_EXCHANGES]]
    if node.finding:
        lines.append(("finding", plain(node.finding, 60)))
    if node.held_apart and not node.apart:
        lines.append(("apart", f"{node.held_apart:,} inside not the same on all ranks"))
    return [*lines, *(("apart", plain(told, 90)) for one in node.apart for told in apart_told(one))]


def exchange_told(one: Exchange) -> str:
    """An exchange between ranks: `all_gather · 2 ranks`, `sent to rank 1`, `.grad received from rank 0`."""
    if one.how not in (SEND, RECEIVE):
        return plain(one.how, 40)
    other = "another rank" if one.rank is None else f"rank {one.rank}"
    way = "sent to" if one.how == SEND else "received from"
    return f"{one.whose} {way} {other}".strip()


def called_cut(cut: str) -> str:
    """A cut that no finding complains of, in a word: `detached`, `no_grad`, `not differentiable`."""
    return "detached" if cut == "detach" else plain(cut, 30)


def apart_told(one: Apart) -> list[str]:
    """The differences between ranks: `.grad on rank 0: rms 0.3`, and so on for each rank."""
    if one.what == "node":
        return [f"only on {called_ranks(ranks)}" for value, ranks in one.held if value is not None]
    texts = told_apart([value if isinstance(value, Snapshot) else None for value, _ in one.held])
    shown = [
        f"{one.what} on {called_ranks(ranks)}: {plain(value, 60) if isinstance(value, str) else text}"
        for text, (value, ranks) in zip(texts[:_MOST_APART], one.held, strict=False)
    ]
    more = [rank for _, ranks in one.held[_MOST_APART:] for rank in ranks]
    return [*shown, *([f"something else on {called_ranks(more)}"] if more else [])]


def _briefly(node: Node, show: str) -> list[Line]:
    if node.kind not in (LEAF, TENSOR):
        return _WRITERS[node.kind](node, show)
    if node.name is None:
        return [_shape_and_value(node)] if has_odd(node.value) else [("value", _shape(node))]
    return [line for line in _tensor(node, show) if line[0] != "fact" or line[1].startswith(".grad")]


def _tensor(node: Node, show: str) -> list[Line]:
    named = node.name is not None
    name = plain_name(node.label, 40)
    lines = [("name" if named else "unnamed", name), ("fact", facts(node))]
    lines += [("fact", f"= {plain_name(other, 40)}") for other in node.tied]
    if node.grad_fn and (named or show == "forward"):
        lines.append(("fact", f"grad_fn={plain(node.grad_fn, 40)}"))
    lines.append(_shape_and_value(node))
    if node.used is not None:
        lines.append(("error", f"in backward {value_label(node.used)}"))
    if node.grad is not None:
        lines.append(_valued(".grad", node.grad, "grad", node.becomes.get("grad")))
        if sum_text := added_told(node.added):
            lines.append(("grad", sum_text))
    elif node.is_leaf and node.requires_grad and named and not node.overwritten:
        now = node.becomes.get("grad")
        lines.append(
            ("fact", ".grad = None") if now is None else ("apart", f".grad = None → {value_label(now)}")
        )
    if node.reached is not None:
        lines.append(_valued("gradient", node.reached, "grad"))
    if node.tangent is not None:
        lines.append(_valued("tangent", node.tangent, "grad"))
    if node.version:
        lines.append(("fact", f"version {node.version}, after {plain(node.written_by, 30)}"))
    if node.base and named:
        lines.append(("fact", f"shares memory with {plain(node.base, 30)}"))
    return lines


# The lines about a tensor that its shape and colour already show.
_TOLD_BY_LOOK = {
    f"{kind}{flag}{root}"
    for kind in ("leaf", "non-leaf")
    for flag in ("", " · requires_grad", " · requires_grad=False")
    for root in ("", " · root")
}


def facts(node: Node) -> str:
    """The role of a tensor for autograd: `leaf · requires_grad`."""
    parts = ["leaf" if node.is_leaf else "non-leaf"]
    if node.requires_grad:
        parts.append("requires_grad")
    elif node.parameter:
        parts.append("buffer" if node.buffer else "frozen")
    elif node.name is not None:
        parts.append("requires_grad=False")
    if node.root:
        parts.append("root")
    if node.op == "gradient":
        parts.append("starts the pass")
    if node.retained:
        parts.append("retains grad")
    return " · ".join(parts)


def added_told(added: tuple[Snapshot, Snapshot] | None) -> str:
    """A `.grad` as a sum: `= 0.6 (before) + 0.6`; empty if it has too many elements to be written."""
    if added is None or added[0].array is None or added[0].array.size > BRIEF_VALUE:
        return ""
    before, came = map(value_label, added)
    return f"= {before} (before) + {came}"


def _shape_and_value(node: Node) -> Line:
    role, text = _valued(_shape(node), node.value, "value", node.becomes.get("value"))
    return ("value" if role == "odd" and _is_filled_with_infinity(node) else role), text


def _is_filled_with_infinity(node: Node) -> bool:
    """Whether the program wrote the infinity of a tensor as its filling, as that of a mask: it is no fault."""
    stats = node.value.stats if node.value is not None else None
    is_filled = node.op in FILLED and not (node.requires_grad or node.version or node.becomes)
    return is_filled and stats is not None and not stats.nan


def _shape(node: Node) -> str:
    shape = "scalar" if node.shape == () else str(list(node.shape)) if node.shape is not None else "?"
    if node.dtype not in ("float32", None):
        shape += f" {node.dtype}"
    return shape


def _valued(label: str, snapshot: Snapshot | None, role: str, becomes: Snapshot | None = None) -> Line:
    text = value_label(snapshot) if snapshot is not None else ""
    role = "odd" if has_odd(snapshot) else role
    if becomes is not None:
        text, role = f"{text or '?'} → {value_label(becomes)}", "odd" if has_odd(becomes) else "apart"
    if not text:
        return role, label
    return role, f"{label} {text}" if text.startswith("rms") else f"{label} = {text}"


def _op(node: Node, show: str) -> list[Line]:
    if operator := operator_of(node.op or "", node.args):
        return [("value", plain(operator, 40))]
    name, args = plain(node.name or "?", 40), shown_arguments(node.op or "", node.args)
    lines = [("value", name)]
    if args:
        lines.append(("args", args))
    return lines


def _grad_fn(node: Node, show: str) -> list[Line]:
    lines = [("value", plain(node.name or f"node {node.number}", 40))]
    if show == "backward" and node.base:
        lines.append(("name", plain(node.base, 40)))
    if node.root and node.upstream is not None:
        lines.append(("grad", f"starts with {value_label(node.upstream)}"))
    return [*lines, *_error(node)]


_HELD = {"op": "ops", "leaf": "leaves", "grad_fn": "grad_fns"}  # the contents of a group that are counted


def _group(node: Node, show: str) -> list[Line]:
    if node.box is not None:
        return box_lines(node, node.box)
    lines = [("name", plain(node.name or "", 40))]
    counts = [plural(count, one, many) for one, many in _HELD.items() if (count := node.held.get(one))]
    if counts:
        lines.append(("fact", " · ".join(counts)))
    if node.line:
        lines.append(("unnamed", f"from line {node.line}"))
    return [*lines, *_error(node)]


def _error(node: Node) -> list[Line]:
    return [("error", part) for part in textwrap.wrap(plain(node.error, 130), 36)] if node.error else []


_WRITERS: dict[str, Callable[[Node, str], list[Line]]] = {
    "leaf": _tensor,
    "tensor": _tensor,
    "op": _op,
    "grad_fn": _grad_fn,
    "group": _group,
}
