"""The costs of ops in a report: in total, by line, and by module."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gradviz.pictures.report_page import Costs, Line
from gradviz.query.overview import BACKWARD, FORWARD, OPTIMIZER, Cost, Profile, is_profiled, profile
from gradviz.query.query import Query
from gradviz.system.paths import file_name
from gradviz.words.numbers import duration, flops, plural, size, total_of

_MOST_LINES = 20
_COLUMNS = ("ops", "forward", "backward", "optimizer", "memory made", "computed")
_OF_MODULES = ("computed", "forward", "backward", "memory made")
_NOTE = (
    "The backward of an op counts at the line and in the module of the op. Memory made is what comes with the results "
    "of ops, kept or not. Computed are the floating-point operations of products, convolutions and attention, counted "
    "by torch.utils.flop_counter."
)


def costs_of(query: Query) -> Costs | None:
    """The costs of a run for its report; None if nothing was measured."""
    if not is_profiled(query):
        return None
    measured = query.of(profile)
    ordered = sorted(measured.lines.items(), key=lambda pair: -pair[1].all_seconds)
    shown, rest = ordered[:_MOST_LINES], ordered[_MOST_LINES:]
    left_out = sum(cost.all_seconds for _, cost in rest)
    more = f"{plural(len(rest), 'more line')} took {duration(left_out)} together. " if rest else ""
    lines = tuple(_line(query, measured, *one) for one in shown)
    return Costs(f"{total_of(measured.total)}.", _COLUMNS, _OF_MODULES, lines, more + _NOTE)


def _line(query: Query, found: Profile, place: tuple[str, int], cost: Cost) -> Line:
    file, number = place
    source = query.trace.source(file)
    texts = (
        f"{cost.ops:,}",
        *(_if_any(duration, cost.seconds[phase]) for phase in (FORWARD, BACKWARD, OPTIMIZER)),
        _if_any(size, sum(cost.made.values())),
        _if_any(flops, sum(cost.flops.values())),
    )
    return Line(
        f"{file_name(file)}:{number}" if number else "not known",
        source[number - 1].strip() if 0 < number <= len(source) else "",
        cost.all_seconds / found.total.all_seconds if found.total.all_seconds else 0.0,
        found.most.get(place, ""),
        texts,
    )


def costs_of_modules(query: Query, paths: Iterable[str], first_call: float | None) -> tuple[str, ...]:
    """The cost columns of a row of modules, summed over them; the floating-point operations are those of the first
    call. Empty if nothing was measured."""
    if not is_profiled(query):
        return ()
    together = Cost()
    known = query.of(profile).modules
    for path in paths:
        together.add(known.get(path, Cost()))
    return (
        _if_any(flops, first_call or 0.0),
        *(_if_any(duration, together.seconds[phase]) for phase in (FORWARD, BACKWARD)),
        _if_any(size, sum(together.made.values())),
    )


def _if_any(text: Callable[[float], str], value: float) -> str:
    return text(value) if value else ""
