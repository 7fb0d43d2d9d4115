"""The fields of predicates in one table, for a recorded trace and for the present event of a running program; and these
fields over a whole trace, as columns with one or several values for each event."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query.lookups import Lookups
from gradviz.sets import contained, ranked
from gradviz.system.paths import file_name

STORED = ("min", "max", "mean", "rms", "nan", "inf", "zeros")
STATISTICS = (*STORED, "absmax", "size", "ndim")
_KIND_NAMES = np.array(["", *(kind.name.lower() for kind in Kind)])
_MADE = (Kind.OP, Kind.TENSOR, Kind.MUTATED)


class Column(NamedTuple):
    """The values of a field. `values[i]` belongs to event `events[i]`; if `events` is None, to event i. With
    `codes`, `values` is a short table of texts, and `codes[i]` is the index into it."""

    values: np.ndarray
    events: np.ndarray | None = None
    codes: np.ndarray | None = None


Rows = tuple[np.ndarray, np.ndarray]  # the events, and a row of the states for each of them


class TraceColumns:
    """Builds the columns of one trace."""

    def __init__(self, query: Lookups) -> None:
        self.query = query
        self.trace = query.trace
        self.count = self.trace.count

    # --- values

    def statistic(self, rows: Rows, statistic: str) -> Column:
        """A statistic of the tensors in `rows`."""
        events, states = rows
        return Column(self._values(statistic, states), events)

    def _values(self, statistic: str, rows: np.ndarray) -> np.ndarray:
        states = self.trace.states
        if statistic in STORED:
            return states.stats[rows, STORED.index(statistic)]
        if statistic == "absmax":
            return np.abs(states.stats[:, :2][rows]).max(axis=1)
        measure = np.prod if statistic == "size" else len
        table = np.full(max(self.trace.forms, default=0) + 1, np.nan)
        for number, form in self.trace.forms.items():
            table[number] = measure(form.shape)
        return table[states.forms[rows]]

    @cached_property
    def outputs(self) -> Rows:
        """The tensors that events made or changed in place: an op's outputs, a new tensor, a mutated tensor."""
        states = self.trace.states
        is_output = contained(self.trace.kinds[states.events], _MADE) & (states.forms > 0)
        return states.events[is_output].astype(np.int32), np.flatnonzero(is_output).astype(np.int32)

    @cached_property
    def inputs(self) -> Rows:
        """The inputs of ops, in their state before the op."""
        ops = self.trace.table(Kind.OP)
        inputs = ops.lists("inputs")
        events = ops.events[inputs.owners]
        return self._known(events, inputs.values, events - 1)

    @cached_property
    def gradients(self) -> Rows:
        """The gradients of events: received, produced, accumulated, retained, assigned, or returned by a hook."""
        parts = []
        received, produced = self.trace.table(Kind.RECEIVED), self.trace.table(Kind.PRODUCED)
        arrived, flows = received.lists("gradients"), produced.lists("flows")
        parts.append((received.events[arrived.owners], arrived.values))
        parts.append((produced.events[flows.owners], flows.elements[:, 1]))
        singles = ((Kind.HOOKED, "after"), (Kind.ACCUMULATED, "grad"), (Kind.RETAINED, "grad"))
        for kind, field in (*singles, (Kind.GRAD_ASSIGNED, "grad")):
            table = self.trace.table(kind)
            parts.append((table.events, table[field]))
        events, tensors = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
        return self._known(events, tensors, events)

    @cached_property
    def tangents(self) -> Rows:
        """The tangents that were pushed."""
        pushed = self.trace.table(Kind.TANGENT)
        return self._known(pushed.events, pushed["tangent"], pushed.events)

    def _known(self, events: np.ndarray, tensors: np.ndarray, at: np.ndarray) -> Rows:
        """The state of each tensor at an event; pairs with an unknown state are left out."""
        rows = self.trace.states.rows_of(tensors, at)
        return events[rows >= 0].astype(np.int32), rows[rows >= 0].astype(np.int32)

    def bad(self, statistic: str) -> Column:
        """Whether a value, gradient or tangent of an event has a NaN (`nan`) or an infinity (`inf`)."""
        is_bad = np.zeros(self.count, bool)
        bad = self.trace.states.stats[:, STORED.index(statistic)] > 0
        if bad.any():
            is_bad[self.trace.states.events[bad]] = True
            for events, rows in (self.gradients, self.tangents):
                is_bad[events[bad[rows]]] = True
        return Column(is_bad)

    # --- texts

    def text(self, field: str, *kinds: Kind) -> Column:
        """A text field of the events of some kinds; empty at other events."""
        numbers = np.array(sorted({0, *self.trace.strings}), np.int64)  # they may be far apart
        table = np.array([*map(self.trace.text, numbers.tolist()), ""], object)
        codes = np.full(self.count, len(numbers), np.int32)
        for kind in kinds:
            of_kind = self.trace.table(kind)
            codes[of_kind.events] = np.searchsorted(numbers, of_kind[field])
        return Column(table, codes=codes)

    @cached_property
    def grad_fns(self) -> Column:
        """The name of the node that an event made, or at which it happened."""
        column = self.text("grad_fn", Kind.NODE, Kind.RECEIVED)
        assert column.codes is not None
        codes = column.codes
        received, produced = self.trace.table(Kind.RECEIVED), self.trace.table(Kind.PRODUCED)
        nodes, first = np.unique(received["node"], return_index=True)
        if len(nodes):
            at = np.minimum(np.searchsorted(nodes, produced["node"]), len(nodes) - 1)
            known = nodes[at] == produced["node"]
            codes[produced.events[known]] = codes[received.events[first[at[known]]]]
        return Column(column.values, codes=codes)

    @cached_property
    def ops(self) -> np.ndarray:
        """The number of the op's name at each event; 0 for an event that is no op."""
        ops = self.trace.table(Kind.OP)
        names = np.zeros(self.count, np.int64)
        names[ops.events] = ops["op"]
        return names

    @property
    def kinds(self) -> Column:
        """The names of the kinds of the events."""
        return Column(_KIND_NAMES, codes=np.minimum(self.trace.kinds, len(_KIND_NAMES) - 1))

    def of_kind(self, *kinds: Kind) -> Column:
        """Whether an event is of one of these kinds."""
        return Column(contained(self.trace.kinds, kinds))

    @cached_property
    def _subjects(self) -> tuple[np.ndarray, np.ndarray]:
        """The tensors that each event is about, as pairs (event, tensor): the tensors that it made or changed; at a
        node, the tensors whose gradients the node receives."""
        trace, parts = self.trace, []
        outputs = trace.table(Kind.OP).lists("outputs")
        parts.append((trace.table(Kind.OP).events[outputs.owners], outputs.values))
        single = (
            Kind.TENSOR, Kind.MUTATED, Kind.REQUIRES_GRAD_CHANGED, Kind.GRAD_ASSIGNED, Kind.NAMED,
            Kind.ACCUMULATED, Kind.RETAINED, Kind.HOOKED, Kind.TANGENT,
        )  # fmt: skip
        parts += [(trace.table(kind).events, trace.table(kind)["tensor"]) for kind in single]
        made = trace.table(Kind.NODE)
        ends = made.lists("outputs")
        parts.append((made.events[ends.owners], ends.values))
        first = ends.values[np.minimum(ends.starts, len(ends.values) - 1)] if len(ends.values) else ends.starts
        order = np.argsort(made["node"], kind="stable")
        nodes, tensors = made["node"][order], np.where(ends.counts > 0, first, 0)[order]
        for kind in (Kind.RECEIVED, Kind.PRODUCED):
            table = trace.table(kind)
            if len(nodes):
                at = np.minimum(np.searchsorted(nodes, table["node"]), len(nodes) - 1)
                known = nodes[at] == table["node"]
                parts.append((table.events[known], tensors[at[known]]))
        events, about = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
        return events[about > 0].astype(np.int32), about[about > 0]

    def names(self, only_parameters: bool) -> Column:
        """The names of the tensors that events are about."""
        events, tensors = self._subjects
        names = self.query.names.all
        codes = names.codes_of(tensors)
        if only_parameters:
            codes = np.where(contained(tensors, list(self.trace.parameters)), codes, 0)
        return Column(np.array(names.labels, object), events, codes)

    def shapes(self) -> Column:
        """The shapes of the tensors that events made or changed in place, as 8x3."""
        events, rows = self.outputs
        table = np.array([""] * (max(self.trace.forms, default=0) + 1), object)
        for number, form in self.trace.forms.items():
            table[number] = "x".join(map(str, form.shape))
        return Column(table, events, self.trace.states.forms[rows].astype(np.int32))

    # --- sites, scopes and passes

    @property
    def sites(self) -> np.ndarray:
        """The site of each event; for a node, the site where the node was made."""
        return self.query.places.of_events

    def lines(self) -> Column:
        """The lines of each event: its own line and those of the calls around it."""
        sites = self.sites
        pairs = [(number, line) for number in self.trace.sites for line in self._lines_of(number)]
        order = np.argsort(sites, kind="stable").astype(np.int32)
        starts, ends = (np.searchsorted(sites[order], [n for n, _ in pairs], side=side) for side in ("left", "right"))
        counts = ends - starts
        events = order[np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())]
        return Column(np.repeat(np.array([line for _, line in pairs], np.float32), counts), events)

    def _lines_of(self, number: int) -> set[int]:
        """The lines of a site and of its callers, in files whose source was kept; without source, in all files."""
        return {
            site.place.line
            for site in self.query.places.callers(number)
            if self.trace.source(site.place.file) or not self.trace.has_sources
        }

    def files(self) -> Column:
        """The names of the files of the events."""
        highest = max(self.trace.sites, default=0)
        table = np.array([""] * (highest + 1), object)
        for number, site in self.trace.sites.items():
            table[number] = file_name(site.place.file)
        return Column(table, codes=np.minimum(self.sites, highest))

    def scopes(self) -> Column:
        """The innermost scope of each event."""
        entered = self.trace.table(Kind.SCOPE_ENTERED)
        name_of = dict(zip(entered.events.tolist(), entered["name"].tolist(), strict=True))
        names = ["", *sorted({self.trace.text(number) for number in name_of.values()})]
        known = {name: number for number, name in enumerate(names)}
        code_of = {-1: 0} | {first: known[self.trace.text(number)] for first, number in name_of.items()}
        firsts = self.query.scopes.nesting.innermost(np.arange(self.count), self.trace.threads)
        begins, places = ranked(firsts)
        codes = np.array([code_of[begin] for begin in begins.tolist()], np.int64)[places]
        return Column(np.array(names, object), codes=codes)

    def versions(self) -> Column:
        """The versions that writes in place produced."""
        events, tensors = self.query.tensors.all_writes
        events, rows = self._known(events, tensors, events)
        versions = self.trace.states.versions[rows]
        counted = versions > 0
        return Column(versions[counted].astype(np.float64), events[counted])

    @property
    def passes(self) -> np.ndarray:
        """The backward pass that each event belongs to; 0 if none."""
        return self.query.passes.numbers


