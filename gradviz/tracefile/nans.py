"""The values with a NaN in what is being recorded, and whether a pass has something that no earlier pass had: a line
that ran or did not run, more NaN or infinities, an error."""

from collections.abc import Mapping, Sequence

import numpy as np

from gradviz.events.event_layout import ROW
from gradviz.events.kinds import Kind
from gradviz.events.values import Stat
from gradviz.sets import distinct
from gradviz.tracefile.batch import Batch
from gradviz.tracefile.database import CHANGED, ELEMENTS, STATE, STATS
from gradviz.tracefile.sound import STATISTICS, elements_of

_GLANCE = 1 << 20  # the most bytes of values that are tested together
_SMALL = 1 << 12  # bytes of a value; larger values are tested one by one, and not copied


def with_nan(states: np.ndarray, payload: Sequence[bytes], dtypes: Mapping[int, str]) -> np.ndarray:
    """The events at which a tensor's value has a NaN, in order, one for each such value. `payload` has the values of
    the states that have one; `dtypes` are the dtypes of forms by their numbers."""
    return with_bad(Stat.NAN, states, payload, dtypes)


def with_bad(statistic: Stat, states: np.ndarray, payload: Sequence[bytes], dtypes: Mapping[int, str]) -> np.ndarray:
    """The same for a NaN or for an infinity: the `statistic` that counts them."""
    valued = states[states["what"] >> 8 != 0]
    if not len(valued):
        return np.zeros(0, np.int64)
    grades = valued["what"] >> 8
    bad = np.zeros(len(valued), bool)
    for grade, numbers in ((STATS, STATISTICS), (CHANGED, STATISTICS + 1)):
        (of_stats,) = (grades == grade).nonzero()
        packed = b"".join([payload[at] for at in of_stats.tolist()])
        bad[of_stats] = np.frombuffer(packed, "<f8").reshape(-1, numbers)[:, statistic - STATISTICS] > 0
    (in_full,) = (grades == ELEMENTS).nonzero()
    if _are_sound(
        [payload[at] for at in in_full.tolist()], {dtypes.get(form) for form in distinct(valued["form"]).tolist()}
    ):
        in_full = in_full[:0]
    forms = valued["form"][in_full]
    for form in distinct(forms).tolist():
        of_form = in_full[forms == form].tolist()
        bad[of_form] = _are_bad(statistic, [payload[at] for at in of_form], dtypes.get(form, ""))
    return valued["event"][bad].astype(np.int64)


def _are_sound(values: Sequence[bytes], dtypes: set[str | None]) -> bool:
    """Whether a quick test shows that all of many values are finite, as they mostly are."""
    if not dtypes <= {"float32"} or sum(map(len, values)) > _GLANCE:
        return False
    return bool(np.isfinite(np.frombuffer(b"".join(values), "<f4")).all())


_TESTS = {Stat.NAN: np.isnan, Stat.INF: np.isinf}


def _are_bad(statistic: Stat, values: Sequence[bytes], dtype: str) -> list[bool] | np.ndarray:
    """Whether each of several values of one form has a NaN, or an infinity."""
    size = len(values[0])
    if not 0 < size <= _SMALL or any(len(value) != size for value in values):
        return [_is_bad(statistic, np.frombuffer(value, np.uint8), dtype) for value in values]
    elements = elements_of(np.frombuffer(b"".join(values), np.uint8), dtype)
    if elements is None or elements.dtype.kind not in "fc":
        return [False] * len(values)
    bad: np.ndarray = _TESTS[statistic](elements).reshape(len(values), -1).any(axis=1)
    return bad


def _is_bad(statistic: Stat, value: np.ndarray, dtype: str) -> bool:
    elements = elements_of(value, dtype)
    return elements is not None and elements.dtype.kind in "fc" and bool(_TESTS[statistic](elements).any())


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
