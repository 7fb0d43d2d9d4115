"""Replays for those that show a run: the elements that a trace lacks, for the passes in question."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from gradviz.diagnose import Finding, Report
from gradviz.diagnose.rule_settings import Settings
from gradviz.diagnose.run_rules import check as check_by_rules
from gradviz.errors import tracebacks_are_wanted
from gradviz.events.values import FULL, INPUTS, stats_of
from gradviz.explain.by_norms import NormReason, Reason
from gradviz.explain.origin import PATHS, NoAnswer
from gradviz.explain.origin import why as reason_of
from gradviz.graph.model import Graph
from gradviz.query.bad_numbers import first_bad_pass
from gradviz.query.gradient_paths import Path as PathToTensor
from gradviz.query.query import Query
from gradviz.sources.notebook_cells import cell_links
from gradviz.tracefile import Trace, TraceError, newest_trace, open_trace
from gradviz.words.escape import clean
from gradviz.words.numbers import listed, number
from gradviz.words.words import Words

_WIDTH = 88  # characters of a line in the stepper
_MOST_NAMED = 3  # gradients
MOST_EVENTS = 200_000  # of a run that is checked in passing: half a second

if TYPE_CHECKING:
    from gradviz.replay.changed_pass import Changed
    from gradviz.replay.cure_outcomes import CureOutcome


def check(
    trace: Trace | Path | str | None = None,
    select: Collection[str] = (),
    ignore: Collection[str] = (),
    settings: Settings | None = None,
) -> Report:
    """Check a trace, open or given by its path; None is the newest *.gradviz here. `select` are the rules to check
    (empty: all rules), `ignore` the rules to leave out. If they are empty, the `settings` apply. In a trace of
    `--values inputs` the first pass with a NaN runs again, so that its origin is known, and so do the passes of cures
    that can be tried. Raises UnknownRule for an id that no rule has, TraceError for a file that cannot be read."""
    if not isinstance(trace, Trace):
        with open_trace(trace or newest_trace()) as opened:
            return check(opened, select, ignore, settings)
    fill_in_where_bad(trace)
    report = check_by_rules(trace, select, ignore, settings)
    return replace(report, findings=tuple(replayed(report.findings, trace)), links=cell_links(trace))


def quick_report(trace: Trace, settings: Settings | None, say: Callable[[str], None]) -> Report | None:
    """The report of a run that is checked in passing, without results of cures. None for a long run, which only
    `gradviz check` checks, and if a rule fails, which `say` is told in one line. Raises TraceError for a damaged
    trace."""
    if trace.count > MOST_EVENTS:
        return None
    try:
        with np.errstate(all="ignore"):
            fill_in_where_bad(trace)
            return replace(check_by_rules(trace, settings=settings), links=cell_links(trace))
    except TraceError:
        raise
    except Exception as error:  # whatever fails in a rule, what shows the run goes on
        if tracebacks_are_wanted():
            raise
        say(f"gradviz: not checked: {clean(' '.join(repr(error).split()))}")
        return None


def filled_in(query: Query, number: int | None) -> bool:
    """Add the elements that a replay computes to the states of a pass (None: the last). Returns False if that is
    impossible."""
    if not _can_fill(query.trace):
        return False
    from gradviz.replay.outcome import fill_in
    from gradviz.replay.plan import ReplayError  # here, since most traces need no replay
    from gradviz.sources.torch_replay import runner_of

    try:
        fill_in(query, runner_of(query), number)
    except ReplayError:
        return False
    return True


def why(trace: Trace | Path | str, tensor: str, number: int | None = None, most: int = PATHS) -> Reason | NormReason:
    """The origin of the gradient of a tensor in pass `number` (None: the last pass that gave it a gradient), as its
    `most` largest contributions. If its elements were not recorded: the strongest path, by norms. `tensor` is a name
    such as `w`, `net.0.weight[3, 0]` or `t12`. In a trace of `--values inputs` the pass runs again, so that all
    elements, and the exact contribution of each path, are known. Raises NoAnswer if the trace does not show the origin,
    UnknownName if no tensor has this name, TraceError for a file that cannot be read."""
    if not isinstance(trace, Trace):
        with open_trace(Path(trace)) as opened:
            return why(opened, tensor, number, most)
    return replace(_why(trace, tensor, number, most), links=cell_links(trace))


def _why(trace: Trace, tensor: str, number: int | None, most: int) -> Reason | NormReason:
    query = Query(trace)
    if not _can_fill(trace):
        has_all_elements = trace.meta.get("values") == FULL and "redacted" not in trace.meta
        by_nodes = partial(_alone, query, True) if has_all_elements else None
        return reason_of(trace, tensor, number, most, by_nodes)
    try:
        recorded = reason_of(trace, tensor, number, most)
    except NoAnswer:
        if not filled_in(query, number):
            raise
    else:
        number = recorded.number
        if not filled_in(query, number):
            return recorded
    return reason_of(trace, tensor, number, most, partial(_alone, query, False))


def _alone(query: Query, by_nodes: bool, number: int, paths: Sequence[PathToTensor]) -> list[np.ndarray] | str:
    """The gradients that some paths of a pass would bring alone, or why these are unknown. `by_nodes` says that the
    trace has all elements, so that each node of a path runs again by itself."""
    from gradviz.replay.plan import ReplayError
    from gradviz.replay.vjps import PathsByNodes, PathsOfPass
    from gradviz.sources.torch_replay import runner_of

    runner = runner_of(query, Words(query.trace).at_line)
    try:
        alone = PathsByNodes(query, runner, number) if by_nodes else PathsOfPass(query, runner, number)
        return [alone.gradient(path) for path in paths]
    except ReplayError as error:
        return str(error)


def filled_in_at(query: Query, event: int) -> bool:
    """As `filled_in`, for the pass that an event belongs to. A pass with its forward begins after the end of the
    previous pass."""
    pass_here = query.trace.pass_ending_from(event)
    return pass_here is not None and filled_in(query, pass_here.number)


def fill_in_where_bad(trace: Trace) -> bool:
    """Add the elements that a replay computes to the first pass with a NaN or an infinity in its root, or in a
    gradient of a leaf, so that a check can find their origin. Whether there were any."""
    query = Query(trace)
    number = query.of(first_bad_pass) if _can_fill(trace) else None
    return bool(number) and filled_in(query, number)


def with_cures(found: Sequence[tuple[int, Finding]], trace: Trace) -> list[tuple[int, Finding]]:
    """Findings with numbers, with the results of their cures where these are known."""
    cured = replayed([finding for _, finding in found], trace)
    return [(number, finding) for (number, _), finding in zip(found, cured, strict=True)]


def replayed(findings: Sequence[Finding], trace: Trace) -> list[Finding]:
    """The findings, with the results of their cures where these are known."""
    if not findings or not _can_fill(trace):
        return list(findings)
    from gradviz.replay.cure_outcomes import with_cure
    from gradviz.sources.torch_replay import runner_of

    words = Words(trace)
    runner = runner_of(words.query)
    with_cures = []
    for finding in findings:
        events = finding.events[:1]
        outcomes = [with_cure(words.query, runner, event, finding.tensors) for event in events]
        texts = [_told(words, one) for one in outcomes if one is not None and _is_cure_of(finding, one)]
        with_cures.append(replace(finding, replayed=texts[0]) if texts else finding)
    return with_cures


def _is_cure_of(finding: Finding, outcome: CureOutcome) -> bool:
    """Whether a tried cure is the cure of a finding: both take out the same code."""
    from gradviz.replay.cure_outcomes import NO_GRAD

    tried, meant = (
        code.strip(".()").rpartition(".")[2]
        for code in (NO_GRAD if outcome.kind == NO_GRAD else outcome.typed, finding.without)
    )
    return tried == meant


def _told(words: Words, outcome: CureOutcome) -> str:
    """The gradients with a cure: `without .detach() on line 6: w1.grad rms 0.031 instead of none`."""
    from gradviz.replay.cure_outcomes import NUMBER

    in_pass = f", in pass {outcome.number}" if len(words.query.trace.passes) > 1 else ""
    cure = f"without {outcome.typed} on line {outcome.line}"
    if outcome.kind == NUMBER:
        cure = f"with {words.called(outcome.tensor)} in place of {outcome.typed} on line {outcome.line}"
    texts = [
        f"{words.called(one.leaf)}.grad {_size(one.after)} instead of {_size(one.before)}"
        for one in outcome.gained[:_MOST_NAMED]
    ]
    more = len(outcome.gained) - _MOST_NAMED
    return f"{clean(cure)}{in_pass}: {listed([*texts, f'{more} more'] if more > 0 else texts)}"


def _size(array: np.ndarray | None) -> str:
    """The size of a gradient: its number, or the root mean square of its elements."""
    if array is None:
        return "none"
    if not array.any():
        return "0"
    return number(array.item(), 4) if array.size == 1 else f"rms {number(stats_of(array).rms, 3)}"


def told_with(words: Words, number: int | None, sets: Sequence[str]) -> list[str]:
    """The results of a pass (None: the last) with other values, as lines. Raises ReplayError if it cannot run."""
    from gradviz.replay.changed_pass import what_if
    from gradviz.replay.changed_pass_text import what_if_text
    from gradviz.sources.torch_replay import runner_of

    result = what_if(words, runner_of(words.query, words.at_line), number, sets)
    console = Console(width=_WIDTH, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(what_if_text(words, result))
    return [line.rstrip() for line in capture.get().splitlines()]


def changes_with(words: Words, number: int | None, sets: Sequence[str]) -> Sequence[Changed]:
    """The roots and gradients of a pass (None: the last), before and with other values. Raises ReplayError if it cannot
    run."""
    from gradviz.replay.changed_pass import what_if
    from gradviz.sources.torch_replay import runner_of

    return what_if(words, runner_of(words.query, words.at_line), number, sets).changes


def mark_edits(query: Query, graph: Graph, edits: Sequence[str]) -> None:
    """Mark in the graph of a pass the values and gradients that would differ with edits such as `x=4` and `detach@6`.
    Raises ReplayError if the pass cannot run again."""
    from gradviz.replay.changed_pass import mark_changes
    from gradviz.sources.torch_replay import runner_of

    mark_changes(Words(query.trace), runner_of(query), graph, edits)


def _can_fill(trace: Trace) -> bool:
    """Whether a replay may compute elements that a trace lacks."""
    return trace.meta.get("values") == INPUTS and "redacted" not in trace.meta
