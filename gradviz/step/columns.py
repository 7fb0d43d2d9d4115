"""The fields of predicates over a whole trace, as columns. Each is built when it is first asked for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.graph.named import Named
from gradviz.step.facts import Facts
from gradviz.step.predicate import STATISTICS, Column
from gradviz.tracefile.bulk import Snapshots

_KEPT = 3  # columns, in memory
_STORED = ("min", "max", "mean", "rms", "nan", "inf", "zeros")
_AT_NODE = (Kind.RECEIVED, Kind.PRODUCED)
_KIND_NAMES = np.array(["", *(kind.name.lower() for kind in Kind)])


class TraceColumns:
    """The columns of one trace."""

    def __init__(self, facts: Facts) -> None:
        self.facts, self.moments = facts, facts.moments
        self.trace = facts.trace
        self.count = self.trace.count
        self._columns: OrderedDict[str, Column] = OrderedDict()

    def column(self, field: str) -> Column:
        """The values of a field."""
        if field not in self._columns:
            tensors, _, statistic = field.partition(".")
            build = FIELD_COLUMNS.get(field)
            self._columns[field] = build(self) if build is not None else self._statistic(tensors, statistic)
            while len(self._columns) > _KEPT:
                self._columns.popitem(last=False)
        self._columns.move_to_end(field)
        return self._columns[field]

    # --- values

    @property
    def named(self) -> Named:
        """The names of all tensors."""
        return self.facts.named

    @cached_property
    def snapshots(self) -> Snapshots:
        """All snapshots of the trace."""
        return Snapshots(self.trace)

    def _statistic(self, tensors: str, statistic: str) -> Column:
        events, rows = self._rows_of(tensors)
        return Column(self._values(statistic, rows), events)

    def _values(self, statistic: str, rows: np.ndarray) -> np.ndarray:
        assert statistic in STATISTICS
        if statistic in _STORED:
            return self.snapshots.stats[rows, _STORED.index(statistic)]
        if statistic == "absmax":
            return np.abs(self.snapshots.stats[:, :2][rows]).max(axis=1)
        measure = (
            (lambda shape: float(np.prod(shape)))
            if statistic == "size"
            else (lambda shape: float(len(shape)))
        )
        highest = max(self.trace.shapes, default=0)
        table = np.full(highest + 2, np.nan)
        for number, shape in self.trace.shapes.items():
            table[number] = measure(shape)
        return table[np.minimum(self.snapshots.shapes[rows], highest + 1)]

    def _rows_of(self, tensors: str) -> tuple[np.ndarray, np.ndarray]:
        """The events that have such tensors, and the snapshot of each."""
        known: dict[str, tuple[np.ndarray, np.ndarray]] = self.__dict__.setdefault("_known_rows", {})
        if tensors not in known:
            if tensors == "out":
                kinds = self.trace.kinds[self.snapshots.events]
                rows = np.flatnonzero(np.isin(kinds, [Kind.OP, Kind.TENSOR, Kind.MUTATED]))
                known[tensors] = self.snapshots.events[rows].astype(np.int32), rows.astype(np.int32)
            else:
                events, numbers, at = getattr(self, f"_{tensors}_tensors")()
                rows = self.snapshots.rows_of(numbers, at)
                known[tensors] = events[rows >= 0].astype(np.int32), rows[rows >= 0].astype(np.int32)
        return known[tensors]

    def _in_tensors(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        ops = self.trace.indices(Kind.OP)
        links, lengths = self.trace.links(ops)
        starts = np.cumsum(lengths) - lengths
        counts = links[starts].astype(np.int64) if len(ops) else starts
        events, tensors = _parts(links, starts + 3, counts, ops)
        return events, tensors, events - 1

    def _grad_tensors(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        trace, columns = self.trace, []
        for kind, first in ((Kind.RECEIVED, 0), (Kind.PRODUCED, None), (Kind.HOOKED, 1)):
            at = trace.indices(kind)
            links, lengths = trace.links(at)
            skipped = lengths // 2 if first is None else np.minimum(first, lengths)
            columns.append(_parts(links, np.cumsum(lengths) - lengths + skipped, lengths - skipped, at))
        at = trace.indices(Kind.ACCUMULATED, Kind.RETAINED, Kind.GRAD_ASSIGNED)
        columns.append((at, trace.events["object"][at].astype(np.int64)))
        events = np.concatenate([events for events, _ in columns])
        return events, np.concatenate([tensors for _, tensors in columns]), events

    def _tangent_tensors(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        at = self.trace.indices(Kind.TANGENT)
        return at, self.trace.events["object"][at].astype(np.int64), at

    def _bad(self, column: int) -> Column:
        """Whether any value told at an event, or gradient it is about, has a NaN (4) or an infinity (5)."""
        found = np.zeros(self.count, bool)
        bad = self.snapshots.stats[:, column] > 0
        if bad.any():
            found[self.snapshots.events[bad]] = True
            for tensors in ("grad", "tangent"):
                events, rows = self._rows_of(tensors)
                found[events[bad[rows]]] = True
        return Column(found)

    # --- texts

    def _coded(self, column: str, *kinds: Kind) -> Column:
        """The text of a column of the events of some kinds."""
        highest = max(self.trace.strings, default=0)
        table = np.array([self.trace.text(number) for number in range(highest + 1)] + [""], object)
        codes = np.where(np.isin(self.trace.kinds, kinds), self.trace.events[column], highest + 1)
        return Column(table, codes=np.minimum(codes, highest + 1).astype(np.int32))

    def _grad_fn(self) -> Column:
        events = self.trace.events
        column = self._coded("object", Kind.OP)
        assert column.codes is not None
        codes = column.codes.copy()
        at, made = self._node_ops
        codes[at] = np.minimum(events["object"][made], len(column.values) - 1)
        told = self.trace.indices(Kind.RECEIVED)
        codes[told] = events["name"][told]
        return Column(column.values, codes=codes)

    @cached_property
    def _node_ops(self) -> tuple[np.ndarray, np.ndarray]:
        """The events at a node that an op made, and that op."""
        at = self.trace.indices(*_AT_NODE)
        nodes, ops = self.trace.node_events
        subjects = self.trace.events["subject"][at]
        if not len(nodes):
            return at[:0], at[:0]
        found = np.minimum(np.searchsorted(nodes, subjects), len(nodes) - 1)
        known = nodes[found] == subjects
        return at[known], ops[found[known]]

    @cached_property
    def sites(self) -> np.ndarray:
        """The place of each event: its own, or that of the op that made its node."""
        sites = self.trace.events["site"].astype(np.int32)
        at, made = self._node_ops
        sites[at] = sites[made]
        return sites

    def _line(self) -> Column:
        """The lines that each event happened at: its own and those of the calls around it."""
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
        """The lines of a place and of its callers, in files whose source was kept."""
        found: set[int] = set()
        site = self.trace.sites.get(number)
        while site is not None:
            if self.trace.source(site.place.file):
                found.add(site.place.line)
            site = self.trace.sites.get(site.parent) if site.parent < site.number else None
        return found

    def _file(self) -> Column:
        sites = self.sites
        highest = max(self.trace.sites, default=0)
        table = np.array([""] * (highest + 1), object)
        for number, site in self.trace.sites.items():
            table[number] = Path(site.place.file).name
        return Column(table, codes=np.minimum(sites, highest))

    def tensor_events(self) -> tuple[np.ndarray, np.ndarray]:
        """(event, tensor): which tensors each event is about."""
        trace = self.trace
        made, tensors = self.named.made
        kinds = (
            Kind.MUTATED, Kind.REQUIRES_GRAD_CHANGED, Kind.GRAD_ASSIGNED, Kind.NAMED, Kind.ACCUMULATED,
            Kind.RETAINED, Kind.HOOKED, Kind.TANGENT,
        )  # fmt: skip
        told = trace.indices(*kinds)
        at, ops = self._node_ops
        first = np.searchsorted(made, ops)
        outputs = tensors[np.minimum(first, len(tensors) - 1)] if len(tensors) else ops
        return (
            np.concatenate([part.astype(np.int32) for part in (made, told, at)]),
            np.concatenate([tensors, trace.events["subject"][told].astype(np.int64), outputs]),
        )

    def _name(self, only_parameters: bool) -> Column:
        events, tensors = self.tensor_events()
        codes = self.named.codes[np.minimum(tensors, len(self.named.codes) - 1)]
        codes[tensors >= len(self.named.codes)] = 0
        if only_parameters:
            codes[~np.isin(tensors, list(self.trace.parameters))] = 0
        return Column(np.array(self.named.labels, object), events, codes)

    def _shape(self) -> Column:
        events, rows = self._rows_of("out")
        highest = max(self.trace.shapes, default=0)
        table = np.array([""] * (highest + 1), object)
        for number, shape in self.trace.shapes.items():
            table[number] = "x".join(map(str, shape))
        return Column(table, events, np.minimum(self.snapshots.shapes[rows], highest))

    # --- where it lies

    def _pass(self) -> Column:
        found = np.zeros(self.count, np.float32)
        for run in self.trace.passes:  # inner passes begin later and lie over the outer ones
            found[run.first : (self.count if run.last is None else run.last) + 1] = run.number
        return Column(found)

    def _scope(self) -> Column:
        spans = self.moments.scopes.spans()
        names = sorted({self.trace.text(self.trace.events["name"][first]) for first, _, _ in spans})
        known = {name: number for number, name in enumerate(["", *names])}
        codes = np.zeros(self.count, np.int64)
        threads = self.trace.events["head"] >> 16
        for first, last, thread in spans:
            own = codes[first : last + 1]
            own[threads[first : last + 1] == thread] = known[
                self.trace.text(self.trace.events["name"][first])
            ]
        return Column(np.array(list(known), object), codes=codes)

    def _version(self) -> Column:
        at = self.trace.indices(Kind.MUTATED)
        return Column(self.trace.events["object"][at].astype(np.float64), at)

    def _kind(self, *kinds: Kind) -> Column:
        return Column(np.isin(self.trace.kinds, kinds))


def _parts(
    links: np.ndarray, starts: np.ndarray, counts: np.ndarray, events: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The tensors among the links of some events (`counts[i]` from `starts[i]` on), each with its event."""
    at = np.repeat((starts - (np.cumsum(counts) - counts)).astype(np.int32), counts)
    at += np.arange(len(at), dtype=np.int32)
    tensors = links[at].astype(np.int32)
    owners = np.repeat(events.astype(np.int32), counts)
    return owners[tensors > 0], tensors[tensors > 0]


