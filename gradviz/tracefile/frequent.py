"""The frequent events, packed by hand: to the same bytes as by the table (tests/events/test_layout_of_events.py).

What they share is written out in each of them: a Python call would cost more than the work itself."""

from collections.abc import Sequence
from threading import get_ident
from types import FrameType
from typing import Any

import numpy as np

from gradviz.events.event_layout import PACK_NUMBERS, packed_numbers
from gradviz.events.field_types import Edge, Rule, Saved
from gradviz.events.kinds import Kind
from gradviz.events.listener import LEAF_NODE, State, Where
from gradviz.tracefile.packing import Packing, pack_state
from gradviz.tracefile.sites import Sites

_OP, _NODE, _RECEIVED, _PRODUCED, _ACCUMULATED = map(
    int, (Kind.OP, Kind.NODE, Kind.RECEIVED, Kind.PRODUCED, Kind.ACCUMULATED)
)
_ENTERED, _LEFT = int(Kind.SCOPE_ENTERED), int(Kind.SCOPE_LEFT)
_GRAD_ENABLED = _TRAINING = 1 << 8  # the only flags of OP and SCOPE_ENTERED
_ROW, _TWO_ROWS, _TWO_LINKS = PACK_NUMBERS[7], PACK_NUMBERS[14], PACK_NUMBERS[2]
_FEW = len(PACK_NUMBERS) - 1
_MOST_OPS = 10_000  # the most ops whose texts are kept together
_float32 = np.dtype(np.float32)


