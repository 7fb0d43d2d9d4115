"""The table of leaves at one stop, with changes marked; their orders, and the lines of the program between stops."""

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from gradviz.query.curves import norm_of
from gradviz.query.moment import TensorState
from gradviz.query.query import Query
from gradviz.query.writes import grad_changes, value_changes
from gradviz.system.paths import file_name
from gradviz.tracefile import Snapshot
from gradviz.words.escape import clean, shortened, shortened_left
from gradviz.words.numbers import bars, brief, compact, value
from gradviz.words.stop import Stop


def last_change(query: Query, tensor: int, k: int) -> int:
    """The last event, not after k, that changed a tensor's value or its `.grad`; -1 if there is none."""
    changes = [
        events[np.searchsorted(events, k, side="right") - 1]
        for events in (value_changes(query, tensor), grad_changes(query, tensor))
        if len(events) and events[0] <= k
    ]
    return int(max(changes, default=-1))


def _by_norm(query: Query, tensor: int, k: int) -> tuple[int, float]:
    """The key that puts NaN first, then the largest norm, and a tensor without a gradient last."""
    moment = query.at(k)
    grad = moment.grad(tensor)
    norm = norm_of(moment.value(grad)) if grad else None
    if norm is None:
        return 2, 0.0
    return (0, 0.0) if math.isnan(norm) else (1, -norm)


def _parts(name: str) -> list[tuple[bool, int, str]]:
    """The parts by which a name is ordered: `blocks.2` before `blocks.10`."""
    parts = re.findall(r"[0-9]{1,9}|[^0-9]+", name)
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


ORDERS: dict[str, Callable[[Query, int, int], object]] = {
    "norm": _by_norm,
    "change": lambda query, tensor, k: -last_change(query, tensor, k),
    "name": lambda query, tensor, k: _parts(query.labels.of(tensor)),
}


def ordered(query: Query, tensors: Sequence[int], order: str, k: int) -> list[int]:
    """The tensors in an order of ORDERS at event k; unchanged for any other order."""
    key = ORDERS.get(order)
    return list(tensors) if key is None else sorted(tensors, key=lambda tensor: key(query, tensor, k))  # type: ignore[arg-type,return-value]


def line_ends(query: Query) -> np.ndarray:
    """The last event of each execution of a line, in order. Events in a backward pass belong to the line that began the
    pass. Use `query.of(line_ends)`."""
    trace = query.trace
    numbers = np.zeros(max((0, *trace.sites)) + 1, np.int64)  # the line of each site
    lines: dict[tuple[str, int], int] = {}
    for number, site in trace.sites.items():
        numbers[number] = lines.setdefault((site.place.file, site.place.line), len(lines) + 1)
    sites = trace.events["site"].astype(np.int64)
    passes = query.passes.numbers
    for backward_pass in trace.passes:
        sites[passes == backward_pass.number] = backward_pass.site
    line_of = numbers[np.minimum(sites, len(numbers) - 1)]
    known = np.flatnonzero(line_of)
    if not len(known):
        return np.array([trace.count - 1], np.int64)
    before = np.maximum(np.searchsorted(known, np.arange(trace.count), side="right") - 1, 0)
    line_of = line_of[known[before]]  # an event without a place belongs to the line before it
    return np.append(np.flatnonzero(line_of[1:] != line_of[:-1]), trace.count - 1)


def named_tensors(query: Query, k: int) -> list[int]:
    """The tensors with a name in the program just after event k, as they were made; the newest of each name."""
    names = query.names.all
    is_named = (names.codes > 0) & (names.born <= k)
    newest = {
        int(code): int(tensor) for code, tensor in zip(names.codes[is_named], names.tensors[is_named], strict=True)
    }
    return sorted(newest.values())


_CHANGED = "bold green"
_LONGEST_GRAD = 24  # the longest `.grad` that is written in full, in characters
WITH_TREND = 100  # from this width on, the gradients of a leaf over the passes are shown
_BARS = 16  # cells


class LeafRow(NamedTuple):
    """One tensor: its name, its kind, its value and `.grad`, and which of these changed at this stop."""

    name: str
    what: str
    is_trained: bool  # a leaf that requires grad
    requires_grad: bool
    value: str
    short: str
    grad: str
    tangent: str
    new: bool
    value_changed: bool
    grad_changed: bool
    trend: str

    @property
    def changed(self) -> bool:
        """Whether the tensor is new, or its value or `.grad` changed."""
        return self.new or self.value_changed or self.grad_changed


class View(NamedTuple):
    """The view of the table of leaves: its order and its first row. With `variables`, the table of variables is shown
    instead."""

    order: str = "made"
    first: int = 0
    variables: bool = False


PLAIN = View()


