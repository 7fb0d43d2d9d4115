"""Formats numbers and tensors in one line, with few digits. NaN and infinity are always mentioned."""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from gradviz.events.values import Stats, stats_of
from gradviz.query.curves import Trend
from gradviz.query.overview import Cost, is_profiled, profile
from gradviz.query.query import Query
from gradviz.tracefile import Snapshot

SHOWN = 6  # tensors with up to this many elements are written in full
BRIEF = 4  # the same limit within a sentence
NAMED = 4  # names in a sentence that has more of them
_COMPACT = 30  # characters
_KNOWN = 4096  # the most snapshots whose texts are cached: successive events show the same ones


def number(value: object, digits: int = 6) -> str:
    """A number with at most `digits` significant digits."""
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value))
    if isinstance(value, (complex, np.complexfloating)):
        return f"{value:.{digits}g}"
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    text = f"{float(value):.{digits}g}"  # type: ignore[arg-type]
    if text == "-0":
        return "0"
    mantissa, e, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if e else text


def scalar(snapshot: Snapshot | None) -> float | None:
    """The only element of a real tensor; None if it does not have exactly one, or if the value was not kept."""
    array = snapshot.array if snapshot is not None else None
    if array is None or array.size != 1 or array.dtype.kind == "c":
        return None
    return float(array.reshape(-1)[0])


@lru_cache(maxsize=_KNOWN)
def value(snapshot: Snapshot | None) -> str:
    """A tensor in one line: its elements if there are few, otherwise shape and statistics."""
    if snapshot is None:
        return "?"
    array = snapshot.array
    if array is not None and array.size <= SHOWN:
        return nested(array)
    stats = snapshot.stats
    if stats is None:
        return f"{shape(snapshot)} {snapshot.dtype}, value not kept"
    span = "" if np.isnan(stats.min) else f", {number(stats.min, 4)} to {number(stats.max, 4)}"
    return brief(snapshot) + span


@lru_cache(maxsize=_KNOWN)
def brief(snapshot: Snapshot | None) -> str:
    """A tensor in a few words, for a sentence: its elements if there are very few, otherwise shape and rms."""
    if snapshot is None:
        return "?"
    if snapshot.stats is None:
        return f"a {shape(snapshot)} tensor" if snapshot.shape else "a scalar"
    array = snapshot.array
    if array is not None and array.size <= BRIEF:
        return nested(array)
    stats = snapshot.stats
    bad = [f"{count} {name}" for count, name in ((stats.nan, "nan"), (stats.inf, "inf")) if count]
    return f"{shape(snapshot)} {', '.join([*bad, *_size(stats, snapshot.dtype)])}".rstrip() + _of_part(snapshot)


def value_label(snapshot: Snapshot) -> str:
    """A tensor in a picture, next to its shape: its elements if there are few, otherwise rms and counts of NaN and
    inf."""
    array = snapshot.array
    if array is not None and array.size <= SHOWN:
        return nested(array, 4 if array.size == 1 else 3)
    stats = snapshot.stats
    if stats is None:
        return ""
    return _size_and_odd(stats, snapshot.dtype) + _of_part(snapshot)


def array_text(array: np.ndarray | None) -> str:
    """A computed array in a few words: its elements if there are few, otherwise shape and rms."""
    if array is None:
        return "none"
    if array.size <= SHOWN:
        return nested(array)
    return f"({'×'.join(map(str, array.shape))}) {_size_and_odd(stats_of(array), array.dtype.name)}"


def _size_and_odd(stats: Stats, dtype: str) -> str:
    """The size of the elements, and the counts of NaN and infinite elements."""
    odd = [f"{count:,} {what}" for count, what in ((stats.nan, "NaN"), (stats.inf, "inf")) if count]
    return ", ".join([*_size(stats, dtype), *odd])


def _size(stats: Stats, dtype: str) -> list[str]:
    """The root mean square; of integers, such as classes and tokens, the least and the largest; of truth values the
    share of those that are true. Empty if unknown."""
    if np.isnan(stats.rms):
        return []
    if dtype == "bool":
        return [f"true in {100 * stats.mean:.3g} %"]
    if "int" in dtype:
        return [f"from {stats.min:,.0f} to {stats.max:,.0f}"]
    return [f"rms {number(stats.rms, 4)}"]


def _of_part(snapshot: Snapshot) -> str:
    """A note that the statistics are those of the elements on one rank; empty if they are of all elements."""
    part = snapshot.part
    return "" if part is None else f" in the {part[0]:,} of {part[1]:,} elements here"


def has_odd(snapshot: Snapshot | None) -> bool:
    """Whether an element is NaN or infinite."""
    stats = snapshot.stats if snapshot is not None else None
    return stats is not None and bool(stats.nan or stats.inf)


def compact(snapshot: Snapshot | None) -> str:
    """A tensor as in `value` if that is short, otherwise as in `brief`."""
    full = value(snapshot)
    return full if len(full) <= _COMPACT else brief(snapshot)


def shape(snapshot: Snapshot) -> str:
    """A shape as `(8×3)`."""
    return f"({'×'.join(map(str, snapshot.shape))})"


