"""Difference: all that differs between two runs, as data; and a run as a sequence of items that can be compared."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cached_property

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.events.values import stats_of
from gradviz.query.flow import reach
from gradviz.query.query import Query
from gradviz.replay.outcome import Edits, Flowed, Outcome, Runner, graph_of
from gradviz.replay.plan import Plan
from gradviz.sets import contained, distinct, grouped
from gradviz.system.paths import file_name
from gradviz.tracefile import Site, Snapshot, Trace

# A run as items. In forward, an item is an op, a new tensor, a change in place, or a step of an optimizer; in backward,
# a node that ran or a leaf that accumulated a gradient.

# The kinds of items: the field with the text that distinguishes items, and the field with their tensors.
_KINDS = {
    Kind.OP: ("op", "outputs"),
    Kind.TENSOR: ("how", "tensor"),
    Kind.MUTATED: ("how", "tensor"),
    Kind.STEPPED: ("type", ""),
    Kind.PRODUCED: ("", "flows"),
    Kind.ACCUMULATED: ("", "gradient"),
}


class Shared:
    """Numbers for texts, shared by two runs."""

    def __init__(self) -> None:
        self.numbers: dict[object, int] = {}

    def number(self, text: object) -> int:
        """The number of a text; equal texts have equal numbers."""
        return self.numbers.setdefault(text, len(self.numbers))

    def table(self, texts: dict[int, str]) -> _Table:
        """The shared number for each number of a text in one trace."""
        return _Table(texts, {number: self.number(text) for number, text in texts.items()}, self.number(""))


class _Table:
    """A table from numbers, which may be far apart, to numbers: `table[many]` looks up many at once."""

    def __init__(self, of: Iterable[int], numbers: dict[int, int], otherwise: int) -> None:
        self._of = np.array(sorted({-1, *of}), np.int64)
        self._numbers = np.array([numbers.get(number, otherwise) for number in self._of.tolist()], np.int64)

    def __getitem__(self, asked: np.ndarray) -> np.ndarray:
        at = np.searchsorted(self._of, asked, side="right") - 1
        return np.where(self._of[at] == asked, self._numbers[at], self._numbers[0])


@dataclass(frozen=True, slots=True)
class Stretch:
    """Items of a run up to the end of pass `number`; with `number` 0, the items behind the last pass."""

    number: int
    items: np.ndarray


class Timeline:
    """The items of a run in the order of their events. For each item, `kinds` and `words` say what it is; `strong` also
    includes its line in the source; `looks` has what may differ between corresponding items: arguments, shapes,
    nodes."""

    def __init__(self, query: Query, shared: Shared) -> None:
        self.query, self.trace, self.shared = query, query.trace, shared
        events = [self.trace.table(kind).events for kind in _KINDS]
        self.events = np.sort(np.concatenate(events))
        self.kinds = self.trace.kinds[self.events].astype(np.int64)

    def _put(self, found: np.ndarray, kind: Kind, values: np.ndarray) -> None:
        found[np.searchsorted(self.events, self.trace.table(kind).events)] = values

    @cached_property
    def _texts(self) -> _Table:
        return self.shared.table(self.trace.strings)

    @cached_property
    def words(self) -> np.ndarray:
        """The number of each item's kind and name: the name of its op, node or writer."""
        numbers = np.zeros(len(self.events), np.int64)
        for kind, (field, _) in _KINDS.items():
            if field:
                self._put(numbers, kind, self._texts[self.trace.table(kind)[field]])
        produced = self.trace.table(Kind.PRODUCED)
        names = {node: self.query.nodes.name(node) for node in distinct(produced["node"]).tolist()}
        self._put(numbers, Kind.PRODUCED, self.shared.table(names)[produced["node"]])
        return numbers * 64 + self.kinds

    @cached_property
    def strong(self) -> np.ndarray:
        """As `words`, with the text of the line in the source."""
        sites = self.query.places.of_events[self.events]
        lines = {site: self.query.places.line_text(site) for site in distinct(sites).tolist()}
        return (self.words << 24) + self.shared.table(lines)[sites]

    @cached_property
    def looks(self) -> np.ndarray:
        """The arguments, grad mode and nodes of each op, with the shapes and dtypes of its results, as one number; for
        a step its settings."""
        looks = np.zeros(len(self.events), np.int64)
        ops, made = self.trace.table(Kind.OP), self.trace.table(Kind.NODE)
        values = self._texts[ops["args"]] * 2 + ops["grad_enabled"]
        at = np.searchsorted(ops.events, made["op"])
        by_op = made["op"] >= 0
        np.add.at(values, at[by_op], self._texts[made["grad_fn"][by_op]] << 20)
        outputs = ops.lists("outputs")
        rows = self.trace.states.rows_of(outputs.values, ops.events[outputs.owners])
        np.add.at(values, outputs.owners, self._forms[rows] << 40)
        self._put(looks, Kind.OP, values)
        stepped = self.trace.table(Kind.STEPPED)
        settings = [self.shared.number(tuple(stepped.object(k).groups)) for k in stepped.events.tolist()]
        self._put(looks, Kind.STEPPED, np.array(settings, np.int64))
        return looks

    @cached_property
    def _forms(self) -> np.ndarray:
        """The number of the shape and dtype of each state."""
        forms = {number: str(form[:2]) for number, form in self.trace.forms.items()}
        return self.shared.table(forms)[self.trace.states.forms]

    @cached_property
    def checksums(self) -> np.ndarray:
        """A checksum of the values of each item; 0 if no values were kept."""
        checksums = np.zeros(len(self.events), np.uint64)
        for kind, (_, field) in _KINDS.items():
            if not field:
                continue
            table = self.trace.table(kind)
            if field in ("outputs", "flows"):
                lists = table.lists(field)
                owners, tensors, weights = lists.owners, lists.elements[:, -1], lists.positions + 1
            else:
                owners, tensors, weights = np.arange(len(table)), table[field], np.ones(len(table))
            rows = self.trace.states.rows_of(tensors, table.events[owners])
            sums = np.where(rows >= 0, self.trace.states.checksums[rows], 0).astype(np.uint64)
            values = np.zeros(len(table), np.uint64)
            np.add.at(values, owners, sums * weights.astype(np.uint64))
            self._put(checksums, kind, values)
        return checksums

    def tensors(self, item: int) -> list[int]:
        """The tensors of an item: results, or gradients."""
        kind = Kind(int(self.kinds[item]))
        field = _KINDS[kind][1]
        if not field:
            return []
        value = getattr(self.trace.table(kind).object(int(self.events[item])), field)
        if kind == Kind.PRODUCED:
            return [flow.gradient for flow in value]
        return list(value) if kind == Kind.OP else [value]

    @cached_property
    def backward(self) -> np.ndarray:
        """Whether each item belongs to a backward pass."""
        return self.query.passes.numbers[self.events] > 0

    @cached_property
    def stretches(self) -> list[Stretch]:
        """All items pass by pass: the items of its forward and of the pass itself."""
        ends = sorted((self.query.passes.last(one), one.number) for one in self.trace.passes)
        bounds = [0, *np.searchsorted(self.events, [last for last, _ in ends], side="right").tolist()]
        numbers = [*(number for _, number in ends), 0]
        return [
            Stretch(number, np.arange(first, end))
            for number, first, end in zip(numbers, bounds, [*bounds[1:], len(self.events)], strict=True)
        ]

    def of_pass(self, number: int) -> Stretch:
        """The ops whose nodes ran in a pass, the ops without nodes that made their inputs, and the items of the pass
        itself."""
        received, made = self.trace.table(Kind.RECEIVED), self.trace.table(Kind.NODE)
        ran = contained(made["node"], received["node"][received["in_pass"] == number])
        in_pass = self.query.passes.numbers[self.events] == number
        with_nodes = [event for event in distinct(made["op"][ran]).tolist() if event >= 0]
        in_pass |= contained(self.events, [*with_nodes, *self._ops_on_data(with_nodes)])
        return Stretch(number, np.flatnonzero(in_pass))

    def _ops_on_data(self, ops: list[int]) -> set[int]:
        """The ops without nodes that made the inputs of these ops, such as a scaling of the data."""
        tensors, nodes = self.query.tensors, self.query.nodes

        def onward(op: int) -> Iterator[int]:
            for maker in map(tensors.maker, filter(None, tensors.op(op).inputs)):
                if maker is not None and tensors.is_op(maker) and not nodes.of_op(maker):
                    yield maker

        return set(reach((op for one in ops for op in onward(one)), onward))


