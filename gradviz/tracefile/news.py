"""A test whether a pass of a run that is being recorded has something that no earlier pass had: a line that ran or did
not run, more NaN or infinities, an error."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gradviz.events.event_layout import ROW
from gradviz.events.kinds import Kind
from gradviz.events.values import Stat
from gradviz.sets import distinct
from gradviz.tracefile.batch import Batch
from gradviz.tracefile.nans import with_bad
from gradviz.tracefile.schema import STATE


class News:
    """Notes everything that is written; `take` has to be called at the end of each pass."""

    def __init__(self) -> None:
        self.places: list[np.ndarray] = []  # the kinds of events of this pass, each with its place
        self.bad = 0  # the number of values of this pass with a NaN or an infinity
        self.errors = 0  # the number of errors in this pass
        self.known: set[bytes] = set()  # the places of earlier passes
        self.most = 0  # the most bad values of an earlier pass

    def note(self, batch: Batch, dtypes: Mapping[int, str]) -> None:
        """Note a batch that has been written; `dtypes` are the dtypes of forms by their numbers."""
        rows = np.frombuffer(batch.rows, ROW)
        kinds = rows["head"] & 0xFF
        self.errors += int(np.count_nonzero(kinds == Kind.ERROR))
        self.places.append(distinct(kinds.astype(np.int64) << 32 | rows["site"]))
        states = np.frombuffer(batch.states, STATE)
        for statistic in (Stat.NAN, Stat.INF):
            self.bad += len(with_bad(statistic, states, batch.payload, dtypes))

    def take(self) -> bool:
        """Whether the pass that ends here has something new."""
        places = distinct(np.concatenate(self.places)).tobytes() if self.places else b""
        is_new = places not in self.known or self.bad > self.most or self.errors > 0
        self.known.add(places)
        self.most = max(self.most, self.bad)
        self.places, self.bad, self.errors = [], 0, 0
        return is_new
