"""An expression of a program in few characters, cut at the ends of its parts: `torch.exp(…) + bias.mean()`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

_CUT = "…"
_LONGEST_READ = 1000  # the most characters of an expression that is parsed
_SEVERAL_CUT = re.compile(
    rf"(?:(?<=[(\[])|(?<=, )){_CUT}(, ?{_CUT})+(?=[,)\]])"
)  # whole arguments, not operands
_PATH = re.compile(r"(?<![\w.])[A-Za-z_][\w.]*")

Span = tuple[int, int, int]  # the depth of a part, its first byte, the byte behind its last


@lru_cache(maxsize=4096)
def short_expression(text: str, width: int) -> str:
    """An expression in at most `width` characters. `…` stands for what is left out: whole operands and arguments, the
    deepest first, of equal depth the last first, as few as possible. If the text is no expression, or is too long even
    so, its end is shown."""
    if len(text) <= width:
        return text
    parts = _parts(text)
    cut: list[Span] = []
    for part in sorted(parts, key=lambda part: (-part[0], -part[1])):
        cut.append(part)
        if len(_without(text, cut)) <= width:
            break
    for part in sorted(cut):  # the outermost and first are shown again if there is room
        rest = [one for one in cut if one != part]
        if len(_without(text, rest)) <= width:
            cut = rest
    shown = _without(text, cut)
    return shown if len(shown) <= width else f"{_CUT}{shown[1 - width :]}"


def _parts(text: str) -> list[Span]:
    """The operands and arguments of an expression; empty if it cannot be parsed."""
    if len(text) > _LONGEST_READ:
        return []
    try:
        return [*_below(ast.parse(_readable(text), mode="eval").body, 0)]
    except SyntaxError:
        return []


def _readable(text: str) -> str:
    """A text as Python with its parts at the same bytes: `…`, `net.0` and `gradient of y` are no Python."""
    known = text.replace(_CUT, "_" * len(_CUT.encode())).replace("gradient of ", "gradient_of_")
    return _PATH.sub(lambda path: re.sub(r"\.\d", "._", path[0]), known)


def _below(node: ast.AST, depth: int) -> Iterator[Span]:
    """The parts of a node. A method's object is as deep as its call: `x.exp().sum()` is read from left to right."""
    for child in ast.iter_child_nodes(node):
        chained = isinstance(node, ast.Attribute) or (isinstance(node, ast.Call) and child is node.func)
        chained |= isinstance(node, ast.Subscript) and child is node.value
        whole = isinstance(node, ast.keyword) or (
            isinstance(child, ast.Constant) and not isinstance(node, ast.Call)
        )
        if isinstance(child, ast.expr | ast.keyword) and not chained and not whole:
            yield depth + 1, child.col_offset, child.end_col_offset or child.col_offset
        yield from _below(child, depth if chained else depth + 1)


def _without(text: str, cut: list[Span]) -> str:
    """A text with `…` for some of its parts."""
    written = text.encode()
    outer = [one for one in cut if not any(_holds(other, one) for other in cut)]
    for _, start, end in sorted(outer, key=lambda part: -part[1]):
        written = written[:start] + _CUT.encode() + written[end:]
    return _SEVERAL_CUT.sub(_CUT, written.decode())


def _holds(outer: Span, inner: Span) -> bool:
    return outer != inner and outer[1] <= inner[1] and inner[2] <= outer[2]
