"""Borders around a tensor: of a constant, or of its own elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradviz.engine.table.kernels.indexing import in_order
from gradviz.engine.table.kernels.row import row


def padded(x: Any, before: Sequence[int], after: Sequence[int], value: float) -> Any:
    """x with a border of `value`. A negative width cuts x."""
    inner = x[cut(before, after)]
    widths = [(max(b, 0), max(a, 0)) for b, a in zip(before, after, strict=True)]
    return np.pad(inner, widths, constant_values=value)


@row("padded_with_zeros")
def padded_with_zeros(x: Any, before: Sequence[int], after: Sequence[int]) -> Any:
    """x with a border of zeros. With negated widths it is its own transpose."""
    return padded(x, before, after, 0)


def cut(before: Sequence[int], after: Sequence[int]) -> tuple[slice, ...]:
    """The index of what is left where the widths of the border are negative."""
    return tuple(slice(max(-b, 0), -max(-a, 0) or None) for b, a in zip(before, after, strict=True))


def wrapped(places: tuple[np.ndarray, ...]) -> tuple:
    """The index that takes the given places along the last dimensions."""
    return (Ellipsis, *np.ix_(*places))


def from_places(x: Any, places: tuple[np.ndarray, ...]) -> Any:
    """x with a border made of its own elements."""
    return in_order(x[wrapped(places)])
