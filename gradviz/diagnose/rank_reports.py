"""The reports of all ranks of a run as one report, in which a finding of several ranks stands once."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import repeat
from pathlib import Path

from gradviz.diagnose.between_ranks import BETWEEN_RANKS, findings_of
from gradviz.diagnose.finding import SEVERITIES, Finding, Report
from gradviz.diagnose.rule_settings import Settings
from gradviz.diagnose.run_rules import check, is_ignored, rule_called
from gradviz.events.kinds import Kind
from gradviz.query.collective_calls import ALL_REDUCE
from gradviz.query.query import Query
from gradviz.query.replicas import Replicas
from gradviz.sets import grouped
from gradviz.tracefile import Trace, open_trace
from gradviz.words.numbers import called_ranks

_BAD_NUMBERS = ("nonfinite-forward", "nonfinite-gradient", "singular-derivative", "masked-nan")

_MANY = 64  # ranks for which starting processes is worth its time


def check_ranks(
    ranks: Mapping[int, Trace],
    select: Collection[str] = (),
    ignore: Collection[str] = (),
    settings: Settings | None = None,
    in_processes: bool = False,
) -> Report:
    """Check the traces of all ranks of a run: each trace by itself, and the ranks against each other. `select` are the
    rules to check (empty: all rules), `ignore` the rules to leave out. If they are empty, the `settings` apply. With
    `in_processes`, many ranks are checked by processes that start as the program did. Raises UnknownRule for an id that
    no rule has."""
    for name in (*select, *ignore):
        rule_called(name)
    settings = settings or Settings()
    chosen = replace(settings, select=tuple(select or settings.select), ignore=tuple(ignore or settings.ignore))
    of_one = _without_rank_rules(chosen)
    if chosen.select and not of_one.select:
        return compared(ranks, repeat(Report((), (), ()), len(ranks)), chosen)
    if in_processes and len(ranks) >= _MANY:
        with suppress(OSError, RuntimeError):  # where no processes can be started, this one checks all ranks
            return _compared_in_processes(ranks, of_one, chosen)
    return compared(ranks, (check(trace, settings=of_one) for trace in ranks.values()), chosen)


def _compared_in_processes(ranks: Mapping[int, Trace], of_one: Settings, settings: Settings) -> Report:
    """The report of a run, whose ranks are checked by processes while this one compares them."""
    # here, since a program that has ended cannot import them: what draws its run imports this file
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(min(os.cpu_count() or 1, 8), get_context("spawn")) as pool:
        paths = [trace.path for trace in ranks.values()]
        return compared(ranks, pool.map(_report, paths, repeat(of_one), chunksize=8), settings)


def _report(path: Path, settings: Settings) -> Report:
    with open_trace(path) as trace:
        return check(trace, settings=settings)


def compared(ranks: Mapping[int, Trace], reports: Iterable[Report], settings: Settings | None = None) -> Report:
    """The reports of all ranks, in their order, as one report, with the findings between the ranks that the `settings`
    select. The ranks are compared before the first report is asked for."""
    settings = settings or Settings()
    rules = [
        rule
        for rule in BETWEEN_RANKS
        if (not settings.select or rule in settings.select) and rule not in settings.ignore
    ]
    queries = {rank: Query(trace) for rank, trace in ranks.items()}
    between = [
        finding for finding in findings_of(Replicas(queries), rules) if not is_ignored(ranks[finding.ranks[0]], finding)
    ]
    return of_all_ranks(_beneath_their_causes(dict(zip(ranks, reports, strict=True)), queries), between, rules)


def _without_rank_rules(settings: Settings) -> Settings:
    """The settings for the check of a single rank: without the rules that compare ranks."""
    select, ignore = (
        tuple(rule for rule in asked if rule not in BETWEEN_RANKS) for asked in (settings.select, settings.ignore)
    )
    return replace(settings, select=select, ignore=ignore)


def _beneath_their_causes(reports: Mapping[int, Report], queries: Mapping[int, Query]) -> dict[int, Report]:
    """The reports, in which a NaN or infinity that an all_reduce brought from another rank is a consequence of the
    finding on the rank where it arose in the same pass."""
    places = [(rank, at) for rank, report in reports.items() for at in range(len(report.findings))]
    findings = {(rank, at): reports[rank].findings[at] for rank, at in places}
    bad = {place: finding for place, finding in findings.items() if finding.rule in _BAD_NUMBERS}
    brought = {place for place, finding in bad.items() if _is_brought(queries[place[0]], finding)}
    for place in sorted(brought):
        follows = bad[place]
        born = next((own for own in bad if own not in brought and bad[own].number == follows.number), None)
        if born is not None:
            message = f"on rank {place[0]}, by all_reduce from rank {born[0]}: {follows.message}"
            cause = findings[born]
            beneath = replace(follows, message=message, ranks=(place[0],))
            findings[born] = replace(cause, consequences=(*cause.consequences, beneath))
            del findings[place]
    return {
        rank: replace(report, findings=tuple(finding for (own, _), finding in findings.items() if own == rank))
        for rank, report in reports.items()
    }


def _is_brought(query: Query, finding: Finding) -> bool:
    """Whether the first event that proves a finding is an all_reduce."""
    event = finding.events[0] if finding.events else -1
    writes = event >= 0 and query.trace.kinds[event] in (Kind.OP, Kind.MUTATED)
    return writes and query.tensors.writer(event) == ALL_REDUCE


def of_all_ranks(
    reports: Mapping[int, Report], between: Sequence[Finding] = (), checked_between: Sequence[str] = ()
) -> Report:
    """One report from the reports by rank and the findings `between` ranks. Findings of several ranks with the same
    rule, severity, line and cure become one finding with these ranks. If their messages differ, it has the message of
    the first rank, which it names. A rule counts as checked if it was checked on every rank."""
    firsts: dict[tuple[object, ...], Finding] = {}
    differing: set[tuple[object, ...]] = set()
    for rank, report in reports.items():
        for finding in report.findings:
            key = (finding.rule, finding.severity, finding.file, finding.line, finding.fix)
            first = firsts.setdefault(key, finding)
            ranks = dict.fromkeys((*first.ranks, rank))  # a rank may have it twice
            firsts[key] = replace(first, ranks=tuple(ranks))
            if finding.message != first.message:
                differing.add(key)
    found = [
        replace(first, message=f"on rank {first.ranks[0]}, {first.message}") if key in differing else first
        for key, first in firsts.items()
    ]
    checked = [set(report.checked) for report in reports.values()]
    all_rules = dict.fromkeys(rule for report in reports.values() for rule in report.checked)
    return Report(
        tuple(sorted([*between, *found], key=lambda finding: SEVERITIES.index(finding.severity))),
        (*checked_between, *(rule for rule in all_rules if all(rule in own for own in checked))),
        tuple(_not_checked(reports)),
    )


def on_ranks(ranks: tuple[int, ...], count: int) -> str:
    """The text for the ranks that have a finding, of `count` ranks: `on all ranks`, `on ranks 0 and 2`."""
    return "on all ranks" if len(ranks) == count else f"on {called_ranks(ranks)}"


def _not_checked(reports: Mapping[int, Report]) -> list[tuple[str, str]]:
    """The rules that were not checked, each with the reason, and with the ranks if it is not all ranks."""
    ranks = grouped((pair, rank) for rank, report in reports.items() for pair in report.not_checked)
    count = len(reports)
    return [
        (rule, reason if len(own) == count else f"{reason} ({on_ranks(tuple(own), count)})")
        for (rule, reason), own in ranks.items()
    ]
