"""A program line by line: the events that belong to one execution of a line, and the tensors that have a name after
it."""

from __future__ import annotations

import numpy as np

from gradviz.query.query import Query


def line_ends(query: Query) -> np.ndarray:
    """The last event of each execution of a line, in order. Events in a backward pass belong to the line that began the
    pass. Use `query.of(line_ends)`."""
    trace = query.trace
    numbers = np.zeros(max((0, *trace.sites)) + 1, np.int64)  # the line of each site
    lines: dict[tuple[str, int], int] = {}
    for number, site in trace.sites.items():
        numbers[number] = lines.setdefault((site.place.file, site.place.line), len(lines) + 1)
    sites = trace.events["site"].astype(np.int64)
    passes = query.passes.numbers
    for backward_pass in trace.passes:
        sites[passes == backward_pass.number] = backward_pass.site
    line_of = numbers[np.minimum(sites, len(numbers) - 1)]
    known = np.flatnonzero(line_of)
    if not len(known):
        return np.array([trace.count - 1], np.int64)
    before = np.maximum(np.searchsorted(known, np.arange(trace.count), side="right") - 1, 0)
    line_of = line_of[known[before]]  # an event without a place belongs to the line before it
    return np.append(np.flatnonzero(line_of[1:] != line_of[:-1]), trace.count - 1)


def named_tensors(query: Query, k: int) -> list[int]:
    """The tensors with a name in the program just after event k, as they were made; the newest of each name."""
    names = query.names.all
    is_named = (names.codes > 0) & (names.born <= k)
    newest = {
        int(code): int(tensor)
        for code, tensor in zip(names.codes[is_named], names.tensors[is_named], strict=True)
    }
    return sorted(newest.values())
