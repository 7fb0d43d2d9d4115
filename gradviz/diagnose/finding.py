"""Finding: one fault that a rule found in a trace. Report: all findings, and the rules that were checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gradviz.diagnose.fix import Patch
from gradviz.system.paths import file_name
from gradviz.tracefile import Site
from gradviz.words.escape import clean
from gradviz.words.html_table import html_table
from gradviz.words.numbers import plural

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault. `events` prove it; the first event is the best proof. `site` is its line in the source, None if it is
    unknown. `node`, `number` (of the pass) and `tensor` are 0 if there is none. `consequences` are the findings that
    follow from it. `ranks` are the ranks that have the fault, and the events are those of the first rank; empty if a
    single trace is checked. `replayed` is the result of a pass that ran again with the cure; empty if none did.
    `patch` has the edits of the cure; None if it is advice. `without` is the call, the block or the number that the
    cure takes out; empty for other cures."""

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
    patch: Patch | None = field(default=None, repr=False, compare=False)
    without: str = field(default="", repr=False, compare=False)

    @property
    def tensor(self) -> int:
        """The first tensor that the finding is about; 0 if there is none."""
        return self.tensors[0] if self.tensors else 0

    @property
    def place(self) -> str:
        """The place of the finding, `train.py:12`; empty if its line is unknown."""
        return f"{clean(file_name(self.file))}:{self.line}" if self.line else ""

    @property
    def file(self) -> str:
        """The file of the finding; empty if it is unknown."""
        return self.site.place.file if self.site is not None else ""

    @property
    def line(self) -> int:
        """The line of the finding, from 1; 0 if it is unknown."""
        return self.site.place.line if self.site is not None else 0


def place_of(finding: Finding) -> str:
    """The place of a finding: `train.py:12`, or `no source location`."""
    return finding.place or "no source location"


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of a check, the cause first. `checked` are the rules that were checked, `not_checked` the other
    rules, each with the reason. `links` are the links to cells of a notebook, by their names."""

    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    not_checked: tuple[tuple[str, str], ...]
    links: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __repr__(self) -> str:
        """The findings as text, each with its message and its cure below it."""
        lines = [self._counted]
        for number, severity, rule, place, message, cure in self._rows():
            lines += [f"{number} {severity} {rule}  {place}", f"   {clean(message)}", f"   cure  {clean(cure)}"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The findings as a table, for notebooks."""
        heads = ("", "severity", "rule", "place", "finding", "cure")
        return html_table(heads, self._rows(), self._counted, links=self.links)

    def _rows(self) -> list[tuple[str, ...]]:
        return [row for number, finding in enumerate(self.findings, 1) for row in _rows(finding, str(number))]

    @property
    def _counted(self) -> str:
        counted = plural(len(self.findings), "finding") if self.findings else "no findings"
        return f"{counted} · {plural(len(self.checked), 'rule')} checked, {len(self.not_checked)} not"

    def at_least(self, severity: str) -> list[Finding]:
        """The findings of this severity or a higher one."""
        allowed = SEVERITIES[: SEVERITIES.index(severity) + 1]
        return [finding for finding in self.findings if finding.severity in allowed]


def _rows(finding: Finding, number: str) -> Iterator[tuple[str, ...]]:
    """The row of a finding, then the rows of its consequences."""
    yield number, finding.severity, finding.rule, finding.place, finding.message, finding.fix
    for other in finding.consequences:
        yield from _rows(other, "↳")
