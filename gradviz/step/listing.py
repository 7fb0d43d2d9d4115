"""`leaves` shows all leaves on a page, in an order; other verbs scroll the table of leaves on the screen."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size

from gradviz.query.curves import norm_of
from gradviz.query.moment import TensorState
from gradviz.query.order import last_change, ordered
from gradviz.step.command_error import CommandError
from gradviz.step.leaves import View
from gradviz.step.state import Session
from gradviz.words.escape import clean, shortened, shortened_left
from gradviz.words.numbers import brief, number

_ORDERS = {
    "made": "as they were made",
    "norm": "by the norm of their gradient",
    "change": "by their last change",
    "name": "by name",
}
_ROWS = 3  # rows by which the table is scrolled, fewer than the small table has
_LONGEST = 28, 50  # characters of a name; of a name and a value together, so that a row fits in 80 columns


def leaves(session: Session, argument: str) -> None:
    """Show all leaves in an order, which the table on the screen keeps too. Raises CommandError for an unknown
    order."""
    order = argument or session.settings.leaves.order
    if order not in _ORDERS:
        raise CommandError(
            "leaves are ordered by {orders}: not by {order}",
            orders=", ".join(_ORDERS),
            order=shortened(clean(order), 30),
        )
    session.settings.leaves = View(order)
    tensors = ordered(session.query, session.stop.tabled, order, session.position)
    names = [*_ORDERS]
    following = names[(names.index(order) + 1) % len(names)]
    title = (
        "{count} leaf {order} (a: by {next})"
        if len(tensors) == 1
        else "{count} leaves {order} (a: by {next})"
    )
    session.page = [
        session.say(title, count=f"{len(tensors):,}", order=session.say(_ORDERS[order]), next=following),
        *_table(session, tensors),
    ]
    session.page_keys = {"a": f"leaves {following}"}


def _table(session: Session, tensors: list[int]) -> list[str]:
    if not tensors:
        return [session.say("  no leaf yet")]
    width = min(max(len(session.words.called(tensor)) for tensor in tensors), _LONGEST[0])
    lines = [_row(" " * width, *(session.say(head) for head in (".grad norm", "changed", "value")))]
    for tensor in tensors:
        name = shortened_left(session.words.called(tensor), width)
        state = session.stop.moment.state(tensor)
        event = last_change(session.query, tensor, session.position)
        changed = session.say("event {event}", event=event + 1) if event >= 0 else ""
        value = shortened(brief(state.value), _LONGEST[1] - width)
        lines.append(_row(set_cell_size(name, width), _norm(state), changed, value))
    return lines


def _row(name: str, norm: str, changed: str, value: str) -> str:
    """A row of the table; some signs are two columns wide."""
    return f"  {name}  {set_cell_size(norm, 10)}  {_at_least(changed, 9)}  {value}"


def _at_least(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def _norm(state: TensorState) -> str:
    """The norm of a leaf's gradient, or the reason why there is none."""
    if not state.grad:
        return "None" if state.requires_grad or not state.is_leaf else "no grad"
    norm = norm_of(state.grad_value)
    return "?" if norm is None else number(norm, 4)


def down(session: Session, argument: str) -> None:
    """Scroll the table of leaves down."""
    _scroll(session, _ROWS)


def up(session: Session, argument: str) -> None:
    """Scroll the table of leaves up."""
    _scroll(session, -_ROWS)


def _scroll(session: Session, rows: int) -> None:
    view, count = session.settings.leaves, len(session.stop.tabled)
    first = max(min(view.first + rows, count - 1), 0)
    session.settings.leaves = View(view.order, first)
    text = "leaves from number {first} of {count}"
    session.message = session.say(text, first=first + 1, count=count) if first else ""


def variables(session: Session, argument: str) -> None:
    """Show the variables that hold tensors in place of the leaves, or the leaves again."""
    session.settings.leaves = View(variables=not session.settings.leaves.variables)
