"""A run as a sequence of items that can be compared with another run: the computations, and the gradients.

In forward, an item is an op, a new tensor, a change in place, or a step of an optimizer; in backward, a node that ran
or a leaf that accumulated a gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query.flow import reach
from gradviz.query.query import Query
from gradviz.sets import contained, distinct

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
        names = {
            node: self.shared.number(self.query.nodes.name(node))
            for node in distinct(produced["node"]).tolist()
        }
        self._put(
            numbers, Kind.PRODUCED, np.array([names[node] for node in produced["node"].tolist()], np.int64)
        )
        return numbers * 64 + self.kinds

    @cached_property
    def strong(self) -> np.ndarray:
        """As `words`, with the text of the line in the source."""
        sites = self.query.places.of_events[self.events]
        lines = {
            site: self.shared.number(self.query.places.line_text(site)) for site in distinct(sites).tolist()
        }
        table = np.zeros(int(sites.max(initial=0)) + 1, np.int64)
        for site, number in lines.items():
            table[site] = number
        return (self.words << 24) + table[sites]

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
        np.add.at(
            values, outputs.owners, self._forms[self._rows(outputs.values, ops.events[outputs.owners])] << 40
        )
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

    def _rows(self, tensors: np.ndarray, events: np.ndarray) -> np.ndarray:
        return self.trace.states.rows_of(tensors, events)

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
            rows = self._rows(tensors, table.events[owners])
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
        ends = sorted(
            (self.query.passes.last(backward_pass), backward_pass.number)
            for backward_pass in self.trace.passes
        )
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
