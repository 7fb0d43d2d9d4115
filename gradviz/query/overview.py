"""The overview of a run: its layers with their costs, and the time that its lines took."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from gradviz.events.kinds import LEAF, REQUIRES_GRAD, Kind, TensorMade
from gradviz.query.curves import alike
from gradviz.query.passes import ranges
from gradviz.query.query import Query
from gradviz.query.tied_names import tied_names
from gradviz.sets import contained, distinct, grouped
from gradviz.tracefile import Trace
from gradviz.tracefile.chunks import NOT_PLAIN
from gradviz.tracefile.whitelist import GONE


class LeafInfo(NamedTuple):
    """A leaf at the end of the run. `has_grad` is whether its `.grad` is not None, `is_cleared` whether it is None
    because it was cleared, `is_returned` whether a pass returned its gradient, as `autograd.grad` does. `file` and
    `line` are where it was made, "" and 0 for a leaf from before the recording."""

    tensor: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    has_grad: bool
    is_cleared: bool
    is_returned: bool
    file: str
    line: int


class Overview(NamedTuple):
    """Counts over a run. `shapes` is the number of different graph structures among its passes."""

    events: int
    ops: int
    nodes: int
    passes: int
    kept: str  # the passes of the run that are in the trace, if not all are: `19 to 22, 56 to 60`
    detailed: int  # the number of passes with recorded nodes
    shapes: int
    leaves: list[LeafInfo]
    error: dict[str, Any] | None
    of_others: bool = False  # whether processes that the run started have ended: a trace has one process
    stopped: str = ""  # why the recording ended before the run, if it did

    @property
    def wanting(self) -> list[LeafInfo]:
        """The leaves that require grad."""
        return [leaf for leaf in self.leaves if leaf.requires_grad]


class Holdings(NamedTuple):
    """The private contents of a trace: the number of source files, of tensors with elements (None if there are some
    that were not counted), of error messages, and of lines that the program printed."""

    files: int
    tensors: int | None
    messages: int
    printed: int


def holdings(query: Query) -> Holdings:
    """The private contents of a trace. The tensors of a long run are not counted: that would read all of it."""
    trace = query.trace
    messages = {error.message for error in trace.errors} - {"", GONE}
    tensors: int | None = 0
    if trace.has_values and not trace.meta.get("redacted"):
        tensors = len(distinct(trace.states.in_full)) if trace.is_whole else None
    return Holdings(trace.source_files, tensors, len(messages), len(trace.printed))


def overview(query: Query) -> Overview:
    """The overview of a trace."""
    trace = query.trace
    numbers = trace.pass_numbers
    return Overview(
        events=trace.count,
        ops=trace.ops_told,
        nodes=trace.nodes_told,
        passes=len(numbers),
        kept="" if len(numbers) == trace.passes_begun else ranges(numbers),
        detailed=trace.passes_in_detail,
        shapes=trace.shapes,
        leaves=leaves(query),
        error=error(query),
        of_others="children" in trace.meta,
        stopped=trace.meta.get("stopped", ""),
    )


def leaves(query: Query) -> list[LeafInfo]:
    """The leaves of a run: all that require grad, and named leaves that do not, one for each line and name. Of the
    leaves that a site makes repeatedly it is the first."""
    trace, names = query.trace, query.names
    at = trace.count - 1
    infos: list[LeafInfo] = []
    seen: set[tuple[str, int]] = set()
    for tensor in _candidates(query):
        requires_grad = query.tensors.requires_grad(tensor, at)
        maker = query.tensors.made(tensor)
        # the site of an earlier tensor is where it was first used
        is_earlier = isinstance(maker, TensorMade) and maker.how == "earlier"
        site = None if maker is None or is_earlier else trace.sites.get(maker.site)
        place = (site.place.file, site.place.line) if site is not None else ("", 0)
        name = names.of(tensor)
        if not requires_grad:
            if name is None or (name, place[1]) in seen:
                continue
            seen.add((name, place[1]))
        snapshot = trace.snapshot(tensor)
        if snapshot is not None:
            infos.append(
                LeafInfo(
                    tensor,
                    query.labels.of(tensor),
                    snapshot.shape,
                    snapshot.dtype,
                    requires_grad,
                    bool(query.tensors.grad(tensor, at)),
                    requires_grad and query.tensors.emptied(tensor, at) >= 0,
                    False,
                    *place,
                )
            )
    is_asked = any(one.requires_grad and not (one.has_grad or one.is_cleared) for one in infos)
    returned = _returned(trace) if is_asked else ()
    return [one._replace(is_returned=one.tensor in returned) for one in infos]


_MOST_PASSES = 1000  # whose inputs are looked at


def _returned(trace: Trace) -> set[int]:
    """The tensors whose gradients passes returned, as `autograd.grad` does; none in a run of many passes."""
    if len(trace.pass_numbers) > _MOST_PASSES:
        return set()
    for number in trace.pass_numbers:
        trace.find_pass(number)  # a part of a long run reads it
    began = trace.table(Kind.PASS_BEGAN)
    asked = began.lists("inputs")
    return set(asked.elements[trace.named(began["how"], ("grad",))[asked.owners], 0].tolist())


def _candidates(query: Query) -> list[int]:
    """Leaves made by TENSOR events, except gradient roots and results of `.data`: leaves with a name, the first leaf of
    each site, and all leaves that require grad."""
    trace, at = query.trace, query.trace.count - 1
    first_made, required = trace.leaves_told
    trace.reach_tensors([*first_made, *trace.parameters, *trace.variables, *required], at)
    plain = {}
    for tensor in {*first_made, *trace.parameters, *trace.variables}:
        made = query.tensors.made(tensor)
        if isinstance(made, TensorMade) and made.how not in NOT_PLAIN:
            plain[tensor] = made.index
    ordered = dict.fromkeys([*sorted(plain, key=plain.__getitem__), *sorted(required)])
    flags = {tensor: query.tensors.told_flags(tensor, at) for tensor in ordered}
    views = set(query.tensors.views_of_leaves.tolist())
    return [
        tensor
        for tensor in ordered
        if tensor not in views and flags[tensor] & LEAF and (tensor in plain or flags[tensor] & REQUIRES_GRAD)
    ]


def error(query: Query) -> dict[str, Any] | None:
    """The failure of the run: type, message, file and line, and the node if a pass failed. None if it did not fail."""
    trace = query.trace
    if trace.meta.get("ended") == "error":
        message = trace.meta.get("error", "")
        node = next((e.node for e in trace.errors[::-1] if e.node and e.message in message), 0)
        made = query.nodes.event(node)
        site = trace.sites.get(made.site) if made is not None else None
        line = trace.meta.get("error_line", "0")
        return {
            "type": trace.meta.get("error_type", ""),
            "message": message.partition(": ")[2] or message,
            "file": trace.meta.get("error_file", ""),
            "line": int(line) if line.isdecimal() else 0,
            "operands": trace.meta.get("operands", ""),
            "node": node or None,
            "node_line": site.place.line if site is not None else None,
        }
    if trace.meta.get("ended") == "" and not trace.is_being_recorded:
        return {"type": "Killed", "message": "the end of the run was not recorded"}
    return None


class Saved(NamedTuple):
    """A storage that nodes had saved when a pass began: its bytes, the oldest of the nodes, the leaf on it (0: none)
    and whether that is a parameter, a buffer or requires grad, and the paths of the modules that all nodes are in."""

    size: float
    node: int
    leaf: int
    is_parameter: bool
    modules: tuple[str, ...]


def saved_storages(query: Query) -> tuple[int, list[Saved]]:
    """The pass at whose beginning the most bytes were saved, without those of parameters, and its storages, the largest
    first; 0 and none if that was not recorded (`--profile`)."""
    (trace := query.trace).reach_all()
    held = trace.table(Kind.STORAGE_SAVED)
    wanted = [leaf for leaf in distinct(held["leaf"]).tolist() if query.tensors.requires_grad(leaf, trace.count - 1)]
    is_parameter = contained(held["leaf"], np.array([*wanted, *trace.parameters], np.int64))
    pairs, first = np.unique(held["in_pass"] << 32 | held["storage"], return_index=True)
    passes, which = np.unique(pairs >> 32, return_inverse=True)
    sums = np.bincount(which, np.where(is_parameter, 0, held["bytes"])[first], 1)
    largest = int(passes[sums.argmax()]) if len(passes) else 0
    rows_of = grouped((int(held["storage"][row]), row) for row in np.flatnonzero(held["in_pass"] == largest).tolist())
    storages = []
    for row, *others in rows_of.values():
        nodes = held["node"][[row, *others]].tolist()
        modules = tuple(sorted(set.intersection(*(_modules_of(query, node) for node in nodes))))
        size, leaf = float(held["bytes"][row]), int(held["leaf"][row])
        storages.append(Saved(size, min(nodes), leaf, bool(is_parameter[row]), modules))
    return largest, sorted(storages, key=lambda one: -one.size)


def _modules_of(query: Query, node: int) -> set[str]:
    if (event := query.nodes.made(node)) is None:
        return set()
    scopes = query.scopes.nesting.innermost(np.array([event]), query.trace.events["head"][[event]] >> 16)
    return set(_modules_around(query, int(scopes[0])))


FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
_PHASES = (FORWARD, BACKWARD, OPTIMIZER)


@dataclass(slots=True)
class Cost:
    """The cost of ops together: their number, and by phase (`forward`, `backward`, `optimizer`) their seconds, the
    bytes of memory that their results allocated, and their floating-point operations, as far as PyTorch counts them."""

    ops: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_PHASES, 0.0))
    made: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_PHASES, 0.0))
    flops: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_PHASES, 0.0))

    @property
    def all_seconds(self) -> float:
        """The seconds of all phases."""
        return sum(self.seconds.values())

    def add(self, other: "Cost") -> None:
        """Add the cost of other ops."""
        self.ops += other.ops
        for total, more in ((self.seconds, other.seconds), (self.made, other.made), (self.flops, other.flops)):
            for phase in _PHASES:
                total[phase] += more[phase]


class Profile(NamedTuple):
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
    line_of = [lines.setdefault(query.places.line(number), len(lines)) for number in numbers.tolist()]
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


_MOST_ROWS = 40  # the most rows without rolling; of more, equal ones share a row


@dataclass(slots=True)
class ModuleRow:
    """A module, or `count` equal modules whose paths differ in numbers: `h.*.attn`. `shapes` are the shapes of its own
    parameters by name, `own` the number of their elements in one module, and `trainable` the number of elements that
    require grad at the end. `ops` is the number of ops in its first call, with the ops of modules inside (None: not
    recorded), and `flops` the number of their floating-point operations (None: not measured). A row for a network that
    was never called stands for all of its `modules`."""

    path: str
    type: str
    depth: int
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    own: int = 0
    trainable: int = 0
    ops: int | None = None
    flops: float | None = None
    paths: list[str] = field(default_factory=list)
    modules: int = 1

    @property
    def count(self) -> int:
        """The number of modules that share the row."""
        return len(self.paths)


def model_summary(query: Query) -> list[ModuleRow]:
    """The modules that were called or hold parameters, outer ones before those inside, in the order of their first
    calls."""
    rows = {path: ModuleRow(path, type_, 0, ops=ops, paths=[path]) for path, type_, ops in called_modules(query)}
    _add_parameters(query, rows)
    if is_profiled(query):
        for path, flops in flops_of_stretches(query, query.of(_first_calls)).items():
            rows[path].flops = flops
    ordered = _ordered(_joined(rows))
    for row in ordered:
        row.depth = sum(outer in rows for outer in _around(row.path))
    return ordered if len(ordered) <= _MOST_ROWS else _rolled(ordered)


def called_modules(query: Query) -> Iterable[tuple[str, str, int | None]]:
    """The path and the class of each module that was called, and the number of ops in its first call."""
    entered = query.trace.table(Kind.SCOPE_ENTERED)
    ops = query.tensors.ops
    for path, (event, end) in query.of(_first_calls).items():
        inside = int(np.searchsorted(ops, end) - np.searchsorted(ops, event))
        yield path, entered.object(event).type, inside or None


def _first_calls(query: Query) -> dict[str, tuple[int, int]]:
    """The first and the last event of the first call of each module, by its path, in the order of the calls."""
    trace = query.trace
    entered = trace.table(Kind.SCOPE_ENTERED)
    modules = trace.named(entered["kind"], ("module",))
    names, first = np.unique(entered["name"][modules], return_index=True)
    events = entered.events[np.flatnonzero(modules)[first]]
    begins, ends, _ = query.scopes.nesting.stretches
    return {
        trace.text(name): (event, int(ends[np.searchsorted(begins, event)]))
        for event, name in sorted(zip(events.tolist(), names.tolist(), strict=True))
    }


def _add_parameters(query: Query, rows: dict[str, ModuleRow]) -> None:
    trace = query.trace
    for tensor, names in query.of(tied_names).items():
        for name in names:
            path, _, own_name = name.rpartition(".")
            if path in rows and (snapshot := trace.snapshot(tensor)) is not None:
                rows[path].shapes += ((f"{own_name} = {trace.parameters.get(tensor, '?')}", snapshot.shape),)
    for tensor, name in trace.parameters.items():
        snapshot = trace.snapshot(tensor) if tensor not in trace.buffers else None
        if snapshot is None:
            continue
        path, _, own_name = name.rpartition(".")
        row = rows.setdefault(path or name, ModuleRow(path or name, "", 0, paths=[path or name]))
        size = math.prod(snapshot.shape)
        row.shapes += ((own_name, snapshot.shape),)
        row.own += size
        row.trainable += size if snapshot.flags & REQUIRES_GRAD else 0


def _joined(rows: dict[str, ModuleRow]) -> dict[str, ModuleRow]:
    """The rows, with one row for a frozen network that was never called, such as an average of the weights."""
    networks = grouped((row.path.partition(".")[0], row) for row in rows.values())
    joined: dict[str, ModuleRow] = {}
    for name, of_network in networks.items():
        is_never_used = len(of_network) > 1 and not any(row.type or row.trainable for row in of_network)
        own, said = sum(row.own for row in of_network), f"{len(of_network)} modules, not called"
        whole = ModuleRow(name, said, 0, own=own, paths=[name], modules=len(of_network))
        kept = [whole] if is_never_used else of_network
        joined.update((row.path, row) for row in kept)
    return joined


def _around(path: str) -> list[str]:
    """The paths of the modules around a module, outermost first."""
    parts = path.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts))]


def _ordered(rows: dict[str, ModuleRow]) -> list[ModuleRow]:
    """The rows in order: each outer module, and right after it the modules inside."""
    first: dict[str, int] = {}
    for place, path in enumerate(rows):
        for outer in (*_around(path), path):
            first.setdefault(outer, place)
    return sorted(rows.values(), key=lambda row: [(first[p], p) for p in (*_around(row.path), row.path)])


def _rolled(rows: list[ModuleRow]) -> list[ModuleRow]:
    """The rows, with one row for rows that differ only in the numbers of their paths."""
    by_pattern: dict[tuple[str, object], ModuleRow] = {}
    for row in rows:
        pattern = alike(row.path)
        key = (pattern, (row.type, row.shapes, row.trainable))
        if key in by_pattern:
            by_pattern[key].paths.append(row.path)
        else:
            by_pattern[key] = row
    for row in by_pattern.values():
        parts = zip(*(path.split(".") for path in row.paths), strict=True)
        row.path = ".".join(part[0] if len(set(part)) == 1 else "*" for part in parts)
    return list(by_pattern.values())
