"""The phase of a run that an event belongs to: forward in a module, or a backward pass."""

from __future__ import annotations

from gradviz.words.escape import clean, shortened
from gradviz.words.stop import Stop


def phase(stop: Stop) -> str:
    """`forward` with the scope, or the backward pass."""
    backward_pass = stop.moment.pass_info
    if backward_pass is not None:
        return stop.say(
            "backward pass {number} of {count}", number=backward_pass.number, count=stop.trace.passes_begun
        )
    name = stop.moment.place
    return stop.say("forward in {scope}", scope=shortened(clean(name), 30)) if name else stop.say("forward")