NUMBER, TEXT, FLAG = "number", "text", "flag"
EVERYWHERE = frozenset(Kind)
_MAKING = frozenset((Kind.OP, Kind.TENSOR, Kind.MUTATED))
_GRADIENTS = frozenset((Kind.RECEIVED, Kind.PRODUCED, Kind.HOOKED, Kind.ACCUMULATED, Kind.RETAINED, Kind.GRAD_ASSIGNED))
_AT_NODE = (Kind.NODE, Kind.RECEIVED, Kind.PRODUCED)
_KEPT = 3  # the most columns kept in memory


class Now(Protocol):
    """The event that has just happened in a running program."""

    kind: Kind
    index: int

    def text(self, field: str, *kinds: Kind) -> str:
        """A text field of the event; empty if the event is of another kind."""

    def values(self, tensors: str) -> list[Any]:
        """The values of the tensors `out`, `in`, `grad` or `tangent`."""

    def has_bad(self, statistic: str) -> bool:
        """Whether a value or gradient of the event has a NaN (`nan`) or an infinity (`inf`)."""

    @property
    def grad_fn(self) -> str:
        """The name of the node that the event made, or at which it happened."""

    def names(self, only_parameters: bool) -> Iterable[str]:
        """The names of the tensors that the event is about."""

    def shapes(self) -> Iterable[str]:
        """The shapes of the tensors that the event made or changed in place."""

    def lines(self) -> Iterable[int]:
        """The lines of the event: its own line and those of the calls around it."""

    @property
    def file(self) -> str:
        """The name of the source file of the event."""

    @property
    def scope(self) -> str:
        """The innermost scope of the event."""

    def versions(self) -> Iterable[int]:
        """The versions that the event produced."""

    @property
    def in_pass(self) -> int:
        """The backward pass of the event; 0 if none."""

    @property
    def depth(self) -> int:
        """The number of scopes and passes around the event."""


