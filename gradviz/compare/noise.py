"""The differences between two runs of one program that rounding does not explain: the first tensor of a pass that
differs by more than rounding allows."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradviz.compare.difference import NONE, REPLAYS, UNITS, Rounding, Spot, apart, coarsest
from gradviz.compare.parting import Comparison, NoDiff, both_text, plain_data
from gradviz.events.kinds import Kind, Produced
from gradviz.query.ops import CLAMPING, SUMS, WITH_NUMBERS
from gradviz.query.query import Query
from gradviz.query.ranks import ranked_traces
from gradviz.query.reduced_gradients import reduced_gradients
from gradviz.query.replicas import Replicas
from gradviz.replay.outcome import Runner, fill_in
from gradviz.replay.plan import Plan, ReplayError, plan_of
from gradviz.system.paths import file_name
from gradviz.tracefile import Site, Snapshot, Trace
from gradviz.words.escape import clean, json_number, plain
from gradviz.words.numbers import compact, number, plural

PHASES = ("entering", "forward", "backward", "gradients")
_GIVEN_NUMBERS = WITH_NUMBERS | SUMS | CLAMPING


@dataclass(frozen=True, slots=True)
class Beyond:
    """A difference that rounding does not explain: an item of each run, how far they are apart, and how far rounding
    allows them to be, both relative to the largest element."""

    one: Spot
    other: Spot
    apart: float
    allowed: float


@dataclass(frozen=True, slots=True)
class OtherNumbers:
    """An op that the two runs call with different numbers: an item of each run, and the arguments that differ."""

    op: str
    one: Spot
    other: Spot
    arguments: tuple[str, str]


@dataclass(frozen=True, slots=True)
class NoisyGradient:
    """The gradient of a parameter in both runs: how far they are apart, and how far rounding allows them to be; None if
    it is not known. `site` is where the pass first reads the parameter."""

    name: str
    apart: float | None
    allowed: float | None
    site: Site | None

    @property
    def is_beyond(self) -> bool:
        """Whether the gradients are further apart than rounding allows."""
        return self.apart is not None and self.allowed is not None and not self.apart <= self.allowed


@dataclass(frozen=True, slots=True)
class Noise:
    """The comparison of two runs beyond rounding. `replayed` is the name of the run whose pass ran again, `dtype` the
    coarsest dtype of both, `numbers` the first op that they call with different numbers. `compared` counts the values
    whose rounding is known, by phase; `unknown` counts the other values."""

    names: tuple[str, str]
    passes: tuple[int, int]
    replayed: str
    dtype: str
    numbers: OtherNumbers | None
    entering: Beyond | None
    forward: Beyond | None
    backward: Beyond | None
    gradients: tuple[NoisyGradient, ...]
    compared: dict[str, int]
    unknown: int

    @property
    def same(self) -> bool:
        """Whether no value is further apart than rounding allows."""
        beyond = (self.entering, self.forward, self.backward)
        return not any(beyond) and not any(gradient.is_beyond for gradient in self.gradients)


def noise(one: Trace, other: Trace, runner: Runner, passes: tuple[int, ...] = ()) -> Noise:
    """Compare one pass of each run beyond rounding: the `passes`, or the first pass of each. Raises NoDiff if a run has
    no pass, ReplayError if the pass cannot run again in either run."""
    if not (one.passes and other.passes):
        raise NoDiff("--noise compares a backward pass of each run: one of them has none")
    numbers = (passes[0], passes[-1]) if passes else (one.passes[0].number, other.passes[0].number)
    if one is other and numbers[0] == numbers[1]:
        raise NoDiff("give two traces, or two passes of one: gradviz diff TRACE --noise --pass 1 --pass 2")
    comparison = Comparison(one, other, numbers, 0.0)
    return _Noisy(comparison, numbers, runner).noise


class _Noisy:
    def __init__(self, comparison: Comparison, numbers: tuple[int, int], runner: Runner) -> None:
        self.comparison, self.numbers = comparison, numbers
        self.queries: tuple[Query, Query] = (comparison.sides[0].query, comparison.sides[1].query)
        self.side, plan = self._plan()
        for query, pass_number in zip(self.queries, numbers, strict=True):
            with suppress(ReplayError):  # without a replay its statistics are compared
                fill_in(query, runner, pass_number)
        dtype = coarsest([step.value.dtype for step in plan.inputs] + [*self._dtypes()])
        self.rounding = Rounding(self.queries[self.side], plan, runner, dtype)
        self.compared: Counter[str] = Counter()
        self.unknown = 0

    def _plan(self) -> tuple[int, Plan]:
        """(side, plan) of the first run whose pass can run again. Raises ReplayError if there is none."""
        try:
            return 0, plan_of(self.queries[0], self.numbers[0])
        except ReplayError:
            return 1, plan_of(self.queries[1], self.numbers[1])

    @property
    def noise(self) -> Noise:
        """The result of the comparison."""
        # ranks of another number compute with other data
        is_alike = len({query.trace.meta.get("world", "1") for query in self.queries}) == 1
        entering = self._first_input()
        forward = self._first(Kind.OP, "forward") if is_alike else None
        backward = self._first(Kind.PRODUCED, "backward") if is_alike else None
        gradients = tuple(self._gradients())
        names = tuple(query.trace.path.name for query in self.queries)
        return Noise(
            (names[0], names[1]), self.numbers, names[self.side], self.rounding.dtype,
            self._other_numbers() if is_alike else None, entering, forward, backward, gradients,
            {phase: self.compared[phase] for phase in PHASES}, self.unknown,
        )  # fmt: skip

    def _dtypes(self) -> Iterator[str]:
        """The dtypes of the results of the ops of the pass, in both runs."""
        for timeline, column in zip(self.comparison.sides, self.comparison.pairs.T, strict=True):
            for item in column[column != NONE].tolist():
                if timeline.kinds[item] == Kind.OP:
                    yield from map(timeline.trace.states.dtype_of, timeline.tensors(item))

    # --- arguments of ops

    def _other_numbers(self) -> OtherNumbers | None:
        """The first op that the two runs call with different numbers; None if there is none."""
        for items, events in self._alike(Kind.OP):
            ops = [side.query.tensors.op(event) for side, event in zip(self.comparison.sides, events, strict=True)]
            if ops[0].op in _GIVEN_NUMBERS and ops[0].args != ops[1].args:
                return OtherNumbers(ops[0].op, *self._spots(items), _differing(ops[0].args, ops[1].args))
        return None

    # --- inputs and results

    def _first_input(self) -> Beyond | None:
        """The first parameter whose value at the beginning of the pass differs by more than rounding; None if none
        does."""
        of_runs = list(zip(self.queries, self.numbers, strict=True))
        named = [_leaves(query, pass_number) for query, pass_number in of_runs]
        begun = [query.passes.began(pass_number).index for query, pass_number in of_runs]
        for name, other in _corresponding(*named):
            pair = list(zip(self.queries, (named[0][name], named[1][other]), begun, strict=True))
            values = [query.memory.value(leaf, event) for query, leaf, event in pair]
            beyond = self._beyond("entering", values[0], values[1], lambda _: self.rounding.least)
            if beyond is not None:
                spots = [
                    Spot(event, query.places.site(query.tensors.site(leaf)), name, compact(value))
                    for (query, leaf, event), value in zip(pair, values, strict=True)
                    if value is not None
                ]
                return Beyond(spots[0], spots[1], *beyond)
        return None

    def _first(self, kind: Kind, phase: str) -> Beyond | None:
        """The first item of a kind that is further apart than rounding allows; None if there is none."""
        for items, events in self._alike(kind):
            tensors = [side.tensors(item) for side, item in zip(self.comparison.sides, items, strict=True)]
            if len(tensors[0]) != len(tensors[1]):
                continue
            for place, pair in enumerate(zip(*tensors, strict=True)):
                values = [
                    query.trace.snapshot(tensor, event) if tensor else None
                    for query, tensor, event in zip(self.queries, pair, events, strict=True)
                ]
                beyond = self._beyond(phase, values[0], values[1], self._measured(kind, events, pair, place))
                if beyond is not None:
                    return Beyond(*self._spots(items), *beyond)
        return None

    def _alike(self, kind: Kind) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        """The pairs of items of a kind that have the same name, with their events."""
        left, right = self.comparison.sides
        for one, other in self.comparison.pairs.tolist():
            if NONE not in (one, other) and left.kinds[one] == kind and left.words[one] == right.words[other]:
                yield (one, other), (int(left.events[one]), int(right.events[other]))

    def _spots(self, items: tuple[int, int]) -> tuple[Spot, Spot]:
        one, other = (self.comparison.spot(side, item) for side, item in enumerate(items))
        assert one is not None
        assert other is not None
        return one, other

    def _measured(
        self, kind: Kind, events: tuple[int, int], pair: tuple[int, int], place: int
    ) -> Callable[[Snapshot], float | None]:
        """The function that gives how far rounding may put a tensor of an item, for its recorded value."""
        event, tensor = events[self.side], pair[self.side]
        if kind == Kind.OP:
            return lambda value: self.rounding.of_result(tensor, event, value)
        produced = self.queries[self.side].trace.event(event)
        assert isinstance(produced, Produced)
        return lambda value: self.rounding.of_flow(produced.node, place, value)

    def _beyond(
        self, phase: str, one: Snapshot | None, other: Snapshot | None, measure: Callable[[Snapshot], float | None]
    ) -> tuple[float, float] | None:
        """(how far two values are apart, how far rounding allows), if they are further apart than rounding allows."""
        by, allowed = self._measure(phase, one, other, measure)
        if by is None or allowed is None:
            return None
        return (by, allowed) if not by <= allowed else None

    def _measure(
        self, phase: str, one: Snapshot | None, other: Snapshot | None, measure: Callable[[Snapshot], float | None]
    ) -> tuple[float | None, float | None]:
        """(how far two values are apart, how far rounding allows); None for each that is not known."""
        if one is None or other is None or one.part or other.part:
            return None, None
        by = apart(one, other)
        # the value with less detail: of the other, only as much can be compared
        coarser = one if other.array is not None else other
        allowed = None if by is None else measure(coarser)
        is_known = allowed is not None
        self.compared[phase] += is_known
        self.unknown += not is_known
        return by, allowed

    # --- gradients of parameters

    def _gradients(self) -> Iterator[NoisyGradient]:
        by_name = [self._gradients_of(side) for side in (0, 1)]
        query = self.queries[self.side]
        leaves = _leaves(query, self.numbers[self.side])
        for names in _corresponding(*by_name):
            leaf = leaves[names[self.side]]
            measure = partial(self.rounding.of_gradient, leaf)
            by, allowed = self._measure("gradients", by_name[0][names[0]], by_name[1][names[1]], measure)
            yield NoisyGradient(names[self.side], by, allowed, self._read_at(leaf))

    def _read_at(self, leaf: int) -> Site | None:
        """The site at which the pass that ran again first reads a leaf; None if it is unknown."""
        query = self.queries[self.side]
        first = self.rounding.plan.first_reader(leaf)
        return None if first is None else query.places.site(first.site)

    def _gradients_of(self, side: int) -> dict[str, Snapshot | None]:
        """The gradients that a pass gave parameters, by name. If ranks reduce them, the gradients that the step
        uses."""
        query, number = self.queries[side], self.numbers[side]
        backward_pass = query.passes.by_number[number]
        reduced = reduced_gradients(query, backward_pass)
        steps = query.trace.table(Kind.STEPPED).events
        step = (
            int(steps[np.searchsorted(steps, backward_pass.first)])
            if steps.max(initial=-1) > backward_pass.first
            else -1
        )
        table = query.trace.table(Kind.ACCUMULATED)
        came = {
            int(table["tensor"][row]): (int(table["gradient"][row]), int(table.events[row]))
            for row in np.flatnonzero(table["in_pass"] == number).tolist()
        }
        found: dict[str, Snapshot | None] = {}
        for name, leaf in _leaves(query, number).items():
            if leaf in reduced and step >= 0:
                found[name] = query.tensors.gradient(leaf, step)
            elif leaf in came:
                found[name] = query.trace.snapshot(*came[leaf])
        return found


def _differing(one: str, other: str) -> tuple[str, str]:
    """The arguments of an op in two runs, without the arguments that are equal in both."""
    parts = one.split(", "), other.split(", ")
    if len(parts[0]) != len(parts[1]):
        return one, other
    pairs = [pair for pair in zip(*parts, strict=True) if pair[0] != pair[1]]
    return ", ".join(pair[0] for pair in pairs), ", ".join(pair[1] for pair in pairs)


def _leaves(query: Query, number: int) -> dict[str, int]:
    """The leaves that a pass gave gradients to, by name, without the parts of the name that wrappers add."""
    table = query.trace.table(Kind.ACCUMULATED)
    leaves = {}
    for leaf in table["tensor"][table["in_pass"] == number].tolist():
        leaves[query.labels.of(leaf).replace(".module", "")] = leaf  # as DistributedDataParallel names it
    return leaves


def _corresponding(one: Iterable[str], other: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The pairs of names of parameters that correspond: equal names, else names with the same path in a module, if only
    one on each side has this path. The variables that hold the module may differ."""
    rest = dict.fromkeys(other)
    paths = Counter(map(_path, one)), Counter(map(_path, rest))
    by_path = {_path(name): name for name in rest}
    for name in one:
        path = _path(name)
        if name in rest:
            yield name, name
        elif paths[0][path] == paths[1][path] == 1:
            yield name, by_path[path]


