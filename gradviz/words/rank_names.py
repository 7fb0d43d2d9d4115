"""Ranks by their numbers, and the values of ranks, in a few words."""

from __future__ import annotations

from collections.abc import Sequence

from gradviz.tracefile import Snapshot
from gradviz.words.numbers import brief, listed

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
    return [
        span
        for row in rows
        for span in ([(row[0], row[-1])] if len(row) > 2 else [(rank, rank) for rank in row])
    ]


def told_apart(values: Sequence[Snapshot | None]) -> list[str]:
    """Values in a few words, with more digits where different values would look the same."""
    texts = ["None" if value is None else brief(value) for value in values]
    kinds: dict[str, set[str]] = {}
    for text, value in zip(texts, values, strict=True):
        kinds.setdefault(text, set()).add("" if value is None else repr(value.stats))
    return [
        text if len(kinds[text]) == 1 else text + _more_digits(value)
        for text, value in zip(texts, values, strict=True)
    ]


def _more_digits(value: Snapshot | None) -> str:
    stats = value.stats if value is not None else None
    return "" if stats is None else f" (rms {stats.rms:.9g}, mean {stats.mean:.9g})"