def nested(array: np.ndarray, digits: int = 0) -> str:
    """A small array in brackets."""
    digits = digits or (6 if array.size == 1 else 4)
    if array.ndim == 0:
        return number(array[()], digits)
    return "[" + ", ".join(nested(row, digits) for row in array) + "]"


def listed(parts: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`; empty if there are no parts."""
    *head, last = [*parts] or [""]
    return f"{', '.join(head)} and {last}" if head else last


def few_of(names: Sequence[str], most: int = NAMED) -> str:
    """The first names, at most `most`, and the number of the others: `a, b, c, d and 3 more`."""
    more = len(names) - most
    return listed([*names[:most], f"{more:,} more"] if more > 0 else names)


def of_passes(passes: int, detailed: int, shapes: int) -> str:
    """The text after a number of passes: how many were recorded in detail, and the number of their different
    structures."""
    text = f", {detailed:,} of them in detail" if detailed < passes else ""
    if detailed < 2:
        return text
    return text + (", all of one shape" if shapes == 1 else f", of {shapes:,} shapes")


def plural(n: int, one: str, many: str = "") -> str:
    """`1 pass`, `2 passes`, `1,000 events`."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """A time with three digits: `1.25 s`, `812 ms`, `4.2 µs`."""
    return _scaled(seconds, ((1, "s"), (1e-3, "ms"), (1e-6, "µs")))


def size(count: float) -> str:
    """A number of bytes with three digits: `1.5 GB`, `64 kB`, `8 bytes`."""
    return _scaled(count, ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes")))


def flops(count: float) -> str:
    """A number of floating-point operations with three digits: `3.2 GFLOP`."""
    return _scaled(count, ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"), (1, "FLOP")))


def _scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    """A quantity in the largest unit in which it is at least 1, otherwise in the smallest unit."""
    factor, unit = next(((factor, unit) for factor, unit in units if value >= factor), units[-1])
    scaled = value / factor
    return f"{scaled:.0f} {unit}" if scaled >= 100 else f"{scaled:.3g} {unit}"


# Norms of gradients as a line of bars: over the passes of a run for a leaf, or over equal blocks.

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
        scaled = [(math.log10(height) - math.log10(low)) / decades if height > 0 else 0.0 for height in heights]
    else:
        scaled = [height / high for height in heights]
    return "".join(
        _BARS[round(share * (len(_BARS) - 1))] if math.isfinite(height) else _NOT_FINITE
        for share, height in zip(scaled, heights, strict=True)
    )


# The costs of the ops of a run, in a sentence.


def profile_line(query: Query) -> str:
    """The costs of the ops of a run, in a line; empty if nothing was measured."""
    return total_of(query.of(profile).total) if is_profiled(query) else ""


def total_of(cost: Cost) -> str:
    """All costs in a sentence: `1,234 ops took 1.25 s (forward 400 ms, backward 850 ms), 3.2 GFLOP`."""
    phases = [f"{phase} {duration(seconds)}" for phase, seconds in cost.seconds.items() if seconds]
    computed = sum(cost.flops.values())
    text = f"{plural(cost.ops, 'op')} took {duration(cost.all_seconds)}"
    text += f" ({', '.join(phases)})" if phases else ""
    text += f", made {size(sum(cost.made.values()))}" if any(cost.made.values()) else ""
    return text + (f", computed {flops(computed)}" if computed else "")


# Ranks by their numbers, and the values of ranks, in a few words.

_MOST_SPANS = 8  # the most runs of consecutive ranks that are named


def called_ranks(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 0, 2 and 3`, `ranks 0 to 16 and 18 to 63`."""
    spans = [f"{first} to {last}" if last > first else str(first) for first, last in _spans(ranks)]
    if len(spans) > _MOST_SPANS:
        return f"{len(ranks)} ranks ({', '.join(spans[:_MOST_SPANS])} and so on)"
    return f"rank{'s' * (len(ranks) > 1)} {listed(spans)}"


def _spans(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """The first and last of three or more consecutive ranks; any other rank by itself."""
    rows: list[list[int]] = []
    for rank in sorted(ranks):
        if rows and rank == rows[-1][-1] + 1:
            rows[-1].append(rank)
        else:
            rows.append([rank])
    return [span for row in rows for span in ([(row[0], row[-1])] if len(row) > 2 else [(rank, rank) for rank in row])]


def told_apart(values: Sequence[Snapshot | None]) -> list[str]:
    """Values in a few words, with more digits where different values would look the same."""
    texts = ["None" if value is None else brief(value) for value in values]
    kinds: dict[str, set[str]] = {}
    for text, value in zip(texts, values, strict=True):
        kinds.setdefault(text, set()).add("" if value is None else repr(value.stats))
    return [
        text if len(kinds[text]) == 1 else text + _more_digits(value) for text, value in zip(texts, values, strict=True)
    ]


def _more_digits(value: Snapshot | None) -> str:
    stats = value.stats if value is not None else None
    return "" if stats is None else f" (rms {stats.rms:.9g}, mean {stats.mean:.9g})"