ADDED, GONE, CHANGED = "added", "gone", "changed"


@dataclass(frozen=True, slots=True)
class Spot:
    """An item of one run: its event, its line, its description (`what`), and its value in words."""

    event: int
    site: Site | None
    what: str
    value: str


@dataclass(frozen=True, slots=True)
class Parting:
    """The first items whose values differ: an item of each run, None if a run lacks it. `apart` is the largest
    difference between elements, relative to the largest element; NaN if they cannot be subtracted. `number` is the
    pass; 0 after the last. `line` is the changed line of source behind it, as a place in `lines` of the Difference, or
    None. `definition` says how the two versions of PyTorch define the gradient of this op; empty if they agree."""

    one: Spot | None
    other: Spot | None
    apart: float
    number: int
    line: int | None
    definition: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """Items from one pair of lines that only one run has, or that differ; they occur `count` times."""

    kind: str
    one: Spot | None
    other: Spot | None
    detail: str
    count: int


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of source that differ: the first line in each run (`one`, `other`, from 1), and the texts of the lines."""

    file: str
    other_file: str
    one: int
    other: int
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Norm:
    """The norms of a parameter's gradient in both runs; None if there is no gradient."""

    name: str
    one: float | None
    other: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """All that differs between two runs. `compared` counts the pairs of items whose values were compared, `unknown` the
    pairs whose values were not recorded. `passes` are the numbers of the compared passes, or how many passes each run
    has if whole runs are compared."""

    names: tuple[str, str]
    forward: Parting | None
    backward: Parting | None
    changes: tuple[Change, ...]
    lines: tuple[Lines, ...]
    norms: tuple[Norm, ...]
    norms_in: tuple[int, int]
    passes: tuple[int, int]
    compared: int
    unknown: int

    @property
    def same(self) -> bool:
        """Whether no difference was found."""
        return self.forward is None and self.backward is None and not self.changes


