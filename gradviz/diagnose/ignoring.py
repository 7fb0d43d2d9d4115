"""Comments `# gradviz: ignore[rule]` on the line of a finding."""

from __future__ import annotations

import re

from gradviz.diagnose.finding import Finding
from gradviz.tracefile import Trace

_COMMENT = re.compile(r"#\s*gradviz:\s*ignore(?:\[(?P<rules>[\w\s,-]*)\])?")


def is_ignored(trace: Trace, finding: Finding) -> bool:
    """Whether a comment on the line of a finding names its rule, or no rule at all."""
    if finding.site is None:
        return False
    lines = trace.source(finding.file)
    last = max(finding.site.place.end_line, finding.line)
    return any(_names(line, finding.rule) for line in lines[finding.line - 1 : last])


def _names(line: str, rule: str) -> bool:
    comment = _COMMENT.search(line)
    if comment is None:
        return False
    return comment["rules"] is None or rule in re.split(r"[\s,]+", comment["rules"])