def _path(name: str) -> str:
    """The path in a module, without the variable that holds it."""
    return name.partition(".")[2] or name


# The differences of two runs beyond rounding, as text for a terminal and as plain data.

_THINGS = {"entering": "parameter", "forward": "result", "backward": "gradient"}
_SHOWN = 20  # the most parameters that are shown
_LONGEST = 200  # characters of a name


def noise_text(found: Noise) -> Group:
    """The differences that rounding does not explain, the gradients of parameters, and the verdict."""
    passes = [f" pass {pass_number}" for pass_number in found.passes]
    parts: list[RenderableType] = [
        Text.assemble((f"{sign} ", style), plain(name, _LONGEST) + of)
        for sign, style, name, of in zip("−+", ("red", "green"), found.names, passes, strict=True)
    ]
    parts += [Text(), Text(_measured(found))]
    if found.numbers is not None:
        parts += _other_numbers(found.numbers)
    for phase, beyond in _phases(found):
        parts += _beyond(phase, beyond, found.compared[phase])
    if found.gradients:
        parts += [Text(), _gradients(found.gradients)]
    verdict = "apart by rounding alone" if found.same else "apart by more than rounding"
    compared = sum(found.compared.values())
    counts = f" · {plural(compared, 'value')} compared, {found.unknown:,} not known"
    return Group(
        *parts, Text(), Text.assemble((f"the runs are {verdict}" if compared else "nothing is known", "bold"), counts)
    )


