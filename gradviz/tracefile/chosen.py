"""The backward passes that are recorded in detail."""

from __future__ import annotations

from typing import NamedTuple


class Passes(NamedTuple):
    """Passes by their numbers, from 1: those in `ranges` (first and last), and the multiples of `steps`."""

    ranges: tuple[tuple[int, int], ...]
    steps: tuple[int, ...] = ()

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        return any(low <= number <= high for low, high in self.ranges) or any(
            number % step == 0 for step in self.steps
        )

    def __str__(self) -> str:
        ranges = [f"{low}-{high}" for low, high in self.ranges]
        return ",".join([*ranges, *(f"every:{step}" for step in self.steps)])


def passes_of(text: str) -> Passes:
    """The passes of a text such as `1-3,100,every:50`. Raises ValueError for any other text."""
    ranges, steps = [], []
    for part in text.split(","):
        words, _, number = part.partition(":")
        first, _, last = part.partition("-")
        try:
            if number:
                steps.append(int(number))
            else:
                ranges.append((int(first), int(last or first)))
        except ValueError:
            raise ValueError(f"{text!r} is not of the form 1-3,100,every:50") from None
        if number and (words.strip() != "every" or steps[-1] < 1):
            raise ValueError(f"{part!r} is not of the form every:50")
        if not number and not 1 <= ranges[-1][0] <= ranges[-1][1]:
            raise ValueError(f"{part!r} is no range of passes: they count up from 1")
    return Passes(tuple(ranges), tuple(steps))
