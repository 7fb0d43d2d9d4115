"""The event that has just happened, with the fields that predicates use. `TraceFields` does the same for a trace.

Some fields depend on earlier events: the scopes and passes of a thread, the site where a node was made, the value of
an older gradient. The expensive ones are tracked only while a predicate uses them (`asked`); for earlier events, the
trace of the last stop is used.
"""

import linecache
import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from threading import get_ident
from typing import Any
from weakref import ref

import numpy as np

from gradviz.events.event_layout import LAYOUTS
from gradviz.events.handles import elements_of
from gradviz.events.kinds import TIED, WHOLE, Kind
from gradviz.events.listener import State
from gradviz.events.values import SMALL, Stats, stats_of
from gradviz.query.bad_numbers import WrittenInfinities
from gradviz.query.predicate_columns import FIELDS, TENSORS
from gradviz.system.paths import file_name
from gradviz.tracefile import Recorder, Snapshot
from gradviz.tracefile.sites import Sites
from gradviz.words.words import Words


class Numbered:
    """Maps ascending integers to small integers, with four bytes for each."""

    def __init__(self) -> None:
        self.first = 0
        self.values = array("I")

    def put(self, number: int, value: int) -> None:
        """Set the value of a number. A number below the first one is ignored."""
        if not self.values:
            self.first = number
        missing = number - self.first - len(self.values)
        if missing == 0:
            self.values.append(value)
        elif missing > 0:
            self.values.frombytes(bytes(self.values.itemsize * missing))
            self.values.append(value)
        elif number >= self.first:
            self.values[number - self.first] = value

    def get(self, number: int) -> int:
        """The value of a number; 0 if it was not set."""
        at = number - self.first
        return self.values[at] if 0 <= at < len(self.values) else 0


def _nothing() -> Any:
    """Used instead of a weak reference if there is no array."""
    return None


_UNKNOWN: tuple[Callable[[], Any], Any] = _nothing, None


class OlderValues:
    """The values that tensors had at earlier events, and which of them have NaN or infinity."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[Callable[[], Any], Any]] = {}  # a reference to the array, and a copy
        self._replaced: dict[int, Any] = {}  # the same for the states of the last event, before that event
        self._bad: dict[int, tuple[bool, bool]] = {}  # NaN, infinity
        self._purge_at = 10_000
        self.ask(frozenset())

    def ask(self, asked: frozenset[str]) -> None:
        """Forget all values, and keep from now on those that predicates with these fields need."""
        self._values.clear()
        self._bad.clear()
        self._keeps_values = bool(asked & {"in", "grad"})
        self._keeps_copies = "in" in asked
        self._keeps_bad = bool(asked & {"nan", "inf"})

    def take(self, states: Sequence[State]) -> None:
        """Keep the needed parts of the states of an event."""
        if self._keeps_values:
            self._keep(states)
        if not self._keeps_bad:
            return
        for state in states:
            if state.value is None or (state.tensor not in self._bad and is_finite(state.value)):
                continue
            if (elements := elements_of(state.value)) is not None:
                self.mark(state.tensor, bool(np.isnan(elements).any()), bool(np.isinf(elements).any()))

    def _keep(self, states: Sequence[State]) -> None:
        values = self._values
        self._replaced = {state.tensor: values.get(state.tensor) for state in states}
        for state in states:
            if isinstance(state.value, np.generic):
                values[state.tensor] = _nothing, state.value
            elif state.value is not None:
                values[state.tensor] = ref(state.value), _copied(state) if self._keeps_copies else None
        if len(values) > self._purge_at:
            self._values = {n: kept for n, kept in values.items() if kept[0] is _nothing or kept[0]() is not None}
            self._purge_at = 2 * len(self._values) + 10_000

    def value(self, number: int) -> Any:
        """The value of a tensor; None if it is unknown."""
        array, copy = self._values.get(number, _UNKNOWN)
        held = array()
        return copy if held is None else held

    def before(self, number: int) -> Any:
        """The value of a tensor before the last event; None if it is unknown."""
        _, copy = self._replaced.get(number, self._values.get(number)) or _UNKNOWN
        return copy

    def mark(self, number: int, nan: bool, inf: bool) -> None:
        """Note whether a tensor's value has NaN and infinity."""
        self._bad[number] = nan, inf

    def is_bad(self, number: int, which: bool) -> bool | None:
        """Whether a tensor has NaN, or infinity if `which`; None if it is unknown."""
        known = self._bad.get(number)
        return None if known is None else known[which]


