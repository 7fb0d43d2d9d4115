"""Recorder: the listener that writes a run into a trace file.

The hot half of recording. An event is a few integers packed at the end of a few byte arrays, under a lock; a
thread (writer.py) takes them away many times a second and commits them, so that whatever ends the process leaves
a trace that is complete up to the last fraction of a second. Bytes, because lists of integers that one thread
makes and another frees cost as much again.

`tell` packs any event as the table of events says. The methods below it pack the frequent ones by hand, to the same
bytes (tests/test_layout_of_events.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import Any

import numpy as np

from gradviz.events.fields import Edge, Living, Rule, Saved
from gradviz.events.kinds import DETAILS, Kind
from gradviz.events.layout import LAYOUTS, PACK_NUMBERS, packed_numbers
from gradviz.events.listener import LEAF_NODE, State, Where
from gradviz.tracefile.batch import Batch, Renumbered
from gradviz.tracefile.packing import FEW, Packing, pack_state
from gradviz.tracefile.schema import SKIPPED
from gradviz.tracefile.sites import Sites
from gradviz.tracefile.writer import Writer

_OP, _NODE, _RECEIVED, _PRODUCED, _ACCUMULATED = map(
    int, (Kind.OP, Kind.NODE, Kind.RECEIVED, Kind.PRODUCED, Kind.ACCUMULATED)
)
_ENTERED, _LEFT = int(Kind.SCOPE_ENTERED), int(Kind.SCOPE_LEFT)
_GRAD_ENABLED = _TRAINING = 1 << 8  # the only flags of OP and SCOPE_ENTERED
_UNWRITTEN = 0.1  # the seconds that the writer may be behind
_ROW, _TWO_ROWS, _TWO_LINKS = PACK_NUMBERS[7], PACK_NUMBERS[14], PACK_NUMBERS[2]
_PACK = {kind: layout.pack for kind, layout in LAYOUTS.items()}
_float32 = np.dtype(np.float32)


class Recorder(Packing):
    """Writes events to `path`. `values` is `none`, `stats` or `full`; `passes` selects which backward passes
    (with the forward before them) are recorded in detail, None for all. `partial` says that who tells leaves out some
    of their ops and nodes; `last` how many passes the file keeps (`ring.py`), None for all.

    Raises OSError where the file cannot be written. Close it to finish the trace."""

    def __init__(
        self,
        path: Path | str,
        values: str = "stats",
        passes: Any = None,
        sites: Sites | None = None,
        meta: dict[str, str] | None = None,
        partial: bool = False,
        last: int | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(values, sites)
        self.passes = passes
        self.partial = partial
        self.scopes: dict[int, int] = {}  # those that are open, and were told; the identities of their frames
        self.last_leaf = 0  # the gradient that a leaf received last
        self.site = 0  # of the last event that has one
        self.taken = time.monotonic()
        self.last_error: tuple[str, str] = ("", "")  # its type and message
        self.passes_begun = 0
        self.detailed = passes is None or 1 in passes
        self.all_passes = Renumbered()  # those that have ended, too
        self._preparations = {
            Kind.OP: self._prepare_op,
            Kind.PASS_BEGAN: self._prepare_pass,
            Kind.ACCUMULATED: self._prepare_leaf,
            Kind.ERROR: self._prepare_error,
        }
        self.writer = Writer(path, self, {**(meta or {}), "values": values}, last, say)

    @property
    def has_news(self) -> bool:
        """Whether something has been recorded since the last `take`."""
        return bool(self.batch.rows)

    def take(self) -> Batch:
        """Take away what has been recorded since the last call; the lock is held."""
        batch, self.batch = self.batch, Batch()
        self.batch.first = self.count
        now = time.monotonic()
        rate = (self.count - batch.first) / max(now - self.taken, 1e-3)
        self.taken = now
        self.limit = self.count + max(FEW, int(rate * _UNWRITTEN))
        return batch

    def move(self, moved: np.ndarray, texts: set[int], rules: set[int]) -> None:
        """Count on from where the last event is now, and forget what is not in the file any more; the lock is held, and
        nothing is unwritten."""
        if texts:
            self.strings.forget(texts)
        if rules:
            self.rules.forget(rules)
            self.same_rules.clear()
        gone = len(moved) - 1 - int(moved.max(initial=-1))
        self.count -= gone
        self.limit -= gone
        self.batch.first = self.count
        self.last_op = {thread: int(moved[at]) for thread, at in self.last_op.items() if moved[at] >= 0}

    def turn(self) -> threading.Lock:
        """The lock, once the writer is not too far behind. To be taken by `with` alone: Ctrl-C between a call of
        `acquire` and what comes next would leave it taken for good."""
        if self.count > self.limit:
            self._give_way()
        return self.lock

    def _give_way(self) -> None:
        """Let the writer have the interpreter. A program that gives it up for an instant ever so often, as writing
        to a file does, would else keep a waiting thread from it for good. It waits while values fill the memory."""
        self.writer.wake()
        time.sleep(0.001)
        while self.batch.bytes > self.writer.room and not self.writer.closing:
            time.sleep(0.001)

    def _lose(self, error: Exception) -> None:
        """The recording ends here: what is not yet written is forgotten, and nothing more is kept."""
        self.batch = Batch()
        self.batch.first = self.count
        self.passes, self.detailed = frozenset(), False
        self.writer.give_up(error)

    def flush(self) -> None:
        """Write everything up to here, so that the file can be opened and read. Raises OSError where it cannot be."""
        self.writer.flush()

    def note(self, **meta: str) -> None:
        """Write more about the run."""
        self.writer.note(meta)

    def close(self, **meta: str) -> None:
        """Write what is left, with `meta` about how the run ended, and close the file."""
        self.writer.close(meta)

    def place(self, where: Where) -> int:
        return self.sites.number(where)

    def graphs_alive(self, in_pass: int, graphs: Sequence[Living]) -> None:
        known = self.all_passes
        super().graphs_alive(in_pass, [Living(known.of(g.number), g.nodes) for g in graphs])

    # --- any event

    def tell(self, kind: Kind, where: Where, values: tuple[Any, ...], states: Sequence[State] = ()) -> None:
        if not self.detailed and kind in DETAILS:
            return
        if kind != Kind.ACCUMULATED:
            self.last_gradient = None
        site = 0
        if where is not None:
            self.site = site = self.sites.number(where)
        prepare = self._preparations.get(kind)
        if self.count > self.limit:
            self._give_way()
        with self.lock:
            try:  # as `whole` does, without its calls
                flags = 0
                if prepare is not None:
                    flags, states = prepare(values, states)
                if states:
                    self._states(states)
                thread = self.last_thread if get_ident() == self.last_ident else self._thread()
                row, links = _PACK[kind](values, self, flags << 8 | thread, site)
                batch = self.batch
                batch.rows += row
                batch.links += links
                self.count += 1
                if kind == Kind.PASS_ENDED:
                    self._end_pass(values[0])
            except BaseException as error:
                if not self._is_lost(error):
                    raise

    def tell_each(
        self, kind: Kind, where: Where, told: Sequence[tuple[tuple[Any, ...], Sequence[State]]]
    ) -> None:
        if kind in self._preparations or not self.detailed:
            super().tell_each(kind, where, told)
            return
        self.last_gradient = None
        self.site = site = self.sites.number(where)
        with self.turn(), self.whole:
            self._put_each(kind, site, told)

    def _put_each(
        self, kind: Kind, site: int, told: Sequence[tuple[tuple[Any, ...], Sequence[State]]]
    ) -> None:
        """Pack events of one kind and place; the lock is held."""
        pack, head, batch = _PACK[kind], self._thread(), self.batch
        for values, states in told:
            for state in states:
                self._state(*state)
            row, links = pack(values, self, head, site)
            batch.rows += row
            batch.links += links
            self.count += 1

    def _prepare_op(self, values: tuple[Any, ...], states: Sequence[State]) -> tuple[int, Sequence[State]]:
        self.last_op[self._thread()] = self.count
        return 0, states

    def _prepare_pass(self, values: tuple[Any, ...], states: Sequence[State]) -> tuple[int, Sequence[State]]:
        return self._begin_pass(values[0]), states

    def _prepare_leaf(self, values: tuple[Any, ...], states: Sequence[State]) -> tuple[int, Sequence[State]]:
        return 0, () if self._is_told(values, states) else states

    def _prepare_error(self, values: tuple[Any, ...], states: Sequence[State]) -> tuple[int, Sequence[State]]:
        self.last_error = values[:2]
        return 0, states

    def _is_told(self, values: tuple[Any, ...], states: Sequence[State]) -> bool:
        """Whether what a leaf's `.grad` is now was told when the leaf received it."""
        *_, gradient, grad = values
        return gradient == grad == self.last_leaf and not states[0].version

    def _begin_pass(self, number: int) -> int:
        """Number a pass, and decide whether it is recorded in detail; returns flags for its event."""
        self.passes_begun += 1
        self.open_passes[number] = self.passes_begun
        self.all_passes.add(number, self.passes_begun)
        if self.passes is not None:
            self.detailed = self.passes_begun in self.passes
            self.keeps_values = self.detailed and self.values != "none"
        return 0 if self.detailed and not self.partial else SKIPPED

    def _end_pass(self, number: int) -> None:
        self.open_passes.pop(number, None)
        if self.passes is not None and not self.open_passes:
            self.detailed = self.passes_begun + 1 in self.passes
            # What an optimizer makes of a pass is of interest with it, and what the next pass begins with.
            self.keeps_values = self.values != "none" and (self.detailed or self.passes_begun in self.passes)

    # --- the frequent events, by hand

    def op(
        self,
        where: Any,
        op: str,
        args: str,
        rule: Rule,
        in_pass: int,
        grad_enabled: bool,
        inputs: Sequence[int],
        outputs: Sequence[int],
        values: Sequence[Any],
        flags: Sequence[int],
        versions: Sequence[int],
        bases: Sequence[int],
    ) -> None:
        if not self.detailed:
            return
        site = 0 if where is None else self.sites.number(where)
        self.site = site
        self.last_gradient = None
        with self.turn(), self.whole:
            links = packed_numbers((len(inputs), *inputs, *outputs))
            strings = self.strings.known
            for state in zip(outputs, values, flags, versions, bases):  # noqa: B905
                self._state(*state)
            thread = self._thread()
            self.last_op[thread] = self.count
            self._put(
                _ROW(
                    _OP | (_GRAD_ENABLED if grad_enabled else 0) | thread,
                    site,
                    strings.get(op) or self.strings.number(op),
                    strings.get(args) or self.strings.number(args) if args else 0,
                    self.rule(rule),
                    self.open_passes.get(in_pass, 0) if in_pass else 0,
                    1 + len(inputs) + len(outputs),
                ),
                links,
            )

    def node(
        self,
        where: Any,
        node: int,
        grad_fn: str,
        op: int | None,
        rule: Rule,
        outputs: Sequence[int],
        edges: Sequence[Edge],
        saved: Sequence[Saved],
    ) -> None:
        self.tell(Kind.NODE, where, (node, grad_fn, op, rule, outputs, edges, saved))

    def differentiated(
        self,
        where: Any,
        op: str,
        args: str,
        rule: Rule,
        in_pass: int,
        inputs: Sequence[int],
        output: int,
        value: Any,
        flags: int,
        version: int,
        base: int,
        node: int,
        grad_fn: str,
        edges: Sequence[int],
        saved: Sequence[int],
    ) -> None:
        if not self.detailed:
            return
        sites = self.sites
        self.site = site = sites.number_of_frame(where) if type(where) is FrameType else sites.number(where)
        self.last_gradient = None
        n = len(inputs)
        links = (n, *inputs, output, 1, len(edges) // 3, output, *edges, *saved)
        m = len(links)
        if self.count > self.limit:
            self._give_way()
        with self.lock:
            try:  # as `whole` does, without its calls
                packed = packed_numbers(links)
                strings = self.strings.known
                rule_number = self.same_rules.get(id(rule)) or self.rule(rule)
                form = None
                if not self.keeps_values and value.dtype is _float32:
                    form = self.float32_forms.get(value.shape)
                if form is not None:  # as _state does, without a call
                    self.batch.states += pack_state(output, version, base, form, flags, 0, self.count)
                else:
                    self._state(output, value, flags, version, base)
                thread = self.last_thread if get_ident() == self.last_ident else self._thread()
                self.last_op[thread] = self.count
                rows = _TWO_ROWS(
                    _OP | _GRAD_ENABLED | thread,
                    site,
                    strings.get(op) or self.strings.number(op),
                    strings.get(args) or self.strings.number(args) if args else 0,
                    rule_number,
                    self.open_passes.get(in_pass, 0) if in_pass else 0,
                    n + 2,
                    _NODE | thread,
                    site,
                    node,
                    strings.get(grad_fn) or self.strings.number(grad_fn),
                    1,
                    rule_number,
                    m - n - 2,
                )
                batch = self.batch
                batch.rows += rows
                batch.links += packed
                self.count += 2
            except BaseException as error:
                if not self._is_lost(error):
                    raise

    def scope_entered(
        self, where: Where, scope: int, kind: str, name: str, type: str, training: bool = False
    ) -> None:
        if not self.detailed:
            return
        self.scopes[scope] = id(where)
        self.site = site = (
            self.sites.enter(where) if isinstance(where, FrameType) else self.sites.number(where)
        )
        self.last_gradient = None
        if self.count > self.limit:
            self._give_way()
        with self.lock:
            try:  # as `whole` does, without its calls
                known = self.strings.known.get
                row = _ROW(
                    _ENTERED | (_TRAINING if training else 0) | self._thread(),
                    site,
                    scope,
                    known(kind) or self.text(kind),
                    known(name) or self.text(name),
                    known(type) or self.text(type),
                    0,
                )
                self.batch.rows += row
                self.count += 1
            except BaseException as error:
                if not self._is_lost(error):
                    raise

    def scope_left(self, scope: int) -> None:
        if scope not in self.scopes:  # a pass that ended inside may have changed what is recorded in detail
            return
        self.sites.leave(self.scopes.pop(scope))
        self.last_gradient = None
        if self.count > self.limit:
            self._give_way()
        with self.lock:
            try:  # as `whole` does, without its calls
                row = _ROW(_LEFT | self._thread(), 0, scope, 0, 0, 0, 0)
                self.batch.rows += row
                self.count += 1
            except BaseException as error:
                if not self._is_lost(error):
                    raise

    def received(
        self, node: int, grad_fn: str, in_pass: int, gradients: Sequence[int], values: Sequence[Any]
    ) -> None:
        if not self.detailed:
            return
        if grad_fn == LEAF_NODE:
            self.last_leaf = gradients[0]
        else:
            self.last_gradient = None
        with self.turn(), self.whole:
            self._gradients(gradients, values)
            row = _ROW(
                _RECEIVED | self._thread(),
                0,
                node,
                self.text(grad_fn),
                self.open_passes.get(in_pass, 0),
                0,
                len(gradients),
            )
            self._put(row, packed_numbers(gradients))

    def produced(self, node: int, in_pass: int, flows: Sequence[int], values: Sequence[Any]) -> None:
        if not self.detailed:
            return
        with self.turn(), self.whole:
            self._produced_gradients(flows[1::2], values, 0)
            row = _ROW(
                _PRODUCED | self._thread(),
                0,
                node,
                self.open_passes.get(in_pass, 0),
                0,
                0,
                len(flows),
            )
            self._put(row, packed_numbers(flows))

    def ran(
        self,
        node: int,
        grad_fn: str,
        in_pass: int,
        gradient: int,
        value: Any,
        flows: Sequence[int],
        values: Sequence[Any],
    ) -> None:
        if not self.detailed:
            return
        n = len(flows)
        if self.count > self.limit:
            self._give_way()
        with self.lock:
            try:  # as `whole` does, without its calls
                packed = packed_numbers((gradient, *flows))
                if self.keeps_values:
                    if value is not None:
                        self._state(gradient, value, 0, 0, 0)
                    self._produced_gradients(flows[1::2], values, 1)
                name = self.strings.known.get(grad_fn) or self.strings.number(grad_fn)
                thread = self.last_thread if get_ident() == self.last_ident else self._thread()
                own = self.open_passes.get(in_pass, 0)
                rows = _TWO_ROWS(
                    _RECEIVED | thread, 0, node, name, own, 0, 1,
                    _PRODUCED | thread, 0, node, own, 0, 0, n,
                )  # fmt: skip
                batch = self.batch
                batch.rows += rows
                batch.links += packed
                self.count += 2
            except BaseException as error:
                if not self._is_lost(error):
                    raise

    def leaf_ran(self, tensor: int, node: int, in_pass: int, gradient: int, state: State) -> None:
        if not self.detailed:
            self.accumulated(tensor, node, in_pass, gradient, state)
            return
        self.last_leaf = gradient
        if self.count > self.limit:
            self._give_way()
        with self.lock:
            try:  # as `whole` does, without its calls
                if state.tensor != gradient or state.version:
                    self._state(*state, later=1)
                name = self.strings.known.get(LEAF_NODE) or self.strings.number(LEAF_NODE)
                thread = self.last_thread if get_ident() == self.last_ident else self._thread()
                own = self.open_passes.get(in_pass, 0)
                rows = _TWO_ROWS(
                    _RECEIVED | thread, 0, node, name, own, 0, 1,
                    _ACCUMULATED | thread, 0, tensor, node, own, gradient, 1,
                )  # fmt: skip
                links = _TWO_LINKS(gradient, state.tensor)
                batch = self.batch
                batch.rows += rows
                batch.links += links
                self.count += 2
            except BaseException as error:
                if not self._is_lost(error):
                    raise
