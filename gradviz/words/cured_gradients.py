"""One line about the gradients that there would have been with a cure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradviz.events.values import stats_of
from gradviz.words.numbers import listed, number

_MOST = 3  # the most gradients that are named


def without(typed: str, line: int) -> str:
    """`without .detach() on line 6`"""
    return f"without {typed} on line {line}"


def in_place_of(tensor: str, typed: str, line: int) -> str:
    """`with kl in place of kl.item() on line 9`"""
    return f"with {tensor} in place of {typed} on line {line}"


def cured_gradients(
    cure: str, in_pass: str, gained: Sequence[tuple[str, np.ndarray | None, np.ndarray]]
) -> str:
    """`without .detach() on line 6: w1.grad rms 0.031 instead of none`. `cure` is one of the phrases above, `gained`
    has the name of each leaf and its gradient before and after, and `in_pass` names the pass, or is empty."""
    names = [
        f"{name}.grad {_size(after)} instead of {_size(before)}" for name, before, after in gained[:_MOST]
    ]
    more = [f"{len(gained) - _MOST} more"] if len(gained) > _MOST else []
    return f"{cure}{in_pass}: {listed([*names, *more])}"


def _size(array: np.ndarray | None) -> str:
    """The size of a gradient: its number, or the root mean square of its elements."""
    if array is None:
        return "none"
    if not array.any():
        return "0"
    return number(array.item(), 4) if array.size == 1 else f"rms {number(stats_of(array).rms, 3)}"