def _copied(state: State) -> Any:
    """A copy of an array, or its statistics if it is large: ops in place change their inputs."""
    value = elements_of(state.value)
    if value is None:
        return None
    if value.size <= SMALL:
        return value.copy()
    form = state.tensor, state.version, value.shape, value.dtype.name, "cpu", state.flags, state.base
    return Snapshot(*form, array=None, told=stats_of(value))


_RUNNING = 1000  # the most nodes that have received and not produced: one for each pass, and passes may nest
_AT_NODE = (Kind.RECEIVED, Kind.PRODUCED)
_GRADIENTS = TENSORS["grad"].where
_MADE = TENSORS["out"].where
_NESTS = (Kind.SCOPE_ENTERED, Kind.PASS_BEGAN, Kind.SCOPE_LEFT, Kind.PASS_ENDED)
_OF_THE_PAST = {"line", "file", "name", "parameter", "in", "grad", "nan", "inf", "memory", "grad_fn"}
# The index of each field in the values of an event.
_AT = {kind: {name: at for at, name in enumerate(layout.fields)} for kind, layout in LAYOUTS.items()}


class Present:
    """The event that has just happened: its `kind`, its `fields` in the order of the table of events, its
    `states`, its site, and its index from 0."""

    def __init__(self, sites: Sites) -> None:
        self.sites = sites
        self.asked: frozenset[str] = frozenset()  # fields that predicates use
        self.past: Words | None = None  # the run up to the last stop
        self.kind = Kind.TENSOR
        self.index = self.site = 0
        self.fields: tuple[Any, ...] = ()
        self.states: Sequence[State] = ()
        self.nests: dict[int, list[tuple[int, str]]] = {}  # by thread: (pass or 0, scope), innermost last
        self.open_passes: list[int] = []
        self.grads: dict[int, int] = {}  # tensor -> the tensor that is its .grad
        self.grad_before = 0  # the previous .grad, if this event assigns one
        self.parameters: dict[int, str] = {}
        self._numbers: dict[int, int] = {}  # pass number in the source -> pass number in the trace
        self._older = OlderValues()
        self._codes: dict[str, int] = {"": 0}
        self._labels = [""]
        self._grad_fns: dict[int, str] = {}
        self._homes: dict[int, int] = {}
        self._lines: dict[int, frozenset[int]] = {}
        self._newest_past = self._newest_node = 0
        self.ask((), None)

    def take(self, kind: Kind, fields: tuple[Any, ...], states: Sequence[State], site: int, index: int) -> None:
        """Set the present event, and store what later events need from it."""
        self.kind, self.fields, self.states, self.site, self.index = kind, fields, states, site, index
        self._older.take(states)
        if self._keeps_names and kind in (Kind.OP, Kind.TENSOR):
            self._keep_names()
        if kind == Kind.NODE:
            node = self.field("node")
            if self._keeps_sites:
                self._node_sites.put(node, site)
            if self._keeps_names and (outputs := self.field("outputs")):
                self._node_names.put(node, self._names.get(outputs[0]))
        if self._keeps_grad_fns and kind == Kind.RECEIVED:
            if len(self._grad_fns) > _RUNNING:
                self._grad_fns.clear()
            self._grad_fns[self.field("node")] = self.field("grad_fn")
        if self._keeps_memory and kind in _MADE:
            self._keep_memory()

    def field(self, name: str) -> Any:
        """A field of the event."""
        return self.fields[_AT[self.kind][name]]

    def has(self, name: str) -> bool:
        """Whether the event has a field with this name."""
        return name in _AT[self.kind]

    # --- tracked always: scopes, passes, names, gradients

    def follow(self, kind: Kind, fields: tuple[Any, ...], recorder: Recorder) -> None:
        """Update the tracked state before an event is checked."""
        if kind == Kind.SCOPE_ENTERED:
            self.nest().append((0, fields[2]))
        elif kind == Kind.PASS_BEGAN:
            number = self._numbers[fields[0]] = recorder.passes_begun
            self.open_passes.append(number)
            self.nest().append((number, ""))
        elif kind == Kind.NAMED:
            if fields[2] not in ("", TIED):
                self.parameters[fields[0]] = fields[1]
        elif kind in (Kind.ACCUMULATED, Kind.RETAINED, Kind.GRAD_ASSIGNED):
            self.grad_before = self.grads.get(fields[0], 0)
            self.grads[fields[0]] = fields[-1]

    def leave(self, kind: Kind, fields: tuple[Any, ...]) -> None:
        """Update the tracked state after the end of a scope or pass; the event that ends it still belongs to it."""
        if kind == Kind.SCOPE_LEFT:
            if nest := self.nest():
                nest.pop()
        elif kind == Kind.PASS_ENDED:
            number = self._numbers.pop(fields[0], 0)
            if number in self.open_passes:
                self.open_passes.remove(number)
            if (number, "") in (nest := self.nest()):
                nest.remove((number, ""))

    # --- tracked while a predicate uses it

    def remembers(self, kind: Kind) -> bool:
        """Whether events of a kind must be stored, even if no condition concerns them."""
        asked = self.asked
        if kind in _MADE and asked & {"in", "grad", "nan", "inf", "name", "parameter", "memory"}:
            return True
        if kind == Kind.NODE:
            return bool(asked & {"line", "file", "name", "parameter"})
        return kind in _GRADIENTS and bool(asked & {"in", "grad", "nan", "inf", "grad_fn"})

    def ask(self, fields: Iterable[str], past: Words | None) -> None:
        """Track these fields from now on; `past` is the run up to here."""
        asked = frozenset(field.partition(".")[0] for field in fields)
        past = past if asked & _OF_THE_PAST else None
        self.past = past
        if past is not None:
            self._newest_past = int(past.trace.states.tensors.max(initial=0))
            self._newest_node = int(past.trace.table(Kind.NODE)["node"].max(initial=0))
        self._older.ask(asked)
        self._homes.clear()  # the past contains all homes
        self._node_sites, self._node_names, self._names = Numbered(), Numbered(), Numbered()
        self.asked = asked
        self._keeps_names = bool(asked & {"name", "parameter"})
        self._keeps_sites = bool(asked & {"line", "file"})
        self._keeps_grad_fns = "grad_fn" in asked
        self._keeps_memory = "memory" in asked

    def _keep_names(self) -> None:
        names = self.sites.site(self.site).names if self.site else ()
        tensors = self._subjects()
        if names and len(names) == max(len(tensors), 1):
            for number, name in zip(tensors, names, strict=True):
                self._names.put(number, self._code(name))

    def _code(self, name: str) -> int:
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = len(self._labels)
            self._labels.append(name)
        return code

    def _keep_memory(self) -> None:
        """Track which memory a tensor has, as `query.memory.Memory` does."""
        for state in self.states:
            if state.base and state.flags & WHOLE:
                self._homes[state.tensor] = self.home(state.base)

    def home(self, tensor: int) -> int:
        """The memory of a tensor: the number of the tensor that it was made for, or a negative number."""
        known = self._homes.get(tensor)
        if known is None and (past := self.earlier(tensor)) is not None:
            return past.query.memory.home(tensor, past.trace.count - 1)
        return tensor if known is None else known

    def written(self) -> list[int]:
        """The tensors that this event changed in place."""
        if self.kind == Kind.MUTATED:
            return [self.field("tensor")]
        if self.kind == Kind.OP:
            return [state.tensor for state in self.states if state.tensor in self.field("inputs")]
        return [self.field("grad")] if self.kind == Kind.ACCUMULATED else []

    def earlier(self, tensor: int) -> Words | None:
        """The past, if the tensor may be in it; otherwise None."""
        return self.past if tensor <= self._newest_past else None

    # --- scopes and passes

    def nest(self) -> list[tuple[int, str]]:
        """The scopes and passes around this thread."""
        return self.nests.setdefault(get_ident(), [])

    @property
    def depth(self) -> int:
        """The number of scopes and passes around the event; an event that begins or ends a scope or pass is outside
        it."""
        return len(self.nest()) - (self.kind in _NESTS)

    @property
    def scope(self) -> str:
        """The innermost scope; empty if there is none."""
        return next((name for _, name in reversed(self.nest()) if name), "")

    @property
    def in_pass(self) -> int:
        """The backward pass; 0 if there is none."""
        number = self.field("in_pass") if self.has("in_pass") else 0
        if number:
            return self._numbers.get(number, 0)
        if self.kind in (Kind.PASS_BEGAN, Kind.PASS_ENDED):
            return self._numbers.get(self.field("number"), 0)
        return next((own for own, _ in reversed(self.nest()) if own), 0)

    # --- fields

    def values_of(self, name: str) -> Iterable[Any]:
        """The values of a field of predicates at this event."""
        tensors, _, statistic = name.partition(".")
        if statistic:
            return [measured(value, statistic) for value in self.values(tensors) if value is not None]
        return FIELDS[name].now(self)

    def text(self, field: str, *kinds: Kind) -> str:
        """A text field of the event; empty if the event is of another kind."""
        return self.field(field) if self.kind in kinds else ""

    @property
    def place(self) -> int:
        """The site of the event; for a node, the site where the node was made; 0 if there is none."""
        if self.kind not in _AT_NODE:
            return self.site
        node = self.field("node")
        known = self._node_sites.get(node)
        made = self._past_node(node) if not known else None
        return known or (made.site if made is not None else 0)

    def _past_node(self, node: int) -> Any:
        """The event before the last stop that made a node; None if it is unknown."""
        return self.past.query.nodes.event(node) if self.past is not None and node <= self._newest_node else None

    def lines(self) -> frozenset[int]:
        """The lines of the event: its own line and those of the calls around it."""
        place = self.place
        numbers = self._lines.get(place)
        if numbers is None:
            lines, site = [], place
            while site:
                known = self.sites.site(site)
                if linecache.getline(self.sites.path_of(known.place.file), known.place.line):
                    lines.append(known.place.line)
                site = known.parent
            numbers = self._lines[place] = frozenset(lines)
        return numbers

    @property
    def file(self) -> str:
        """The name of the source file of the event."""
        return file_name(self.sites.site(self.place).place.file) if self.place else ""

    def called(self, tensor: int) -> str:
        """A tensor's name; empty if it has none yet."""
        name = self.parameters.get(tensor) or self._labels[self._names.get(tensor)]
        past = self.earlier(tensor) if not name else None
        return name or (past.query.names.of(tensor) if past is not None else None) or ""

    def _subjects(self) -> Sequence[int]:
        """The tensors that the event is about."""
        if self.has("outputs"):
            return self.field("outputs")
        return (self.field("tensor"),) if self.has("tensor") else ()

    def names(self, only_parameters: bool) -> list[str]:
        """The names of the tensors that the event is about; for a node, of the output of its op."""
        if self.kind not in _AT_NODE:
            if only_parameters:
                return [self.parameters.get(tensor, "") for tensor in self._subjects()]
            return [self.called(tensor) for tensor in self._subjects()]
        node = self.field("node")
        known = self._node_names.get(node)
        made = self._past_node(node) if not known else None
        if made is not None:
            return [self.called(made.outputs[0])] if made.outputs else []
        return [self._labels[known]]

    def shapes(self) -> list[str]:
        """The shapes of the tensors that the event made or changed in place."""
        states = self.states if self.kind in _MADE else ()
        return ["x".join(map(str, state.value.shape)) for state in states if state.value is not None]

    def versions(self) -> list[int]:
        """The versions that the event produced."""
        written = self.written() if self.kind in _MADE else ()
        return [state.version for state in self.states if state.version and state.tensor in written]

    @property
    def grad_fn(self) -> str:
        """The name of the node that the event made, or at which it happened."""
        if self.has("grad_fn"):
            return self.field("grad_fn")
        if self.kind != Kind.PRODUCED:
            return ""
        node = self.field("node")
        made = self._past_node(node) if node not in self._grad_fns else None
        return self._grad_fns.get(node) or (made.grad_fn if made is not None else "")

    def has_bad(self, statistic: str) -> bool:
        """Whether a value or gradient of the event has a NaN (`nan`) or an infinity (`inf`)."""
        which = statistic == "inf"
        if any(self._older.is_bad(state.tensor, which) for state in self.states):
            return True
        return any(self._has_bad(number, which) for number in self._gradients() if number)

    def _has_bad(self, number: int, which: bool) -> bool:
        """Whether a tensor has NaN or infinity; a tensor from before the last stop is looked up once."""
        known = self._older.is_bad(number, which)
        if known is not None or self.earlier(number) is None:
            return bool(known)
        snapshot = self._value_in_the_past(number)
        stats = snapshot.stats if snapshot is not None else None
        self._older.mark(number, bool(stats and stats.nan), bool(stats and stats.inf))
        return bool(self._older.is_bad(number, which))

    def _gradients(self) -> Sequence[int]:
        """The gradients of the event."""
        if self.kind == Kind.RECEIVED:
            return self.field("gradients")
        if self.kind == Kind.PRODUCED:
            return self.field("flows")[1::2]
        if self.kind == Kind.HOOKED:
            return (self.field("after"),)
        return (self.field("grad"),) if self.has("grad") else ()

    def values(self, tensors: str) -> list[Any]:
        """The values of the tensors `out`, `in`, `grad` or `tangent`."""
        if self.kind not in TENSORS[tensors].where:
            return []
        if tensors in ("out", "tangent"):
            return [state.value for state in self.states]
        if tensors == "in":
            return [self._known(self._older.before(number), number) for number in self.field("inputs") if number]
        known = {state.tensor: state.value for state in self.states}
        return [
            known[number] if known.get(number) is not None else self._known(self._older.value(number), number)
            for number in self._gradients()
            if number
        ]

    def _known(self, held: Any, number: int) -> Any:
        """The value of an older tensor: its array, if that is held, otherwise its snapshot in the trace."""
        return self._value_in_the_past(number) if held is None else held

    def _value_in_the_past(self, number: int) -> Any:
        past = self.earlier(number)
        return None if past is None else past.trace.snapshot(number)


