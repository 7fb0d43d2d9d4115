"""The findings of a run that still goes on that will stand however it goes on."""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.finding import ERROR, WARNING, Finding, Report
from gradviz.diagnose.rules import RULES

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
        grave = {_key(finding): finding for finding in report if finding.severity in (ERROR, WARNING)}
        self._first = {key: self._first.get(key, max(passes, _LEAST // 2)) for key in grave}
        for key, finding in grave.items():
            sure = finding.rule in AT_ONCE or passes >= 2 * self._first[key]
            if sure and key not in self._told:
                self._told.add(key)
                yield finding


def _key(finding: Finding) -> object:
    return finding.rule, finding.file, finding.line
