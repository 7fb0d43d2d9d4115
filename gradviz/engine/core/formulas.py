"""Derivatives as they are shown: with the numbers that were given for arguments in the place of their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

_NUMBERS = (int, float, np.integer, np.floating)


def with_values(text: str, values: Mapping[str, Any]) -> str:
    """A derivative's text, with the numbers among `values` (by their names in the text) put in.

    `alpha · x` becomes `2 · x`, and `x` where alpha is 1. What is no number keeps its name."""
    numbers = {
        name: _written(value)
        for name, value in values.items()
        if isinstance(value, _NUMBERS) and not isinstance(value, bool)
    }

    def put(match: re.Match[str]) -> str:
        number = numbers.get(match[0])
        if number is None:
            return match[0]
        bare = match.start() == 0 or text[match.start() - 1] == "("
        return f"({number})" if number.startswith("−") and not bare else number

    return _without_ones(re.sub(r"[A-Za-z_]+", put, text)) if numbers else text


def _written(value: Any) -> str:
    """A number in at most six digits, with a minus sign as formulas have it."""
    if value == np.inf or value == -np.inf:
        return "∞" if value > 0 else "−∞"
    return f"{value:.6g}".replace("-", "−")


def _without_ones(text: str) -> str:
    """A text without factors and divisors that are 1."""
    text = re.sub(r"(?<![\w.^])(?<!/ )1 · ", "", text)
    return re.sub(r" [·/] 1(?![\w.^²³])", "", text)