# The first NaN and the first infinity of a running script. An infinity that the program wrote itself does not count.


def is_finite(value: Any) -> bool:
    """Whether a value has no NaN and no infinity, as far as its elements can be read."""
    values = elements_of(value)
    if values is None or values.dtype.kind not in "fc":
        return True
    # A finite sum of squares proves in one call that every element is finite. The reverse is not true: it may
    # overflow.
    if values.dtype.itemsize >= 4 and isfinite(abs(np.vdot(values, values))):
        return True
    return bool(np.isfinite(values).all())


def measured(values: Any, statistic: str) -> float:
    """One statistic of an array or a snapshot, as `stats_of` defines it; NaN if it is unknown."""
    array = getattr(values, "array", None)
    if hasattr(values, "stats") and array is None:
        return _statistic(values.shape, values.stats, statistic)
    array = elements_of(values) if array is None else np.asarray(array)
    if array is None:
        return float("nan")
    if statistic in _QUICK and array.size and array.dtype.kind == "f" and is_finite(array):
        return float(_QUICK[statistic](array))
    return _statistic(array.shape, None if statistic in _OF_SHAPES else stats_of(array), statistic)


def _statistic(shape: tuple[int, ...], stats: Stats | None, statistic: str) -> float:
    if statistic in _OF_SHAPES:
        return float(_OF_SHAPES[statistic](shape))
    if stats is None:
        return float("nan")
    return max(abs(stats.min), abs(stats.max)) if statistic == "absmax" else float(getattr(stats, statistic))


