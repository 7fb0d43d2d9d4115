"""Where an event lies in a run: forward in a module, or in a backward pass."""

from __future__ import annotations

from gradviz.words.numbers import clean, shortened
from gradviz.words.stop import Stop


def phase(stop: Stop) -> str:
    """`forward` or the backward pass, and the scope."""
    run = stop.moment.pass_info
    if run is not None:
        return f"backward pass {run.number} of {len(stop.trace.passes)}"
    scopes = stop.moment.scopes
    return f"forward in {shortened(clean(scopes[-1].name), 30)}" if scopes else "forward"
