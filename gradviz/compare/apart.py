"""The distance of two values, and the lines that differ between two sources."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher

import numpy as np

from gradviz.compare.difference import Lines
from gradviz.system.paths import file_name
from gradviz.tracefile import Snapshot, Trace


def apart(one: Snapshot, other: Snapshot) -> float | None:
    """The largest difference between the elements of two tensors, relative to the largest element. If the elements were
    not kept, the largest difference between their statistics. NaN if the shapes differ, or if NaNs or infinities are
    not in the same places; None if it is not known."""
    if one.shape != other.shape:
        return float("nan")
    values = _numbers(one, other)
    if values is None:
        return None
    left, right = values
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    if not np.isfinite(left[~same]).all() or not np.isfinite(right[~same]).all():
        return float("nan")
    size = max(_largest(left), _largest(right)) or 1.0
    return float(np.max(np.abs(left[~same] - right[~same]), initial=0.0)) / size


def _numbers(one: Snapshot, other: Snapshot) -> tuple[np.ndarray, np.ndarray] | None:
    """The elements of both values, else their statistics; None if neither is known."""
    if one.array is not None and other.array is not None:
        is_complex = "c" in (one.array.dtype.kind, other.array.dtype.kind)
        wide = np.complex128 if is_complex else np.float64
        return one.array.astype(wide), other.array.astype(wide)
    if one.stats is None or other.stats is None:
        return None
    left, right = (
        np.array([s.min, s.max, s.mean, s.rms, s.nan or 0.0, s.inf or 0.0]) for s in (one.stats, other.stats)
    )
    return left, right


def _largest(values: np.ndarray) -> float:
    return float(np.max(np.abs(values[np.isfinite(values)]), initial=0.0))


def changed_lines(one: Trace, other: Trace) -> Iterator[Lines]:
    """The lines of source that differ between two runs, file by file."""
    for file, partner in _files(one, other):
        texts = one.source(file), other.source(partner)
        for tag, start, end, begin, stop in SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
            if tag != "equal":
                before, after = tuple(texts[0][start:end]), tuple(texts[1][begin:stop])
                yield Lines(file, partner, start + 1, begin + 1, before, after)


def _files(one: Trace, other: Trace) -> list[tuple[str, str]]:
    """The pairs of files that correspond in two runs: the two scripts, and files with the same name."""
    left, right = (
        {site.place.file for site in trace.sites.values() if trace.source(site.place.file)}
        for trace in (one, other)
    )
    scripts = one.meta.get("script", ""), other.meta.get("script", "")
    partners = {scripts[0]: scripts[1]} if scripts[0] in left and scripts[1] in right else {}
    by_name = {file_name(file): file for file in right if file not in partners.values()}
    for file in sorted(left - partners.keys()):
        partner = file if file in right else by_name.get(file_name(file))
        if partner is not None:
            partners[file] = partner
    return list(partners.items())