def _measured(found: Noise) -> str:
    return (
        f"rounding, by {REPLAYS} replays of {plain(found.replayed, _LONGEST)} with inputs disturbed by one unit in the "
        f"last place of {found.dtype} ({number(UNITS[found.dtype], 2)}):"
    )


def _phases(found: Noise) -> list[tuple[str, Beyond | None]]:
    return [("entering", found.entering), ("forward", found.forward), ("backward", found.backward)]


def _other_numbers(found: OtherNumbers) -> Iterator[Text]:
    """The line `numbers  line 7: mul with 3.03 instead of 3.0`, then both items."""
    where = "" if found.other.site is None else f"line {found.other.site.place.line}: "
    one, other = (plain(text, _LONGEST) or "none" for text in found.arguments)
    yield Text.assemble(("numbers  ", "bold"), f"{where}{plain(found.op, _LONGEST)} with {other} instead of {one}")
    yield from both_text(found.one, found.other)


def _beyond(phase: str, beyond: Beyond | None, compared: int) -> Iterator[Text]:
    if beyond is None:
        result = f"nothing is beyond it, of {plural(compared, _THINGS[phase])}" if compared else "not compared"
        yield Text.assemble((f"{phase:9}", "bold"), result)
        return
    by = "not to be subtracted" if np.isnan(beyond.apart) else f"{number(beyond.apart, 2)} apart"
    told = f"first beyond it: {by}, where rounding puts at most {number(beyond.allowed, 2)}"
    yield Text.assemble((f"{phase:9}", "bold"), told)
    yield from both_text(beyond.one, beyond.other)


