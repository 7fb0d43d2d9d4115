"""Finding: what a rule found in a trace; Report: all findings, and what was checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gradviz.system.paths import file_name
from gradviz.tracefile import Site
from gradviz.words.escape import clean
from gradviz.words.html_table import html_table
from gradviz.words.numbers import plural

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault. `events` prove it, the first of them best. `site` is its line in the source, None if that is
    unknown. `node`, `number` (of the pass) and `tensor` are 0 if there is none. `consequences` are the
    findings that follow from it. `ranks` are those of a run that have it, the first of which the events are of; none
    where one trace is checked. `replayed` says what the cure gives, where the pass could run again with it."""

    rule: str
    severity: str
    message: str
    fix: str
    site: Site | None
    events: tuple[int, ...] = ()
    node: int = 0
    number: int = 0
    tensors: tuple[int, ...] = ()
    consequences: tuple[Finding, ...] = field(default=())
    ranks: tuple[int, ...] = ()
    replayed: str = ""

    @property
    def tensor(self) -> int:
        """The tensor that it is about first; 0 if there is none."""
        return self.tensors[0] if self.tensors else 0

    @property
    def place(self) -> str:
        """`train.py:12`; empty if its line is unknown."""
        return f"{clean(file_name(self.file))}:{self.line}" if self.line else ""

    @property
    def file(self) -> str:
        """The file of its line; empty if it is unknown."""
        return self.site.place.file if self.site is not None else ""

    @property
    def line(self) -> int:
        """Its line, from 1; 0 if it is unknown."""
        return self.site.place.line if self.site is not None else 0


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of a check, the cause first. `checked` are the rules that were checked, `not_checked` the
    others, each with the reason."""

    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    not_checked: tuple[tuple[str, str], ...]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def _repr_html_(self) -> str:
        """The findings as a table, for notebooks."""
        rows = [row for number, finding in enumerate(self.findings, 1) for row in _rows(finding, str(number))]
        found = plural(len(self.findings), "finding") if self.findings else "no findings"
        told = f"{found} · {plural(len(self.checked), 'rule')} checked, {len(self.not_checked)} not"
        return html_table(("", "severity", "rule", "place", "finding", "cure"), rows, told)

    def at_least(self, severity: str) -> list[Finding]:
        """The findings of this severity or a higher one."""
        allowed = SEVERITIES[: SEVERITIES.index(severity) + 1]
        return [finding for finding in self.findings if finding.severity in allowed]


def _rows(finding: Finding, number: str) -> Iterator[tuple[str, ...]]:
    """The row of a finding, and those of what follows from it."""
    yield number, finding.severity, finding.rule, finding.place, finding.message, finding.fix
    for other in finding.consequences:
        yield from _rows(other, "↳")
