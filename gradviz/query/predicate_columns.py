"""The fields of predicates over a whole trace, as columns with one or several values for each event."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query.lookups import Lookups
from gradviz.sets import contained, ranked
from gradviz.system.paths import file_name

STORED = ("min", "max", "mean", "rms", "nan", "inf", "zeros")
STATISTICS = (*STORED, "absmax", "size", "ndim")
_KIND_NAMES = np.array(["", *(kind.name.lower() for kind in Kind)])
_MADE = (Kind.OP, Kind.TENSOR, Kind.MUTATED)


@dataclass(frozen=True, slots=True)
class Column:
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
        """The gradients of events: received, produced, accumulated, retained, assigned, or returned by a
        hook."""
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
        first = (
            ends.values[np.minimum(ends.starts, len(ends.values) - 1)] if len(ends.values) else ends.starts
        )
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
        starts, ends = (
            np.searchsorted(sites[order], [n for n, _ in pairs], side=side) for side in ("left", "right")
        )
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
