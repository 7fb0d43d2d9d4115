"""The comparison of two runs: operations that only one run has, the first values that differ, and gradient norms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradviz.compare.difference import (
    ADDED,
    CHANGED,
    GONE,
    NONE,
    Change,
    Difference,
    Lines,
    Norm,
    Parting,
    Shared,
    Spot,
    Stretch,
    Timeline,
    aligned,
    apart,
    changed_lines,
)
from gradviz.errors import GradvizError
from gradviz.events.kinds import Kind
from gradviz.query.at_points import redefined, version_of
from gradviz.query.curves import norm_of
from gradviz.query.optimizer_steps import settings_of
from gradviz.query.query import Query
from gradviz.sets import contained
from gradviz.system.paths import file_name
from gradviz.tracefile import Trace, open_trace
from gradviz.words.defined_points import called, gradients, place
from gradviz.words.escape import finite_number, json_number, plain
from gradviz.words.numbers import compact, number, plural
from gradviz.words.words import Words

TOLERANCE = 1e-5  # relative to the largest element
_LONGEST_EXPRESSION = 44  # characters of an expression
_LISTED = (Kind.OP, Kind.TENSOR, Kind.STEPPED)  # the kinds whose changes are listed: others follow from them


class NoDiff(GradvizError):
    """Two runs cannot be compared. The message is one line for the user."""


def diff(
    one: Trace | Path | str,
    other: Trace | Path | str | None = None,
    passes: tuple[int, ...] = (),
    tolerance: float = TOLERANCE,
) -> Difference:
    """Compare two traces, or with `passes` one pass of each trace. Without `other`, compare two `passes` of one trace.
    Values differ if an element is further off than `tolerance` times the largest element. Raises NoDiff if there is no
    such pass, TraceError for a file that cannot be read."""
    with ExitStack() as stack:
        left = one if isinstance(one, Trace) else stack.enter_context(open_trace(one))
        right = left if other is None else other
        right = right if isinstance(right, Trace) else stack.enter_context(open_trace(right))
        numbers = (passes[0], passes[-1]) if passes else None
        if other is None and (numbers is None or numbers[0] == numbers[1]):
            raise NoDiff("give two traces, or two passes of one: gradviz diff TRACE --pass 3 --pass 7")
        return Comparison(left, right, numbers, tolerance).difference


class Comparison:
    """Two runs, or one pass of each (`numbers`), beside each other. `pairs` are the pairs of their items."""

    def __init__(self, one: Trace, other: Trace, numbers: tuple[int, int] | None, tolerance: float) -> None:
        shared = Shared()
        self.words = Words(one), Words(other)
        self.sides = Timeline(self.words[0].query, shared), Timeline(self.words[1].query, shared)
        self.tolerance = tolerance
        self.numbers = numbers
        self.stretches: list[tuple[Stretch, Stretch]]
        if numbers is None:
            self.stretches = list(zip(*self._in_step(*(side.stretches for side in self.sides)), strict=True))
        else:
            one_pass, other_pass = map(self._pass, self.sides, numbers)
            self.stretches = [(one_pass, other_pass)]
        self.pairs = aligned(*self.sides, self.stretches)

    def _pass(self, side: Timeline, number: int) -> Stretch:
        if number not in side.query.passes.by_number:
            raise NoDiff(f"{side.trace.path.name} has no pass {number}: it has {len(side.trace.passes)}")
        return side.of_pass(number)

    def _in_step(self, one: list[Stretch], other: list[Stretch]) -> tuple[list[Stretch], list[Stretch]]:
        """The same number of stretches on both sides. The last stretch follows the last pass; a run with fewer passes
        gets empty stretches before it, or behind it if an error ended the run, in the middle of the next pass."""
        most = max(len(one), len(other))
        filled = []
        for side, stretches in zip(self.sides, (one, other), strict=True):
            last = stretches[-1]
            empty = [Stretch(0, last.items[:0])] * (most - len(stretches))
            is_broken_off = side.trace.meta.get("ended") == "error"
            rest = [last, *empty] if is_broken_off else [*empty, last]
            filled.append([*stretches[:-1], *rest])
        return filled[0], filled[1]

    @property
    def difference(self) -> Difference:
        known, unknown = self._known
        return Difference(
            names=(self._name(0), self._name(1)),
            forward=self._parting(False),
            backward=self._parting(True),
            changes=self._changes(),
            lines=self.lines,
            norms=self._norms(),
            norms_in=self._last_passes,
            passes=self.numbers or (len(self.sides[0].trace.passes), len(self.sides[1].trace.passes)),
            compared=known,
            unknown=unknown,
        )

    def _name(self, side: int) -> str:
        name = self.sides[side].trace.path.name
        return name if self.numbers is None else f"{name} pass {self.numbers[side]}"

    # --- values

    @cached_property
    def _differ(self) -> np.ndarray:
        """For each pair, whether it may differ: a run lacks it, or its names or checksums differ."""
        one, other = self.pairs.T
        there = (one != NONE) & (other != NONE)
        differ = ~there
        a, b = one[there], other[there]
        left, right = self.sides
        differ[there] = (left.checksums[a] != right.checksums[b]) | (left.words[a] != right.words[b])
        return differ

    @cached_property
    def _known(self) -> tuple[int, int]:
        both = self.pairs[(self.pairs != NONE).all(axis=1)]
        sums = [side.checksums[column] > 0 for side, column in zip(self.sides, both.T, strict=True)]
        valued = self.sides[0].kinds[both[:, 0]] != Kind.STEPPED
        known = sums[0] & sums[1] & valued
        return int(known.sum()), int((valued & ~known).sum())

    def _parting(self, backward: bool) -> Parting | None:
        """The first pair of a phase whose values differ by more than the tolerance, or that a run lacks; None if there
        is none."""
        phase = np.zeros(len(self.pairs), bool)
        for side, column in zip(self.sides, self.pairs.T, strict=True):
            there = column != NONE
            phase[there] |= side.backward[column[there]] == backward
        for row in np.flatnonzero(self._differ & phase).tolist():
            one, other = self.pairs[row].tolist()
            if NONE in (one, other):
                if self._counts(one, other):
                    return self._parted(one, other, float("nan"))
                continue
            apart = self._apart(one, other)
            if apart is not None and not apart <= self.tolerance:
                return self._parted(one, other, apart)
        return None

    def _counts(self, one: int, other: int) -> bool:
        """Whether an item that only one run has is a difference by itself: a new tensor, a step, or an op with a node.
        The effect of any other op shows in the values that follow."""
        side, item = (self.sides[0], one) if other == NONE else (self.sides[1], other)
        kind = side.kinds[item]
        if kind == Kind.OP:
            return bool(side.query.nodes.of_op(int(side.events[item])))
        return kind in _LISTED

    def _apart(self, one: int, other: int) -> float | None:
        """The largest distance between the values of a pair; None if they are not known."""
        left, right = self.sides
        tensors = left.tensors(one), right.tensors(other)
        if len(tensors[0]) != len(tensors[1]):
            return float("nan")
        events = int(left.events[one]), int(right.events[other])
        found = []
        for a, b in zip(*tensors, strict=True):
            values = left.trace.snapshot(a, at=events[0]), right.trace.snapshot(b, at=events[1])
            if values[0] is not None and values[1] is not None:
                found.append(apart(values[0], values[1]))
            elif bool(a) != bool(b):
                return float("nan")
        known = [one for one in found if one is not None]
        return max(known, key=lambda x: (np.isnan(x), x)) if known else None

    def _parted(self, one: int, other: int, by: float) -> Parting:
        spots = self.spot(0, one), self.spot(1, other)
        at, column = (one, 0) if one != NONE else (other, 1)
        number = next((pair[column].number for pair in self.stretches if np.any(pair[column].items == at)), 0)
        return Parting(*spots, by, number, self._cause(spots), self._definition(one, other))

    def _definition(self, one: int, other: int) -> str:
        """How the versions of PyTorch of the two runs define the gradient of an op that parts; empty if they agree."""
        left, right = self.sides
        if NONE in (one, other) or left.kinds[one] != Kind.PRODUCED:
            return ""
        op = left.query.nodes.op(left.trace.table(Kind.PRODUCED).object(int(left.events[one])).node)
        versions = version_of(left.trace), version_of(right.trace)
        point = redefined(left.query, left.query.tensors.op(op), *versions) if op is not None else None
        if point is None:
            return ""
        told = (f"{gradients(point, version)} in {called(version)}" for version in versions)
        return f"its definition changed {place(point)}: {', '.join(told)}"

    def spot(self, side: int, item: int) -> Spot | None:
        """An item of one run as a Spot; None for NONE."""
        if item == NONE:
            return None
        timeline, words = self.sides[side], self.words[side]
        event = int(timeline.events[item])
        number = int(words.query.passes.numbers[event])
        places = words.query.places
        site = places.site(int(places.of_events[event]))
        if site is None and number:
            site = places.site(words.query.passes.by_number[number].site)
        values = [timeline.trace.snapshot(tensor, at=event) for tensor in timeline.tensors(item) if tensor]
        text = ", ".join(compact(value) for value in values[:3])
        return Spot(event, site, self._what(side, item), text)

    def _what(self, side: int, item: int) -> str:
        """The description of an item in a few words: the op with its expression, or the node."""
        timeline, words = self.sides[side], self.words[side]
        event, kind = int(timeline.events[item]), Kind(int(timeline.kinds[item]))
        recorded = timeline.trace.table(kind).object(event)
        if kind == Kind.OP:
            text = words.expression(recorded.site, _LONGEST_EXPRESSION)
            return f"{recorded.op} in {text}" if text else recorded.op
        if kind == Kind.TENSOR:
            return f"{recorded.how} makes {words.called(recorded.tensor)}"
        if kind == Kind.MUTATED:
            return f"{recorded.how} changes {words.called(recorded.tensor)}"
        if kind == Kind.STEPPED:
            return f"{recorded.type} steps"
        if kind == Kind.ACCUMULATED:
            return f"gradient of {words.called(recorded.tensor)}"
        return f"gradients of {words.node_name(recorded.node)}"

    # --- changes

    def _changes(self) -> tuple[Change, ...]:
        """The items that only one run has or that differ in form, in order. The same change at the same lines occurs
        once."""
        one, other = self.pairs.T
        there = (one != NONE) & (other != NONE)
        shown = ~there
        left, right = self.sides
        a, b = one[there], other[there]
        shown[there] = (left.looks[a] != right.looks[b]) | (left.words[a] != right.words[b])
        kinds = np.zeros(len(one), np.int64)
        kinds[other != NONE] = right.kinds[other[other != NONE]]
        kinds[one != NONE] = left.kinds[one[one != NONE]]
        shown &= contained(kinds, _LISTED)
        counts: Counter[tuple[object, ...]] = Counter()
        firsts: dict[tuple[object, ...], tuple[int, int]] = {}
        for row in np.flatnonzero(shown).tolist():
            pair = one[row].item(), other[row].item()
            key = tuple(self._place_of(side, item) for side, item in enumerate(pair))
            counts[key] += 1
            firsts.setdefault(key, pair)
        changes = (self._change(*firsts[key], count) for key, count in counts.items())
        return tuple(change for change in changes if change.kind != CHANGED or change.detail)

    def _place_of(self, side: int, item: int) -> object:
        if item == NONE:
            return None
        timeline = self.sides[side]
        return int(timeline.query.places.of_events[timeline.events[item]]), int(timeline.words[item])

    def _change(self, one: int, other: int, count: int) -> Change:
        spots = self.spot(0, one), self.spot(1, other)
        kind = ADDED if one == NONE else GONE if other == NONE else CHANGED
        return Change(kind, *spots, self._detail(one, other) if kind == CHANGED else "", count)

    def _detail(self, one: int, other: int) -> str:
        """The facts that differ between two items, in words: the op, its arguments, shapes, nodes."""
        left, right = self._facts(0, one), self._facts(1, other)
        differing = [
            f"{name} {left[name]} → {right[name]}" for name in left if left[name] != right.get(name, left[name])
        ]
        return "; ".join(differing)

    def _facts(self, side: int, item: int) -> dict[str, str]:
        timeline = self.sides[side]
        event, kind = int(timeline.events[item]), Kind(int(timeline.kinds[item]))
        recorded = timeline.trace.table(kind).object(event)
        if kind == Kind.STEPPED:
            found = {}
            for position, group in enumerate(recorded.groups, 1):
                of = f" of group {position}" if position > 1 else ""
                found.update({f"{name}{of}": str(value) for name, value in settings_of(group).items()})
            return found
        if kind != Kind.OP:
            return {"made by": recorded.how}
        values = [timeline.trace.snapshot(tensor, at=event) for tensor in recorded.outputs]
        nodes = [timeline.query.nodes.name(node) for node in timeline.query.nodes.of_op(event)]
        return {
            "op": recorded.op,
            "arguments": recorded.args or "none",
            "grad mode": "on" if recorded.grad_enabled else "off",
            "node": ", ".join(nodes) or "none",
            "result": ", ".join(f"{value.dtype} {value.shape}" for value in values if value is not None),
        }

    # --- the source

    @cached_property
    def lines(self) -> tuple[Lines, ...]:
        """The lines of source that differ."""
        one, other = (side.trace for side in self.sides)
        return () if one is other else tuple(changed_lines(one, other))

    def _cause(self, spots: tuple[Spot | None, Spot | None]) -> int | None:
        """The place in `lines` of the changed line at a parting, or of the nearest changed line above it in its file;
        None if there is none."""
        site = next((spot.site for spot in spots if spot is not None and spot.site is not None), None)
        if site is None:
            return None
        mine = spots[0] is not None and spots[0].site is site
        above = [
            (lines.one if mine else lines.other, position)
            for position, lines in enumerate(self.lines)
            if not mine or lines.file == site.place.file
        ]
        before = [pair for pair in above if pair[0] <= site.place.end_line]
        return max(before)[1] if before else None

    # --- norms

    @property
    def _last_passes(self) -> tuple[int, int]:
        """The passes whose gradients are compared: the passes that the user gave, or the last pass that both runs
        have."""
        if self.numbers is not None:
            return self.numbers
        common = min(len(side.trace.passes) for side in self.sides)
        first, second = (side.trace.passes[common - 1].number if common else 0 for side in self.sides)
        return first, second

    def _norms(self) -> tuple[Norm, ...]:
        found = [self._norms_of(side, number) for side, number in enumerate(self._last_passes)]
        names = dict.fromkeys([*found[0], *found[1]])
        return tuple(Norm(name, found[0].get(name), found[1].get(name)) for name in names)

    def _norms_of(self, side: int, number: int) -> dict[str, float | None]:
        query: Query = self.sides[side].query
        table = query.trace.table(Kind.ACCUMULATED)
        found: dict[str, float | None] = {}
        for row in np.flatnonzero(table["in_pass"] == number).tolist():
            value = query.trace.snapshot(int(table["gradient"][row]), at=int(table.events[row]))
            found[self.words[side].called(int(table["tensor"][row]))] = norm_of(value)
        return found


# A difference as text for a terminal, and as plain data.

_STYLES = {ADDED: ("+", "green"), GONE: ("−", "red"), CHANGED: ("~", "yellow")}
_SHOWN = 20  # the most changes that are shown, and the most parameters
_LONGEST = 200  # characters of a text of the trace


def difference_text(found: Difference) -> Group:
    """The changed lines, the first differences, the changed operations, and the norms."""
    parts: list[RenderableType] = [Text.assemble(("− ", "red"), _line(found.names[0])),
                                   Text.assemble(("+ ", "green"), _line(found.names[1]))]  # fmt: skip
    parts += _lines(found)
    parts += [Text(), *_parting("forward", found.forward, found), *_parting("backward", found.backward, found)]
    if found.changes:
        parts += [Text(), *_changes(found.changes)]
    if found.norms:
        parts += [Text(), _norms(found)]
    return Group(*parts, Text(), *_counts(found))


def _lines(found: Difference) -> Iterator[Text]:
    for lines in found.lines[:_SHOWN]:
        yield Text()
        for sign, style, file, start, texts in (
            ("−", "red", lines.file, lines.one, lines.before),
            ("+", "green", lines.other_file, lines.other, lines.after),
        ):
            for line, text in enumerate(texts[:_SHOWN], start):
                yield Text(f"{sign} {_line(file_name(file))}:{line}  {_line(text)}", style)


def _parting(phase: str, parting: Parting | None, found: Difference) -> Iterator[Text]:
    if parting is None:
        yield Text.assemble((f"{phase:9}", "bold"), "no difference")
        return
    where = f" in pass {parting.number}" if parting.number else ""
    apart = "" if np.isnan(parting.apart) else f", {number(parting.apart, 2)} apart"
    only = "only in one of them" if None in (parting.one, parting.other) else f"the values part{apart}"
    yield Text.assemble((f"{phase:9}", "bold"), f"first difference{where}: {only}")
    yield from both_text(parting.one, parting.other)
    if parting.definition:
        yield Text(f"           {parting.definition}", "bold")
    if parting.line is not None:
        lines = found.lines[parting.line]
        change = (lines.after or lines.before)[0].strip()
        yield Text(f"           changed line {lines.other if lines.after else lines.one}: {_line(change)}")


def _line(text: str) -> str:
    return plain(text, _LONGEST)


_EXACT = -1.0  # a tolerance below every distance: values differ if a bit differs


def equal_text(one: Trace, other: Trace) -> str:
    """How far two runs are equal to the last bit, in words."""
    found = diff(one, other, tolerance=_EXACT)
    partings = [parting for parting in (found.forward, found.backward) if parting is not None]
    if not found.compared:
        return "unknown: the two runs recorded no values of the same operations"
    if not partings:
        return f"to the last bit in all {found.compared:,} operations and gradients whose values were recorded"
    first = min(partings, key=lambda parting: (parting.number or np.inf, parting is found.backward))
    spot = first.one or first.other
    assert spot is not None
    phase = "in" if first is found.backward else "before"
    where = f"{phase} pass {first.number}" if first.number else "after the last pass"
    return f"to the last bit in all that was recorded, until {_place(spot)} {where}: {_line(spot.what)}"


def both_text(one: Spot | None, other: Spot | None) -> Iterator[Text]:
    """One line for the item of each run that has it: its place, its description, its value, its event."""
    for sign, style, spot in (("−", "red", one), ("+", "green", other)):
        if spot is not None:
            value = f" = {_line(spot.value)}" if spot.value else ""
            text = f"{_place(spot)}  {_line(spot.what)}{value}  (event {spot.event + 1})"
            yield Text.assemble((f"         {sign} ", style), text)


def _place(spot: Spot) -> str:
    return "?" if spot.site is None else f"{_line(file_name(spot.site.place.file))}:{spot.site.place.line}"


def _changes(changes: tuple[Change, ...]) -> Iterator[Text]:
    counts = [plural(n, f"{kind} operation") for kind in _STYLES if (n := sum(c.kind == kind for c in changes))]
    yield Text(", ".join(counts), "bold")
    for change in changes[:_SHOWN]:
        spot = change.other or change.one
        assert spot is not None
        sign, style = _STYLES[change.kind]
        times = f" ×{change.count}" if change.count > 1 else ""
        detail = f"  {_line(change.detail)}" if change.detail else ""
        yield Text.assemble((f"{sign} ", style), f"{_place(spot)}  {_line(spot.what)}{times}", (detail, "yellow"))
    if len(changes) > _SHOWN:
        yield Text(f"… and {len(changes) - _SHOWN:,} more", "dim")


def _norms(found: Difference) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row(Text("norm of the gradient", "bold"), *(f"pass {n}" for n in found.norms_in), "ratio")
    by_distance = sorted(found.norms, key=_distance, reverse=True)
    for norm in by_distance[:_SHOWN]:
        norms = [_number(norm.one), _number(norm.other)]
        table.add_row(Text(_line(norm.name)), *norms, _ratio(norm))
    if len(by_distance) > _SHOWN:
        table.add_row(Text(f"… and {len(by_distance) - _SHOWN:,} more, closer", "dim"))
    return table


def _distance(norm: Norm) -> float:
    """The distance of two norms: the absolute logarithm of their ratio."""
    if norm.one is None or norm.other is None or not norm.one > 0 or not norm.other > 0:
        same = norm.one == norm.other
        return 0.0 if same else np.inf
    return abs(float(np.log(norm.other / norm.one)))


def _number(value: float | None) -> str:
    return "–" if value is None else number(value, 4)


def _ratio(norm: Norm) -> str:
    known = norm.one and norm.other is not None and np.isfinite([norm.one, norm.other]).all()
    return f"{norm.other / norm.one:.4g}" if known and norm.one and norm.other is not None else ""


def _counts(found: Difference) -> Iterator[Text]:
    yield Text.assemble(
        ("the runs are the same" if found.same else "the runs differ", "bold"),
        f" · {plural(found.compared, 'value')} compared, {found.unknown:,} not recorded",
    )
    one, other = found.passes
    if one != other and " pass " not in found.names[0]:
        yield Text(f"one has {plural(one, 'pass', 'passes')}, the other {other:,}")


def difference_json(found: Difference) -> dict[str, Any]:
    """The difference as plain data."""
    return {
        "runs": list(found.names),
        "same": found.same,
        "forward": _parting_json(found.forward, found),
        "backward": _parting_json(found.backward, found),
        "changes": [plain_data(change, finite_number) for change in found.changes],
        "source": [
            {
                "file": lines.file,
                "other_file": lines.other_file,
                "line": lines.one,
                "other_line": lines.other,
                "before": list(lines.before),
                "after": list(lines.after),
            }
            for lines in found.lines
        ],
        "norms": [plain_data(norm, finite_number) for norm in found.norms],
        "passes": list(found.passes),
        "compared": found.compared,
        "not_recorded": found.unknown,
    }


def _parting_json(parting: Parting | None, found: Difference) -> dict[str, Any] | None:
    if parting is None:
        return None
    lines = found.lines[parting.line] if parting.line is not None else None
    return {
        "one": spot_json(parting.one),
        "other": spot_json(parting.other),
        "apart": finite_number(parting.apart),
        "pass": parting.number or None,
        "definition": parting.definition or None,
        "changed_line": None if lines is None else lines.one,
        "changed_line_other": None if lines is None else lines.other,
    }


def spot_json(spot: Spot | None) -> dict[str, Any] | None:
    """An item of a run as plain data; events count from 1."""
    if spot is None:
        return None
    return {
        "event": spot.event + 1,
        "file": spot.site.place.file if spot.site is not None else None,
        "line": spot.site.place.line if spot.site is not None else None,
        "what": spot.what,
        "value": spot.value,
    }


def plain_data(value: Any, of_number: Callable[[float], Any] = json_number) -> Any:
    """A result of a comparison by its fields; items of a run as by `spot_json`."""
    if isinstance(value, Spot):
        return spot_json(value)
    if is_dataclass(value):
        return {field.name: plain_data(getattr(value, field.name), of_number) for field in fields(value)}
    if isinstance(value, tuple):
        return [plain_data(part, of_number) for part in value]
    return of_number(value) if isinstance(value, float) else value
