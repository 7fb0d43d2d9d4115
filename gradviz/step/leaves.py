"""The table of leaves at one stop, with changes marked."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from gradviz.query.moment import TensorState
from gradviz.query.order import ordered
from gradviz.step.variables import variables
from gradviz.tracefile import Snapshot
from gradviz.words.escape import shortened, shortened_left
from gradviz.words.numbers import bars, brief, value
from gradviz.words.stop import Stop

_CHANGED = "bold green"
_LONGEST_GRAD = 24  # the longest `.grad` that is written in full, in characters
WITH_TREND = 100  # from this width on, the gradients of a leaf over the passes are shown
_BARS = 16  # cells


@dataclass(frozen=True, slots=True)
class LeafRow:
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


@dataclass(frozen=True, slots=True)
class View:
    """The view of the table of leaves: its order and its first row. With `variables`, the table of variables is shown
    instead."""

    order: str = "made"
    first: int = 0
    variables: bool = False


PLAIN = View()


def leaf_rows(
    stop: Stop, most: int, with_trend: bool = False, view: View = PLAIN
) -> tuple[list[LeafRow], int]:
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
        trend=_trend(stop, tensor) if with_trend else "",
    )


def _trend(stop: Stop, tensor: int) -> str:
    trend = stop.words.trend(tensor)
    return "" if trend is None else bars(trend, _BARS)


def _differs(before: TensorState | None, now: TensorState) -> bool:
    """Whether the `.grad` is another tensor, or has another value, than before."""
    if before is None or before.grad != now.grad:
        return (before.grad if before is not None else 0) != now.grad
    return _told(before.grad_value) != _told(now.grad_value)


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
    line.append(
        _column(row.value if fits else row.short, room),
        style=_CHANGED if row.value_changed or row.new else "",
    )
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
    text = shortened(text, width)
    return text + " " * (width - cell_len(text))