class Frequent(Packing):
    """Packs the frequent events, if the present part of the run is recorded in detail."""

    def __init__(self, values: str, sites: Sites | None) -> None:
        super().__init__(values, sites)
        self.detailed = True
        self.scopes: dict[int, int] = {}  # the identities of the frames of open scopes that were recorded
        self.last_leaf = 0  # the gradient that a leaf received last
        # The numbers of an op's texts and rule, by these texts and the identity of the rule, which is kept beside them.
        self.same_ops: dict[tuple[str, str, str, int], tuple[int, int, int, int, Rule]] = {}
        self.site = 0  # the site of the last event that has one

    def turn(self) -> Any:
        """The lock, once the writer is not too far behind. Only for use in `with`: Ctrl-C between a call of `acquire`
        and the next line would leave it taken for good."""
        if self.count > self.limit:
            self._give_way()
        return self.lock

    def _give_way(self) -> None:
        """Let the writer have the interpreter."""

    def op(
        self, where: Any, op: str, args: str, rule: Rule, in_pass: int, grad_enabled: bool, inputs: Sequence[int],
        outputs: Sequence[int], values: Sequence[Any], flags: Sequence[int], versions: Sequence[int],
        bases: Sequence[int],
    ) -> None:  # fmt: skip
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
        self, where: Any, node: int, grad_fn: str, op: int | None, rule: Rule, outputs: Sequence[int],
        edges: Sequence[Edge], saved: Sequence[Saved],
    ) -> None:  # fmt: skip
        self.tell(Kind.NODE, where, (node, grad_fn, op, rule, outputs, edges, saved))

    def nodes_made(
        self, where: Where, made: Sequence[tuple[int, str, Rule, Sequence[int], Sequence[int], Sequence[int]]]
    ) -> None:
        if not self.detailed:
            return
        self.site = site = 0 if where is None else self.sites.number(where)
        self.last_gradient = None
        with self.turn(), self.whole:
            self._put_nodes(site, made)

    def _put_nodes(
        self, site: int, made: Sequence[tuple[int, str, Rule, Sequence[int], Sequence[int], Sequence[int]]]
    ) -> None:
        thread, count = self._thread(), self.count
        op = self.last_op.get(thread)
        text, rule_of = self.strings.known.get, self.same_rules.get
        rows = packed = b""
        for node, grad_fn, rule, outputs, edges, saved in made:
            links = (len(outputs), len(edges) // 3, *outputs, *edges, *saved)
            m = len(links)
            name = text(grad_fn) or self.text(grad_fn)
            number = rule_of(id(rule)) or self.rule(rule)
            rows += _ROW(_NODE | thread, site, node, name, 0 if op is None else count - op, number, m)
            packed += PACK_NUMBERS[m](*links) if m < _FEW else packed_numbers(links)
            count += 1
        batch = self.batch
        batch.rows += rows
        batch.links += packed
        self.count = count

    def differentiated(
        self, where: Any, op: str, args: str, rule: Rule, in_pass: int, inputs: Sequence[int], output: int,
        value: Any, flags: int, version: int, base: int, node: int, grad_fn: str, edges: Sequence[int],
        saved: Sequence[int],
    ) -> None:  # fmt: skip
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
                packed = PACK_NUMBERS[m](*links) if m < _FEW else packed_numbers(links)
                texts = self.same_ops.get((op, args, grad_fn, id(rule))) or self._texts(op, args, grad_fn, rule)
                op_number, args_number, name_number, rule_number, _ = texts
                if self.keeps_values or value is None:
                    self._state(output, value, flags, version, base)
                else:  # as _state does, without a call
                    form = 0
                    if type(value) is np.ndarray and value.dtype is _float32:
                        form = self.float32_forms.get(value.shape, 0)
                    state = pack_state(output, version, base, form or self._form(value), flags, 0, self.count)
                    self.batch.states += state
                thread = self.last_thread if get_ident() == self.last_ident else self._thread()
                self.last_op[thread] = self.count
                rows = _TWO_ROWS(
                    _OP | _GRAD_ENABLED | thread,
                    site,
                    op_number,
                    args_number,
                    rule_number,
                    self.open_passes.get(in_pass, 0) if in_pass else 0,
                    n + 2,
                    _NODE | thread,
                    site,
                    node,
                    name_number,
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

    def _texts(self, op: str, args: str, grad_fn: str, rule: Rule) -> tuple[int, int, int, int, Rule]:
        """The numbers of the texts of an op and its node, and of their rule. The rule is kept alive with them, because
        it is known by its address."""
        numbers = self.text(op), self.text(args), self.text(grad_fn), self.rule(rule), rule
        if len(self.same_ops) >= _MOST_OPS:
            self.same_ops.clear()
        self.same_ops[op, args, grad_fn, id(rule)] = numbers
        return numbers

    def scope_entered(self, where: Where, scope: int, kind: str, name: str, type: str, training: bool = False) -> None:
        if not self.detailed:
            return
        self.scopes[scope] = id(where)
        sites = self.sites
        self.site = site = sites.enter(where) if isinstance(where, FrameType) else sites.number(where)
        self.last_gradient = None
        if self.count > self.limit:
            self._give_way()
        with self.lock:
            try:  # as `whole` does, without its calls
                known = self.strings.known.get
                thread = self.last_thread if get_ident() == self.last_ident else self._thread()
                row = _ROW(
                    _ENTERED | (_TRAINING if training else 0) | thread,
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
        frame = self.scopes.pop(scope, None)
        if frame is None:  # a pass that ended inside may have changed `detailed`
            return
        self.sites.leave(frame)
        self.last_gradient = None
        if self.count > self.limit:
            self._give_way()
        with self.lock:
            try:  # as `whole` does, without its calls
                thread = self.last_thread if get_ident() == self.last_ident else self._thread()
                row = _ROW(_LEFT | thread, 0, scope, 0, 0, 0, 0)
                self.batch.rows += row
                self.count += 1
            except BaseException as error:
                if not self._is_lost(error):
                    raise

    def received(self, node: int, grad_fn: str, in_pass: int, gradients: Sequence[int], values: Sequence[Any]) -> None:
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
            row = _ROW(_PRODUCED | self._thread(), 0, node, self.open_passes.get(in_pass, 0), 0, 0, len(flows))
            self._put(row, packed_numbers(flows))

    def ran(
        self, node: int, grad_fn: str, in_pass: int, gradient: int, value: Any, flows: Sequence[int],
        values: Sequence[Any],
    ) -> None:  # fmt: skip
        if not self.detailed:
            return
        n = len(flows)
        if self.count > self.limit:
            self._give_way()
        with self.lock:
            try:  # as `whole` does, without its calls
                links = gradient, *flows
                packed = PACK_NUMBERS[n + 1](*links) if n < _FEW else packed_numbers(links)
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