# The distance of two values, and the lines that differ between two sources.


def apart(one: Snapshot, other: Snapshot) -> float | None:
    """The largest difference between the elements of two tensors, relative to the largest element. If the elements were
    not kept, the largest difference between their statistics. NaN if the shapes differ, or if NaNs or infinities are
    not in the same places; None if it is not known."""
    if one.shape != other.shape:
        return float("nan")
    values = _numbers(one, other)
    if values is None:
        return None
    left, right = values
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    if not np.isfinite(left[~same]).all() or not np.isfinite(right[~same]).all():
        return float("nan")
    size = max(_largest(left), _largest(right)) or 1.0
    return float(np.max(np.abs(left[~same] - right[~same]), initial=0.0)) / size


def _numbers(one: Snapshot, other: Snapshot) -> tuple[np.ndarray, np.ndarray] | None:
    """The elements of both values, else their statistics; None if neither is known."""
    if one.array is not None and other.array is not None:
        is_complex = "c" in (one.array.dtype.kind, other.array.dtype.kind)
        wide = np.complex128 if is_complex else np.float64
        return one.array.astype(wide), other.array.astype(wide)
    if one.stats is None or other.stats is None:
        return None
    left, right = (
        np.array([s.min, s.max, s.mean, s.rms, s.nan or 0.0, s.inf or 0.0]) for s in (one.stats, other.stats)
    )
    return left, right


def _largest(values: np.ndarray) -> float:
    return float(np.max(np.abs(values[np.isfinite(values)]), initial=0.0))


def changed_lines(one: Trace, other: Trace) -> Iterator[Lines]:
    """The lines of source that differ between two runs, file by file."""
    for file, partner in _files(one, other):
        texts = one.source(file), other.source(partner)
        for tag, start, end, begin, stop in SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
            if tag != "equal":
                before, after = tuple(texts[0][start:end]), tuple(texts[1][begin:stop])
                yield Lines(file, partner, start + 1, begin + 1, before, after)


