"""Recorder: the listener that writes a run into a trace file.

The hot half of recording. An event is a few integers packed at the end of a few byte arrays, under a lock; a
thread (writer.py) takes them away many times a second and commits them, so that whatever ends the process leaves
a trace that is complete up to the last fraction of a second. Bytes, because lists of integers that one thread
makes and another frees cost as much again.
"""

from __future__ import annotations

import struct
import sys
import threading
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import Any

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.events.listener import Listener
from gradviz.events.values import DEFERRED, SMALL, stats_of
from gradviz.tracefile.schema import DTYPE_IDS, ELEMENTS, EVENT, SNAPSHOT, STATS
from gradviz.tracefile.sites import Sites
from gradviz.tracefile.writer import Batch, Interned, Writer

_TENSOR, _OP, _RECEIVED, _PRODUCED = int(Kind.TENSOR), int(Kind.OP), int(Kind.RECEIVED), int(Kind.PRODUCED)
_PAYLOAD_LIMIT = 32 << 20  # bytes in memory before they are written at once
_UNWRITTEN, _FEW = 0.1, 2000  # the seconds, or else the events, that the writer may be behind
_ELEMENTS, _STATS = ELEMENTS << 24, STATS << 24
_ROW, _TWO_ROWS, _SNAPSHOT = (struct.Struct(f"<{n}I").pack for n in (7, 14, 6))
_MANY = 64
_LINKS = [struct.Struct(f"<{n}I").pack for n in range(_MANY)]  # by how many there are
_float32, _FLOAT32 = np.dtype(np.float32), DTYPE_IDS["float32"]


