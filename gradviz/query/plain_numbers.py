"""Tensors that the loss contains as plain numbers, as in `loss + penalty.item()` or `w * math.sin(x)`. No event records
that; the source shows it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradviz.events.kinds import Kind
from gradviz.query.query import Query
from gradviz.query.source_trees import trees
from gradviz.sets import distinct

_READ = re.compile(r"(?<![\w.])([A-Za-z_][\w.]*)\.item\(\)|(?<![\w.])float\(([A-Za-z_][\w.]*)\)")


def numbers_read(query: Query, op: int) -> Iterator[tuple[int, str]]:
    """The tensors that require grad and that the expression of an op reads as numbers, each with the reading:
    `kl.item()`."""
    for match in _READ.finditer(query.places.expression(query.tensors.op(op).site)):
        tensor = query.names.tensor_called(match[1] or match[2], op)
        if tensor and query.tensors.requires_grad(tensor, op):
            yield tensor, match[0]


def read_as_number(query: Query, result: int) -> tuple[int, str] | None:
    """The first op on the way to a root whose line reads a tensor as a number, and the reading; None if there is
    none."""
    name = query.labels.of(result)
    made = query.trace.table(Kind.NODE)
    ran = query.nodes.have_run & (made.events > (query.tensors.maker(result) or 0))
    for site in distinct(made.sites[ran]).tolist():
        names = "|".join(map(re.escape, (name, *_elements(query, site, name))))
        reading = (
            rf"(?<![\w.])(?:{names})\.(?:item|tolist)\(\)|(?<![\w.])(?:float|int|math\.\w+)\((?:{names})\)"
        )
        match = re.search(reading, query.places.line_text(site))
        if match is not None:
            return int(made.events[ran & (made.sites == site)][0]), match[0]
    return None


def _elements(query: Query, site: int, name: str) -> Iterator[str]:
    """The variables of a line for the elements of a tensor: `v` in `sum(math.sqrt(v) for v in w)`, or in a loop
    `for v in w:` around the line."""
    place = query.places.site(site)
    tree = query.of(trees).get(place.place.file) if place is not None else None
    if place is None or tree is None:
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.comprehension | ast.For) or not isinstance(node.target, ast.Name):
            continue
        first = node.lineno if isinstance(node, ast.For) else node.iter.lineno
        last = (node.end_lineno if isinstance(node, ast.For) else node.iter.end_lineno) or first
        if ast.unparse(node.iter) == name and first <= place.place.line <= last:
            yield node.target.id
