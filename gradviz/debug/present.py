"""The event that has just happened, as predicates ask for it: what `TraceFields` is to a whole trace.

What an event does not say itself has to be remembered from earlier ones: how deep a thread is in scopes and passes,
where a node was made, what an older gradient held. The dear parts are remembered only while somebody asks for them
(`asked`); what happened before that is looked up in the trace of the last stop.
"""

from __future__ import annotations

import linecache
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import get_ident
from typing import Any
from weakref import ref

import numpy as np

from gradviz.debug.measures import is_finite, measured
from gradviz.events.kinds import Kind
from gradviz.events.listener import VIEW
from gradviz.graph.memory import REBINDS, WHOLE_VIEWS
from gradviz.words.words import Words
from gradviz.tracefile.sites import Sites

_RUNNING = 1000  # nodes that have received but not produced: one a pass, and passes may nest
_AT_NODE = (Kind.RECEIVED, Kind.PRODUCED)
_GRADIENTS = frozenset(
    (Kind.RECEIVED, Kind.PRODUCED, Kind.HOOKED, Kind.ACCUMULATED, Kind.RETAINED, Kind.GRAD_ASSIGNED)
)
_MADE = frozenset((Kind.OP, Kind.TENSOR, Kind.MUTATED))
_OF_THE_PAST = {"line", "file", "name", "parameter", "in", "grad", "nan", "inf", "memory", "grad_fn"}
EVERYWHERE = frozenset(Kind)
# Which events a field has a value at; all where it is not named.
WHERE: dict[str, frozenset[Kind]] = {
    "op": frozenset((Kind.OP,)),
    "hook": frozenset((Kind.HOOKED,)),
    "how": frozenset((Kind.TENSOR, Kind.MUTATED, Kind.PASS_BEGAN, Kind.TANGENT)),
    "grad_fn": frozenset((Kind.OP, *_AT_NODE)),
    "shape": _MADE,
    "version": frozenset((Kind.MUTATED,)),
    "mutation": frozenset((Kind.MUTATED,)),
    "error": frozenset((Kind.ERROR,)),
    "out": _MADE,
    "in": frozenset((Kind.OP,)),
    "grad": _GRADIENTS,
    "tangent": frozenset((Kind.TANGENT,)),
}


def where(field: str) -> frozenset[Kind]:
    """The kinds of events at which a field may have a value; all for an empty one."""
    return WHERE.get(field.partition(".")[0], EVERYWHERE)


class Numbered:
    """A small number for each of many that count up: four bytes each."""

    def __init__(self) -> None:
        self.first = 0
        self.values = array("I")

    def put(self, number: int, value: int) -> None:
        """Note a number's value. One that comes late and is lower than the first is not kept."""
        if not self.values:
            self.first = number
        missing = number - self.first - len(self.values)
        if missing == 0:
            self.values.append(value)
        elif missing > 0:
            self.values.frombytes(bytes(self.values.itemsize * missing))
            self.values.append(value)
        elif number >= self.first:
            self.values[number - self.first] = value

    def get(self, number: int) -> int:
        """A number's value, 0 where none was noted."""
        at = number - self.first
        return self.values[at] if 0 <= at < len(self.values) else 0