def leaf_rows(stop: Stop, most: int, with_trend: bool = False, view: View = PLAIN) -> tuple[list[LeafRow], int]:
    """Up to `most` rows, and the number of tensors left out. In the order `made`, leaves that require grad come
    first, then non-leaves that retain their gradient, then leaves that do not require grad. If several tensors have
    the same name and site, only the newest is shown. Tensors that changed at this stop are always shown, unless the
    table has been scrolled or has another order."""
    tensors = ordered(stop.query, stop.tabled, view.order, stop.k)
    first = max(min(view.first, len(tensors) - most), 0)
    shown = tensors[first : first + most]
    changed = [tensor for tensor in tensors if tensor in stop.touched] if view == PLAIN else []
    for tensor in changed[:most]:
        if tensor not in shown:
            shown = [*shown[: most - 1], tensor]
    return [_row(stop, tensor, with_trend) for tensor in shown], len(tensors) - len(shown)


def _row(stop: Stop, tensor: int, with_trend: bool) -> LeafRow:
    now = stop.moment.state(tensor)
    before = stop.before.state(tensor) if stop.before is not None else None
    new = stop.trace.born(tensor) == stop.k
    tangent = stop.moment.tangent(tensor)
    trend = stop.words.trend(tensor) if with_trend else None
    was, grad = _grad(before), _grad(now)
    grad_changed = not new and _differs(before, now)
    value_changed = not new and (before is None or _told(before.value) != _told(now.value))
    return LeafRow(
        name=stop.called(tensor),
        what=_what(stop, now),
        is_trained=now.is_leaf and now.requires_grad,
        requires_grad=now.requires_grad or not now.is_leaf,
        value=value(now.value),
        short=brief(now.value),
        grad=f"{was} → {grad}" if grad_changed else grad,
        tangent=stop.compact(tangent) if tangent else "",
        new=new,
        value_changed=value_changed,
        grad_changed=grad_changed,
        trend="" if trend is None else bars(trend, _BARS),
    )


def _differs(before: TensorState | None, now: TensorState) -> bool:
    """Whether the `.grad` is another tensor, or has another value, than before."""
    if before is None:
        return bool(now.grad)
    return before.grad != now.grad or _told(before.grad_value) != _told(now.grad_value)


def _told(snapshot: Snapshot | None) -> tuple[str, int]:
    """A key that differs between two values of a tensor, even if the trace has no values."""
    return value(snapshot), 0 if snapshot is None else snapshot.version


def _grad(state: TensorState | None) -> str:
    if state is None or not state.grad:
        return "None"
    full = value(state.grad_value)
    return full if len(full) <= _LONGEST_GRAD else brief(state.grad_value)


def _what(stop: Stop, state: TensorState) -> str:
    if not state.is_leaf:
        return stop.say("non-leaf")
    return stop.say("leaf" if state.requires_grad else "no grad")


def leaves(stop: Stop, width: int, height: int, view: View = PLAIN) -> list[Text]:
    """The table of leaves in `height` lines."""
    if height < 1:
        return []
    if view.variables:
        return variables(stop, width, height, view.first)
    with_trend = width >= WITH_TREND
    rows, more = leaf_rows(stop, height, with_trend, view)
    if more:
        rows, more = leaf_rows(stop, height - 1, with_trend, view)
    lines = table(rows, width)
    if more:
        lines.append(Text(stop.say("  … and {count} more", count=more), style="dim"))
    return lines or [Text(stop.say("  no leaf yet"), style="dim")]


def table(rows: list[LeafRow], width: int) -> list[Text]:
    """Rows aligned in columns; a cell that is too wide is shortened."""
    if not rows:
        return []
    name = min(max(cell_len(row.name) for row in rows), max(width // 4, 8))
    room = width - name - 24
    half = max(min(max(cell_len(row.value) for row in rows), room // 2), 6)
    return [_line(row, name, half, width) for row in rows]


def _line(row: LeafRow, name: int, room: int, width: int) -> Text:
    line = Text(no_wrap=True)
    line.append("● " if row.changed else "  ", style=_CHANGED)
    line.append(_column(shortened_left(row.name, name), name), style="bold" if row.is_trained else "")
    line.append(f"  {_column(row.what, 8)}  ", style="dim")
    fits = cell_len(row.value) <= room
    line.append(_column(row.value if fits else row.short, room), style=_CHANGED if row.value_changed or row.new else "")
    if row.tangent:
        line.append(f"  tangent {row.tangent}")
    elif row.requires_grad:
        line.append("  .grad ", style="dim")
        style = _CHANGED if row.grad_changed else "dim" if row.grad == "None" else ""
        line.append(shortened(row.grad, max(width - cell_len(line.plain), 4)), style=style)
    spare = width - cell_len(line.plain) - cell_len(row.trend)
    if row.trend and spare > 2:
        line.append(" " * spare + row.trend, style="dim")
    return line


def _column(text: str, width: int) -> str:
    return set_cell_size(shortened(text, width), width)


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
    table = [[head and stop.say(head) for head in HEADS], *(_variable_row(stop, tensor) for tensor in shown)]
    marks = [False]
    for tensor, row in zip(shown, table[1:], strict=True):
        marks.append(before is None or tensor not in known or _variable_row(before, tensor) != row)
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


def _variable_row(stop: Stop, tensor: int) -> list[str]:
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