FIELD_COLUMNS: dict[str, Callable[[TraceColumns], Column]] = {
    "op": lambda c: c._coded("name", Kind.OP),
    "hook": lambda c: c._coded("name", Kind.HOOKED),
    "how": lambda c: c._coded("name", Kind.TENSOR, Kind.MUTATED, Kind.PASS_BEGAN, Kind.TANGENT),
    "grad_fn": TraceColumns._grad_fn,
    "kind": lambda c: Column(_KIND_NAMES, codes=np.minimum(c.trace.kinds, len(_KIND_NAMES) - 1)),
    "name": lambda c: c._name(False),
    "parameter": lambda c: c._name(True),
    "shape": TraceColumns._shape,
    "file": TraceColumns._file,
    "line": TraceColumns._line,
    "scope": TraceColumns._scope,
    "pass": TraceColumns._pass,
    "version": TraceColumns._version,
    "event": lambda c: Column(np.arange(1, c.count + 1, dtype=np.float64)),
    "depth": lambda c: Column(c.moments.depths.astype(np.float32)),
    "nan": lambda c: c._bad(4),
    "inf": lambda c: c._bad(5),
    "mutation": lambda c: c._kind(Kind.MUTATED),
    "error": lambda c: c._kind(Kind.ERROR),
    "backward": lambda c: Column(c.column("pass").values > 0),
    "forward": lambda c: Column(c.column("pass").values == 0),
}