class Present:
    """The event that has just happened. `index` counts from 0; `told` are the tensors whose values it tells, with
    those; `tensors` those that it is about; `gradients` and `inputs` numbers of tensors."""

    def __init__(self, sites: Sites) -> None:
        self.sites = sites
        self.asked: frozenset[str] = frozenset()  # fields
        self.past: Facts | None = None  # the run up to the last stop
        self.kind = Kind.TENSOR
        self.index = 0
        self.site = 0
        self.name = self.grad_fn = ""
        self.node = self.version = self.flags = self.base = 0
        self.told: Sequence[tuple[int, np.ndarray | None]] = ()
        self.tensors: Sequence[int] = ()
        self.gradients: Sequence[int] = ()
        self.inputs: Sequence[int] = ()
        self.nests: dict[
            int, list[tuple[int, str]]
        ] = {}  # by thread: (pass or 0, scope or ""), the innermost last
        self.open_passes: list[int] = []
        self.passes = 0
        self.grads: dict[int, int] = {}  # which tensor is the .grad of which
        self.grad_before = 0  # what was the .grad that this event assigns
        self._values: dict[int, Any] = {}
        self._purge_at = 10_000
        self._bad: dict[int, tuple[bool, bool]] = {}
        self.parameters: dict[int, str] = {}
        self._codes: dict[str, int] = {"": 0}
        self._labels = [""]
        self._grad_fns: dict[int, str] = {}
        self._homes: dict[int, int] = {}
        self._lines: dict[int, frozenset[int]] = {}
        self._newest_past = 0
        self.ask((), None)

    # --- what is remembered

    def remembers(self, kind: Kind) -> bool:
        """Whether an event of a kind has to be shown to `remember`, though nobody asks for it."""
        asked = self.asked
        if kind in _MADE and asked & {"in", "grad", "nan", "inf", "name", "parameter", "memory"}:
            return True
        if kind == Kind.OP:
            return bool(asked & {"line", "file"})
        return kind in _GRADIENTS and bool(asked & {"in", "grad", "nan", "inf", "grad_fn"})

    def ask(self, fields: Iterable[str], past: Facts | None) -> None:
        """Be ready for these fields from now on; `past` is the run up to here."""
        asked = frozenset(field.partition(".")[0] for field in fields)
        past = past if asked & _OF_THE_PAST else None
        self.past = past
        self._newest_past = past.trace.newest if past is not None else 0
        self._newest_node = int(past.trace.node_events[0][-1:].max(initial=0)) if past is not None else 0
        for forgotten in (self._values, self._bad, self._homes):
            forgotten.clear()  # the past knows all of it
        self._node_sites, self._node_names, self._names = Numbered(), Numbered(), Numbered()
        self.asked = asked
        self._keeps_values = bool(asked & {"in", "grad"})
        self._keeps_bad = bool(asked & {"nan", "inf"})
        self._keeps_names = bool(asked & {"name", "parameter"})
        self._keeps_sites = bool(asked & {"line", "file"})
        self._keeps_grad_fns = "grad_fn" in asked
        self._keeps_memory = "memory" in asked

    def remember(self) -> None:
        """Take in the event that is here now."""
        if self._keeps_values:
            self._keep_values()
        if self._keeps_bad:
            for number, values in self.told:
                if values is not None and (number in self._bad or not is_finite(values)):
                    self._note_bad(number, values)
        if self._keeps_names and self.kind in (Kind.OP, Kind.TENSOR):
            self._keep_names()
        if self._keeps_sites and self.kind == Kind.OP and self.node:
            self._node_sites.put(self.node, self.site)
        if self._keeps_grad_fns and self.kind == Kind.RECEIVED:
            if len(self._grad_fns) > _RUNNING:
                self._grad_fns.clear()
            self._grad_fns[self.node] = self.grad_fn
        if self._keeps_memory and self.kind in _MADE:
            self._keep_memory()

    def _keep_values(self) -> None:
        values = self._values
        for number, told in self.told:
            if told is not None:
                values[number] = ref(told) if isinstance(told, np.ndarray) else told
        if len(values) > self._purge_at:
            self._values = {
                n: kept for n, kept in values.items() if not isinstance(kept, ref) or kept() is not None
            }
            self._purge_at = 2 * len(self._values) + 10_000

    def _note_bad(self, number: int, values: np.ndarray) -> None:
        self._bad[number] = bool(np.isnan(values).any()), bool(np.isinf(values).any())

    def _keep_names(self) -> None:
        names = self.sites.site(self.site).names if self.site else ()
        if names and len(names) == max(len(self.tensors), 1):
            for number, name in zip(self.tensors, names, strict=True):
                self._names.put(number, self._code(name))
            if self.node:
                self._node_names.put(self.node, self._code(names[0]))

    def _code(self, name: str) -> int:
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = len(self._labels)
            self._labels.append(name)
        return code

    def _keep_memory(self) -> None:
        """Whose memory a new tensor has, as `graph.memory.Memory` has it."""
        number = self.tensors[0] if self.tensors else 0
        shared = 0
        if self.kind == Kind.TENSOR:
            shared = self.base
        elif self.kind == Kind.OP and self.name in WHOLE_VIEWS and self.flags & VIEW and self.inputs:
            shared = self.inputs[0]
        elif self.kind == Kind.MUTATED and self.name == REBINDS:
            shared = self.inputs[0] or -self.index - 1
        if shared and number:
            self._homes[number] = self.home(shared) if shared > 0 else shared

    def home(self, tensor: int) -> int:
        """Which memory a tensor has: the number of the tensor that it was made for, or below 0."""
        known = self._homes.get(tensor)
        if known is None and (past := self.earlier(tensor)) is not None:
            return past.moments.memory.home(tensor, past.trace.count - 1)
        return tensor if known is None else known

    def written(self) -> int:
        """The tensor whose value this event wrote over, 0 for none."""
        if self.kind == Kind.MUTATED:
            return self.tensors[0]
        return self.gradients[0] if self.kind == Kind.ACCUMULATED else 0

    def earlier(self, tensor: int) -> Facts | None:
        """The past, if it may know a tensor."""
        return self.past if tensor <= self._newest_past else None

    # --- scopes and passes

    def nest(self) -> list[tuple[int, str]]:
        """What this thread is in."""
        return self.nests.setdefault(get_ident(), [])

    @property
    def depth(self) -> int:
        """How many scopes and passes the event lies in; one that begins or ends lies outside of it."""
        return len(self.nest()) - (
            self.kind in (Kind.SCOPE_ENTERED, Kind.PASS_BEGAN, Kind.SCOPE_LEFT, Kind.PASS_ENDED)
        )

    @property
    def scope(self) -> str:
        """The innermost scope, empty for none."""
        return next((name for _, name in reversed(self.nest()) if name), "")

    # --- fields

    def values(self, field: str) -> Iterable:
        """The values of a field at this event."""
        whole, _, statistic = field.partition(".")
        if statistic:
            return self._statistics(whole, statistic)
        return FIELDS[field](self)

    @property
    def place(self) -> int:
        """The site of the event, or that of the op which made its node; 0 for none."""
        if self.kind not in _AT_NODE:
            return self.site
        known = self._node_sites.get(self.node)
        if known:
            return known
        op = self._op_of_node()
        return op.site if op is not None else 0

    def _op_of_node(self) -> Any:
        """The op before the last stop that made the node which the event is at."""
        return (
            self.past.op_of(self.node) if self.past is not None and self.node <= self._newest_node else None
        )

    def lines(self) -> frozenset[int]:
        """The lines that the event happened at: its own and those of the calls around it."""
        place = self.place
        found = self._lines.get(place)
        if found is None:
            lines, site = [], place
            while site:
                known = self.sites.site(site)
                if linecache.getline(known.place.file, known.place.line):
                    lines.append(known.place.line)
                site = known.parent
            found = self._lines[place] = frozenset(lines)
        return found

    def file(self) -> str:
        """The name of the file that the event happened in."""
        return Path(self.sites.site(self.place).place.file).name if self.place else ""

    def called(self, tensor: int) -> str:
        """A tensor's name, empty where it has none (yet)."""
        found = self.parameters.get(tensor) or self._labels[self._names.get(tensor)]
        past = self.earlier(tensor) if not found else None
        return found or (past.names.of(tensor) if past is not None else None) or ""

    def names(self) -> list[str]:
        """The names of the tensors that the event is about: at a node, of what its op made."""
        if self.kind not in _AT_NODE:
            return [self.called(tensor) for tensor in self.tensors]
        known = self._node_names.get(self.node)
        op = None if known else self._op_of_node()
        return [self.called(op.outputs[0])] if op is not None and op.outputs else [self._labels[known]]

    def shapes(self) -> list[str]:
        """The shapes of what the event made or wrote."""
        told = self.told if self.kind in _MADE else ()
        return ["x".join(map(str, values.shape)) for _, values in told if values is not None]

    def made_with(self) -> str:
        """The name of the node that the event made, or that it is at."""
        if self.kind != Kind.PRODUCED:
            return self.grad_fn
        known = self._grad_fns.get(self.node)
        op = self._op_of_node() if known is None else None
        return known or (op.grad_fn if op is not None else "")

    def has_bad(self, which: int) -> bool:
        """Whether a value told here or a gradient has a NaN (0) or an infinity (1)."""
        bad, newest = self._bad, self._newest_past
        for number, _ in self.told:
            if number in bad and bad[number][which]:
                return True
        for number in self.gradients:
            if bad[number][which] if number in bad else 0 < number <= newest and self._was_bad(number, which):
                return True
        return False

    def _was_bad(self, number: int, which: int) -> bool:
        """Whether a tensor from before the last stop is bad; looked up once."""
        found = self.past.trace.snapshot(number) if self.past is not None else None
        stats = found.stats if found is not None else None
        self._bad[number] = (bool(stats.nan), bool(stats.inf)) if stats is not None else (False, False)
        return self._bad[number][which]

    def _statistics(self, tensors: str, statistic: str) -> list[float]:
        if tensors in ("out", "tangent"):
            found = [values for _, values in self.told] if self.kind in WHERE[tensors] else []
        elif tensors == "in":
            found = [self._value(number) for number in self.inputs if number] if self.kind == Kind.OP else []
        else:
            known = dict(self.told)
            found = [
                values if (values := known.get(number)) is not None else self._value(number)
                for number in self.gradients
                if number
            ]
        return [measured(values, statistic) for values in found if values is not None]

    def _value(self, number: int) -> Any:
        """What an older tensor holds: the array, or what the trace says of it."""
        kept = self._values.get(number)
        if isinstance(kept, ref):
            kept = kept()
        if kept is None and (past := self.earlier(number)) is not None:
            kept = past.trace.snapshot(number)
        return kept


