"""Ways to damage what a trace means: events are changed so that lengths, counts, distances and tables still agree."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from random import Random

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.tracefile.database import ELEMENTS, NO_VALUE, STATS
from tests.damage.decoded import FORM, TENSOR, VERSION, WHAT, Happening, Run
from tests.damage.ways import run, way

_MEANINGS = ("tensor", "tensor", "tensor", "node", "node", "scope", "pass", "text")
_NUMBERS = (0, 1, 2, 2**16, 2**28, 2**31, 2**32 - 1)
_DTYPES = (
    "float64",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "uint8",
    "bool",
    "complex64",
    "complex128",
    "float8_e4m3fn",
)
_SHAPES = ([], [0], [1], [2, 0, 3], [4, 1], [1] * 30, [3] * 3, [2, 2], [1 << 20, 1 << 20])
_SETTINGS = (
    "[]",
    "{}",
    "7",
    '"x"',
    "null",
    '{"lr": "fast"}',
    '{"lr": -1.0, "momentum": null}',
    "[0.1, []]",
    "[1e308, 5]",
)
_WORDS = ("Parameter", "empty", "earlier", "add", "to", "AccumulateGrad", "SGD", "module")
_NAMES = ("[]", '["a", "b", "c"]', '[""]', json.dumps(["a.b.c" * 50]))
_SPECIAL = (float("nan"), float("inf"), -float("inf"), 1e308, -1e308, 5e-324, -0.0, 3e38, 1e-45)


def _numbers_of(rng: Random, chosen: Run) -> str:
    """A meaning that some numbers of a run have."""
    return rng.choice([means for means in _MEANINGS if chosen.places(means)])


# --- numbers


@way("meaning: numbers")
def swapped_numbers(rng: Random, path: Path) -> None:
    """Two events name each other's tensors, nodes, scopes, passes or texts."""
    with Run(path) as chosen:
        places = chosen.places(_numbers_of(rng, chosen))
        for _ in range(rng.choice([1, 1, 3, 30])):
            (one, at), (other, there) = rng.choice(places), rng.choice(places)
            one[at], other[there] = other[there], one[at]


_TOLD: dict[str, tuple[tuple[str, str], ...]] = {
    "tensor": (("parameters", "tensor"), ("variables", "tensor")),
    "node": (("errors", "node"),),
    "pass": (("passes", "number"),),
}


@way("meaning: numbers")
def shifted_numbers(rng: Random, path: Path) -> None:
    """All numbers of tensors, nodes, scopes or passes are higher, by as much everywhere."""
    means = rng.choice(["tensor", "node", "scope", "pass"])
    shift(path, means, rng.choice([8, 1000, 2**20, 2**28, 2**31, 2**31 + 2**30]))


def shift(path: Path, means: str, by: int) -> None:
    """Make all numbers of tensors, nodes, scopes or passes higher, everywhere."""
    with Run(path) as chosen:
        for numbers, at in chosen.places(means):
            numbers[at] += by if numbers[at] else 0
        for table, name in _TOLD.get(means, ()):  # from the highest on, so that no two are alike meanwhile
            run(path, f"UPDATE {table} SET {name} = -{name} - {by}", f"UPDATE {table} SET {name} = -{name}")


@way("meaning: numbers")
def scattered_numbers(rng: Random, path: Path) -> None:
    """Some numbers are far from all others, or those of something else, at all of their events."""
    with Run(path) as chosen:
        places = chosen.places(_numbers_of(rng, chosen))
        known = sorted({numbers[at] for numbers, at in places})
        moved = {number: rng.choice([*_NUMBERS, *known]) for number in rng.sample(known, rng.randint(1, len(known)))}
        for numbers, at in places:
            numbers[at] = moved.get(numbers[at], numbers[at])


@way("meaning: links")
def things_that_name_themselves(rng: Random, path: Path) -> None:
    """All tensors or nodes that an event names are the same one."""
    with Run(path) as chosen:
        means = rng.choice(["tensor", "tensor", "node"])
        events = [event for event in chosen.events if len(list(event.places(means))) > 1]
        if not events:
            return
        kind = rng.choice(sorted({event.kind for event in events}))
        own = [event for event in events if event.kind == kind]
        for event in own if rng.random() < 0.5 else rng.sample(own, 1):
            places = list(event.places(means))
            numbers, at = rng.choice(places)
            for others, there in places:
                others[there] = numbers[at]


