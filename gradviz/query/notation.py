"""Evaluates derivatives in the notation for people: `1 where x > 0, else 0.01`, `−x / y²`, `g yᵀ`.

The notation is defined in gradviz/engine/core/derivative.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

Names = dict[str, Any]


class NotationError(ValueError):
    """A formula cannot be evaluated."""


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ln": np.log, "exp": np.exp, "sin": np.sin, "cos": np.cos, "tan": np.tan, "sinh": np.sinh, "cosh": np.cosh,
    "tanh": np.tanh, "sign": np.sign, "trunc": np.trunc, "sinc": np.sinc, "clamp": np.clip, "det": np.linalg.det,
    "softplus": lambda x: np.logaddexp(0, x), "σ": lambda x: np.exp(-np.logaddexp(0, -x)),
    "Φ": np.vectorize(lambda x: (1 + math.erf(x / math.sqrt(2))) / 2, otypes=[float]),
    "φ": lambda x: np.exp(-x * x / 2) / np.sqrt(2 * np.pi),
}  # fmt: skip
_TOKEN = re.compile(
    r"\s*(\d+(?:\.\d+)?(?:e[+−-]?\d+)?|I[₀₁]ₑ?|x̂|[A-Za-z_]+|[πσΦφ∞√Σ]|⁻ᵀ|⁻¹|[²³ᵀ]|[+−·×/^()|⌊⌋<>≤≥=,])"
)
_COMPARISONS = {"<": np.less, ">": np.greater, "≤": np.less_equal, "≥": np.greater_equal, "=": np.equal}
_ENDS = {"+", "−", "/", "·", "×", ")", "|", "⌋", ",", *_COMPARISONS}


def evaluated(text: str, names: Names) -> Any:
    """The value of a formula. `names` has the arrays and further functions by name; if `names["·"]` is np.matmul,
    matrices that stand side by side are multiplied by it. Raises NotationError for a formula that is words."""
    body, _, definition = text.partition(" with ")
    if definition:
        name, _, value = definition.partition(" = ")
        names = {**names, name: evaluated(value, names)}
    parts = _split(body)
    result: Any = 0
    for part in reversed(parts):
        value, _, condition = part.partition(" where ")
        if part.startswith("else "):
            result = _sum_of(part.removeprefix("else "), names)
        elif condition:
            result = np.where(_holds(condition, names), _sum_of(value, names), result)
        elif len(parts) > 1:
            raise NotationError(f"{part!r} of {text!r} is words")
        elif re.search(r"[<>≤≥=]| is ", part):
            result = _holds(part, names)
        else:
            result = _sum_of(part, names)
    return np.asarray(result)


def _split(text: str) -> list[str]:
    """The parts between commas that are outside of brackets."""
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth and text.startswith(", ", i):
            parts.append(text[start:i])
            start = i + 2
    return [*parts, text[start:]]


def _holds(text: str, names: Names) -> Any:
    for word, join in (" or ", np.logical_or), (" and ", np.logical_and):
        left, separator, right = text.partition(word)
        if separator:
            return join(_holds(left, names), _holds(right, names))
    if text.startswith("not "):
        return np.logical_not(_holds(text.removeprefix("not "), names))
    for word, test in (" is finite", np.isfinite), (" is a number", lambda x: ~np.isnan(x)):
        if text.endswith(word):
            return test(_sum_of(text.removesuffix(word), names))
    reader = _Reader(text, names)
    left = reader.sum()
    holds = np.True_ if reader.next in _COMPARISONS else np.asarray(left, bool)
    while reader.next in _COMPARISONS:
        compare = _COMPARISONS[reader.take()]
        right = reader.sum()
        holds, left = holds & compare(left, right), right
    reader.end()
    return holds


def _sum_of(text: str, names: Names) -> Any:
    reader = _Reader(text, names)
    value = reader.sum()
    reader.end()
    return value


class _Reader:
    """Reads a formula from left to right."""

    def __init__(self, text: str, names: Names) -> None:
        self.text, self.names = text, names
        self.tokens: list[str] = []
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise NotationError(f"{text[position:]!r} of {text!r}")
            self.tokens.append(match[1])
            position = match.end()
        self.tokens.reverse()

    @property
    def next(self) -> str:
        return self.tokens[-1] if self.tokens else ""

    def take(self, expected: str = "") -> str:
        if not self.tokens or (expected and self.next != expected):
            raise NotationError(f"no {expected!r} where it should be in {self.text!r}")
        return self.tokens.pop()

    def end(self) -> None:
        if self.tokens:
            raise NotationError(f"{self.next!r} in {self.text!r}")

    def sum(self) -> Any:
        negative = self.next == "−" and self.take()
        value = self.product()
        value = -value if negative else value
        while self.next in ("+", "−"):
            value = value + self.product() if self.take() == "+" else value - self.product()
        return value

    def product(self) -> Any:
        value = self.power()
        while self.next and (self.next in ("·", "/", "×") or self.next not in _ENDS):
            if self.next == "/":
                self.take()
                value = value / self.power()
            elif self.next == "×":
                self.take()
                value = self.names["×"](value, self.power())
            else:
                together = self.names.get("·", np.multiply) if self.next != "·" else np.multiply
                if self.next == "·":
                    self.take()
                value = together(value, self.power())
        return value

    def power(self) -> Any:
        value = self.atom()
        while self.next and self.next in "²³^ᵀ⁻ᵀ⁻¹":
            sign = self.take()
            if sign == "^":
                value = value ** self.atom()
            elif sign in "²³":
                value = value ** (2 if sign == "²" else 3)
            else:
                value = np.linalg.inv(value) if "⁻" in sign else value
                value = np.swapaxes(value, -1, -2) if "ᵀ" in sign else value
        return value

    def atom(self) -> Any:
        token = self.take()
        if re.match(r"\d", token):
            return float(token)
        if token == "Σ":
            return self.names["Σ"](self.product())
        if token in self.names:
            value = self.names[token]
            return self.called(value) if callable(value) else value
        if token in FUNCTIONS:
            return self.called(FUNCTIONS[token])
        if token == "√":
            return np.sqrt(self.atom())
        closing = {"(": ")", "|": "|", "⌊": "⌋"}.get(token)
        if closing:
            value = self.sum()
            self.take(closing)
            return np.abs(value) if token == "|" else np.floor(value) if token == "⌊" else value
        if token in "π∞":
            return np.pi if token == "π" else np.inf
        raise NotationError(f"{token!r} in {self.text!r}")

    def called(self, function: Callable[..., Any]) -> Any:
        squared = self.next == "²" and self.take()
        if self.next == "(":
            self.take()
            arguments = [self.sum()]
            while self.next == ",":
                self.take()
                arguments.append(self.sum())
            self.take(")")
            value = function(*arguments)
        else:
            value = function(self.power())
        return value**2 if squared else value
