"""Recorder: the listener that writes a run into a trace file.

The hot half of recording. An event is a few integers packed at the end of a few byte arrays, under a lock. A thread
(writer.py) takes them many times a second and commits them, so that whatever ends the process leaves a trace that is
complete up to the last fraction of a second. The arrays are of bytes, because lists of integers that one thread makes
and another frees cost as much again.

`tell` packs any event by the table of events; the frequent events are packed by hand (frequent.py).
"""

from collections import deque
from collections.abc import Callable, Container, Sequence
from math import prod
from pathlib import Path
from threading import get_ident
from time import monotonic, sleep
from typing import Any

import numpy as np

from gradviz.events.counters import next_tensor_number
from gradviz.events.event_layout import LAYOUTS, ROW
from gradviz.events.field_types import Living, Rule
from gradviz.events.handles import READERS, reader_of
from gradviz.events.kinds import DETAILS, Kind
from gradviz.events.listener import Entered, LeafHistogram, Listener, Made, State, Where
from gradviz.events.values import GRADIENT, INPUTS, LARGEST, LAST, SMALL
from gradviz.tracefile.batch import Batch
from gradviz.tracefile.chosen import JUMP, LEAK, AutoPasses, Budget, Passes
from gradviz.tracefile.database import SKIPPED, STATE
from gradviz.tracefile.frequent import Frequent
from gradviz.tracefile.nans import News
from gradviz.tracefile.packing import FEW, pack_state
from gradviz.tracefile.printed_lines import PrintedLines
from gradviz.tracefile.sites import Sites
from gradviz.tracefile.writer import Writer, has_distant

_UNWRITTEN = 0.1  # the seconds that the writer may be behind
_FEW_ELEMENTS = 4096  # of a gradient that is kept of each pass that is left out
_MOST_MADE = 1 << 17  # nodes: no pass ever ends those of evaluations
_PACK = {kind: layout.pack for kind, layout in LAYOUTS.items()}


