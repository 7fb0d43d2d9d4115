"""The text of a node: lines, each with a role (see style.LINES)."""

import math
import re
import textwrap
from collections.abc import Callable

from gradviz.graph.function_scopes import square_of
from gradviz.graph.groups import DATA_BOX, PLACE
from gradviz.graph.model import GRAD_FN, LEAF, OP, RECEIVE, SEND, TENSOR, Apart, Box, Exchange, Node
from gradviz.query.ops import FILLED, LOSSES, operator_of
from gradviz.system.paths import file_name
from gradviz.tracefile import Snapshot
from gradviz.words.escape import plain, plain_name
from gradviz.words.numbers import BRIEF as BRIEF_VALUE
from gradviz.words.numbers import bars_of, called_ranks, has_odd, nested, number, plural, told_apart, value_label
from gradviz.words.rows import filled_in

Line = tuple[str, str]
_MOST_APART = 3  # the most different values of ranks at a node
_LONGEST_STEP = 48  # characters of the numbers of a step
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
        if node.cleared is not None and math.prod(node.cleared[0].shape) <= BRIEF_VALUE:
            before, how = node.cleared
            lines.append(("fact", f"{value_label(before)} → {how} → {value_label(node.grad)}"))
    elif node.is_leaf and node.requires_grad and named and not node.overwritten:
        now = node.becomes.get("grad")
        lines.append(("fact", ".grad = None") if now is None else ("apart", f".grad = None → {value_label(now)}"))
    if node.reached is not None:
        lines.append(_valued("gradient", node.reached, "grad"))
    lines += tangent_lines(node)
    if node.version:
        step = "" if node.update is None else filled_in(node.update)
        by = f"{plain(node.written_by, 30)}{f': {step}' if 0 < len(step) <= _LONGEST_STEP else ''}"
        lines.append(("fact", f"version {node.version}, after {by}"))
    if node.base and named:
        lines.append(("fact", f"shares memory with {plain(node.base, 30)}"))
    return lines


def tangent_lines(node: Node) -> list[Line]:
    """The tangent of a tensor, and the sum that makes it: `= 3 × 1 + 2 × 0`."""
    if node.tangent is None:
        return []
    added = " + ".join(f"{nested(local, 4)} × {value_label(tangent)}" for local, tangent in node.pushed)
    sums = [("grad", f"= {added}")] if 0 < len(added) <= _LONGEST_STEP else []
    return [_valued("tangent", node.tangent, "grad"), *sums]


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
    elif node.grad_of:
        parts = [f"{plain(node.grad_of, 30)}.grad"]
    elif node.name is not None or node.op == "earlier":
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
    return role, f"{label} {text}" if text.startswith(("rms", "from", "true in")) else f"{label} = {text}"


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


def _outside(node: Node, show: str) -> list[Line]:
    place = f"{plain(file_name(node.file), 40)}:{node.line}" if node.file else "no source location"
    return [("fact", place), *[("value", plain(node.text, 60))] * bool(node.text)]


_WRITERS: dict[str, Callable[[Node, str], list[Line]]] = {
    "leaf": _tensor,
    "tensor": _tensor,
    "op": _op,
    "grad_fn": _grad_fn,
    "group": _group,
    "outside": _outside,
}


# The arguments of an operation that differ from PyTorch's defaults.

_DROPOUTS = frozenset(("dropout", "dropout1d", "dropout2d", "dropout3d"))

