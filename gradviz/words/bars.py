"""Norms of gradients as a line of bars: over the passes of a run for a leaf, or over equal blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from gradviz.query.curves import Trend

_BARS = "▁▂▃▄▅▆▇█"
_NOT_FINITE = "!"
_DECADES = 2.0  # heights are logarithmic if smallest and largest differ by at least this many powers of ten


@lru_cache(maxsize=256)
def bars(trend: Trend, width: int) -> str:
    """At most `width` bars; each shows the largest norm of its passes."""
    return bars_of(trend.norms, width)


def bars_of(norms: Sequence[float], width: int) -> str:
    """Bars of any norms, in their order."""
    count = min(width, len(norms))
    if count < 1:
        return ""
    parts = np.array_split(np.array(norms), count)
    return _drawn([float(part.max()) if np.isfinite(part).all() else math.nan for part in parts])


def _drawn(heights: list[float]) -> str:
    known = [height for height in heights if math.isfinite(height) and height > 0]
    if not known:
        return "".join(_NOT_FINITE if not math.isfinite(height) else _BARS[0] for height in heights)
    low, high = min(known), max(known)
    decades = math.log10(high) - math.log10(low)  # the quotient may overflow
    if decades >= _DECADES:
        scaled = [
            (math.log10(height) - math.log10(low)) / decades if height > 0 else 0.0 for height in heights
        ]
    else:
        scaled = [height / high for height in heights]
    return "".join(
        _BARS[round(share * (len(_BARS) - 1))] if math.isfinite(height) else _NOT_FINITE
        for share, height in zip(scaled, heights, strict=True)
    )
