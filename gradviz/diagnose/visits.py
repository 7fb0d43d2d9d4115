"""The calls of whole models: each call of an outermost module, with its mode, its inputs and the use of its result."""

from itertools import chain
from typing import NamedTuple

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.events.kinds import Kind
from gradviz.query.ops import DROPOUTS
from gradviz.sets import contained, grouped
from gradviz.words.numbers import listed

MOODY = ("Dropout", "BatchNorm", "SyncBatchNorm", "AlphaDropout", "LazyBatchNorm")
_CALLS = 32  # so many first calls of a line are looked at, and so many last calls
_RESULTS = 400  # the most tensors computed from a result that are looked at


class Visit(NamedTuple):
    """One call of an outermost module. `kinds` are the types of its layers that depend on the mode, `moody` the types
    of those in training mode. `has_grad` is True if grad mode is on, `in_pass` if a pass goes through the result,
    `is_evaluation` if the result is used and reaches no root. `rounds` is the number of steps before the call."""

    event: int
    site: int
    name: str
    type: str
    training: bool
    kinds: str
    moody: str
    has_grad: bool
    in_pass: bool
    is_evaluation: bool
    inputs: tuple[int, ...]
    result: int
    rounds: int
    parameters: tuple[int, ...]

    @property
    def input(self) -> int:
        """The first input; 0 if there is none."""
        return next(iter(self.inputs), 0)


def visits(case: Case) -> list[Visit]:
    """All calls of outermost modules with ops in them, in order. Use `case.of(visits)`."""
    entered = case.trace.table(Kind.SCOPE_ENTERED)
    if not len(entered):
        return []
    ops = case.trace.table(Kind.OP)
    inputs, outputs = ops.lists("inputs"), ops.lists("outputs")
    steps = case.training.stepped.events
    found, roots, has_run = [], case.query.passes.roots, case.query.nodes.has_run
    for first, last, thread in _outermost(case):
        rows = np.arange(*np.searchsorted(ops.events, [first, last + 1]))
        rows = rows[ops.threads[rows] == thread]
        if not len(rows):
            continue
        scope = entered.object(first)
        inner = entered.events[np.searchsorted(entered.events, first) : np.searchsorted(entered.events, last)]
        layers = [entered.object(event) for event in inner.tolist()]
        moody = [layer for layer in layers if layer.type.startswith(MOODY)]
        result = outputs.firsts[rows[-1]]
        drops = not moody and bool(case.trace.named(ops["op"][rows], DROPOUTS).any())
        functional = "Dropout (functional)" * drops
        taken = np.concatenate([inputs.of(row)[:, 0] for row in rows.tolist()])
        made_inside = set(np.concatenate([outputs.of(row)[:, 0] for row in rows.tolist()]).tolist())
        outside = [t for t in dict.fromkeys(taken.tolist()) if t and t not in made_inside]
        held = tuple(t for t in outside if t in case.trace.parameters)
        variables = case.trace.variables
        data = tuple(t for t in outside if t not in case.trace.parameters and not variables.get(t))
        found.append(
            Visit(
                first,
                case.site(first),
                scope.name,
                scope.type,
                scope.training,
                _types(moody) or functional,
                _types([layer for layer in moody if layer.training]) or functional,
                bool(ops["grad_enabled"][rows].any()),
                has_run(int(result)),
                _is_used(case, first)
                and not any(one in roots or has_run(one) for one in case.downstream.results(int(result), _RESULTS)),
                data,
                int(result),
                int(np.searchsorted(steps, first)),
                held,
            )
        )
    return found


def _is_used(case: Case, event: int) -> bool:
    """Whether the source uses the result of a call: the line has more than the call."""
    site = case.site(event)
    return case.query.places.expression(site) != case.query.places.line_text(site).partition("#")[0].strip()


def _types(layers: list) -> str:  # type: ignore[type-arg]
    names = dict.fromkeys(layer.type for layer in layers)
    return listed(names) if names else ""


def _outermost(case: Case) -> list[tuple[int, int, int]]:
    """(first event, last event, thread) of the scopes of outermost modules, without losses: the first and the last
    scopes of each line."""
    by_site = grouped((int(case.trace.events["site"][span[0]]), span) for span in _all_outermost(case))
    chosen = (spans if len(spans) <= 2 * _CALLS else spans[:_CALLS] + spans[-_CALLS:] for spans in by_site.values())
    return sorted(chain.from_iterable(chosen))


def _all_outermost(case: Case) -> list[tuple[int, int, int]]:
    entered = case.trace.table(Kind.SCOPE_ENTERED)
    texts = case.trace.strings
    modules = [number for number, text in texts.items() if text == "module"]
    losses = [number for number, text in texts.items() if text.endswith("Loss")]
    chosen = contained(entered["kind"], modules) & ~contained(entered["type"], losses)
    wanted = set(entered.events[chosen].tolist())
    found = []
    end: dict[int, int] = {}
    for first, last, thread in case.query.scopes.nesting.spans():
        if first > end.get(thread, -1):
            end[thread] = last
            if first in wanted:
                found.append((first, last, thread))
    return found
