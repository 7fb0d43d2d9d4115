"""The custom Function that a node belongs to, and the line at which its backward returns."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gradviz.query.query import Query
from gradviz.query.scopes import FUNCTION
from gradviz.tracefile import Site


def function_of(query: Query, node: int) -> str:
    """The custom Function that a node belongs to; empty for any other node."""
    event = query.nodes.op(node)
    if event is None:
        return ""
    op = query.tensors.op(event)
    around = query.scopes.around(max(event - 2, 0), op.thread)
    return op.op if any(scope.kind == FUNCTION and scope.name == op.op for scope in around) else ""


def returned_at(query: Query, function: str) -> Site | None:
    """The line at which the backward of a Function returns; None if its source was not kept, or if several classes have
    its name. The source is searched as text and never parsed: a trace may come from a stranger."""
    files = dict.fromkeys(site.place.file for site in query.trace.sites.values())
    returns = [(file, line) for file in files for line in _returns(query.trace.source(file), function)]
    return query.places.of_line(*returns[0]) if len(returns) == 1 else None


def _returns(lines: list[str], function: str) -> Iterator[int]:
    """The line, from 1, of the last outermost `return` in the backward of each class with this name."""
    opening = re.compile(rf"\s*class\s+{re.escape(function)}\b")
    for start, line in enumerate(lines):
        if opening.match(line):
            for at in _block(lines, start):
                if re.match(r"\s*def\s+backward\b", lines[at]):
                    returns = [n for n in _block(lines, at) if re.match(r"\s*return\b", lines[n])]
                    if returns:
                        outermost = min(map(_indent, (lines[n] for n in returns)))
                        yield 1 + max(n for n in returns if _indent(lines[n]) == outermost)


def _block(lines: list[str], start: int) -> Iterator[int]:
    """The lines, from 0, of the block that a line opens."""
    for number in range(start + 1, len(lines)):
        text = lines[number]
        if (
            text.strip()
            and not text.lstrip().startswith(("#", ")"))
            and _indent(text) <= _indent(lines[start])
        ):
            return
        yield number


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
