"""The parts of an event as bytes: numbers for texts, forms and rules, states of tensors, their values.

The recorder puts an event together from these parts. This happens under a lock, and an event that an exception cuts in
two is removed."""

import struct
from collections.abc import Sequence
from threading import get_ident
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from gradviz.events.event_layout import ROW
from gradviz.events.field_types import Rule
from gradviz.events.handles import READERS, AtOnce, Changed, Form, Later, Reader, reader_of
from gradviz.events.listener import NO_RULE, Listener, State
from gradviz.events.values import LARGEST, SMALL, STATISTICS, packed_stats_of
from gradviz.system.turns import new_turn
from gradviz.tracefile.batch import Batch, Interned, Renumbered
from gradviz.tracefile.database import CHANGED, ELEMENTS, STATE, STATS
from gradviz.tracefile.sites import Sites
from gradviz.tracefile.writer import PAYLOAD_LIMIT

# No memory for values, or numbers that four bytes cannot hold.
OWN_FAULTS = MemoryError, struct.error, OverflowError
_LARGE = 4096  # elements; for more, statistics take longer than a test whether they are known
_MOST_FORMS = 10_000  # the most forms that are known by their identity
FEW = 2000  # the number of events that the writer may always be behind
_pack_double = struct.Struct("<d").pack
pack_state = struct.Struct("<7I").pack
_float32 = np.dtype(np.float32)


class _Read(NamedTuple):
    """Statistics of an array. They hold for its memory while the array is alive and nothing writes to it."""

    array: ref[np.ndarray]
    memory: tuple[Any, ...]
    stats: bytes