@way("meaning: links")
def things_in_circles(rng: Random, path: Path) -> None:
    """Each event of a kind names what the next one names, and the last what the first one does."""
    with Run(path) as chosen:
        kind = rng.choice(
            [
                Kind.TENSOR,
                Kind.TENSOR,
                Kind.OP,
                Kind.NODE,
                Kind.PRODUCED,
                Kind.MUTATED,
                Kind.GRAD_ASSIGNED,
                Kind.ACCUMULATED,
            ]
        )
        means = "node" if kind in (Kind.NODE, Kind.PRODUCED) else "tensor"
        events = chosen.of(kind)
        first = [next(iter(event.places(means)), None) for event in events]
        numbers = [0 if place is None else place[0][place[1]] for place in first]
        for event, number in zip(events, numbers[1:] + numbers[:1], strict=True):
            for others, at in list(event.places(means))[1:]:
                if others[at] == 0 or rng.random() < 0.7:
                    others[at] = number
            if kind == Kind.TENSOR:
                event.columns[2] = number


@way("meaning: links")
def views_in_circles(rng: Random, path: Path) -> None:
    """Tensors are views of those that were made after them."""
    with Run(path) as chosen:
        states = [numbers for event in chosen.events for numbers, _ in event.states]
        tensors = sorted({numbers[TENSOR] for numbers in states})
        after = dict(zip(tensors, tensors[1:] + tensors[:1], strict=True))
        for numbers in states:
            numbers[2] = after[numbers[TENSOR]]
            numbers[WHAT] |= rng.choice([0, 4, 12])


@way("meaning: links")
def other_earlier_events(rng: Random, path: Path) -> None:
    """Nodes and mutations come from other ops, or from events that are none."""
    with Run(path) as chosen:
        targets = chosen.of(Kind.OP) if rng.random() < 0.8 else chosen.events
        for event in chosen.of(Kind.NODE, Kind.MUTATED):
            if rng.random() < 0.5:
                event.target = rng.choice([None, rng.choice(targets)])


# --- lists


@way("meaning: lists")
@way("meaning: lists")
def lists_of_other_lengths(rng: Random, path: Path) -> None:
    """Lists are empty, shorter, longer or twice as long, and say so."""
    with Run(path) as chosen:
        kind = rng.choice(sorted({event.kind for event in chosen.events if event.lists}))
        own = chosen.of(kind)
        which = rng.randrange(len(own[0].lists))
        width = own[0].layout.lists[which].width
        change = rng.choice(["empty", "shorter", "longer", "double", "long", "reversed"])
        for event in own if rng.random() < 0.5 else rng.sample(own, 1):
            numbers = event.lists[which]
            numbers[:] = {
                "empty": [],
                "shorter": numbers[:-width],
                "longer": numbers + (numbers[-width:] or [0] * width),
                "double": numbers * 2,
                "long": (numbers or [0] * width) * _times(len(numbers), len(own)),
                "reversed": numbers[::-1],
            }[change]


