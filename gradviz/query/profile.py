"""The cost of the ops of a run, if `--profile` measured them: by phase, by module and by line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query.query import Query
from gradviz.sets import distinct

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
_PHASES = (FORWARD, BACKWARD, OPTIMIZER)


@dataclass(slots=True)
class Cost:
    """The cost of ops together: their number, and by phase (`forward`, `backward`, `optimizer`) their seconds, the
    bytes of memory that their results allocated, and their floating-point operations, as far as PyTorch counts
    them."""

    ops: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_PHASES, 0.0))
    made: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_PHASES, 0.0))
    flops: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_PHASES, 0.0))

    @property
    def all_seconds(self) -> float:
        """The seconds of all phases."""
        return sum(self.seconds.values())

    def add(self, other: Cost) -> None:
        """Add the cost of other ops."""
        self.ops += other.ops
        for total, more in (
            (self.seconds, other.seconds),
            (self.made, other.made),
            (self.flops, other.flops),
        ):
            for phase in _PHASES:
                total[phase] += more[phase]


@dataclass(frozen=True, slots=True)
class Profile:
    """The cost of the ops of a run: in total; by the path of each module, with the modules inside it; and by line (file
    and number; "" and 0 if unknown). The backward of an op counts at the line and in the module of the op. `most` has
    for each line the op that took most of its time."""

    total: Cost
    modules: dict[str, Cost]
    lines: dict[tuple[str, int], Cost]
    most: dict[tuple[str, int], str]


def is_profiled(query: Query) -> bool:
    """Whether ops of a run were measured: it was asked for, and PyTorch ran some."""
    trace = query.trace
    if "profile" not in trace.meta:
        return False
    trace.reach_all()
    return len(trace.table(Kind.MEASURED)) > 0


def profile(query: Query) -> Profile:
    """The cost of the ops of a run."""
    trace = query.trace
    trace.reach_all()
    measured = trace.table(Kind.MEASURED)
    phases = np.where(measured["in_step"], 2, (measured["in_pass"] > 0) | (measured["node"] > 0))
    costs = np.stack([measured[name] for name in ("seconds", "made", "flops")], axis=1)
    origins = _origins(query)
    lines, line_of = _lines(query, trace.events["site"][origins].astype(np.int64))
    scopes = query.scopes.nesting.innermost(origins, trace.events["head"][origins] >> 16)
    by_scope = _by(scopes, phases, costs)
    by_line = {lines[key]: cost for key, cost in _by(line_of, phases, costs).items()}
    total = Cost()
    for cost in by_line.values():
        total.add(cost)
    most = {lines[key]: name for key, name in _most(query, line_of, measured["op"], costs[:, 0]).items()}
    return Profile(total, _by_module(query, by_scope), by_line, most)


def _origins(query: Query) -> np.ndarray:
    """The event whose place and module each measured op counts at. For an op in a node it is the event that made the
    node, if known; for another op in a pass, the beginning of the pass; else its own event."""
    measured = query.trace.table(Kind.MEASURED)
    origins = measured.events.copy()
    began = query.trace.table(Kind.PASS_BEGAN)
    begins = dict(zip(began["number"].tolist(), began.events.tolist(), strict=True))
    in_pass, nodes = measured["in_pass"], measured["node"]
    without_place = measured.sites == 0
    for number in distinct(in_pass[without_place]).tolist():
        if number in begins:
            origins[without_place & (in_pass == number)] = begins[number]
    table = query.nodes.table
    if len(table):
        order = np.argsort(table["node"], kind="stable")
        known = table["node"][order]
        at = np.minimum(np.searchsorted(known, nodes), len(known) - 1)
        made = (nodes > 0) & (known[at] == nodes)
        events = table.events[order][at]
        origins[made] = events[made]
    return origins


def _lines(query: Query, sites: np.ndarray) -> tuple[list[tuple[str, int]], np.ndarray]:
    """Lines of the program, and the position in them of the line of each site."""
    lines: dict[tuple[str, int], int] = {}
    numbers, places = np.unique(sites, return_inverse=True)
    line_of = []
    for number in numbers.tolist():
        line_of.append(lines.setdefault(query.places.line(number), len(lines)))
    return list(lines), np.array(line_of, np.int64)[places]


def _by(keys: np.ndarray, phases: np.ndarray, costs: np.ndarray) -> dict[int, Cost]:
    """The cost of the ops of each key."""
    numbers, places = np.unique(keys, return_inverse=True)
    sums = np.zeros((len(numbers), len(_PHASES), costs.shape[1]))
    np.add.at(sums, (places, phases), costs)
    counts = np.bincount(places, minlength=len(numbers))
    by_key = {}
    for number, count, rows in zip(numbers.tolist(), counts.tolist(), sums.tolist(), strict=True):
        seconds, made, flops = (dict(zip(_PHASES, column, strict=True)) for column in zip(*rows, strict=True))
        by_key[number] = Cost(count, seconds, made, flops)
    return by_key


def _most(query: Query, keys: np.ndarray, ops: np.ndarray, seconds: np.ndarray) -> dict[int, str]:
    """The name of the op of each key that took the most time."""
    pairs, places = np.unique(keys << 32 | ops, return_inverse=True)
    sums = np.bincount(places, seconds, len(pairs))
    order = np.argsort(sums, kind="stable")  # the last op of a key is the one that took longest
    return {
        key: query.trace.text(op)
        for key, op in zip((pairs >> 32)[order].tolist(), (pairs & 0xFFFFFFFF)[order].tolist(), strict=True)
    }


def _by_module(query: Query, by_scope: dict[int, Cost]) -> dict[str, Cost]:
    """The cost of the ops of each module, with the modules inside it. `by_scope` has the event that entered each
    scope as its key."""
    by_path: dict[str, Cost] = {}
    for begin, cost in by_scope.items():
        for path in _modules_around(query, begin):
            by_path.setdefault(path, Cost()).add(cost)
    return by_path


def _modules_around(query: Query, begin: int) -> Iterable[str]:
    """The paths of the modules that were entered at an event and around it, each once."""
    if begin < 0:
        return ()
    entered = query.trace.table(Kind.SCOPE_ENTERED)
    around = query.scopes.nesting.chain(begin, query.trace.thread(begin))
    scopes = [entered.object(event) for event in around]
    return dict.fromkeys(scope.name for scope in scopes if scope.kind == "module")


def flops_of_stretches(query: Query, stretches: Mapping[str, tuple[int, int]]) -> dict[str, float]:
    """The floating-point operations of forward in each stretch of events, from its first to its last event. A stretch
    without a measured op is left out."""
    measured = query.trace.table(Kind.MEASURED)
    forward = (measured["in_pass"] == 0) & (measured["node"] == 0) & ~measured["in_step"]
    events = measured.events[forward]
    sums = np.append(0.0, np.cumsum(measured["flops"][forward]))
    totals = {}
    for name, (first, last) in stretches.items():
        low, high = np.searchsorted(events, [first, last + 1])
        if high > low:
            totals[name] = float(sums[high] - sums[low])
    return totals