_OF_SHAPES: dict[str, Callable[[tuple[int, ...]], int]] = {"size": math.prod, "ndim": len}
# Statistics in one pass, for floating-point arrays with only finite elements.
_QUICK: dict[str, Callable[[np.ndarray], Any]] = {
    "min": np.min,
    "max": np.max,
    "absmax": lambda array: np.abs(array).max(),
    "nan": lambda array: 0,
    "inf": lambda array: 0,
    "zeros": lambda array: array.size - np.count_nonzero(array),
    "mean": lambda array: array.mean(dtype=np.float64),
    "rms": lambda array: np.sqrt(np.square(array, dtype=np.float64).mean()),
}


_INFINITY = "infinity"
BAD = ("NaN", _INFINITY)
_TESTS: dict[str, Callable[[Any], Any]] = {"NaN": np.isnan, _INFINITY: np.isinf}
_PLAIN = frozenset((np.dtype(np.float32), np.dtype(np.float64)))
_vdot = np.vdot


class FirstBad:
    """Searches the values of each event for those of `names` that have not appeared yet. Each method returns the
    names that appear for the first time. `looking` is whether any name has not appeared."""

    def __init__(self, names: Sequence[str]) -> None:
        self.unseen = set(names)
        self.looking = bool(names)
        # the tensors with written infinities, until another infinity appears
        self.written = WrittenInfinities()

    def of_values(self, values: Sequence[Any]) -> list[str]:
        """In gradients, where an infinity is never written by the program."""
        return self._first(values, lambda: False)

    def of_op(self, args: str, inputs: Sequence[int], outputs: Sequence[int], values: Sequence[Any]) -> list[str]:
        """In the results of an op, new or changed in place."""
        infinite = self.written.tensors.intersection(inputs)
        self._forget_finite(outputs, values)
        return self._first(values, lambda: self.written.by_op(args, infinite, outputs))

    def of_one(self, args: str, inputs: Sequence[int], output: int, value: Any) -> list[str]:
        """In the single new tensor that an op made."""
        if type(value) is np.ndarray and value.dtype in _PLAIN and isfinite(_vdot(value, value)):
            return []
        return self.of_op(args, inputs, (output,), (value,))

    def of_states(self, kind: Kind, fields: tuple[Any, ...], states: Sequence[State]) -> list[str]:
        """In the states of tensors at any other kind of event."""
        values = [state.value for state in states]
        self._forget_finite([state.tensor for state in states], values)
        if kind == Kind.TENSOR:
            tensor, how, _ = fields
            return self._first(values, lambda: self.written.by_maker(tensor, how, states[0].flags))
        if kind == Kind.MUTATED:
            tensor, _, source, *_ = fields
            return self._first(values, lambda: self.written.by_write(tensor, source))
        return self.of_values(values)

    def _first(self, values: Sequence[Any], is_written: Callable[[], bool]) -> list[str]:
        names: list[str] = []
        for value in values:
            if value is None or is_finite(value):
                continue
            for name, test in _TESTS.items():
                if name not in self.unseen or not test(elements_of(value)).any():
                    continue
                if name != _INFINITY or not is_written():
                    self.unseen.discard(name)
                    names.append(name)
        self.looking = bool(self.unseen)
        return names

    def _forget_finite(self, tensors: Sequence[int], values: Sequence[Any]) -> None:
        """Forget tensors whose infinities have been overwritten."""
        if written := self.written.tensors.intersection(tensors):
            pairs = zip(tensors, values, strict=True)
            finite = {tensor for tensor, value in pairs if value is not None and is_finite(value)}
            self.written.tensors.difference_update(written & finite)
