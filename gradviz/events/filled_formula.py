"""Derivatives for display: numbers in the place of the arguments' names."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

_POWERS = {0.0: "^0", 1.0: "", 2.0: "²", 3.0: "³"}
_NUMBERS = (int, float, np.integer, np.floating)


def with_values(text: str, values: Mapping[str, Any]) -> str:
    """The text of a derivative, with numbers in the place of names. `values` has the arguments by their names.

    `alpha · x` becomes `2 · x`, and `x` if alpha is 1; `n · x^(n−1)` becomes `3 · x²`. An argument that is not a number
    keeps its name."""
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

    return _without_ones(_one_less(re.sub(r"[A-Za-z_]+", put, text))) if numbers else text


def _written(value: Any) -> str:
    """A number with at most six digits, and with `−` as its minus sign."""
    if value == np.inf or value == -np.inf:
        return "∞" if value > 0 else "−∞"
    return f"{value:.6g}".replace("-", "−")


def _one_less(text: str) -> str:
    """The text with powers as in a textbook: `x²` for `x^(3−1)`, and `x` for `x^(2−1)`."""

    def put(match: re.Match[str]) -> str:
        left = float(match[1].replace("−", "-")) - 1
        power = _written(left)
        return _POWERS.get(left, f"^{power}" if left > 0 else f"^({power})")

    return re.sub(r"\w+\^0(?!\.)", "1", re.sub(r"\^\((−?\d+(?:\.\d+)?)−1\)", put, text))


def _without_ones(text: str) -> str:
    """The text without factors and divisors that are 1."""
    text = re.sub(r"(?<![\w.^])(?<!/ )1 · ", "", text)
    return re.sub(r" [·/] 1(?![\w.^²³])", "", text)