def _files(one: Trace, other: Trace) -> list[tuple[str, str]]:
    """The pairs of files that correspond in two runs: the two scripts, and files with the same name."""
    left, right = (
        {site.place.file for site in trace.sites.values() if trace.source(site.place.file)} for trace in (one, other)
    )
    scripts = one.meta.get("script", ""), other.meta.get("script", "")
    partners = {scripts[0]: scripts[1]} if scripts[0] in left and scripts[1] in right else {}
    by_name = {file_name(file): file for file in right if file not in partners.values()}
    for file in sorted(left - partners.keys()):
        partner = file if file in right else by_name.get(file_name(file))
        if partner is not None:
            partners[file] = partner
    return list(partners.items())


# Lays two runs beside each other: pairs of items that correspond, and items that only one run has.
#
# First, items with the same name on the same line of source are pairs. Between these pairs, items with the same name
# are pairs; then, one by one, the items that are left in the same place, if their kinds agree.

NONE = -1  # in place of an item that one side lacks
_MOST = 4_000  # the most items of a side that are compared with each other


def aligned(one: Timeline, other: Timeline, pairs: list[tuple[Stretch, Stretch]]) -> np.ndarray:
    """Rows of two: an item of one run, and the item of the other run that corresponds to it; NONE if there is none."""
    known: dict[tuple[bytes, bytes], np.ndarray] = {}
    found = [np.zeros((0, 2), np.int64)]
    for left, right in pairs:
        a, b = one.strong[left.items], other.strong[right.items]
        key = a.tobytes(), b.tobytes()
        if key not in known:
            weak = one.words[left.items], other.words[right.items]
            known[key] = np.array(list(_pairs(a, b, *weak)), np.int64).reshape(-1, 2)
        part = known[key]
        items = [np.append(side.items, NONE) for side in (left, right)]
        found.append(np.stack([own[places] for own, places in zip(items, part.T, strict=True)], axis=1))
    return np.concatenate(found)


Pair = tuple[int, int]


def _pairs(a: np.ndarray, b: np.ndarray, weak_a: np.ndarray, weak_b: np.ndarray) -> Iterator[Pair]:
    """Places in `a` and `b` that correspond."""
    for same, (start, end, begin, stop) in _blocks(a, b):
        if same:
            yield from zip(range(start, end), range(begin, stop), strict=True)
            continue
        for alike, (s, e, t, u) in _blocks(weak_a[start:end], weak_b[begin:stop]):
            one, other = range(start + s, start + e), range(begin + t, begin + u)
            if alike or _kinds(weak_a, one) == _kinds(weak_b, other):
                yield from zip(one, other, strict=True)
                continue
            yield from ((i, NONE) for i in one)
            yield from ((NONE, j) for j in other)


def _kinds(words: np.ndarray, places: range) -> list[int]:
    """The kinds of items, without their names."""
    return (words[places.start : places.stop] % 64).tolist()


def _blocks(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[bool, tuple[int, int, int, int]]]:
    """Parts of two sequences, in order: (whether they are equal, (start and end in a, start and end in b))."""
    shorter = min(len(a), len(b))
    differs = np.flatnonzero(a[:shorter] != b[:shorter])
    head = int(differs[0]) if len(differs) else shorter
    rest = shorter - head
    differs = np.flatnonzero(a[len(a) - rest :][::-1] != b[len(b) - rest :][::-1])
    tail = int(differs[0]) if len(differs) else rest
    if head:
        yield True, (0, head, 0, head)
    middle_a, middle_b = a[head : len(a) - tail], b[head : len(b) - tail]
    if len(middle_a) or len(middle_b):
        yield from _middle(middle_a, middle_b, head)
    if tail:
        yield True, (len(a) - tail, len(a), len(b) - tail, len(b))


def _middle(a: np.ndarray, b: np.ndarray, offset: int) -> Iterator[tuple[bool, tuple[int, int, int, int]]]:
    if max(len(a), len(b)) > _MOST or not len(a) or not len(b):
        yield False, (offset, offset + len(a), offset, offset + len(b))
        return
    matcher = SequenceMatcher(None, a.tolist(), b.tolist(), autojunk=False)
    for tag, *bounds in matcher.get_opcodes():
        start, end, begin, stop = (bound + offset for bound in bounds)
        yield tag == "equal", (start, end, begin, stop)


