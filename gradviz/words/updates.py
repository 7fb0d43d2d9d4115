"""An optimizer step as a formula and with its numbers: `w − lr · grad = 3 − 0.1 · 6 = 2.4`."""

from __future__ import annotations

import re

from gradviz.events.kinds import Mutated
from gradviz.query.update_step import update_step
from gradviz.words.numbers import BRIEF, nested
from gradviz.words.stop import Stop

_NAME = re.compile(r"weight_decay|momentum|buffer|grad|eps|lr|m̂|v̂|w")


def update_told(stop: Stop, event: Mutated) -> str:
    """The computation of a parameter's new value by an optimizer; empty if it is not known, or the parameter is
    large."""
    update = update_step(stop.query, event)
    if update is None or update.after.size > BRIEF:
        return ""
    name, numbers = stop.called(event.tensor), dict(update.terms)
    named = {"w": name, "grad": f"{name}.grad"}
    formula = _NAME.sub(lambda term: named.get(term[0], term[0]), update.formula)
    filled = _NAME.sub(lambda term: _number(numbers[term[0]]), update.formula)
    return f"{formula} = {filled} = {nested(update.after.astype('f4'))}"


def _number(value: object) -> str:
    text = nested(value.astype("f4")) if hasattr(value, "astype") else str(value)
    return f"({text})" if text.startswith(("-", "−")) else text
