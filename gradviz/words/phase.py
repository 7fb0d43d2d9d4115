"""Where an event lies in a run: forward in a module, or in a backward pass."""

from __future__ import annotations

from gradviz.words.escape import clean, shortened
from gradviz.words.stop import Stop


def phase(stop: Stop) -> str:
    """`forward` or the backward pass, and the scope."""
    run = stop.moment.pass_info
    if run is not None:
        return f"backward pass {run.number} of {len(stop.trace.passes)}"
    name = ""
    for scope in stop.moment.scopes:
        within = scope.name == name or scope.name.startswith(f"{name}.")  # a module's name is its whole path
        name = scope.name if within or not name else f"{name}.{scope.name}"
    return f"forward in {shortened(clean(name), 30)}" if name else "forward"
