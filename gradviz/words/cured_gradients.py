"""What gradients there would have been without a cut, in one line."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradviz.events.values import stats_of
from gradviz.words.numbers import listed, number

_MOST = 3  # gradients that are named


def cured_gradients(
    op: str, line: int, in_pass: str, gained: Sequence[tuple[str, np.ndarray | None, np.ndarray]]
) -> str:
    """`without .detach() on line 6: w1.grad rms 0.031 instead of none`; `gained` has the name of each leaf and its
    gradient before and after, and `in_pass` words for the pass, or none."""
    call = ".data" if op == "data" else f".{op}()"
    names = [
        f"{name}.grad {_size(after)} instead of {'none' if before is None else '0'}"
        for name, before, after in gained[:_MOST]
    ]
    more = [f"{len(gained) - _MOST} more"] if len(gained) > _MOST else []
    return f"without {call} on line {line}{in_pass}: {listed([*names, *more])}"


def _size(array: np.ndarray) -> str:
    """The size of a gradient: its number, or the root mean square of its elements."""
    return number(array.item(), 4) if array.size == 1 else f"rms {number(stats_of(array).rms, 3)}"