# The functions whose default for an argument this is, as PyTorch documents them.
DEFAULTS: dict[str, frozenset[str]] = {
    "reduction='mean'": LOSSES,
    "ignore_index=-100": frozenset(("cross_entropy", "nll_loss")),
    "label_smoothing=0.0": frozenset(("cross_entropy", "linear_cross_entropy")),
    "beta=1.0": frozenset(("smooth_l1_loss",)),
    "delta=1.0": frozenset(("huber_loss",)),
    "log_input=True": frozenset(("poisson_nll_loss",)),
    "eps=1e-08": frozenset(("poisson_nll_loss",)),
    "eps=1e-06": frozenset(("gaussian_nll_loss", "triplet_margin_loss")),
    "margin=1.0": frozenset(("hinge_embedding_loss", "triplet_margin_loss", "multi_margin_loss")),
    "margin=0": frozenset(("cosine_embedding_loss", "margin_ranking_loss")),
    "blank=0": frozenset(("ctc_loss",)),
    "training=True": _DROPOUTS,
    "p=0.5": _DROPOUTS | {"alpha_dropout", "feature_alpha_dropout"},
    "p=2.0": frozenset(("normalize",)),
    "dim=1": frozenset(("normalize",)),
    "eps=1e-12": frozenset(("normalize",)),
    "tau=1": frozenset(("gumbel_softmax",)),
    "dim=-1": frozenset(("glu", "gumbel_softmax")),
    "eps=1e-10": frozenset(("gumbel_softmax",)),
    "alpha=1.0": frozenset(("celu", "elu")),
    "negative_slope=0.01": frozenset(("leaky_relu",)),
    "min_val=-1.0": frozenset(("hardtanh",)),
    "max_val=1.0": frozenset(("hardtanh",)),
    "mode='nearest'": frozenset(("interpolate", "upsample")),
    "mode='constant'": frozenset(("pad",)),
    "dim=0": frozenset(("cat", "stack")),
    "norm_type=2.0": frozenset(("embedding",)),
}


def shown_arguments(op: str, args: str) -> str:
    """The arguments that a box shows: those that are not the op's defaults, in at most 28 characters."""
    parts = [part for part in re.split(r", (?=[a-z_]\w*=)", args) if op not in DEFAULTS.get(part, ())]
    return plain(", ".join(parts), 28)


# The text of a box for a module, or for a place in the program.

_MOST_SHAPES = 3
_LONGEST_SHAPE = 40  # characters of a name with its shape
_NAMED_SHAPE = re.compile(r"(.+) (\[[0-9, ]*\]|scalar)")
_BARS = 24  # cells for bars: one bar for each block, or for several
_LONGEST_LINE = 24  # about as long as `2 parameters, 204 elements`


def box_lines(node: Node, box: Box) -> list[Line]:
    """The lines of a box, each with its role."""
    lines = _lines_of(node, box)
    is_off = box.cuts == {"no_grad"} and not node.held.get(GRAD_FN) and not node.finding
    if box.parameters:
        lines += _parameters(list(box.parameters.values()), is_off)
    if is_off:
        lines.append(("fact", "under no_grad"))
    elif box.cuts:
        lines.append(("odd" if box.due else "fact", "a gradient stops inside"))
    if node.error:
        lines.append(("error", plain(node.error, 60)))
    return lines


def of_inside(node: Node, box: Box) -> list[str]:
    """The lines of a box without the lines about gradients, which change while a pass runs."""
    lines = _lines_of(node, box)
    if box.parameters:
        lines.append(_size(list(box.parameters.values())))
    return [text for _, text in lines]


def _lines_of(node: Node, box: Box) -> list[Line]:
    if node.op == DATA_BOX:
        return _data(node, box)
    return _place(node, box) if node.op == PLACE else _module(node, box)


def _times(node: Node) -> str:
    return f" ×{node.count:,}" if node.count > 1 else ""


def _module(node: Node, box: Box) -> list[Line]:
    kind = f" · {plain(box.type, 30)}" if box.type and box.type != node.name else ""
    lines = [("name", f"{plain(node.name or '', 40)}{kind}{_times(node)}")]
    if box.takes or box.gives:
        lines.append(("value", f"{_shapes(box.takes)} → {_shapes(box.gives)}".strip()))
    if box.reads:
        lines.append(("fact", f"reads {_shapes(box.reads)}"))
    return lines


def _data(node: Node, box: Box) -> list[Line]:
    """The shapes of the input data, and the amount of data behind it."""
    gives = [("value", _named_shape(text)) for text in list(box.gives)[:_MOST_SHAPES]]
    more = [("value", f"and {len(box.gives) - _MOST_SHAPES} more")] if len(box.gives) > _MOST_SHAPES else []
    tensors = node.held.get(LEAF, 0) + node.held.get(TENSOR, 0)
    ops = node.held.get(OP, 0)
    size = f"{plural(ops, 'op')} on {plural(tensors, 'tensor')}" if ops else plural(tensors, "tensor")
    return [("name", "data"), *gives, *more, ("unnamed", size)]


