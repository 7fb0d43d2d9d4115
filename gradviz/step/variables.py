"""The table of variables that hold tensors, with their attributes: value, requires_grad, is_leaf, grad_fn, grad."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from gradviz.query.line_runs import line_ends, named_tensors
from gradviz.system.paths import file_name
from gradviz.words.escape import clean, shortened, shortened_left
from gradviz.words.numbers import brief, compact
from gradviz.words.stop import Stop

HEADS = ("", "value", "requires_grad", "is_leaf", "grad_fn", "grad")
_NAME, _VALUE, _GRAD_FN = 16, 28, 16  # the widest columns, in cells


def variables(stop: Stop, width: int, height: int, first: int = 0) -> list[Text]:
    """The table of variables in `height` lines, with the program's printed lines below it; changes since the previous
    line are marked."""
    printed = _printed(stop, width, height // 3)
    return [*_table(stop, width, height - len(printed), first), *printed]


def _printed(stop: Stop, width: int, height: int) -> list[Text]:
    """The last lines that the program printed before its next event, in `height` lines, each with its place."""
    known = stop.trace.printed
    lines = known[: bisect_right(known, stop.k + 1, key=lambda line: line.event)]
    room = height - 1
    if not lines or room < 1:
        return []
    before = _before_this_line(stop)
    seen = 0 if before is None else before.k + 1
    rows = [Text(f"  {stop.say('printed')}", style="dim")]
    for line in lines[-room:]:
        place = stop.trace.sites.get(line.site)
        where = "" if place is None else f"{clean(file_name(place.place.file))}:{place.place.line}  "
        cut = "…" if line.length > len(line.text) else ""
        mark = Text("● " if before is None or line.event > seen else "  ", style="bold green", no_wrap=True)
        text = shortened(clean(line.text + cut), max(width - 2 - cell_len(where), 1))
        rows.append(mark.append(where, style="dim").append(text, style=""))
    return rows


def _table(stop: Stop, width: int, height: int, first: int) -> list[Text]:
    if height < 2:
        return []
    tensors = named_tensors(stop.query, stop.k)
    room = height - 1
    first = max(min(first, len(tensors) - room), 0)
    shown = tensors[first : first + room]
    if len(tensors) > room:
        shown = shown[: room - 1]
    before = _before_this_line(stop)
    known = set(named_tensors(stop.query, before.k)) if before is not None else set()
    table = [[head and stop.say(head) for head in HEADS], *(_row(stop, tensor) for tensor in shown)]
    marks = [False]
    for tensor, row in zip(shown, table[1:], strict=True):
        marks.append(before is None or tensor not in known or _row(before, tensor) != row)
    widths = [max(cell_len(row[column]) for row in table) for column in range(len(HEADS))]
    spare = width - 2 - sum(widths) - 2 * (len(HEADS) - 1)
    widths[1] = max(widths[1] + min(spare, 0), 5)  # only the value is shortened
    lines: list[Text] = []
    for row, is_new in zip(table, marks, strict=True):
        cells = [set_cell_size(shortened(cell, size), size) for cell, size in zip(row, widths, strict=True)]
        line = Text("● " if is_new else "  ", style="bold green", no_wrap=True)
        lines.append(line.append("  ".join(cells).rstrip(), style="" if lines else "dim"))
    if len(tensors) > len(shown):
        lines.append(Text(stop.say("  … and {count} more", count=len(tensors) - len(shown)), style="dim"))
    return lines


def _before_this_line(stop: Stop) -> Stop | None:
    """The stop at the end of the previous line; None in the first line."""
    ends = stop.query.of(line_ends)
    before = int(np.searchsorted(ends, stop.k)) - 1
    return stop.other(int(ends[before])) if before >= 0 else None


def _row(stop: Stop, tensor: int) -> list[str]:
    state = stop.moment.state(tensor)
    grad_fn = clean(stop.query.nodes.name(stop.moment.grad_fn(tensor)))
    grad = brief(state.grad_value) if state.grad else "None"
    return [
        shortened_left(stop.called(tensor), _NAME),
        shortened(compact(state.value), _VALUE),
        str(state.requires_grad),
        str(state.is_leaf),
        shortened(grad_fn or "None", _GRAD_FN),
        grad,
    ]