class Field(NamedTuple):
    """A field: its type (NUMBER, TEXT or FLAG), its help text, its values over a trace, its values at the
    present event, and the kinds of events that may have a value."""

    type: str
    doc: str
    column: Callable[[TraceColumns], Column]
    now: Callable[[Now], Iterable[Any]]
    where: frozenset[Kind] = EVERYWHERE


class Tensors(NamedTuple):
    """Tensors whose statistics are fields: `out.rms`."""

    doc: str
    rows: Callable[[TraceColumns], Rows]
    where: frozenset[Kind]


TENSORS: dict[str, Tensors] = {
    "out": Tensors(
        "what the event made or changed in place: an op's outputs, a new tensor, a mutated one",
        lambda c: c.outputs,
        _MAKING,
    ),
    "in": Tensors("the inputs of an op", lambda c: c.inputs, frozenset((Kind.OP,))),
    "grad": Tensors(
        "the gradients of the event: received, produced, accumulated, retained, assigned",
        lambda c: c.gradients,
        _GRADIENTS,
    ),
    "tangent": Tensors("the tangent that was pushed", lambda c: c.tangents, frozenset((Kind.TANGENT,))),
}


def _text(doc: str, name: str, *kinds: Kind) -> Field:
    """A field that is a text field of events."""
    return Field(TEXT, doc, lambda c: c.text(name, *kinds), lambda now: (now.text(name, *kinds),), frozenset(kinds))


