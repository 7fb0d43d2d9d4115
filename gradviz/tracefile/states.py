"""The states of tensors at all events of a trace, as one table."""

import math
import zlib
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from gradviz.events.handles import Form, part_of
from gradviz.events.kinds import LEAF, REQUIRES_GRAD, VIEW
from gradviz.events.values import NONFINITE, OF_ZEROS, Stat, Stats, packed_stats_of, stats_of, stats_table, unpack_stats
from gradviz.sets import distinct
from gradviz.tracefile.database import CHANGED, ELEMENTS, STATE, STATS
from gradviz.tracefile.sound import STATISTICS, check_values, elements_of

_BITS = 31  # bits of an event's number in a key; the tensor's number has 32: a key has 63 and a sign
_LAST_EVENT = (1 << _BITS) - 1
_ELEMENTS_AT_ONCE = 1 << 18  # the most elements whose differences are computed at once
_COLUMNS = (
    "tensors", "events", "versions", "bases", "forms", "flags", "_grades", "_lengths", "_offsets",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A tensor at an event. `array` is None if its elements were not kept; `told` are the statistics that were kept in
    their place, None if no values were. `dtype` is a name such as `float32`; the elements of bfloat16 are given as
    float32. `base` is the tensor whose memory it shares, 0 for none."""

    tensor: int
    version: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    flags: int
    base: int
    array: np.ndarray | None
    told: Stats | None

    @cached_property
    def stats(self) -> Stats | None:
        """The statistics of its elements, or those that were kept; None if no values were."""
        return self.told if self.array is None else stats_of(self.array)

    def with_elements(self, array: np.ndarray | None) -> "Snapshot":
        """The same tensor with other elements, or with none that are known."""
        return replace(self, shape=self.shape if array is None else array.shape, array=array, told=None)

    @property
    def part(self) -> tuple[int, int] | None:
        """The numbers of elements here and in the whole, if the other elements lie on other ranks: `(6, 12)`."""
        return part_of(self.device)

    @property
    def is_leaf(self) -> bool:
        """Whether the tensor was a leaf, as every tensor is that does not require grad."""
        return bool(self.flags & LEAF) or not self.requires_grad

    @property
    def requires_grad(self) -> bool:
        """Whether the tensor required grad."""
        return bool(self.flags & REQUIRES_GRAD)

    @property
    def is_view(self) -> bool:
        """Whether the tensor was a view of another tensor."""
        return bool(self.flags & VIEW)


class States:
    """The states of a trace in the order in which they were recorded. `tensors`, `events`, `versions`, `bases`, `flags`
    and `forms` (0: as before) are columns; a *row* is a place in them. `firsts_of_chunks` are the rows at which the
    chunks of the file begin, and the number of rows.

    Raises ValueError if the file is damaged."""

    def __init__(
        self,
        chunks: list[np.ndarray],
        sizes: list[int],
        forms: dict[int, Form],
        payload: Callable[[int], bytes],
        read: Callable[[int, int, int], bytes],
    ) -> None:
        table = np.concatenate([np.zeros(0, STATE), *chunks])
        self.tensors, self.events = table["tensor"].copy(), table["event"].copy()
        self.versions, self.bases = table["version"].copy(), table["base"].copy()
        self.forms, self.flags = table["form"].copy(), (table["what"] & 0xFF).astype(np.uint8)
        self._grades = (table["what"] >> 8).astype(np.uint8)
        self._lengths = table["length"].astype(np.int64)
        self._known_forms, self._payload, self._read = forms, payload, read
        self.firsts_of_chunks = np.cumsum([0, *map(len, chunks)])
        self._filled: dict[int, np.ndarray] = {}  # elements that were not kept, but are known by other means
        offsets = np.cumsum(self._lengths) - self._lengths
        for first, after, size in zip(self.firsts_of_chunks, self.firsts_of_chunks[1:], sizes, strict=False):
            if after > first:
                offsets[first:after] -= offsets[first]
                if int(offsets[after - 1] + self._lengths[after - 1]) > size:
                    raise ValueError("values are missing")
        self._offsets = offsets
        check_values(table["what"] >> 8, self._lengths, self.forms, forms)
        self.snapshot = lru_cache(maxsize=1 << 15)(self._snapshot)

    def __len__(self) -> int:
        return len(self.tensors)

    def until(self, count: int) -> "States":
        """The states at the first `count` events."""
        return self.of(slice(int(np.searchsorted(self.events, count))))

    def of(self, rows: np.ndarray | slice) -> "States":
        """Some of the states, chosen by a mask or as a stretch."""
        part = copy(self)
        for name in _COLUMNS:
            setattr(part, name, getattr(self, name)[rows])
        for known in ("_order", "_sorted_keys", "_formed", "_formed_keys", "stats", "checksums"):
            part.__dict__.pop(known, None)
        kept = np.zeros(len(self), bool)
        kept[rows] = True
        part.firsts_of_chunks = np.concatenate([[0], np.cumsum(kept)])[self.firsts_of_chunks]
        part._filled = {}
        part.snapshot = lru_cache(maxsize=1 << 15)(part._snapshot)
        return part

    # --- finding states

    @cached_property
    def _order(self) -> np.ndarray:
        return np.argsort(self._keys, kind="stable").astype(np.int32)

    @property
    def _keys(self) -> np.ndarray:
        return self.tensors.astype(np.int64) << _BITS | self.events

    @cached_property
    def _sorted_keys(self) -> np.ndarray:
        return self._keys[self._order]

    def rows(self, tensor: int) -> np.ndarray:
        """The states of a tensor, in order."""
        keys = self._sorted_keys
        start = int(keys.searchsorted(tensor << _BITS))
        end = int(keys.searchsorted(tensor << _BITS | _LAST_EVENT, side="right"))
        return self._order[start:end]

    def last(self, tensor: int, at: int) -> int:
        """The last state of a tensor up to event `at`; −1 for none."""
        place = int(self._sorted_keys.searchsorted(tensor << _BITS | max(at, 0), side="right")) - 1
        if at < 0 or place < 0:
            return -1
        row = int(self._order[place])
        return row if int(self.tensors[row]) == tensor else -1

    def first(self, tensor: int) -> int:
        """The first state of a tensor; −1 for none."""
        keys = self._sorted_keys
        place = int(keys.searchsorted(tensor << _BITS))
        if place == len(keys) or int(keys[place] >> _BITS) != tensor:
            return -1
        return int(self._order[place])

    def base(self, tensor: int) -> int:
        """The tensor on whose memory a tensor was made; 0 if it has its own, or if it is not known."""
        row = self.first(tensor)
        return int(self.bases[row]) if row >= 0 else 0

    @property
    def firsts(self) -> np.ndarray:
        """The first state of each tensor, in the order of tensors."""
        tensors = self.tensors[self._order]
        return self._order[np.concatenate([[True], tensors[1:] != tensors[:-1]])[: len(tensors)]]

    def rows_of(self, tensors: np.ndarray, events: np.ndarray) -> np.ndarray:
        """The last state with a form of each tensor up to the event beside it; −1 if there is none."""
        formed = self._formed
        if not len(formed):
            return np.full(len(tensors), -1)
        keys = self._formed_keys
        wanted = tensors.astype(np.int64) << _BITS | np.maximum(events, 0)
        at = np.searchsorted(keys, wanted, side="right") - 1
        known = (at >= 0) & (keys[at] >> _BITS == tensors) & (tensors > 0) & (events >= 0)
        return np.where(known, formed[at], -1)

    @cached_property
    def _formed(self) -> np.ndarray:
        """The states that have a form, in the order of tensors and events."""
        return self._order[self.forms[self._order] > 0]

    @cached_property
    def _formed_keys(self) -> np.ndarray:
        return self._keys[self._formed]

    def valued(self, tensor: int, at: int) -> int:
        """The last state up to `at` with a tensor's shape and value; −1 for none."""
        return self.formed(self.last(tensor, at))

    def formed(self, row: int) -> int:
        """A state, or the last state of its tensor before it, that has a shape and value; −1 for none."""
        while row >= 0 and not self.forms[row]:
            row = self.last(int(self.tensors[row]), int(self.events[row]) - 1)
        return row

    # --- one state

    def statistic(self, which: Stat, tensor: int, at: int) -> float:
        """A statistic of the last state of a tensor up to `at` that has a value; NaN for none."""
        row = self.valued(tensor, at)
        return float(self.stats[row, which]) if row >= 0 else float("nan")

    def form(self, row: int) -> Form | None:
        """The shape, dtype and device in a state; None if it has none."""
        return self._known_forms.get(int(self.forms[row]))

    def size_of(self, tensor: int) -> int:
        """The number of elements of a tensor in its first state; 0 if it is not known."""
        form = self.form(self.first(tensor))
        return 0 if form is None else math.prod(form.shape)

    def dtype_of(self, tensor: int) -> str:
        """The dtype of a tensor in its first state; empty if it is not known."""
        form = self.form(self.first(tensor)) if tensor else None
        return "" if form is None else form.dtype

    def _snapshot(self, row: int, valued: int) -> Snapshot:
        """A tensor by its states: flags and version from one state, shape and value from another (mostly the same)."""
        form = self.form(valued)
        assert form is not None
        array, stats = self._value(valued, form)
        return Snapshot(
            int(self.tensors[row]),
            int(self.versions[row]),
            form.shape,
            form.dtype,
            form.device,
            int(self.flags[row]),
            int(self.bases[row]),
            array,
            stats,
        )

    def fill(self, tensor: int, at: int, array: np.ndarray) -> None:
        """Give elements to the state of a tensor at an event, if it was recorded there without elements: a replay knows
        them."""
        row = self.valued(tensor, at)
        if (
            row >= 0
            and int(self._grades[row]) != ELEMENTS
            and self._known_forms[int(self.forms[row])].shape == array.shape
        ):
            self._filled[row] = array
            self.snapshot.cache_clear()
            if "stats" in self.__dict__:
                self.stats[row] = np.frombuffer(packed_stats_of(array))

    def _value(self, row: int, form: Form) -> tuple[np.ndarray | None, Stats | None]:
        if row in self._filled:
            return self._filled[row], None
        grade, length = int(self._grades[row]), int(self._lengths[row])
        if grade not in (ELEMENTS, STATS, CHANGED):
            return None, None
        chunk = int(np.searchsorted(self.firsts_of_chunks, row, side="right")) - 1
        data = self._read(chunk, int(self._offsets[row]), length)
        if grade != ELEMENTS:
            return None, unpack_stats(data[-8 * STATISTICS :])
        array = elements_of(np.frombuffer(data, np.uint8), form.dtype)
        return None if array is None else array.reshape(form.shape), None

    # --- many states

    @property
    def in_full(self) -> np.ndarray:
        """The tensors of the states whose elements were kept."""
        return self.tensors[self._grades == ELEMENTS]

    def elements(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The elements of some states, as far as they were kept. The states of one chunk and form are given together:
        the places of their rows among `rows`, and an array with a row for each."""
        kept = np.flatnonzero((rows >= 0) & (self._grades[rows] == ELEMENTS) & (self._lengths[rows] > 0))
        chunks = np.searchsorted(self.firsts_of_chunks, rows[kept], side="right") - 1
        keys = chunks << 32 | self.forms[rows[kept]].astype(np.int64)
        for key in distinct(keys).tolist():
            places = kept[keys == key]
            array = self._elements_of_chunk(key >> 32, rows[places])
            if array is not None:
                yield places, array

    def bases_at(self, rows: np.ndarray) -> dict[int, int]:
        """The base of each tensor that shares memory in these states; of several states, the last one counts."""
        rows = rows[self.bases[rows] > 0]
        return dict(zip(self.tensors[rows].tolist(), self.bases[rows].tolist(), strict=True))

    def are_zero(self, rows: np.ndarray) -> np.ndarray:
        """Whether all elements of each state are known to be 0. Here and below a row of −1 is no state: nothing is
        known of it."""
        return (self._stats_of(rows)[:, OF_ZEROS] == 0).all(axis=1)

    def are_bad(self, rows: np.ndarray) -> np.ndarray:
        """Whether each state is known to have a NaN or an infinity."""
        return np.any(self._stats_of(rows)[:, NONFINITE] > 0, axis=1)

    def rms(self, rows: np.ndarray) -> np.ndarray:
        """The root mean square of the finite elements of each state; NaN where it is not known."""
        return self._stats_of(rows)[:, Stat.RMS]

    def finite_rms(self, rows: np.ndarray) -> np.ndarray:
        """The root mean square of each state; NaN where it is not known, or where an element is not finite."""
        return np.where(self.are_bad(rows), np.nan, self.rms(rows))

    def sizes(self, rows: np.ndarray) -> np.ndarray:
        """The number of elements of each state; 0 where it is not known."""
        return self.of_forms(rows, lambda form: math.prod(form.shape))

    def of_forms(self, rows: np.ndarray, measure: Callable[[Form], int]) -> np.ndarray:
        """What `measure` gives for the form of each state; 0 where it is not known."""
        by_form = np.zeros(max(self._known_forms, default=0) + 1, np.int64)
        for number, form in self._known_forms.items():
            by_form[number] = measure(form)
        return np.where(rows >= 0, by_form[self.forms[rows]], 0) if len(self.forms) else rows * 0

    def _stats_of(self, rows: np.ndarray) -> np.ndarray:
        stats = np.full((len(rows), STATISTICS), np.nan)
        stats[rows >= 0] = self.stats[rows[rows >= 0]]
        return stats

    def changes(self, rows: np.ndarray) -> np.ndarray:
        """The Euclidean norm of the change that a step of an optimizer made to each state, where it was kept: NaN where
        an element is not finite. −1 where it was not kept."""
        changes = np.full(len(rows), -1.0)
        kept = np.flatnonzero((rows >= 0) & (self._grades[rows] == CHANGED))
        chunks = np.searchsorted(self.firsts_of_chunks, rows[kept], side="right") - 1
        for chunk in distinct(chunks).tolist():
            places = kept[chunks == chunk]
            payload = np.frombuffer(self._payload(chunk), np.uint8)
            norms = payload[self._offsets[rows[places]][:, None] + np.arange(8)].view(np.float64)[:, 0]
            changes[places] = np.where(norms < 0, -1.0, norms)
        return changes

    def distances(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """The Euclidean norm of the difference of each pair of states; −1 if elements of one of them were not kept, or
        if their forms differ."""
        distances = np.full(len(before), -1.0)
        alike = (before >= 0) & (after >= 0) & (self.forms[before] == self.forms[after])
        alike &= (self._grades[before] == ELEMENTS) & (self._grades[after] == ELEMENTS)
        for form in distinct(self.forms[before[alike]]).tolist():
            of_form = np.flatnonzero(alike & (self.forms[before] == form))
            size = int(np.prod(self._known_forms[form].shape))
            at_once = max(1, _ELEMENTS_AT_ONCE // max(size, 1))
            for start in range(0, len(of_form), at_once):
                part = of_form[start : start + at_once]
                distances[part] = self._distances(before[part], after[part], size)
        return distances

    def _distances(self, before: np.ndarray, after: np.ndarray, size: int) -> np.ndarray:
        is_complex = self._known_forms[int(self.forms[before[0]])].dtype.startswith("complex")
        both = np.zeros((2, len(before), size), np.complex128 if is_complex else np.float64)
        is_known = np.zeros((2, len(before)), bool)
        for side, rows in enumerate((before, after)):
            for places, array in self.elements(rows):
                both[side, places], is_known[side, places] = array, True
        with np.errstate(all="ignore"):  # they may have infinities
            norms = np.sqrt((np.abs(both[1] - both[0]) ** 2).sum(axis=1))
        return np.where(is_known.all(axis=0), norms, -1.0)

    def _elements_of_chunk(self, chunk: int, rows: np.ndarray) -> np.ndarray | None:
        """The elements of states of one chunk and form, a row for each; None for a dtype that NumPy lacks."""
        payload = np.frombuffer(self._payload(chunk), np.uint8)
        packed = payload[self._offsets[rows][:, None] + np.arange(int(self._lengths[rows[0]]))]
        return elements_of(packed, self._known_forms[int(self.forms[rows[0]])].dtype)

    @cached_property
    def stats(self) -> np.ndarray:
        """min, max, mean, rms, nan, inf and zeros of each state, NaN if no value was kept."""
        stats = np.full((len(self), STATISTICS), np.nan)
        for chunk, (first, after) in enumerate(zip(self.firsts_of_chunks, self.firsts_of_chunks[1:], strict=False)):
            if after > first and self._grades[first:after].any():
                self._fill(stats, slice(first, after), np.frombuffer(self._payload(chunk), np.uint8))
        for row, array in self._filled.items():
            stats[row] = np.frombuffer(packed_stats_of(array))
        return stats

    @cached_property
    def checksums(self) -> np.ndarray:
        """A checksum of each state: of what was kept of its value, and of its shape and dtype. Equal states have equal
        checksums, in one file and between files. 0 if no value was kept."""
        checksums = np.zeros(len(self), np.uint32)
        seeds = {number: zlib.crc32(repr(form[:2]).encode()) for number, form in self._known_forms.items()}
        for chunk, (first, after) in enumerate(zip(self.firsts_of_chunks, self.firsts_of_chunks[1:], strict=False)):
            payload = memoryview(self._payload(chunk)) if self._lengths[first:after].any() else b""
            for row in (first + np.flatnonzero(self._lengths[first:after])).tolist():
                start, length = int(self._offsets[row]), int(self._lengths[row])
                if self._grades[row] == CHANGED:  # the value is the same, whatever it was before
                    start, length = start + 8, length - 8
                value = payload[start : start + length]
                checksums[row] = zlib.crc32(value, seeds.get(int(self.forms[row]), 0)) or 1
        return checksums

    def _fill(self, found: np.ndarray, here: slice, payload: np.ndarray) -> None:
        """Fill in the statistics of one chunk: those that were kept, and those of values that were kept in full, all
        values of a kind at once."""
        lengths, offsets, grades = self._lengths[here], self._offsets[here], self._grades[here]
        kinds = (lengths << 40) | (self.forms[here].astype(np.int64) << 8) | grades
        for kind in distinct(kinds[(lengths > 0) & (grades > 0)]).tolist():
            rows = np.flatnonzero(kinds == kind)
            length = int(lengths[rows[0]])
            packed = payload[offsets[rows][:, None] + np.arange(length)]
            if kind & 0xFF != ELEMENTS:
                found[here.start + rows] = packed.view(np.float64)[:, -STATISTICS:]
                continue
            array = elements_of(packed, self._known_forms[kind >> 8 & 0xFFFFFFFF].dtype)
            if array is not None:
                found[here.start + rows] = stats_table(array)