def _gradients(gradients: tuple[NoisyGradient, ...]) -> Table:
    """The gradients of parameters, sorted by how far they are beyond rounding."""
    table = Table.grid(padding=(0, 2))
    table.add_row(Text("gradient", "bold"), "apart", "by rounding at most", "")
    for gradient in sorted(gradients, key=_excess, reverse=True)[:_SHOWN]:
        sizes = [_size(gradient.apart), _size(gradient.allowed)]
        table.add_row(Text(plain(gradient.name, _LONGEST)), *sizes, Text(_said(gradient)))
    if len(gradients) > _SHOWN:
        table.add_row(Text(f"… and {len(gradients) - _SHOWN:,} more, closer", "dim"))
    return table


def _said(gradient: NoisyGradient) -> str:
    if not gradient.is_beyond:
        return ""
    site = gradient.site
    where = "" if site is None else f", read at {file_name(site.place.file)}:{site.place.line}"
    return f"beyond{plain(where, _LONGEST)}"


def _excess(gradient: NoisyGradient) -> float:
    if gradient.apart is None or gradient.allowed is None:
        return -1.0
    return np.inf if np.isnan(gradient.apart) else gradient.apart / gradient.allowed


def _size(size: float | None) -> str:
    return "?" if size is None else "–" if np.isnan(size) else number(size, 2)


