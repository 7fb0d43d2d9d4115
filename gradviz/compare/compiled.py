"""The comparison of a pass with the same pass compiled: the first gradient that differs by more than rounding."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from gradviz.compare.difference import REPLAYS, UNITS, Rounding, apart, coarsest
from gradviz.events.kinds import Kind
from gradviz.query.copies import largest_change, same_bits
from gradviz.query.query import Query
from gradviz.replay.changed_pass_text import check_text, table
from gradviz.replay.outcome import Check, Edits, Outcome, Runner, checked
from gradviz.replay.plan import Plan, plan_of
from gradviz.tracefile import Site, Snapshot
from gradviz.words.escape import clean, json_number
from gradviz.words.numbers import number, plural
from gradviz.words.words import Words


class Pair(NamedTuple):
    """A root or a gradient from the pass as it is and from the compiled pass; None if there is none. `apart` is how far
    they are apart, `allowed` how far rounding allows them to be, both relative to the largest element; None if it is
    not known. `site` is where the pass first reads the parameter."""

    called: str
    is_gradient: bool
    eager: np.ndarray | None
    compiled: np.ndarray | None
    apart: float | None
    allowed: float | None
    site: Site | None

    @property
    def is_equal(self) -> bool:
        """Whether both are equal to the last bit, or both are missing."""
        if self.eager is None or self.compiled is None:
            return self.eager is self.compiled
        return same_bits(self.eager, self.compiled)

    @property
    def is_beyond(self) -> bool:
        """Whether they are further apart than rounding allows."""
        if self.is_equal:
            return False
        return self.apart is None or self.allowed is None or not self.apart <= self.allowed

    @property
    def largest(self) -> float | None:
        """The largest difference of an element; None if they cannot be compared."""
        if self.eager is None or self.compiled is None or self.eager.shape != self.compiled.shape:
            return None
        return largest_change(self.eager, self.compiled)


class Compiled(NamedTuple):
    """A pass as it is and compiled. `check` compares the pass as it is with the recording; the gradients of `pairs`
    stand in the order in which they came."""

    plan: Plan
    runner: str
    backend: str
    check: Check
    dtype: str
    pairs: tuple[Pair, ...]

    @property
    def first(self) -> Pair | None:
        """The first gradient that is further apart than rounding allows, else the first root; None if there is none."""
        beyond = [pair for pair in self.pairs if pair.is_beyond]
        return next((pair for pair in beyond if pair.is_gradient), beyond[0] if beyond else None)


def compiled(words: Words, runner: Runner, compiling: Runner, backend: str, number: int | None) -> Compiled:
    """Run a pass again (None: the last pass), as it is and compiled. Raises ReplayError if either is impossible."""
    query = words.query
    plan = plan_of(query, number)
    after = compiling.run(plan, Edits())
    dtype = coarsest(_dtypes(query, plan))
    rounding = Rounding(query, plan, runner, dtype)
    pairs = tuple(_pairs(words, plan, rounding, after))
    return Compiled(plan, runner.name, backend, checked(query, plan, rounding.base), dtype, pairs)


def _dtypes(query: Query, plan: Plan) -> Iterator[str]:
    """The dtypes of the inputs of a pass and of the results of its calls."""
    yield from (step.value.dtype for step in plan.inputs)
    yield from (query.trace.states.dtype_of(tensor) for call in plan.calls for tensor in call.outputs)


def _pairs(words: Words, plan: Plan, rounding: Rounding, after: Outcome) -> Iterator[Pair]:
    entered = {step.tensor: step.value for step in plan.inputs}
    any_value = next(iter(entered.values()))
    made = {tensor: call.event for call in plan.calls for tensor in call.outputs}
    before = rounding.base
    for root, value in before.roots.items():
        like = any_value.with_elements(value)
        allowed = rounding.of_result(root, made[root], like) if root in made else rounding.least
        yield Pair(words.called(root), False, value, after.roots[root], _apart(like, after.roots[root]), allowed, None)
    table = words.query.trace.table(Kind.ACCUMULATED)
    came = table["tensor"][table["in_pass"] == plan.number].tolist()
    leaves = plan.leaves
    for leaf in list(dict.fromkeys([*(leaf for leaf in came if leaf in leaves), *leaves])):
        eager, now = before.gradients.get(leaf), after.gradients.get(leaf)
        known = None if eager is None else entered[leaf].with_elements(eager)
        allowed = None if known is None else rounding.of_gradient(leaf, known)
        first = plan.first_reader(leaf)
        yield Pair(
            f"{words.called(leaf)}.grad",
            True,
            eager,
            now,
            _apart(known, now),
            allowed,
            None if first is None else words.query.places.site(first.site),
        )


def _apart(like: Snapshot | None, array: np.ndarray | None) -> float | None:
    return None if like is None or array is None else apart(like, like.with_elements(array))


# A pass as it is and compiled, as text for a terminal and as plain data.

_SHOWN = 20  # the most values that are shown


def compiled_text(words: Words, found: Compiled) -> Group:
    """The roots and gradients of the two passes, how far they are apart, and the verdict."""
    calls, inputs = plural(len(found.plan.calls), "call"), plural(len(found.plan.inputs), "input")
    head = f"pass {found.plan.number} runs again with {clean(found.runner)}: {calls}, {inputs}"
    rounding = (
        f"rounding, by {REPLAYS} replays with inputs disturbed by one unit in the last place of {found.dtype} "
        f"({number(UNITS[found.dtype], 2)})"
    )
    return Group(
        Text(head, "bold"),
        Text(check_text(words, found.check)),
        Text(f"compiled by {clean(found.backend)}, and compared beyond {rounding}:"),
        Text(),
        _table(found.pairs),
        Text(),
        Text(_told(words, found), "bold"),
    )


def _table(pairs: tuple[Pair, ...]) -> Table:
    """The table of the values, those that differ by more than rounding first."""
    values = table("", "apart", "rounding", "largest difference", "")
    ordered = sorted(pairs, key=lambda pair: not pair.is_beyond)
    for pair in ordered[:_SHOWN]:
        values.add_row(
            Text(clean(pair.called)), _size(pair.apart), _size(pair.allowed), _size(pair.largest), _how(pair)
        )
    if len(ordered) > _SHOWN:
        values.add_row(Text(f"and {len(ordered) - _SHOWN} more"))
    return values


def _size(size: float | None) -> str:
    if size is None:
        return ""
    return "not to be subtracted" if np.isnan(size) else number(size, 2)


def _how(pair: Pair) -> str:
    if pair.eager is None and pair.compiled is None:
        return "none in either"
    if pair.is_equal:
        return "equal"
    if pair.eager is None or pair.compiled is None:
        return "there is one compiled" if pair.eager is None else "none compiled"
    return "beyond rounding" if pair.is_beyond else "rounding"


def _told(words: Words, found: Compiled) -> str:
    first = found.first
    if first is None:
        equal = sum(pair.is_equal for pair in found.pairs)
        rest = len(found.pairs) - equal
        apart = f", {rest} apart by rounding alone" if rest else ""
        of_all = f"{equal} of {plural(len(found.pairs), 'value')} to the last bit"
        return f"compiled, the pass gives the same: {of_all}{apart}"
    where = "" if first.site is None else f", of what the pass reads{words.at_line(first.site.number)}"
    what = "the first gradient" if first.is_gradient else "no gradient, but a root"
    return f"{what} that differs when compiled: {clean(first.called)}{where}"


def compiled_json(words: Words, found: Compiled) -> dict[str, Any]:
    """The comparison as plain data."""
    return {
        "pass": found.plan.number,
        "runner": found.runner,
        "backend": found.backend,
        "replay": {"equal": found.check.is_equal},
        "dtype": found.dtype,
        "same": found.first is None,
        "first": None if found.first is None else _pair(found.first),
        "values": [_pair(pair) for pair in found.pairs],
    }


def _pair(pair: Pair) -> dict[str, Any]:
    sizes = {"apart": pair.apart, "allowed": pair.allowed, "largest": pair.largest}
    return {
        "of": pair.called,
        **{name: None if size is None else json_number(size) for name, size in sizes.items()},
        "how": _how(pair),
        "line": None if pair.site is None else pair.site.place.line,
    }
