"""How events are packed: what goes in comes out, one by one and in bulk, and by hand as by the table."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradviz.events.event_layout import COLUMNS, LAYOUTS, ROW, LayoutError
from gradviz.events.field_types import ELEMENTS, Edge, Rule, Saved
from gradviz.events.kinds import EVENTS, Event, Kind
from gradviz.events.listener import Listener, State
from gradviz.tracefile import Recorder, open_trace
from gradviz.tracefile.database import TABLES
from tests.events.event_table import markdown

DOCUMENTATION = Path(__file__).parents[2] / "docs/trace-format.md"

NUMBER = st.integers(0, 2**32 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
PARTS = {"settings": TEXT}
RULES = st.builds(Rule, st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple), st.booleans())


class Table:
    """Gives numbers to texts and rules, and knows what they stand for."""

    def __init__(self) -> None:
        self.known: list[Any] = []

    def text(self, what: Any) -> Any:
        if isinstance(what, int):
            return self.known[what]
        self.known.append(what)
        return len(self.known) - 1

    rule = text

    def in_pass(self, number: int) -> int:
        return number

    def earlier(self, event: int | None) -> int:
        return 0 if event is None or event < 0 else INDEX - event


INDEX = 2**31


def values_of(kind: Kind) -> st.SearchStrategy[tuple]:
    """Any values that the fields of a kind can have."""

    def one(stored: Any) -> st.SearchStrategy:
        simple = {
            "number": NUMBER, "pass": NUMBER, "text": TEXT, "rule": RULES, "flag": st.booleans(),
            "time": st.floats(allow_nan=False), "back": st.integers(0, INDEX - 1) | st.just(-1),
        }  # fmt: skip
        if stored.how != "list":
            return simple[stored.how]
        if len(stored.parts) == 1:
            return st.lists(NUMBER, max_size=4).map(tuple)
        part = st.tuples(*(PARTS.get(name, NUMBER) for name in stored.parts))
        return st.lists(part.map(lambda told: ELEMENTS[stored.means](*told)), max_size=4).map(tuple)

    return st.tuples(*(one(field.stored) for field in LAYOUTS[kind].fields.values()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(Kind))
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_what_is_packed_is_unpacked_alone_and_in_bulk(kind: Kind, data: st.DataObject) -> None:
    layout, table = LAYOUTS[kind], Table()
    told = data.draw(st.lists(values_of(kind), min_size=1, max_size=4))
    packed = [layout.pack(values, table, 3 << 16, 7) for values in told]
    rows = np.frombuffer(b"".join(row for row, _ in packed), ROW)
    own = [np.frombuffer(links, "<u4").tolist() for _, links in packed]
    assert rows["links"].tolist() == [len(links) for links in own]
    alone = [layout.unpack(INDEX, row, links, table) for row, links in zip(rows, own, strict=True)]
    names = list(layout.fields)
    expected = [dict(zip(names, values, strict=True)) for values in told]
    assert [{name: getattr(event, name) for name in names} for event in alone] == expected
    assert {(event.thread, event.site, event.index) for event in alone} == {(3, 7, INDEX)}
    links = np.frombuffer(b"".join(links for _, links in packed), "<u4")
    counts = rows["links"].astype(np.int64)
    bulk = layout.decoded(rows, links, counts, np.full(len(told), INDEX), table)
    assert {name: list(map(tuple_of, bulk[name])) for name in names} == {
        name: [tuple_of(values[name]) for values in expected] for name in names
    }


def tuple_of(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@pytest.mark.parametrize("kind", [kind for kind in Kind if LAYOUTS[kind].lists])
def test_links_that_do_not_fit_are_refused(kind: Kind) -> None:
    layout = LAYOUTS[kind]
    last = layout.lists[-1]
    too_few = [[0] * (layout.head - 1)] if layout.head else []
    too_many = [[0] * layout.head + [7] * (last.width - 1)] if last.width > 1 else []
    longer_than_all = [[2**31] * layout.head] if len(layout.lists) > 1 else []
    for links in (*too_few, *too_many, *longer_than_all):
        with pytest.raises(LayoutError):
            layout.stretches(np.array(links, "<u4"), np.array([len(links)]))


def test_every_kind_is_declared_with_fields_that_have_words() -> None:
    assert set(EVENTS) == set(Kind)
    for kind, layout in LAYOUTS.items():
        assert all(field.doc for field in layout.fields.values()), kind
        assert len(layout.flags) <= 7  # the last bit of a PASS_BEGAN is the recorder's
        assert {field.name for field in fields(EVENTS[kind])} == {
            *layout.fields, *(field.name for field in fields(Event)),
        }  # fmt: skip
    assert ROW.names[2:6] == COLUMNS


# --- the packers that are written by hand


class ByTable(Recorder):
    """Packs every event as the table says."""

    op, node, differentiated = Listener.op, Listener.node, Listener.differentiated
    nodes_made = Listener.nodes_made
    received, produced, ran, leaf_ran = Listener.received, Listener.produced, Listener.ran, Listener.leaf_ran
    scope_entered, scope_left = Listener.scope_entered, Listener.scope_left
    all_mutated, grads_dropped = Listener.all_mutated, Listener.grads_dropped


RULE = Rule((("x", "cos(x)"),), True)


def frequent_events(listener: Recorder) -> None:
    """Each event that has a packer of its own, in each of its forms."""
    value = np.arange(3, dtype=np.float32)
    large, whole = np.ones(200, np.float32), np.arange(4)
    listener.tensor(None, "made", State(1, value, 3))
    listener.op(None, "sin", "", RULE, 0, True, [1], [2], [value], [2], [0], [0])
    listener.op(None, "max", "dim=1", RULE, 0, False, [1, 0], [3, 4], [large, whole], [2, 1], [0, 0], [0, 1])
    listener.node(None, 9, "MaxBackward0", -1, RULE, [3, 0], [Edge(5, 1, 1), Edge(0, 0, 0)], [Saved(1, 0)])
    listener.differentiated(None, "mul", "", RULE, 0, (1, 2), 5, large, 2, 0, 0, 10, "MulBackward0",
                            (5, 0, 1, 9, 1, 2), (1, 0, 2, 0))  # fmt: skip
    listener.differentiated(None, "exp", "k=1", RULE, 77, (1,), 6, value, 6, 3, 1, 11, "ExpBackward0", (5, 0, 1), ())
    listener.op(None, "unbind", "", RULE, 0, True, [1], [7, 8], [value, large], [2, 2], [0, 0], [1, 1])
    listener.nodes_made(
        None,
        [
            (14, "ViewBackward0", RULE, (0,), (5, 0, 1), ()),
            (15, "UnbindBackward0", RULE, (7, 8), (14, 0, 0, 0, 0, 0), (1, 0, 2, 1)),
        ],
    )
    listener.scope_entered(None, 1, "module", "net", "Net", True)
    listener.scope_entered(None, 2, "function", "Exp", "Exp")
    listener.scope_left(2)
    listener.scope_left(1)
    listener.pass_began(None, 77, "backward", 1.5, True, False, [], [])
    listener.received(10, "MulBackward0", 77, [7], [value])
    listener.produced(10, 77, [9, 8, 5, 9], [large, None])
    listener.ran(11, "ExpBackward0", 77, 8, None, [10, 9], [value])
    listener.ran(12, "SubBackward0", 77, 9, value, [10, 9, 0, 0], [large, None])
    listener.leaf_ran(1, 13, 77, 9, State(9, value, 3, 1))
    listener.leaf_ran(1, 13, 77, 9, State(14, large, 3))
    listener.all_mutated(None, "AdamW", [State(1, value, 3, 2, 0), State(3, large, 7, 1, 1), State(4, None)])
    listener.all_mutated(None, "zero_", [State(1, value, 3, 3, 0)], 77)
    listener.grads_dropped(None, [1, 3])
    listener.grads_dropped(None, [])
    listener.op(None, "inside", "", RULE, 77, True, [], [], [], [], [], [])
    listener.pass_ended(77)


@pytest.mark.parametrize("values", ["none", "stats", "full"])
def test_packers_by_hand_write_the_same_bytes_as_the_table(values: str, tmp_path: Path) -> None:
    found = []
    for make in (Recorder, ByTable):
        path = tmp_path / f"{make.__name__}.gradviz"
        recorder = make(path, values=values)
        frequent_events(recorder)
        recorder.close()
        with open_trace(path) as trace:
            if values == "none":  # gradients have no state, unless they are told as any other
                kept = ~np.isin(trace.kinds[trace.states.events], [Kind.RECEIVED, Kind.PRODUCED])
            else:
                kept = np.ones(len(trace.states), bool)
            states = [
                (int(t), int(e), int(f), trace.states.form(int(row)))
                for row, (t, e, f) in enumerate(
                    zip(trace.states.tensors, trace.states.events, trace.states.flags, strict=True)
                )
                if kept[row]
            ]
            links = [trace.table(kind)._links(trace.table(kind).events)[0].tobytes() for kind in Kind]
            found.append((trace.events.tobytes(), links, states, list(trace), trace.strings, trace.rules))
    assert found[0] == found[1]


def test_the_documentation_has_the_table_of_events() -> None:
    assert markdown() in DOCUMENTATION.read_text()


def test_the_documentation_names_every_table_and_column_of_the_file() -> None:
    file = DOCUMENTATION.read_text().partition("## The file")[2].partition("## The table of events")[0]
    for table, columns in re.findall(r"CREATE TABLE (\w+) \((.*?)\n?\)(?: WITHOUT ROWID)?;", TABLES, re.DOTALL):
        rows = [row for row in file.splitlines() if row.startswith("| ") and f"`{table}`" in row.split("|")[1]]
        assert len(rows) == 1, table
        for column in re.findall(r"(\w+) (?:INTEGER|TEXT|BLOB|REAL)", columns):
            assert f"`{column}`" in rows[0] or f"`{column}` " in rows[0] or column in rows[0], (table, column)