def noise_json(found: Noise) -> dict[str, Any]:
    """The comparison as plain data. Sizes are relative to the largest element."""
    return {
        "runs": list(found.names),
        "passes": list(found.passes),
        "replayed": found.replayed,
        "dtype": found.dtype,
        "same": found.same,
        "numbers": plain_data(found.numbers),
        **{phase: plain_data(beyond) for phase, beyond in _phases(found)},
        "gradients": [
            {
                "name": gradient.name,
                "apart": json_number(gradient.apart),
                "allowed": json_number(gradient.allowed),
                "beyond": gradient.is_beyond,
                "line": None if gradient.site is None else gradient.site.place.line,
            }
            for gradient in found.gradients
        ],
        "compared": found.compared,
        "unknown": found.unknown,
    }


# The comparison of ranks of one run as replicas: their parameters, averaged gradients and settings.


def replicas_text(traces: Sequence[Trace]) -> list[Text]:
    """The lines about ranks as replicas; empty if they have no parameters in common."""
    ranks = Replicas({rank: Query(trace) for rank, trace in ranked_traces(traces).items()})
    if not ranks.common or not ranks.steps:
        return []
    starts = [one.name for one in ranks.starts_apart]
    lines = [
        Text("\nas replicas: the values above are of each rank alone, before the ranks average gradients", "dim"),
        _line("before the first pass", "parameters", len(ranks.common), starts),
    ]
    if any(map(len, ranks.reduced)):
        apart = [f"{one.name} (step {one.step})" for one in ranks.gradients_apart]
        where = "at the step" if len(ranks.steps) == 1 else f"at each of {len(ranks.steps):,} steps"
        lines.append(_line(where, "averaged gradients", len(ranks.common), apart))
    if ranks.are_replicas:
        drift = ranks.drift
        lines.append(_line("later", "parameters", len(ranks.common), list(drift.names) if drift else []))
    for setting in ranks.other_settings:
        values = " and ".join(map(str, setting.values))
        lines.append(Text(f"at step {setting.number}: {clean(setting.name)} is {clean(values)}", "yellow"))
    return lines


def _line(when: str, what: str, count: int, apart: Sequence[str]) -> Text:
    if not apart:
        return Text(f"{when}: {what} are the same ({plural(count, 'parameter')})", "green")
    more = f" and {len(apart) - 1} more" if len(apart) > 1 else ""
    return Text(f"{when}: {what} differ: {clean(apart[0])}{more}", "yellow")