# The effect of rounding on each tensor of a pass. It is measured: the pass runs again with inputs that are disturbed
# by one unit in the last place. The idea is that of TTrace (arXiv 2506.09280).

REPLAYS = 4
_MARGIN = 5.0  # two runs may be so many times as far apart as the replays
# The machine epsilon of each dtype: the distance from 1 to the next number.
UNITS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


class Rounding:
    """The bounds of rounding for each tensor of a pass: the largest distance in two runs, over the largest element."""

    def __init__(self, query: Query, plan: Plan, runner: Runner, dtype: str) -> None:
        graph = graph_of(query, plan)
        self.plan, self.dtype = plan, dtype
        self.least = _MARGIN * UNITS[dtype]
        self.base = runner.run(plan, Edits(), graph)
        random = np.random.default_rng(0)
        self.disturbed = [
            runner.run(plan, Edits(_disturbed(plan, UNITS[dtype], random)), graph) for _ in range(REPLAYS)
        ]
        # by tensor, the calls that made it or wrote to it
        self.calls = grouped((tensor, event) for event, tensor in self.base.made)

    def of_result(self, tensor: int, event: int, recorded: Snapshot) -> float | None:
        """The bound for a result of the op at an event; None if no replay gives it."""
        calls = self.calls.get(tensor, [])
        at = bisect_left(calls, event)
        if at == len(calls):
            return None
        return self._allowed(recorded, [run.made.get((calls[at], tensor)) for run in self._runs])

    def of_flow(self, node: int, place: int, recorded: Snapshot) -> float | None:
        """The bound for the gradient that a node gives along one of its edges; None if a replay lacks it."""
        flows = [run.nodes.get(node, Flowed((), ())).produced[place : place + 1] for run in self._runs]
        return self._allowed(recorded, [next(iter(found), None) for found in flows])

    def of_gradient(self, leaf: int, recorded: Snapshot) -> float | None:
        """The bound for the gradient of a leaf; None if a replay lacks it."""
        return self._allowed(recorded, [run.gradients.get(leaf) for run in self._runs])

    @property
    def _runs(self) -> list[Outcome]:
        return [self.base, *self.disturbed]

    def _allowed(self, recorded: Snapshot, arrays: Sequence[np.ndarray | None]) -> float | None:
        """The bound from the values of the replays, compared like the recorded value: by elements or by statistics."""
        snapshots = [_as(recorded, array) for array in arrays if array is not None]
        if len(snapshots) < len(arrays):
            return None
        by = [apart(snapshots[0], other) for other in snapshots[1:]]
        sizes = [size for size in by if size is not None and np.isfinite(size)]
        return max([self.least, *(_MARGIN * size for size in sizes)]) if len(sizes) == len(by) else None


def _as(recorded: Snapshot, array: np.ndarray) -> Snapshot:
    """The array as a Snapshot with as much detail as `recorded` has: elements or statistics."""
    if recorded.array is None:
        return replace(recorded, shape=array.shape, told=stats_of(array))
    return recorded.with_elements(array)


def _disturbed(plan: Plan, unit: float, random: np.random.Generator) -> dict[int, np.ndarray]:
    """The floating-point inputs of a pass, each element larger or smaller by one unit. An input that enters the pass
    again, after a write, is left out."""
    tensors = [step.tensor for step in plan.inputs]
    arrays = {}
    for step in plan.inputs:
        array = step.value.array
        if array is not None and array.dtype.kind == "f" and tensors.count(step.tensor) == 1:
            signs = random.choice([-1.0, 1.0], array.shape)
            arrays[step.tensor] = (array * (1 + unit * signs)).astype(array.dtype)
    return arrays


def coarsest(dtypes: Iterable[str]) -> str:
    """The floating-point dtype with the fewest digits; float32 if there is none."""
    return max((dtype for dtype in dtypes if dtype in UNITS), key=UNITS.__getitem__, default="float32")