class Recorder(Listener):
    """Writes events to `path`. `values` is `none`, `stats` or `full`; `passes` selects which backward passes
    (with the forward before them) are recorded in detail, None for all.

    Raises OSError where the file cannot be written. Close it to finish the trace."""

    def __init__(
        self,
        path: Path | str,
        values: str = "stats",
        passes: Any = None,
        sites: Sites | None = None,
        meta: dict[str, str] | None = None,
        formulas: dict[str, str] | None = None,
    ) -> None:
        self.sites = sites or Sites()
        self.strings = Interned()
        self.shapes = Interned()
        self.strings.number("")
        self.keeps_values = values != "none"
        self.most_elements = SMALL if values != "full" else sys.maxsize  # kept in full
        self.passes = passes
        self.batch = Batch()
        self.lock = threading.Lock()
        self.whole = _Whole(self)
        self.count = 0
        self.site = 0  # of the last event that has one
        self.limit = _FEW  # the count at which the program has to give way
        self.taken = time.monotonic()
        self.threads: dict[int, int] = {}
        self.last_ident = self.last_thread = 0
        self.passes_begun = 0
        self.detailed = passes is None or 1 in passes
        self.open_passes: dict[int, int] = {}  # the source's number of a pass -> this file's
        self.writer = Writer(path, self, {**(meta or {}), "values": values}, formulas or {})

    def take(self) -> Batch:
        """Take away what has been recorded since the last call; the lock is held."""
        batch, self.batch = self.batch, Batch()
        self.batch.first = self.count
        now = time.monotonic()
        rate = (self.count - batch.first) / max(now - self.taken, 1e-3)
        self.taken = now
        self.limit = self.count + max(_FEW, int(rate * _UNWRITTEN))
        return batch

    def turn(self) -> threading.Lock:
        """The lock, once the writer is not too far behind. To be taken by `with` alone: Ctrl-C between a call of
        `acquire` and what comes next would leave it taken for good."""
        if self.count > self.limit:
            self._give_way()
        return self.lock

    def _give_way(self) -> None:
        """Let the writer have the interpreter. A program that gives it up for an instant ever so often, as writing
        to a file does, would else keep a waiting thread from it for good."""
        self.writer.wake()
        time.sleep(0.001)

    def flush(self) -> None:
        """Write everything up to here, so that the file can be opened and read. Raises OSError where it cannot be."""
        self.writer.flush()

    def close(self, **meta: str) -> None:
        """Write what is left, with `meta` about how the run ended, and close the file."""
        self.writer.close(meta)

    # --- the parts of an event

    def _undo(self) -> None:
        """Take back an event that an exception (Ctrl-C) cut in two; the lock is held."""
        batch = self.batch
        rows = np.frombuffer(bytes(batch.rows), EVENT)
        self.count = batch.first + len(rows)
        del batch.links[4 * int(rows["links"].sum(dtype=np.int64)) :]
        snapshots = np.frombuffer(bytes(batch.snapshots), SNAPSHOT)
        kept = int(np.count_nonzero(snapshots["event"] < self.count))
        del batch.snapshots[SNAPSHOT.itemsize * kept :]
        with_value = int(np.count_nonzero(snapshots["what"][:kept] >> 24))
        del batch.payload[with_value:]
        batch.deferred = [entry for entry in batch.deferred if entry[0] < with_value]

    def _thread(self) -> int:
        """The current thread's number, where a row's head has it; the lock is held."""
        ident = get_ident()
        if ident != self.last_ident:
            self.last_ident = ident
            self.last_thread = self.threads.setdefault(ident, len(self.threads) + 1) << 16
        return self.last_thread

    def _add(
        self,
        kind: int,
        flags: int = 0,
        site: int = 0,
        name: str = "",
        subject: int = 0,
        object: int = 0,
        note: int = 0,
        links: Sequence[int] = (),
    ) -> None:
        """Put one event at the end; the lock is held."""
        head = kind | flags << 8 | self._thread()
        row = _ROW(head, site, self.strings.number(name), subject, object, note, len(links))
        self._put(row, _packed(links))

    def _put(self, row: bytes, tied: bytes) -> None:
        """Put one event at the end, its links in `tied`. No call between, where Ctrl-C could cut it in two."""
        batch = self.batch
        batch.rows += row
        batch.links += tied
        self.count += 1

    def _snapshot(self, number: int, version: int, array: np.ndarray, flags: int, later: int = 0) -> None:
        """Say what a tensor is at the event that is added next, or so many `later`; the lock is held."""
        shape = self.shapes.known.get(array.shape)
        if shape is None:
            shape = self.shapes.number(array.shape)
        what = _FLOAT32 | flags << 8 if array.dtype is _float32 else DTYPE_IDS[array.dtype.name] | flags << 8
        length = 0
        if self.keeps_values:
            what, length = self._keep(array, what)
        self.batch.snapshots += _SNAPSHOT(number, version, shape, what, length, self.count + later)

    def _snapshots(
        self, numbers: Sequence[int], arrays: Sequence[np.ndarray | None], flags: int, later: int = 0
    ) -> None:
        """As `_snapshot`, of each tensor that there is. Not a loop under the lock itself: from Python 3.12 on, Ctrl-C
        at the end of one that ends with a condition leaves the lock taken (tests/test_interrupts.py)."""
        for number, value in zip(numbers, arrays):  # noqa: B905
            if value is not None:
                self._snapshot(number, 0, value, flags, later)

    def _keep(self, array: np.ndarray, what: int) -> tuple[int, int]:
        """Put a tensor's value into the payload; returns `what` with the value's grade, and its length."""
        batch = self.batch
        size = array.size
        if size <= self.most_elements:
            data = array.tobytes()
            what |= _ELEMENTS
        elif size <= DEFERRED:
            data = array.tobytes()
            batch.deferred.append((len(batch.payload), array.dtype, size))
            what |= _STATS
        else:
            data = stats_of(array).pack()
            what |= _STATS
        batch.payload.append(data)
        batch.bytes += len(data)
        if batch.bytes > _PAYLOAD_LIMIT:
            self.limit = 0
        return what, len(data)

    # --- forward

    def tensor(self, number: int, array: np.ndarray, flags: int, how: str, base: int, version: int) -> None:
        self.site = site = self.sites.number(sys._getframe(2))
        with self.turn(), self.whole:
            self._snapshot(number, version, array, flags)
            self._add(_TENSOR, flags, site, how, number, base)

    def op(
        self,
        name: str,
        arrays: Sequence[np.ndarray | None],
        flags: int,
        args: str,
        node: int,
        grad_fn: str,
        links: tuple[int, ...],
    ) -> None:
        if not self.detailed:
            return
        self.site = site = self.sites.number(sys._getframe(3))
        strings = self.strings.known
        n = len(links)
        tied = _LINKS[n](*links) if n < _MANY else _packed(links)
        if self.count > self.limit:
            self._give_way()
        with self.lock:
            try:  # as `whole` does, without its calls
                first = 3 + links[0]  # of the outputs
                one = arrays[0] if links[1] == 1 and not self.keeps_values else None
                shape = None if one is None or one.dtype is not _float32 else self.shapes.known.get(one.shape)
                if shape is not None:  # as _snapshot does, without a call
                    told = _SNAPSHOT(links[first], 0, shape, _FLOAT32 | flags << 8, 0, self.count)
                    self.batch.snapshots += told
                else:
                    self._snapshots(links[first:], arrays, flags)
                row = _ROW(
                    _OP
                    | flags << 8
                    | (self.last_thread if get_ident() == self.last_ident else self._thread()),
                    site,
                    strings.get(name) or self.strings.number(name),
                    node,
                    strings.get(grad_fn) or self.strings.number(grad_fn),
                    self.strings.number(args) if args else 0,
                    n,
                )
                batch = self.batch
                batch.rows += row
                batch.links += tied
                self.count += 1
            except BaseException:
                self._undo()
                raise

    def mutated(
        self, number: int, array: np.ndarray, flags: int, version: int, how: str, source: int
    ) -> None:
        self.site = site = self.sites.number(sys._getframe(2))
        with self.turn(), self.whole:
            self._snapshot(number, version, array, flags)
            self._add(Kind.MUTATED, flags, site, how, number, version, links=(source,))

    def requires_grad_changed(self, number: int, flags: int) -> None:
        self.site = site = self.sites.number(sys._getframe(2))
        with self.turn(), self.whole:
            self._add(Kind.REQUIRES_GRAD_CHANGED, flags, site, subject=number)

    def grad_assigned(self, number: int, grad: int) -> None:
        self.site = site = self.sites.number(sys._getframe(2))
        with self.turn(), self.whole:
            self._add(Kind.GRAD_ASSIGNED, 0, site, subject=number, object=grad)

    def named(self, number: int, name: str) -> None:
        with self.turn(), self.whole:
            self._add(Kind.NAMED, name=name, subject=number)
            self.batch.parameters.append((number, name))

    def scope_entered(self, scope: int, kind: str, name: str) -> None:
        if self.detailed:
            self.site = site = self.sites.number(sys._getframe(2))
            with self.turn(), self.whole:
                self._add(Kind.SCOPE_ENTERED, 0, site, name, scope, note=self.strings.number(kind))

    def scope_left(self, scope: int) -> None:
        if self.detailed:
            with self.turn(), self.whole:
                self._add(Kind.SCOPE_LEFT, subject=scope)

    def tangent(self, number: int, tangent: int, array: np.ndarray, how: str) -> None:
        if self.detailed:
            self.site = site = self.sites.number(sys._getframe(2))
            with self.turn(), self.whole:
                self._snapshot(tangent, 0, array, 0)
                self._add(Kind.TANGENT, 0, site, how, number, tangent)

    def stepped(self, optimizer: str, args: str, parameters: Sequence[int]) -> None:
        self.site = site = self.sites.number(sys._getframe(2))
        with self.turn(), self.whole:
            note = self.strings.number(args)
            self._add(Kind.STEPPED, 0, site, optimizer, note=note, links=tuple(parameters))

    # --- backward

    def pass_began(
        self,
        number: int,
        how: str,
        roots: Sequence[int],
        root_tensors: Sequence[int],
        gradients: Sequence[int],
        arrays: Sequence[np.ndarray],
        inputs: Sequence[int],
        retain_graph: bool,
        create_graph: bool,
    ) -> None:
        self.site = site = self.sites.number(sys._getframe(2))
        with self.turn(), self.whole:
            self.passes_begun += 1
            self.open_passes[number] = self.passes_begun
            if self.passes is not None:
                self.detailed = self.passes_begun in self.passes
            links = (len(roots), len(inputs), *roots, *root_tensors, *gradients, *inputs)
            flags = bool(retain_graph) | bool(create_graph) << 1
            event = (self.passes_begun, self.count, self._thread() >> 16, site, self.detailed)
            self.batch.passes_begun.append(event)
            self._add(Kind.PASS_BEGAN, flags, site, how, self.passes_begun, links=links)

    def received(
        self, node: int, grad_fn: str, gradients: Sequence[int], arrays: Sequence[np.ndarray | None]
    ) -> None:
        if not self.detailed:
            return
        with self.turn(), self.whole:
            if self.keeps_values:
                self._snapshots(gradients, arrays, 0)
            name = self.strings.number(grad_fn)
            self._put(
                _ROW(_RECEIVED | self._thread(), 0, name, node, 0, 0, len(gradients)), _packed(gradients)
            )

    def produced(
        self,
        node: int,
        targets: Sequence[int],
        gradients: Sequence[int],
        arrays: Sequence[np.ndarray | None],
    ) -> None:
        if not self.detailed:
            return
        with self.turn(), self.whole:
            if self.keeps_values:
                self._snapshots(gradients, arrays, 0)
            tied = _packed((*targets, *gradients))
            self._put(_ROW(_PRODUCED | self._thread(), 0, 0, node, 0, 0, 2 * len(targets)), tied)

    def ran(
        self,
        node: int,
        grad_fn: str,
        links: tuple[int, ...],
        array: np.ndarray | None,
        arrays: Sequence[np.ndarray | None],
    ) -> None:
        if not self.detailed:
            return
        n = len(links)
        tied = _LINKS[n](*links)  # three or five
        if self.count > self.limit:
            self._give_way()
        with self.lock:
            try:  # as `whole` does, without its calls
                if self.keeps_values:
                    if array is not None:
                        self._snapshot(links[0], 0, array, 0)
                    self._snapshots(links[1 + len(arrays) :], arrays, 0, later=1)
                name = self.strings.known.get(grad_fn) or self.strings.number(grad_fn)
                thread = self.last_thread if get_ident() == self.last_ident else self._thread()
                rows = _TWO_ROWS(
                    _RECEIVED | thread, 0, name, node, 0, 0, 1,
                    _PRODUCED | thread, 0, 0, node, 0, 0, n - 1,
                )  # fmt: skip
                batch = self.batch
                batch.rows += rows
                batch.links += tied
                self.count += 2
            except BaseException:
                self._undo()
                raise

    def accumulated(
        self, number: int, node: int, gradient: int, grad: int, array: np.ndarray, version: int
    ) -> None:
        with self.turn(), self.whole:
            if version or grad != gradient or not self.detailed:
                self._snapshot(grad, version, array, 0)
            self._add(Kind.ACCUMULATED, subject=number, object=grad, note=version, links=(node, gradient))

    def retained(self, number: int, node: int, grad: int) -> None:
        if self.detailed:
            with self.turn(), self.whole:
                self._add(Kind.RETAINED, subject=number, object=grad, links=(node,))

    def hooked(self, number: int, node: int, hook: str, before: int, after: int, array: np.ndarray) -> None:
        if self.detailed:
            with self.turn(), self.whole:
                self._snapshot(after, 0, array, 0)
                self._add(Kind.HOOKED, 0, 0, hook, number, node, links=(before, after))

    def pass_ended(self, number: int) -> None:
        with self.turn(), self.whole:
            self._add(Kind.PASS_ENDED, subject=self.open_passes.pop(number))
            if self.passes is not None and not self.open_passes:
                self.detailed = self.passes_begun + 1 in self.passes

    def error(self, kind: str, message: str, node: int, raised: TracebackType | None = None) -> None:
        sites = self.sites
        self.site = site = sites.number_of(raised) if raised is not None else sites.number(sys._getframe(2))
        with self.turn(), self.whole:
            self.batch.errors.append((self.count, kind, message, node, site))
            self._add(Kind.ERROR, 0, site, kind, node, note=self.strings.number(message))


def _packed(numbers: Sequence[int]) -> bytes:
    return array("I", numbers).tobytes()


class _Whole:
    """`with recorder.whole:` leaves nothing of an event that an exception (Ctrl-C) cuts in two."""

    __slots__ = ("recorder",)

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.recorder._undo()
