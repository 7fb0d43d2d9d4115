"""Runs the rules on a trace and orders their findings: the cause first, its consequences beneath."""

import heapq
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from gradviz.diagnose.between_ranks import BETWEEN_RANKS
from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR, NOTE, SEVERITIES, WARNING, Finding, Report
from gradviz.diagnose.fix import Patch, patch_of
from gradviz.diagnose.own_words import by_expressions, typed
from gradviz.diagnose.rank_rule import RankRule
from gradviz.diagnose.rule import Found, Rule, unmet
from gradviz.diagnose.rule_settings import Settings
from gradviz.diagnose.rules import BY_ID, RULES
from gradviz.errors import GradvizError, nearest
from gradviz.events.site import Place
from gradviz.query.passes import each_left_out
from gradviz.query.tied_names import with_tied_names
from gradviz.sets import grouped
from gradviz.tracefile import Site, Trace, open_trace
from gradviz.words.escape import clean, shortened

_BETWEEN = "it compares the ranks of one run: give the traces of all"


class UnknownRule(GradvizError):
    """There is no rule with this id."""


def check(
    trace: Trace | Path | str,
    select: Collection[str] = (),
    ignore: Collection[str] = (),
    settings: Settings | None = None,
) -> Report:
    """Check a trace, open or given by its path. `select` are the rules to check (empty: all rules), `ignore` the rules
    to leave out. If they are empty, the `settings` apply. Raises UnknownRule for an id that no rule has, TraceError for
    a file that cannot be read."""
    settings = settings or Settings()
    selected = select or settings.select
    ignored = ignore or settings.ignore
    for wanted in (*selected, *ignored):
        rule_called(wanted)
    chosen = [rule for rule in RULES if (not selected or rule.id in selected) and rule.id not in ignored]
    if isinstance(trace, Trace):
        return _check(Case(trace, settings), chosen, selected)
    with open_trace(Path(trace)) as opened:
        return _check(Case(opened, settings), chosen, selected)


def rule_called(name: str) -> Rule | RankRule:
    """The rule with this id, for a single trace or between ranks. Raises UnknownRule if there is none."""
    known: dict[str, Rule | RankRule] = {**BY_ID, **BETWEEN_RANKS}
    if name not in known:
        near = nearest(name, known)
        meant = f"did you mean {near}?" if near else f"the rules are {', '.join(sorted(known))}"
        raise UnknownRule(f"there is no rule {shortened(clean(name), 40)!r}: {meant}")
    return known[name]


def _check(case: Case, rules: list[Rule], select: Collection[str]) -> Report:
    findings: list[Finding] = []
    patches: _Patches = {}
    checked: list[str] = []
    not_checked = [*_not_there(case), *((rule, _BETWEEN) for rule in select if rule in BETWEEN_RANKS)]
    lacking = unmet(case)
    for rule in rules:
        missing = next((need.value for need in rule.needs if need in lacking), "")
        if rule.opt_in and rule.id not in select and not rule.asked_for_it(case):
            missing = f"it is checked only if it is selected (--select {rule.id})"
        if missing:
            not_checked.append((rule.id, missing))
            continue
        checked.append(rule.id)
        for found in rule.search(case):
            findings.append(_finding(case, rule, found, patches))
        for what, why in rule.left_out(case):
            not_checked.append((clean(f"{rule.id} of {what}"), clean(why)))
    kept = _folded([finding for finding in findings if not is_ignored(case.trace, finding)])
    places = {rule.id: place for place, rule in enumerate(RULES)}
    kept.sort(key=lambda f: (SEVERITIES.index(f.severity), places[f.rule], f.events[0] if f.events else 0))
    return Report(tuple(_once(kept)), tuple(checked), tuple(not_checked))


def _not_there(case: Case) -> Iterator[tuple[str, str]]:
    """The things that no rule can look at, because they are not in the trace, each with the reason."""
    meta = case.trace.meta
    if how := each_left_out(case.trace):
        left_out = case.trace.passes_begun - case.trace.passes_in_detail
        yield f"details of {left_out:,} passes", f"they were left out: {how}"
    if meta.get("stopped"):
        yield "what came later", f"the recording stopped before the run: {meta['stopped']}"
    if meta.get("redacted"):
        yield ("what is told by source, messages or tensors of up to 16 elements", "gradviz redact took them out")
    elif meta.get("no_source"):
        yield "what is told by the source", "it was not recorded (--no-source)"


# by rule, place and cure: a fault may come in each pass
_Patches = dict[tuple[str, Place, str], Patch | None]