FIELDS: dict[str, Callable[[Present], Iterable]] = {
    "op": lambda p: (p.name if p.kind == Kind.OP else "",),
    "hook": lambda p: (p.name if p.kind == Kind.HOOKED else "",),
    "how": lambda p: (p.name if p.kind in WHERE["how"] else "",),
    "grad_fn": lambda p: (p.made_with(),),
    "kind": lambda p: (p.kind.name.lower(),),
    "name": lambda p: p.names(),
    "parameter": lambda p: [p.parameters.get(tensor, "") for tensor in p.tensors],
    "shape": lambda p: p.shapes(),
    "file": lambda p: (p.file(),),
    "line": Present.lines,
    "scope": lambda p: (p.scope,),
    "pass": lambda p: (max(p.open_passes, default=0),),
    "version": lambda p: (p.version,),
    "event": lambda p: (p.index + 1,),
    "depth": lambda p: (p.depth,),
    "nan": lambda p: (p.has_bad(0),),
    "inf": lambda p: (p.has_bad(1),),
    "mutation": lambda p: (p.kind == Kind.MUTATED,),
    "error": lambda p: (p.kind == Kind.ERROR,),
    "backward": lambda p: (bool(p.open_passes),),
    "forward": lambda p: (not p.open_passes,),
}
