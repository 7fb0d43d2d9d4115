"""How a derivative is stated: as text, and as a rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Derivative:
    """How the gradient of one input comes from the gradient of the output."""

    text: str  # as on paper, for people: "cos(x)"
    rule: Callable
    parameters: tuple[str, ...]  # of the rule, after `g`


def d(text: str, rule: Callable) -> Derivative:
    """State a derivative: as text, and as a rule `(g, ...) -> gradient` in plain NumPy."""
    return Derivative(text, rule, tuple(inspect.signature(rule).parameters)[1:])