def _finding(case: Case, rule: Rule, found: Found, patches: _Patches) -> Finding:
    site, cure, fix = _site(case, found), found.cure, clean(typed(case, found))
    patch = None
    if site is not None and cure.edits is not None:
        key = rule.id, site.place, fix
        if key not in patches:
            patches[key] = patch_of(case.query, site, found.tensors, cure.edits)
        patch = patches[key]
    return Finding(
        rule=rule.id,
        severity=found.severity or rule.severity,
        message=clean(with_tied_names(case.query, by_expressions(case, found.message), found.tensors)),
        fix=fix,
        site=site,
        events=found.events,
        node=found.node,
        number=found.number,
        tensors=found.tensors,
        patch=patch,
        without=cure.without,
    )


def _site(case: Case, found: Found) -> Site | None:
    if isinstance(found.site, Site):
        return found.site
    backward_pass = case.query.passes.by_number.get(found.number or 0)  # of a graph that was like no other
    of_pass = 0 if backward_pass is None else backward_pass.site
    first = next((site for event in found.events if (site := case.site(event))), of_pass)
    return case.query.places.site(found.site or first)


def _folded(findings: list[Finding]) -> list[Finding]:
    """The findings that no other finding explains, each with its consequences. A note explains only notes."""
    about: dict[tuple[str, int], list[int]] = defaultdict(list)  # by rule and tensor: 0 for none, -1 for any
    for position, finding in enumerate(findings):
        for tensor in (*(finding.tensors or (0,)), -1):
            about[finding.rule, tensor].append(position)
    causes: dict[int, int] = {}
    for position, finding in enumerate(findings):
        tensors = (*finding.tensors, 0) if finding.tensors else (-1,)
        known = (about[rule, tensor] for rule in BY_ID[finding.rule].follows for tensor in tensors)
        others = (n for n in heapq.merge(*known) if n != position and causes.get(n) != position)
        is_note = finding.severity == NOTE
        cause = next((n for n in others if is_note or findings[n].severity != NOTE), None)
        if cause is not None:
            causes[position] = cause
    beneath = grouped((_top(position, causes), findings[position]) for position in sorted(causes))
    return [
        replace(finding, consequences=tuple(beneath.get(position, ())))
        for position, finding in enumerate(findings)
        if position not in causes
    ]


def _once(findings: list[Finding]) -> list[Finding]:
    """The findings, each rule, severity, line and cure once: the first finding has the others as consequences."""
    first: dict[tuple[object, ...], int] = {}
    kept: list[Finding] = []
    more: dict[int, list[Finding]] = defaultdict(list)
    for finding in findings:
        key = (finding.rule, finding.severity, finding.file, finding.line, finding.fix)
        at = first.setdefault(key, len(kept))
        if at == len(kept) or not finding.line:
            kept.append(finding)
        else:
            more[at] += (replace(finding, consequences=()), *finding.consequences)
    for at, others in more.items():
        kept[at] = replace(kept[at], consequences=(*kept[at].consequences, *others))
    return kept


def _top(position: int, causes: dict[int, int]) -> int:
    """The last cause behind a finding."""
    seen = {position}
    while position in causes and causes[position] not in seen:
        position = causes[position]
        seen.add(position)
    return position


# --- comments `# gradviz: ignore[rule]`


_COMMENT = re.compile(r"#\s*gradviz:\s*ignore(?:\[(?P<rules>[\w\s,-]*)\])?")


def is_ignored(trace: Trace, finding: Finding) -> bool:
    """Whether a comment on the line of a finding names its rule, or no rule at all."""
    if finding.site is None:
        return False
    lines = trace.source(finding.file)
    last = max(finding.site.place.end_line, finding.line)
    comments = filter(None, map(_COMMENT.search, lines[finding.line - 1 : last]))
    return any(one["rules"] is None or finding.rule in re.split(r"[\s,]+", one["rules"]) for one in comments)


# The other rules are about things that did not happen and still may.
AT_ONCE = frozenset(rule.id for rule in RULES if rule.at_once)
_LEAST = 4  # passes before a finding of the other rules


class Sure:
    """Remembers the findings of several checks of one run. A finding is sure at once if its rule is about one thing
    that has happened; else if it still stands when the run has twice as many passes as when it was first found."""

    def __init__(self) -> None:
        self._first: dict[object, int] = {}
        self._told: set[object] = set()

    def new(self, report: Report, passes: int) -> Iterator[Finding]:
        """The errors and warnings of a check that are sure now and were not before. `passes` counts those of the
        run."""
        found = [finding for finding in report if finding.severity in (ERROR, WARNING)]
        grave = {(finding.rule, finding.file, finding.line): finding for finding in found}
        self._first = {key: self._first.get(key, max(passes, _LEAST // 2)) for key in grave}
        for key, finding in grave.items():
            sure = finding.rule in AT_ONCE or passes >= 2 * self._first[key]
            if sure and key not in self._told:
                self._told.add(key)
                yield finding