def _named_shape(text: str) -> str:
    """A name and a shape, `points [64, 2]`, as a short line: a long name is cut, the shape is not."""
    found = _NAMED_SHAPE.fullmatch(text)
    if found is None:
        return plain(text, _LONGEST_SHAPE)
    name, shape = found.groups()
    return f"{plain_name(name, max(_LONGEST_SHAPE - len(shape) - 1, 8))} {shape}"


def _place(node: Node, box: Box) -> list[Line]:
    operator = operator_of(node.name or "", node.args)
    name = f"{plain(operator or node.name or '?', 40)}{_times(node)}"
    gives = f"→ {_shapes(box.gives)}" if box.gives else ""
    args = "" if operator else shown_arguments(node.name or "", node.args)
    parts = [*_filled([name, gives]), args]
    first, *others = [part for part in parts if part]
    return [("value", first), *(("args", part) for part in others)]


def _filled(parts: list[str]) -> list[str]:
    """The parts, in one line if it is not longer than the lines of modules."""
    line = " ".join(part for part in parts if part)
    return [line] if len(line) <= _LONGEST_LINE else parts


def _shapes(shapes: dict[str, None]) -> str:
    shown = [plain(shape, 40) for shape in list(shapes)[:_MOST_SHAPES]]
    return ", ".join(shown) + (", …" if len(shapes) > _MOST_SHAPES else "")


def _parameters(parameters: list[Node], is_off: bool) -> list[Line]:
    """The number of parameters of a module, and the health of their gradients; with `is_off` (under no_grad) no
    gradient is due."""
    lines = [_size(parameters)]
    wanted = [one for one in parameters if one.requires_grad]
    if not wanted:
        return [*lines, ("fact", "frozen")]
    due = [one for one in wanted if one.has_grad or not (one.spared or one.overwritten)]
    if is_off and not any(one.has_grad for one in due):
        return [*lines, ("fact", ".grad = None")]
    return lines + (_health(due) if due else [])


def _size(parameters: list[Node]) -> Line:
    elements = sum(math.prod(one.shape or ()) for one in parameters)
    are_named = all(one.parameter for one in parameters)
    count = plural(len(parameters), *(("parameter",) if are_named else ("leaf", "leaves")))
    return "fact", f"{count}, {plural(elements, 'element')}"


def _health(parameters: list[Node]) -> list[Line]:
    """One line about the gradients of parameters that require one: about `.grad`, or if it is None, about the
    gradients of a pass that does not accumulate."""
    label, grads = ".grad", [one.grad for one in parameters if one.has_grad]
    if not grads:
        label, grads = "gradient", [one.reached for one in parameters if one.reached is not None]
    if not grads:
        return [("unreached", ".grad = None")]
    missing = len(parameters) - len(grads)
    known = [(grad.stats, grad.shape) for grad in grads if grad is not None and grad.stats is not None]
    if any(stats.nan or stats.inf for stats, _ in known):
        return [("odd", f"{label} has " + ("NaN" if any(stats.nan for stats, _ in known) else "inf"))]
    few = f", {missing} of {len(parameters)} without" if missing else ""
    if not known:
        return [("grad", f"{label}{few}")] if few else []
    norm = math.sqrt(sum(map(square_of, parameters)))
    return [("grad", f"{label} norm {number(norm, 4)}{few}"), *_by_block(parameters)]


def _by_block(parameters: list[Node]) -> list[Line]:
    """The range of the norms over the equal blocks that a box stands for."""
    squares: dict[str, float] = {}
    for one in parameters:
        squares[one.block] = squares.get(one.block, 0.0) + square_of(one)
    if len(squares) < 2:
        return []
    norms = [math.sqrt(square) for square in squares.values()]
    least, most = number(min(norms), 3), number(max(norms), 3)
    return [("grad", f"{least} to {most} each"), ("grad", bars_of(norms, _BARS))]
