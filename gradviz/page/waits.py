"""The gradients that wait at nodes during a pass; each text is stored once for all events at which it applies."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradviz.query.changes import writes_by_any_name
from gradviz.query.passes import Wait
from gradviz.words import Stop, Words
from gradviz.words.rows import waiting_told


def waits(words: Words, pass_number: int) -> list[list[Any]]:
    """The waiting texts of a pass: for each the event at which it begins, the event from which on it is shown, the
    event before which it ends (None: the end), the number of gradients, and the text. A gradient that its node
    receives at once is not shown at the event that produced it."""
    events = np.flatnonzero(words.query.passes.numbers == pass_number)
    return [
        part for wait in words.query.deliveries(pass_number).waits() for part in _parts(words, wait, events)
    ]


def _parts(words: Words, wait: Wait, own: np.ndarray) -> list[list[Any]]:
    """A wait, in several parts if a gradient is written to meanwhile. `own` are the events of the pass."""
    stop = Stop(words, wait.first)
    shown = wait.first + (stop.moment.meeting(wait.node, wait.nr).of == 1)
    stops = [stop, *map(stop.other, _written(words, wait, own))]
    ends = [*(later.k for later in stops[1:]), wait.end]
    return [
        [at.k, max(at.k, shown), end, len(wait.arrivals), waiting_told(at, wait.node, wait.nr)]
        for at, end in zip(stops, ends, strict=True)
    ]


def _written(words: Words, wait: Wait, own: np.ndarray) -> list[int]:
    """The events of the pass at which waiting gradients were written to."""
    end = words.trace.count if wait.end is None else wait.end
    written = {
        k for one in wait.arrivals for k in writes_by_any_name(words.query, one.gradient, wait.first + 1, end)
    }
    if not written:
        return []
    known = own.searchsorted(sorted(written))
    return [k for k in own[known[known < len(own)]].tolist() if wait.first < k < end]