def _numbers(values: np.ndarray) -> Column:
    return Column(values.astype(np.float64))


FIELDS: dict[str, Field] = {
    "line": Field(NUMBER, "the line in the source", TraceColumns.lines, lambda now: now.lines()),
    "event": Field(
        NUMBER,
        "the event's number, from 1",
        lambda c: _numbers(np.arange(1, c.count + 1)),
        lambda now: (now.index + 1,),
    ),
    "pass": Field(NUMBER, "the backward pass, 0 in forward", lambda c: _numbers(c.passes), lambda now: (now.in_pass,)),
    "version": Field(
        NUMBER, "the version that a write made", TraceColumns.versions, lambda now: now.versions(), _MAKING
    ),
    "depth": Field(
        NUMBER,
        "the number of scopes and passes around the event",
        lambda c: _numbers(c.query.scopes.depths),
        lambda now: (now.depth,),
    ),
    "op": _text("the op's name", "op", Kind.OP, Kind.KERNEL),
    "grad_fn": Field(TEXT, "the node's name", lambda c: c.grad_fns, lambda now: (now.grad_fn,), frozenset(_AT_NODE)),
    "kind": Field(TEXT, "the kind of the event", lambda c: c.kinds, lambda now: (now.kind.name.lower(),)),
    "name": Field(
        TEXT, "the name of the tensor that the event is about", lambda c: c.names(False), lambda now: now.names(False)
    ),
    "parameter": Field(TEXT, "the same, but only of parameters", lambda c: c.names(True), lambda now: now.names(True)),
    "file": Field(TEXT, "the source file's name", TraceColumns.files, lambda now: (now.file,)),
    "scope": Field(TEXT, "the module or custom Function", TraceColumns.scopes, lambda now: (now.scope,)),
    "hook": _text("the hook's name", "hook", Kind.HOOKED),
    "how": _text("the maker or writer (ones, SGD)", "how", Kind.TENSOR, Kind.MUTATED, Kind.PASS_BEGAN, Kind.TANGENT),
    "shape": Field(TEXT, "the shape of a new tensor, as 8x3", TraceColumns.shapes, lambda now: now.shapes(), _MAKING),
    "nan": Field(
        FLAG, "a value or gradient of the event has a NaN", lambda c: c.bad("nan"), lambda now: (now.has_bad("nan"),)
    ),
    "inf": Field(FLAG, "... or an infinity", lambda c: c.bad("inf"), lambda now: (now.has_bad("inf"),)),
    "mutation": Field(
        FLAG,
        "a tensor was changed in place",
        lambda c: Column(contained(np.arange(c.count), c.query.tensors.all_writes[0])),
        lambda now: (now.kind == Kind.MUTATED or any(now.versions()),),
        _MAKING,
    ),
    "forward": Field(
        FLAG, "outside of any backward pass", lambda c: Column(c.passes == 0), lambda now: (not now.in_pass,)
    ),
    "backward": Field(FLAG, "inside a backward pass", lambda c: Column(c.passes > 0), lambda now: (bool(now.in_pass),)),
    "error": Field(
        FLAG,
        "an exception left a backward pass or ended the script",
        lambda c: c.of_kind(Kind.ERROR),
        lambda now: (now.kind == Kind.ERROR,),
        frozenset((Kind.ERROR,)),
    ),
}
# The fields that can be known only if values were recorded.
FIELDS_OF_VALUES = {
    "nan",
    "inf",
    *(f"{tensors}.{statistic}" for tensors in TENSORS for statistic in (*STORED, "absmax")),
}
NAMES = (*(f"{tensors}.{statistic}" for tensors in TENSORS for statistic in STATISTICS), *FIELDS)


def type_of(name: str) -> str:
    """The type of a field: NUMBER, TEXT or FLAG."""
    return FIELDS[name].type if name in FIELDS else NUMBER


def where(name: str) -> frozenset[Kind]:
    """The kinds of events at which a field may have a value; all kinds for an empty name."""
    field = FIELDS.get(name) or TENSORS.get(name.partition(".")[0])
    return EVERYWHERE if field is None else field.where


class TraceFields(TraceColumns):
    """The fields of one trace as columns. Each is built on first use; the last few are kept."""

    def __init__(self, query: Any) -> None:
        super().__init__(query)
        self._columns: OrderedDict[str, Column] = OrderedDict()

    def column(self, name: str) -> Column:
        """The values of a field over the trace."""
        if name not in self._columns:
            tensors, _, statistic = name.partition(".")
            self._columns[name] = (
                self.statistic(TENSORS[tensors].rows(self), statistic) if statistic else FIELDS[name].column(self)
            )
            while len(self._columns) > _KEPT:
                self._columns.popitem(last=False)
        self._columns.move_to_end(name)
        return self._columns[name]