class Packing(Listener):
    """Packs the parts of events into a batch. `values` is `none`, `stats` or `full`."""

    def __init__(self, values: str, sites: Sites | None) -> None:
        self.sites = sites or Sites()
        self.strings, self.forms, self.rules = Interned(), Interned(1), Interned()
        self.strings.number("")
        self.rules.number(NO_RULE)
        # numbers of rules by identity: hashing a rule takes as long as packing it
        self.same_rules: dict[int, int] = {}
        self.same_forms: dict[int, tuple[int, Form]] = {}  # of forms, too, which are kept alive here
        self.float32_forms: dict[tuple[int, ...], int] = {}  # of NumPy arrays, by their shapes
        self.values = values
        self.keeps_values = values != "none"
        self.most_elements = SMALL if values != "full" else LARGEST  # the most that are kept in full
        self.batch = Batch()
        self.lock = new_turn()
        self.whole = _Whole(self)
        self.count = 0
        # The last large gradient of a pass, until the user's code may run, which could write over it.
        self.last_gradient: _Read | None = None
        self.limit = FEW  # the count at which the program has to give way
        self.threads: dict[int, int] = {}
        self.last_ident = self.last_thread = 0
        self.last_op: dict[int, int] = {}  # the last OP event of each thread
        self.open_passes: dict[int, int] = {}  # the source's number of a pass -> this file's
        self.all_passes = Renumbered()  # the same, with the passes that have ended

    @property
    def wants_changes(self) -> bool:  # type: ignore[override]
        """Whether the norms of the changes by optimizers are kept: where the elements are kept, they follow from
        these."""
        return self.keeps_values and self.values == STATISTICS

    @property
    def wants_histograms(self) -> bool:  # type: ignore[override]
        """Whether histograms of leaves are kept, for the same reason."""
        return self.wants_changes

    # --- numbers for the fields of an event (event_layout.Numbers)

    def text(self, text: str) -> int:
        """The number of a text."""
        return self.strings.known.get(text) or self.strings.number(text)

    def rule(self, rule: Rule) -> int:
        """The number of a rule."""
        known = self.same_rules.get(id(rule))
        if known is not None:
            return known
        is_new = rule not in self.rules.known
        number = self.rules.number(rule)
        if is_new:  # kept alive by `rules`, so that no other rule can have its identity
            self.same_rules[id(rule)] = number
        return number

    def in_pass(self, number: int) -> int:
        """This file's number of a pass, which counts from 1; 0 for none."""
        return self.open_passes.get(number) or self.all_passes.of(number)

    def earlier(self, event: int | None) -> int:
        """The number of events from an earlier event to this one; for −1, from the thread's last op. 0 for none."""
        if event == -1:
            event = self.last_op.get(self._thread())
        return 0 if event is None else self.count - event

    # --- the parts of an event

    def _is_lost(self, error: BaseException) -> bool:
        """Whether an exception that cut an event in two is the recording's own fault, and ends it. Any other, such as
        Ctrl-C, costs the event; the lock is held."""
        if isinstance(error, OWN_FAULTS):
            self._lose(error)
            return True
        self._undo()
        return False

    def _lose(self, error: Exception) -> None:
        """End the recording."""

    def _undo(self) -> None:
        """Remove an event that an exception (Ctrl-C) cut in two; the lock is held."""
        batch = self.batch
        rows = np.frombuffer(bytes(batch.rows), ROW)
        self.count = batch.first + len(rows)
        del batch.links[4 * int(rows["links"].sum(dtype=np.int64)) :]
        states = np.frombuffer(bytes(batch.states), STATE)
        kept = int(np.count_nonzero(states["event"] < self.count))
        del batch.states[STATE.itemsize * kept :]
        with_value = int(np.count_nonzero(states["what"][:kept] >> 8))
        del batch.payload[with_value:]
        batch.waiting = [entry for entry in batch.waiting if entry[0] < with_value]

    def _thread(self) -> int:
        """The current thread's number, shifted to its place in a row's head; the lock is held."""
        ident = get_ident()
        if ident != self.last_ident:
            self.last_ident = ident
            self.last_thread = self.threads.setdefault(ident, len(self.threads) + 1) << 16
        return self.last_thread

    def _put(self, row: bytes, links: bytes, states: bytes = b"") -> None:
        """Put one event at the end. Without a call between, so that Ctrl-C cannot cut it in two."""
        batch = self.batch
        batch.states += states
        batch.rows += row
        batch.links += links
        self.count += 1

    def _state(self, tensor: int, value: Any, flags: int, version: int, base: int, later: int = 0) -> None:
        """Record the state of a tensor at the event that is added next, or `later` events after it; the lock is
        held."""
        form = length = grade = 0
        if value is not None:
            reader = READERS.get(type(value)) or reader_of(value)
            found = None
            if self.keeps_values and type(value) is not np.ndarray:
                found = reader.at_once(value)
            if found is not None:
                form, grade, length = self._keep_small(found, reader)
            else:
                form = self._form(value, reader)
                if self.keeps_values:
                    grade, length = self._keep(value, reader)
        self.batch.states += pack_state(tensor, version, base, form, flags | grade << 8, length, self.count + later)

    def _states(self, states: Sequence[State]) -> None:
        """Record the states of tensors. Not a loop under the lock itself: from Python 3.12 on, Ctrl-C at the end of a
        loop that ends with a condition leaves the lock taken (tests/system/test_interrupts.py)."""
        for state in states:
            self._state(*state)

    def _gradients(self, numbers: Sequence[int], values: Sequence[Any], later: int = 0) -> None:
        """Record the states of gradients that occur for the first time. At `--values none` they have none."""
        if self.keeps_values:
            for number, value in zip(numbers, values):  # noqa: B905
                if value is not None:
                    self._state(number, value, 0, 0, 0, later)

    def _produced_gradients(self, numbers: Sequence[int], values: Sequence[Any], later: int) -> None:
        """Record the states of gradients that a node produced."""
        if self.keeps_values:
            for number, value in zip(numbers, values):  # noqa: B905
                if value is not None:
                    self._produced_gradient(number, value, later)

    def _produced_gradient(self, number: int, value: Any, later: int) -> None:
        """Record the state of a produced gradient. If a large gradient is the memory of the last one in another shape,
        its statistics are known: the transposed gradient of a weight is as large as anything in a pass."""
        if type(value) is not np.ndarray or value.size <= max(_LARGE, self.most_elements):
            self._state(number, value, 0, 0, 0, later)
            return
        last = self.last_gradient
        memory = value.__array_interface__["data"], value.size, value.dtype.char, value.flags.forc
        if last is None or last.memory != memory or last.array() is None or not value.flags.forc:
            last = self.last_gradient = _Read(ref(value), memory, packed_stats_of(value))
        self.batch.payload.append(last.stats)
        self.batch.bytes += len(last.stats)
        self.batch.states += pack_state(
            number, 0, 0, self._form(value), STATS << 8, len(last.stats), self.count + later
        )

    def _form(self, value: Any, reader: Reader | None = None) -> int:
        """The number of a value's form; `reader` is its reader, if known."""
        if type(value) is np.ndarray and value.dtype is _float32:
            known = self.float32_forms.get(value.shape)
            if known is None:
                known = self.forms.number(READERS[np.ndarray].form(value))
                self.float32_forms[value.shape] = known
            return known
        form = (reader or READERS.get(type(value)) or reader_of(value)).form(value)
        known_form = self.same_forms.get(id(form))
        return known_form[0] if known_form is not None else self._number_of_form(form)

    def _number_of_form(self, form: Form) -> int:
        """The number of a form. From now on the form is known by its identity, which is faster than hashing it."""
        number = self.forms.number(form)
        if len(self.same_forms) >= _MOST_FORMS:
            self.same_forms.clear()
        self.same_forms[id(form)] = number, form
        return number

    def _keep_small(self, found: AtOnce, reader: Reader) -> tuple[int, int, int]:
        """Put a small tensor's value into the payload; returns the number of its form, its grade and its length."""
        form, count, data, dtype = found
        known_form = self.same_forms.get(id(form))
        number = known_form[0] if known_form is not None else self._number_of_form(form)
        batch = self.batch
        length = len(data)
        batch.bytes += length
        if batch.bytes > PAYLOAD_LIMIT:
            self.limit = 0
        if count <= self.most_elements:
            batch.payload.append(data)
            return number, ELEMENTS, length
        batch.waiting.append((len(batch.payload), reader, Later((data, dtype), False, length)))
        batch.payload.append(b"")
        return number, STATS, 0

    def _keep(self, value: Any, reader: Reader) -> tuple[int, int]:
        """Put a tensor's value into the payload; returns its grade and its length."""
        if type(value) is Changed:
            return self._keep_changed(value)
        batch = self.batch
        whole = reader.size(value) <= self.most_elements
        kept = reader.keep(value, whole)
        if type(kept) is bytes:
            batch.payload.append(kept)
            held = length = len(kept)
        elif kept is not None:
            assert isinstance(kept, Later)
            batch.waiting.append((len(batch.payload), reader, kept))
            batch.payload.append(b"")
            held, length, whole = kept.held, 0, kept.whole
        else:
            return 0, 0
        batch.bytes += held
        if batch.bytes > PAYLOAD_LIMIT:
            self.limit = 0
        return ELEMENTS if whole else STATS, length

    def _keep_changed(self, value: Changed) -> tuple[int, int]:
        """Put the value that a step of an optimizer has written into the payload, behind the norm of its change."""
        batch, reader = self.batch, reader_of(value.value)
        waited = len(batch.waiting)
        grade, length = self._keep(value.value, reader)
        if grade != STATS:
            return grade, length
        if not isinstance(value.norm, Later):
            batch.payload[-1] = _pack_double(value.norm) + batch.payload[-1]
        elif len(batch.waiting) > waited:  # what waits for one place is put there in this order
            batch.waiting.insert(waited, (len(batch.payload) - 1, reader, value.norm))
        else:
            return grade, length
        return CHANGED, length + 8 if length else 0


class _Whole:
    """`with recorder.whole:` leaves nothing of an event that an exception (Ctrl-C) cuts in two."""

    __slots__ = ("recorder",)

    def __init__(self, recorder: Packing) -> None:
        self.recorder = recorder

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return error is not None and self.recorder._is_lost(error)