class Recorder(Frequent):
    """Writes events to `path`. `values` is `none`, `stats` or `full`; `passes` selects the backward passes (with the
    forward before them) that are recorded in detail, None for all. `partial` says that the source leaves out some of
    their ops and nodes. `last` is the number of passes that the file keeps (`ring.py`), None for all.

    Raises OSError if the file cannot be written. Close it to finish the trace."""

    def __init__(
        self, path: Path | str, values: str = "stats", passes: Container[int] | Passes | AutoPasses | None = None,
        sites: Sites | None = None, meta: dict[str, str] | None = None, partial: bool = False,
        last: int | None = None, say: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(values, sites)
        self.budget = passes if isinstance(passes, Budget) else None
        self.passes = passes = None if self.budget is not None else passes
        self.auto = passes if isinstance(passes, AutoPasses) else None
        self.partial = partial
        self.taken = monotonic()
        self.last_error: tuple[str, str] = ("", "")  # its type and message
        self.passes_begun = 0
        self.detailed = passes is None or 1 in passes
        self.is_tail = False  # whether `detailed` holds only up to the forward of the next pass
        self.at_end_of_pass: Callable[[], None] | None = None  # called when no pass is under way any more
        self.look_until = self.looked_until = 0  # the last pass that is to be looked at, and that was
        self.printed = PrintedLines()
        self.histograms: deque[tuple[int, LeafHistogram]] = deque()  # not yet written, each with its pass
        self._preparations = {
            Kind.OP: self._prepare_op,
            Kind.PASS_BEGAN: lambda values, states: (self._begin_pass(values[0]), states),
            Kind.ACCUMULATED: self._prepare_leaf,
            Kind.ERROR: self._prepare_error,
        }
        text = str(passes) if isinstance(passes, (Passes, AutoPasses)) else "chosen"
        chosen = {} if passes is None else {"passes": text}
        self.writer = Writer(path, self, {**(meta or {}), "values": values, **chosen}, last, say)

    @property
    def has_news(self) -> bool:
        """Whether something has been recorded since the last `take`."""
        return bool(self.batch.rows) or self.printed.has_news

    def take(self) -> Batch:
        """Take everything recorded since the last call; the lock is held."""
        batch, self.batch = self.batch, Batch()
        self.batch.first = self.count
        now = monotonic()
        rate = (self.count - batch.first) / max(now - self.taken, 1e-3)
        self.taken = now
        self.limit = self.count + max(FEW, int(rate * _UNWRITTEN))
        return batch

    def move(self, moved: np.ndarray, texts: set[int], rules: set[int]) -> None:
        """Continue the count from the new place of the last event, and forget texts and rules that are no longer in the
        file. The lock is held, and nothing is unwritten."""
        self.same_ops.clear()
        if texts:
            self.strings.forget(texts)
        if rules:
            self.rules.forget(rules)
            self.same_rules.clear()
        gone = len(moved) - 1 - int(moved.max(initial=-1))
        self.count -= gone
        self.limit -= gone
        self.batch.first = self.count
        self.printed.move(moved, self.count)
        self.last_op = {thread: int(moved[at]) for thread, at in self.last_op.items() if moved[at] >= 0}

    def _give_way(self) -> None:
        """Let the writer have the interpreter. Otherwise a program that often gives it up for an instant, as by writing
        to a file, would keep a waiting thread from it for good. Waits while values fill the memory."""
        self.writer.wake()
        sleep(0.001)
        while self.batch.bytes > self.writer.room and not self.writer.closing:
            sleep(0.001)

    def _lose(self, error: Exception) -> None:
        """End the recording: forget what is not written yet, and keep nothing more."""
        self.batch = Batch()
        self.batch.first = self.count
        self.passes, self.detailed = frozenset(), False
        self.writer.give_up(error)

    def flush(self) -> None:
        """Write everything up to here, so that the file can be opened and read. Raises OSError if that fails."""
        self.writer.flush()

    def note(self, **meta: str) -> None:
        """Write more notes about the run."""
        self.writer.note(meta)

    def close(self, **meta: str) -> None:
        """Write the rest, with `meta` about the end of the run, and close the file."""
        self.printed.end()
        self.writer.close(meta)

    def print_piece(self, where: Where, text: str) -> None:
        """Record a text that the program wrote to its output."""
        moves = self.printed.moves  # read first, because the writer may remove events meanwhile
        self.printed.add(moves, self.count, self.sites.number(where), text)

    def leaves_counted(self, number: int, histograms: Sequence[LeafHistogram], is_last: bool = False) -> None:
        if is_last:
            self.histograms.extend((number, one._replace(what=f"{LAST}{one.what}")) for one in histograms)
        else:
            self.histograms.extend((self.in_pass(number), histogram) for histogram in histograms)

    def place(self, where: Where) -> int:
        return self.sites.number(where)

    def graphs_alive(self, in_pass: int, graphs: Sequence[Living], are_whole: bool = False) -> None:
        known = self.all_passes
        super().graphs_alive(in_pass, [Living(known.of(g.number), g.nodes) for g in graphs], are_whole)

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
        if kind == Kind.PASS_ENDED and not self.open_passes:
            if self.auto is not None:
                self._look_for_nan(self.auto)
            if self.at_end_of_pass is not None:
                self.at_end_of_pass()

    @property
    def rests(self) -> bool:  # type: ignore[override]
        """Whether the next pass is left out. A choice that is made while the program runs stands from the end of the
        pass before; other passes are chosen by their numbers, also one that begins inside a pass."""
        if self.auto is not None:
            return self.is_tail or not self.detailed
        return self.passes is not None and self.passes_begun + 1 not in self.passes

    @property
    def sums(self) -> bool:  # type: ignore[override]
        """Whether a few numbers of each pass are kept."""
        return self.passes is not None

    def summed(self, in_pass: int, loss: float | None, norm: float, largest: float, tensor: int, why: str = "") -> None:
        if self.auto is not None:
            why = self.auto.summed(loss, norm, self.in_pass(in_pass))
        super().summed(in_pass, loss, norm, largest, tensor, why)
        if why and not self.open_passes:
            with self.lock:
                self._choose(was_detailed=self.detailed)

    def look_at_passes(self, look: Callable[[bool], None]) -> None:
        """Call `look` at the end of each pass, when the file is complete up to there, with whether the pass has
        something that no earlier pass had. A pass for which that is not known is left out."""
        news = self.writer.news = News()

        def ended() -> None:
            try:
                self.flush()
            except OSError:
                return
            look(news.take())

        self.at_end_of_pass = ended

    def tell_each(self, kind: Kind, where: Where, told: Sequence[tuple[tuple[Any, ...], Sequence[State]]]) -> None:
        if kind in self._preparations or not self.detailed:
            super().tell_each(kind, where, told)
            return
        self.last_gradient = None
        self.site = site = self.sites.number(where)
        done = 0
        while done < len(told) and self.detailed:
            with self.turn(), self.whole:
                done = self._put_some(kind, site, told, done)

    def all_mutated(self, where: Where, how: str, states: Sequence[State], in_pass: int = 0) -> None:
        if self.keeps_values:  # values are kept one by one, so that the writer may have its turn
            super().all_mutated(where, how, states, in_pass)
            return
        self.last_gradient = None
        self.site = site = self.sites.number(where)
        with self.turn(), self.whole:
            rows = self._rows_of(Kind.MUTATED, site, [state.tensor for state in states])
            # a link: −1 for no op
            rows["b"], rows["d"], rows["links"] = self.text(how), self.in_pass(in_pass), 1
            forms = [0 if state.value is None else self._form(state.value) for state in states]
            known = np.zeros(len(states), STATE)
            for name, at in (("tensor", 0), ("what", 2), ("version", 3), ("base", 4)):
                known[name] = [state[at] for state in states]
            known["form"], known["event"] = forms, self.count + np.arange(len(states))
            self._put_each(len(states), rows.tobytes(), bytes(4 * len(states)), known.tobytes())

    def grads_dropped(self, where: Where, tensors: Sequence[int]) -> None:
        self.last_gradient = None
        self.site = site = self.sites.number(where)
        with self.turn(), self.whole:
            rows = self._rows_of(Kind.GRAD_ASSIGNED, site, tensors)
            self._put_each(len(tensors), rows.tobytes(), b"", b"")

    def _rows_of(self, kind: Kind, site: int, firsts: Sequence[int]) -> np.ndarray:
        """The rows of events of one kind and place, with the first of their columns; the lock is held."""
        rows = np.zeros(len(firsts), ROW)
        rows["head"], rows["site"], rows["a"] = int(kind) | self._thread(), site, firsts
        return rows

    def _put_each(self, count: int, rows: bytes, links: bytes, states: bytes) -> None:
        """Put several events at the end."""
        batch = self.batch
        batch.states += states
        batch.rows += rows
        batch.links += links
        self.count += count

    def _put_some(
        self, kind: Kind, site: int, told: Sequence[tuple[tuple[Any, ...], Sequence[State]]], first: int
    ) -> int:
        """Pack events of one kind and place, beginning with the `first`, until it is the writer's turn. Returns the
        number of events that are packed then; the lock is held."""
        pack, head, batch = _PACK[kind], self._thread(), self.batch
        for done, (values, states) in enumerate(told[first:], first + 1):
            for state in states:
                self._state(*state)
            row, links = pack(values, self, head, site)
            batch.rows += row
            batch.links += links
            self.count += 1
            if self.count > self.limit:
                return done
        return len(told)

    def _prepare_op(self, values: tuple[Any, ...], states: Sequence[State]) -> tuple[int, Sequence[State]]:
        self.last_op[self._thread()] = self.count
        return 0, states

    def _prepare_leaf(self, values: tuple[Any, ...], states: Sequence[State]) -> tuple[int, Sequence[State]]:
        *_, gradient, grad = values
        if gradient == grad == self.last_leaf and not states[0].version:
            return 0, ()
        if self.auto is not None and not self.keeps_values and self.values != "none":
            # of large gradients ever fewer, at last those of one pass of eight, as norms are read in a rest
            quiet = self.passes_begun - max(self.auto.first, self.auto.closely_until)
            size = prod(getattr(states[0].value, "shape", ()))
            if size > _FEW_ELEMENTS and self.passes_begun % min(1 + max(quiet, 0) // 64, 8):
                return 0, states
            self.keeps_values = True  # of each pass it is kept what its gradients were
            try:
                self._states(states)
            finally:
                self.keeps_values = False
            return 0, ()
        return 0, states

    def _prepare_error(self, values: tuple[Any, ...], states: Sequence[State]) -> tuple[int, Sequence[State]]:
        self.last_error = values[:2]
        if self.auto is not None:
            self.auto.look_closely(JUMP, self.passes_begun)
        return 0, states

    def _begin_pass(self, number: int) -> int:
        """Number a pass, and decide whether it is recorded in detail; returns flags for its event."""
        self.passes_begun += 1
        self.open_passes[number] = self.passes_begun
        self.all_passes.add(number, self.passes_begun)
        if self.passes is not None:
            if self.auto is None:  # else it was decided before its forward began
                self.detailed = self.passes_begun in self.passes
            elif self.is_tail:
                self.detailed = self.is_tail = False
            self.keeps_values = self.detailed and self.values != "none"
        return 0 if self.detailed and not self.partial else SKIPPED

    def _end_pass(self, number: int) -> None:
        self.open_passes.pop(number, None)
        if self.budget is not None and not self.open_passes:
            self._keep_to(self.budget)
        if self.passes is not None and not self.open_passes:
            if self.auto is not None:
                self.batch.pass_ends.append((self.count, self.passes_begun))
            self._choose(self.passes_begun in self.passes if self.auto is None else self.detailed)

    def _keep_to(self, budget: Budget) -> None:
        """Leave out passes from where the run is no longer short, as many as the budget asks for."""
        if self.auto is not None:
            budget.timed(self.passes_begun, self.detailed)
        elif budget.is_over(self.passes_begun):
            self.passes = self.auto = budget
            self.note(passes=str(budget))

    def _look_for_nan(self, auto: AutoPasses) -> None:
        """Choose the next passes by the values of those that have ended, before the first pass that would be left out.
        The writer finds a NaN, so it is waited for: what is chosen must not depend on how quick it is. Where it waits
        itself, for a device or another program, passes are chosen when it has come so far."""
        if not self.rests:
            return
        is_last = self.keeps_values  # of those in detail
        if is_last:
            self.look_until = self.passes_begun
            self._await_writer(auto)
        elif self.looked_until >= self.look_until:
            return
        self.looked_until = auto.written_until
        auto.look(None if is_last else self.passes_begun)
        with self.lock:
            self._choose(was_detailed=is_last)

    def _await_writer(self, auto: AutoPasses) -> None:
        """Wait until everything up to here is written, if that is so in a moment."""
        writer = self.writer
        writer.wake()
        while auto.written_until < self.passes_begun and writer.is_writing_soon and not has_distant(self.batch):
            sleep(0.0005)

    def _choose(self, was_detailed: bool) -> None:
        """Decide whether the next pass is recorded in detail."""
        assert self.passes is not None
        is_next = self.passes_begun + 1 in self.passes
        # With a pass the step after it is of interest, what the program does then, and what the next pass begins with.
        self.is_tail = self.auto is not None and was_detailed and not is_next
        self.detailed = is_next or self.is_tail
        self.keeps_values = self.values != "none" and (is_next or was_detailed)


class ChoosingRecorder(Recorder):
    """A Recorder that chooses passes while the program runs, and notes how the nodes of the pass under way came to be:
    so a pass can be chosen of which nothing but the graph is at hand."""

    def __init__(self, path: Path | str, *settings: Any) -> None:
        self.made: dict[int, Made] = {}
        self.open_scopes: dict[int, tuple[Entered, ...]] = {}  # by thread
        self.last_ops: dict[int, Made] = {}  # by thread: how the nodes of the op come to be
        super().__init__(path, *settings)

    def differentiated(self, *fields: Any) -> None:
        # each op and node by itself, where passes are chosen
        (Listener if self.auto is not None and self.detailed else Recorder).differentiated(self, *fields)

    def nodes_made(self, *fields: Any) -> None:
        (Listener if self.auto is not None and self.detailed else Recorder).nodes_made(self, *fields)

    def wakes(self, loss: float | None) -> bool:
        if self.auto is None or not (loss is None or self.auto.foresees(loss)):
            return False
        with self.lock:
            self.detailed, self.is_tail, self.keeps_values = True, False, self.values != "none"
        return True

    def suspects(self) -> None:
        if self.auto is not None:
            self.auto.look_closely(LEAK, self.passes_begun + 1)

    def scope_entered(self, where: Where, scope: int, kind: str, name: str, type: str, training: bool = False) -> None:
        site = self.place(where)
        super().scope_entered(site, scope, kind, name, type, training)
        entered, thread = Entered(site, scope, kind, name, type, training), get_ident()
        self.open_scopes[thread] = (*self.open_scopes.get(thread, ()), entered)

    def scope_left(self, scope: int) -> None:
        super().scope_left(scope)
        thread = get_ident()
        self.open_scopes[thread] = tuple(one for one in self.open_scopes.get(thread, ()) if one.scope != scope)

    def op(self, where: Where, op: str, args: str, rule: Rule, in_pass: int, *fields: Any) -> None:
        if self.auto is None or not self.detailed:
            super().op(where, op, args, rule, in_pass, *fields)
            return
        site = self.place(where)
        super().op(site, op, args, rule, in_pass, *fields)
        if not in_pass:
            thread, (_, inputs, outputs, *_) = get_ident(), fields
            scopes = self.open_scopes.get(thread, ())
            made = Made(site, self.count, op, args, rule, tuple(inputs), scopes, rule, tuple(outputs))
            self.last_ops[thread] = made

    def node(self, where: Where, node: int, grad_fn: str, op: int | None, rule: Rule, *fields: Any) -> None:
        super().node(where, node, grad_fn, op, rule, *fields)
        last = self.last_ops.get(get_ident())
        if self.detailed and op == -1 and last is not None and len(self.made) < _MOST_MADE:
            shown = tuple(tensor if tensor in last.outputs else 0 for tensor in fields[0])
            self.made[node] = last._replace(node_rule=rule, outputs=shown)
        if self.is_tail and not self.open_passes:  # the next pass begins
            self.detailed = self.is_tail = False

    def pass_ended(self, number: int) -> None:
        super().pass_ended(number)
        if not self.open_passes:
            self.made.clear()
            self.last_ops.clear()


class InputsRecorder(Recorder):
    """A Recorder that keeps the elements of a large tensor only if a KEPT event asks for it. `written` are the tensors
    that were written to, other than by an op on them, since the last `take_written`; `functions` are the open scopes of
    custom Functions, whose forwards run without grad mode."""

    def __init__(self, path: Path | str, *settings: Any) -> None:
        self.written: list[int] = []
        self.functions: set[int] = set()
        self._keeping = ""  # how the next value is kept, if a KEPT event asks for it
        super().__init__(path, INPUTS, *settings)
        self._preparations[Kind.MUTATED] = self._prepare_write
        self._preparations[Kind.KEPT] = self._prepare_kept

    @property
    def rests(self) -> bool:  # type: ignore[override]
        """False: what a pass needs to run again may come to be in the passes before it."""
        return False

    def take_written(self) -> list[int]:
        """The tensors that have been written to since the last call."""
        written, self.written = self.written, []
        return written

    def scope_entered(self, where: Where, scope: int, kind: str, name: str, type: str, training: bool = False) -> None:
        super().scope_entered(where, scope, kind, name, type, training)
        if kind == "function":
            self.functions.add(scope)

    def scope_left(self, scope: int) -> None:
        super().scope_left(scope)
        self.functions.discard(scope)

    def leaf_ran(self, tensor: int, node: int, in_pass: int, gradient: int, state: State) -> None:
        super().leaf_ran(tensor, node, in_pass, gradient, state)
        self._keep_gradient(gradient, state)

    def accumulated(self, tensor: int, node: int, in_pass: int, gradient: int, state: State) -> None:
        super().accumulated(tensor, node, in_pass, gradient, state)
        self._keep_gradient(gradient, state)

    def _keep_gradient(self, gradient: int, state: State) -> None:
        """Keep the gradient that a leaf received, if it is the whole `.grad`: else its value is not at hand."""
        if self.detailed and state.tensor == gradient and not state.version:
            self.kept(None, GRADIENT, gradient, State(next_tensor_number(), state.value))

    def _prepare_write(self, values: tuple[Any, ...], states: Sequence[State]) -> tuple[int, Sequence[State]]:
        self.written.append(values[0])
        return 0, states

    def _prepare_kept(self, values: tuple[Any, ...], states: Sequence[State]) -> tuple[int, Sequence[State]]:
        self._keeping = values[0]
        return 0, states

    def _state(self, tensor: int, value: Any, flags: int, version: int, base: int, later: int = 0) -> None:
        how, self._keeping = self._keeping, ""
        if not how and value is not None and self.keeps_values:
            reader = READERS.get(type(value)) or reader_of(value)
            if reader.size(value) > SMALL:  # its elements are not read
                form = self._form(value, reader)
                self.batch.states += pack_state(tensor, version, base, form, flags, 0, self.count + later)
                return
        self.most_elements = SMALL if how in ("", GRADIENT) else LARGEST
        super()._state(tensor, value, flags, version, base, later)

    def _produced_gradient(self, number: int, value: Any, later: int) -> None:
        self._state(number, value, 0, 0, 0, later)
