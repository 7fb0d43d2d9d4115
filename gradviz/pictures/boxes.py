"""The text of a box for a module, or for a place in the program."""

from __future__ import annotations

import math
import re

from gradviz.graph.equal_blocks import square_of
from gradviz.graph.groups import DATA_BOX, PLACE
from gradviz.graph.model import GRAD_FN, LEAF, OP, TENSOR, Box, Node
from gradviz.pictures.default_arguments import shown_arguments
from gradviz.query.ops import operator_of
from gradviz.words.bars import bars_of
from gradviz.words.escape import plain, plain_name
from gradviz.words.numbers import number, plural

Line = tuple[str, str]
_MOST_SHAPES = 3
_LONGEST_SHAPE = 40  # characters of a name with its shape
_NAMED_SHAPE = re.compile(r"(.+) (\[[0-9, ]*\]|scalar)")
_BARS = 24  # cells for bars: one bar for each block, or for several
_LONGEST_LINE = 24  # about as long as `2 parameters, 204 elements`


def box_lines(node: Node, box: Box) -> list[Line]:
    """The lines of a box, each with its role."""
    lines = _lines_of(node, box)
    is_off = _is_under_no_grad(node, box)
    if box.parameters:
        lines += _parameters(list(box.parameters.values()), is_off)
    if is_off:
        lines.append(("fact", "under no_grad"))
    elif box.cuts:
        lines.append(("odd" if box.due else "fact", "a gradient stops inside"))
    if node.error:
        lines.append(("error", plain(node.error, 60)))
    return lines


def _is_under_no_grad(node: Node, box: Box) -> bool:
    """Whether a module was called only with grad mode off, as a target network is, and has no finding."""
    return box.cuts == {"no_grad"} and not node.held.get(GRAD_FN) and not node.finding


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