def _times(numbers: int, lists: int) -> int:
    """How often numbers are repeated: long in sum, and no longer than the mutation itself can hold."""
    return max(2, min(40_000 // lists, 4_000_000 // max(1, numbers)))


# --- events


@way("meaning: events")
def events_of_a_kind_alike(rng: Random, path: Path) -> None:
    """Events are of a kind that is packed in the same way."""
    with Run(path) as chosen:
        for _ in range(rng.choice([1, 5, 100])):
            event = rng.choice(chosen.events)
            alike = [kind for kind in Kind if _packing(event, kind) == _packing(event, event.kind)]
            event.kind = rng.choice(alike)


def _packing(event: Happening, kind: Kind) -> list[object]:
    from gradviz.events.event_layout import LAYOUTS

    layout = LAYOUTS[kind]
    single = [declared.stored.how for declared in (*layout.columns, *layout.more)]
    return [*single, *(declared.width for declared in layout.lists)]


@way("meaning: events")
def other_flags_and_threads(rng: Random, path: Path) -> None:
    """Flags of events are others, or events happen on other threads."""
    with Run(path) as chosen:
        flags = rng.randrange(256) << 8 if rng.random() < 0.6 else 0
        for event in chosen.events if rng.random() < 0.3 else rng.sample(chosen.events, min(9, len(chosen.events))):
            event.head ^= flags
            if not flags:
                event.head = event.head & 0xFFFF | rng.choice([0, 1, 2, 65535]) << 16


@way("meaning: events")
def other_sites(rng: Random, path: Path) -> None:
    """Events are at each other's places, or at none."""
    with Run(path) as chosen:
        sites = [event.site for event in chosen.events]
        for event in chosen.events:
            if rng.random() < 0.3:
                event.site = rng.choice([0, rng.choice(sites)])


@way("meaning: events")
def events_elsewhere(rng: Random, path: Path) -> None:
    """Events happen earlier or later, or the other way round."""
    with Run(path) as chosen:
        kinds = rng.choice(
            [
                tuple(Kind),
                (Kind.PASS_BEGAN, Kind.PASS_ENDED),
                (Kind.SCOPE_ENTERED, Kind.SCOPE_LEFT),
                (Kind.RECEIVED, Kind.PRODUCED),
            ]
        )
        if rng.random() < 0.1:
            chosen.events.reverse()
        for event in rng.sample(own := chosen.of(*kinds), min(len(own), rng.choice([1, 2, 20]))):
            chosen.events.remove(event)
            chosen.events.insert(rng.randint(0, len(chosen.events)), event)


@way("meaning: events")
def events_that_are_missing(rng: Random, path: Path) -> None:
    """Events of a kind did not happen."""
    with Run(path) as chosen:
        own = chosen.of(rng.choice(sorted({event.kind for event in chosen.events})))
        for event in own if rng.random() < 0.4 and len(own) < len(chosen.events) else rng.sample(own, 1):
            chosen.events.remove(event)


@way("meaning: events")
def events_that_happen_again(rng: Random, path: Path) -> None:
    """Events happen twice, or thousands of times."""
    with Run(path) as chosen:
        own = chosen.of(rng.choice(sorted({event.kind for event in chosen.events})))
        for event in rng.sample(own, min(len(own), rng.choice([1, 3]))):
            at = chosen.events.index(event) + 1
            chosen.events[at:at] = [event.again() for _ in range(rng.choice([1, 10, 3000]))]


@way("meaning: events")
def much_within_much(rng: Random, path: Path) -> None:
    """Thousands of scopes, passes or nodes, one in the other or one after the other."""
    count, start = rng.choice([300, 5000, 20_000]), rng.choice([2**20, 0])
    pair = rng.choice(
        [
            (Kind.SCOPE_ENTERED, Kind.SCOPE_LEFT),
            (Kind.SCOPE_ENTERED, Kind.SCOPE_LEFT),
            (Kind.PASS_BEGAN, Kind.PASS_ENDED),
            (Kind.RECEIVED, Kind.PRODUCED),
            (Kind.NODE, Kind.OP),
        ]
    )
    with Run(path) as chosen:
        ends = [[event for event in chosen.events if event.kind == kind] for kind in pair]
        if not all(ends):
            return
        new = [[rng.choice(own).again() for _ in range(count)] for own in ends]
        texts = sorted({numbers[at] for numbers, at in chosen.places("text")})
        for number in range(count):
            for own in new:
                own[number].columns[0] = start + number
            if rng.random() < 0.9 and pair[0] == Kind.SCOPE_ENTERED:
                new[0][number].columns[2] = rng.choice(texts)
        at = rng.randint(0, len(chosen.events))
        if rng.random() < 0.5:
            chosen.events[at:at] = [event for both in zip(*new, strict=True) for event in both]
        else:
            later = rng.randint(at, len(chosen.events))
            chosen.events[later:later] = reversed(new[1])
            chosen.events[at:at] = new[0]


@way("meaning: events")
def other_times(rng: Random, path: Path) -> None:
    """Time goes backwards, or is none."""
    with Run(path) as chosen:
        for event in chosen.of(Kind.PASS_BEGAN, Kind.STEPPED, Kind.COMPARED):
            if event.more and rng.random() < 0.7:
                event.more[:2] = struct.unpack("<2I", struct.pack("<d", rng.choice([*_SPECIAL, 0.0, rng.random()])))
        run(path, f"UPDATE chunks SET time = {rng.choice(['-time', '1e308', '0', '9 - id'])}")


# --- states and values


@way("meaning: states")
@way("meaning: states")
def other_forms_that_fit(rng: Random, path: Path) -> None:
    """Tensors have another shape or dtype, and values as long as it needs."""
    with Run(path) as chosen:
        form = rng.choice(sorted(chosen.forms))
        dtype, shape = rng.choice([chosen.forms[form], *_DTYPES]), rng.choice([None, *_SHAPES])
        statement = f"UPDATE forms SET dtype = '{dtype}'" + (
            f", shape = '{json.dumps(shape)}'" if shape is not None else ""
        )
        run(path, f"{statement} WHERE id = {form}")
        size = chosen.size_of(form, shape)
        chosen.forms[form] = dtype
        for event in chosen.events:
            event.states = [
                (numbers, _as_long(numbers, value, size * _bytes(dtype)) if numbers[FORM] == form else value)
                for numbers, value in event.states
            ]


def _bytes(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else 1 if dtype.startswith("float8") else np.dtype(dtype).itemsize


def _as_long(numbers: list[int], value: bytes, length: int) -> bytes:
    if numbers[WHAT] >> 8 != ELEMENTS:
        return value
    if length > 1 << 20:
        numbers[WHAT] &= 0xFF
        return b""
    return (value * (length // max(len(value), 1) + 1))[:length].ljust(length, b"\x3f")


@way("meaning: states")
def other_grades_and_flags(rng: Random, path: Path) -> None:
    """Values are not kept, or statistics in their place; flags and versions are others; states are lost."""
    with Run(path) as chosen:
        share = rng.choice([0.05, 0.5, 1.0])
        change = rng.choice(["none", "stats", "flags", "version", "lost", "twice", "formless"])
        for event in chosen.events:
            for at, (numbers, value) in list(enumerate(event.states)):
                if rng.random() > share:
                    continue
                flags = numbers[WHAT] & 0xFF
                if change == "none" or (change == "formless" and at):
                    numbers[WHAT], value = flags | NO_VALUE << 8, b""
                    numbers[FORM] *= change == "none"
                elif change == "stats" and numbers[FORM]:
                    numbers[WHAT] = flags | STATS << 8
                    value = struct.pack("<7d", *(rng.choice([*_SPECIAL, 0.0, 1.0, -5.0]) for _ in range(7)))
                elif change == "flags":
                    numbers[WHAT] ^= rng.randrange(16)
                elif change == "version":
                    numbers[VERSION] = rng.choice([*_NUMBERS, numbers[VERSION] + 1])
                event.states[at] = numbers, value
            if change == "lost" and rng.random() < share:
                event.states = event.states[1:]
            elif change == "twice" and rng.random() < share:
                event.states = event.states * 2


@way("meaning: states")
def special_elements(rng: Random, path: Path) -> None:
    """Elements and statistics are NaN, infinite, huge or next to nothing."""
    with Run(path) as chosen:
        share = rng.choice([0.02, 0.3, 1.0])
        for event in chosen.events:
            for at, (numbers, value) in enumerate(event.states):
                if value and rng.random() < share:
                    code = "<f" if numbers[WHAT] >> 8 == ELEMENTS and not len(value) % 4 else "<d"
                    special = rng.choice(_SPECIAL)
                    one = struct.pack(
                        code,
                        special
                        if code == "<d" or abs(special) < 3.4e38 or special in (float("inf"), -float("inf"))
                        else float("nan"),
                    )
                    event.states[at] = numbers, (one * (len(value) // len(one) + 1))[: len(value)]


# --- tables


@way("meaning: tables")
def other_parents_of_sites(rng: Random, path: Path) -> None:
    """Places are called from others: all from one, each from the one before, or from any."""
    parent = rng.choice(["id - 1", "1", "id", "id + 1", f"{rng.randrange(1000)} % id", "0"])
    run(path, f"UPDATE sites SET parent = {parent}" + rng.choice(["", " WHERE id % 2"]))


@way("meaning: tables")
def texts_of_others(rng: Random, path: Path) -> None:
    """Texts, rules, settings and names are those of others, or of another sort."""
    run(
        path,
        rng.choice(
            [
                "UPDATE strings SET text = (SELECT text FROM strings LIMIT 1 OFFSET "
                f"{rng.randrange(9)}) WHERE id % 3 = 1",
                f"UPDATE strings SET text = '{rng.choice(_SETTINGS)}' WHERE text LIKE '{{%' OR text LIKE '[%'",
                f"UPDATE strings SET text = '{rng.choice(_WORDS)}' WHERE id % {rng.choice([1, 2, 5])} = 0",
                f"UPDATE rules SET inputs = (SELECT inputs FROM rules LIMIT 1 OFFSET {rng.randrange(9)})",
                "UPDATE rules SET inputs = '[]'",
                f'UPDATE rules SET inputs = \'[["x", "{rng.choice(["", "g", "((((", "g * x ** " * 50])}"]]\'',
                "UPDATE parameters SET name = (SELECT name FROM parameters LIMIT 1)",
                "UPDATE parameters SET name = name || '.' || name || '.0.1'",
                "UPDATE parameters SET role = 'buffer'",
                f"UPDATE sites SET names = '{rng.choice(_NAMES)}'",
                "UPDATE sites SET line = 1, col = 0, end_line = 900, end_col = 900",
                "UPDATE sites SET end_line = line - 1, end_col = 0",
                "UPDATE sources SET text = ''",
                "UPDATE sites SET library = 1 - library",
                "UPDATE passes SET digest = ''",
                "UPDATE passes SET nodes = 0, recorded = 1 - recorded",
            ]
        ),
    )
