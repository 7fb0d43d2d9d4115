"""Where a stop lies in time."""

from __future__ import annotations

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from gradviz.step.numbers import clean, shortened
from gradviz.step.stop import Stop

_COLOURS = ("blue", "magenta")  # forward, backward


def position(stop: Stop) -> str:
    """`event 12 of 42 · backward pass 1 of 2`. Events are counted from 1 here."""
    return f"event {stop.k + 1} of {stop.facts.trace.count} · {phase(stop)}"


def phase(stop: Stop) -> str:
    """`forward` or the backward pass, and the scope."""
    run = stop.moment.pass_info
    if run is not None:
        return f"backward pass {run.number} of {len(stop.facts.trace.passes)}"
    scopes = ".".join(clean(scope.name) for scope in stop.moment.scopes)
    return f"forward in {shortened(scopes, 30)}" if scopes else "forward"


def timeline(stop: Stop, width: int) -> Text:
    """The position with a bar on which the backward passes have a colour of their own."""
    count = stop.facts.trace.count
    before, after = f" event {stop.k + 1} of {count} ", f" {phase(stop)}"
    room = max(width - cell_len(before) - cell_len(after) - 1, 0)
    done = round(room * (stop.k + 1) / count)
    line = Text(before, no_wrap=True)
    for cell, backward in enumerate(stop.facts.in_pass((np.arange(room) + 0.5) * count // max(room, 1))):
        line.append("━" if cell < done else "─", style=_COLOURS[bool(backward)])
    here = _COLOURS[stop.moment.pass_info is not None]
    return line.append(after, style=f"bold {here}")
