"""The fields of predicates in one table, both for a recorded trace and for the present event of a running program."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query.predicate_columns import STATISTICS, STORED, Column, Rows, TraceColumns
from gradviz.sets import contained

NUMBER, TEXT, FLAG = "number", "text", "flag"
EVERYWHERE = frozenset(Kind)
_MADE = frozenset((Kind.OP, Kind.TENSOR, Kind.MUTATED))
_GRADIENTS = frozenset(
    (Kind.RECEIVED, Kind.PRODUCED, Kind.HOOKED, Kind.ACCUMULATED, Kind.RETAINED, Kind.GRAD_ASSIGNED)
)
_AT_NODE = (Kind.NODE, Kind.RECEIVED, Kind.PRODUCED)
_KEPT = 3  # the most columns kept in memory


class Now(Protocol):
    """The event that has just happened in a running program."""

    kind: Kind
    index: int

    def text(self, field: str, *kinds: Kind) -> str:
        """A text field of the event; empty if the event is of another kind."""

    def values(self, tensors: str) -> list[Any]:
        """The values of the tensors `out`, `in`, `grad` or `tangent`."""

    def has_bad(self, statistic: str) -> bool:
        """Whether a value or gradient of the event has a NaN (`nan`) or an infinity (`inf`)."""

    @property
    def grad_fn(self) -> str:
        """The name of the node that the event made, or at which it happened."""

    def names(self, only_parameters: bool) -> Iterable[str]:
        """The names of the tensors that the event is about."""

    def shapes(self) -> Iterable[str]:
        """The shapes of the tensors that the event made or changed in place."""

    def lines(self) -> Iterable[int]:
        """The lines of the event: its own line and those of the calls around it."""

    @property
    def file(self) -> str:
        """The name of the source file of the event."""

    @property
    def scope(self) -> str:
        """The innermost scope of the event."""

    def versions(self) -> Iterable[int]:
        """The versions that the event produced."""

    @property
    def in_pass(self) -> int:
        """The backward pass of the event; 0 if none."""

    @property
    def depth(self) -> int:
        """The number of scopes and passes around the event."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field: its type (NUMBER, TEXT or FLAG), its help text, its values over a trace, its values at the
    present event, and the kinds of events that may have a value."""

    type: str
    doc: str
    column: Callable[[TraceColumns], Column]
    now: Callable[[Now], Iterable[Any]]
    where: frozenset[Kind] = EVERYWHERE


@dataclass(frozen=True, slots=True)
class Tensors:
    """Tensors whose statistics are fields: `out.rms`."""

    doc: str
    rows: Callable[[TraceColumns], Rows]
    where: frozenset[Kind]


TENSORS: dict[str, Tensors] = {
    "out": Tensors(
        "what the event made or changed in place: an op's outputs, a new tensor, a mutated one",
        lambda c: c.outputs,
        _MADE,
    ),
    "in": Tensors("the inputs of an op", lambda c: c.inputs, frozenset((Kind.OP,))),
    "grad": Tensors(
        "the gradients of the event: received, produced, accumulated, retained, assigned",
        lambda c: c.gradients,
        _GRADIENTS,
    ),
    "tangent": Tensors("the tangent that was pushed", lambda c: c.tangents, frozenset((Kind.TANGENT,))),
}


def _text(doc: str, name: str, *kinds: Kind) -> Field:
    """A field that is a text field of events."""
    return Field(
        TEXT, doc, lambda c: c.text(name, *kinds), lambda now: (now.text(name, *kinds),), frozenset(kinds)
    )


def _of_kind(doc: str, kind: Kind) -> Field:
    """A field that is true at the events of a kind."""
    return Field(FLAG, doc, lambda c: c.of_kind(kind), lambda now: (now.kind == kind,), frozenset((kind,)))


def _numbers(values: np.ndarray) -> Column:
    return Column(values.astype(np.float64))


FIELDS: dict[str, Field] = {
    "line": Field(NUMBER, "the line in the source", TraceColumns.lines, lambda now: now.lines()),
    "event": Field(
        NUMBER,
        "the event's number, from 1",
        lambda c: _numbers(np.arange(1, c.count + 1)),
        lambda now: (now.index + 1,),
    ),
    "pass": Field(
        NUMBER,
        "the backward pass, 0 in forward",
        lambda c: _numbers(c.passes),
        lambda now: (now.in_pass,),
    ),
    "version": Field(
        NUMBER,
        "the version that a write made",
        TraceColumns.versions,
        lambda now: now.versions(),
        _MADE,
    ),
    "depth": Field(
        NUMBER,
        "the number of scopes and passes around the event",
        lambda c: _numbers(c.query.scopes.depths),
        lambda now: (now.depth,),
    ),
    "op": _text("the op's name", "op", Kind.OP, Kind.KERNEL),
    "grad_fn": Field(
        TEXT,
        "the node's name",
        lambda c: c.grad_fns,
        lambda now: (now.grad_fn,),
        frozenset(_AT_NODE),
    ),
    "kind": Field(TEXT, "the kind of the event", lambda c: c.kinds, lambda now: (now.kind.name.lower(),)),
    "name": Field(
        TEXT,
        "the name of the tensor that the event is about",
        lambda c: c.names(False),
        lambda now: now.names(False),
    ),
    "parameter": Field(
        TEXT, "the same, but only of parameters", lambda c: c.names(True), lambda now: now.names(True)
    ),
    "file": Field(TEXT, "the source file's name", TraceColumns.files, lambda now: (now.file,)),
    "scope": Field(TEXT, "the module or custom Function", TraceColumns.scopes, lambda now: (now.scope,)),
    "hook": _text("the hook's name", "hook", Kind.HOOKED),
    "how": _text(
        "the maker or writer (ones, SGD)", "how", Kind.TENSOR, Kind.MUTATED, Kind.PASS_BEGAN, Kind.TANGENT
    ),
    "shape": Field(
        TEXT, "the shape of a new tensor, as 8x3", TraceColumns.shapes, lambda now: now.shapes(), _MADE
    ),
    "nan": Field(
        FLAG,
        "a value or gradient of the event has a NaN",
        lambda c: c.bad("nan"),
        lambda now: (now.has_bad("nan"),),
    ),
    "inf": Field(FLAG, "... or an infinity", lambda c: c.bad("inf"), lambda now: (now.has_bad("inf"),)),
    "mutation": Field(
        FLAG,
        "a tensor was changed in place",
        lambda c: Column(contained(np.arange(c.count), c.query.tensors.all_writes[0])),
        lambda now: (now.kind == Kind.MUTATED or any(now.versions()),),
        _MADE,
    ),
    "forward": Field(
        FLAG, "outside of any backward pass", lambda c: Column(c.passes == 0), lambda now: (not now.in_pass,)
    ),
    "backward": Field(
        FLAG, "inside a backward pass", lambda c: Column(c.passes > 0), lambda now: (bool(now.in_pass),)
    ),
    "error": _of_kind("an exception left a backward pass or ended the script", Kind.ERROR),
}
# The fields that can be known only if values were recorded.
FIELDS_OF_VALUES = {
    "nan",
    "inf",
    *(f"{tensors}.{statistic}" for tensors in TENSORS for statistic in (*STORED, "absmax")),
}
NAMES = (*(f"{tensors}.{statistic}" for tensors in TENSORS for statistic in STATISTICS), *FIELDS)


def type_of(name: str) -> str:
    """The type of a field: NUMBER, TEXT or FLAG."""
    return FIELDS[name].type if name in FIELDS else NUMBER


def where(name: str) -> frozenset[Kind]:
    """The kinds of events at which a field may have a value; all kinds for an empty name."""
    field = FIELDS.get(name) or TENSORS.get(name.partition(".")[0])
    return EVERYWHERE if field is None else field.where


class TraceFields(TraceColumns):
    """The fields of one trace as columns. Each is built on first use; the last few are kept."""

    def __init__(self, query: Any) -> None:
        super().__init__(query)
        self._columns: OrderedDict[str, Column] = OrderedDict()

    def column(self, name: str) -> Column:
        """The values of a field over the trace."""
        if name not in self._columns:
            tensors, _, statistic = name.partition(".")
            self._columns[name] = (
                self.statistic(TENSORS[tensors].rows(self), statistic)
                if statistic
                else FIELDS[name].column(self)
            )
            while len(self._columns) > _KEPT:
                self._columns.popitem(last=False)
        self._columns.move_to_end(name)
        return self._columns[name]
