"""The place of a finding, as text."""

from __future__ import annotations

from gradviz.diagnose.finding import Finding
from gradviz.system.paths import file_name
from gradviz.words.escape import clean


def place_of(finding: Finding) -> str:
    """`train.py:12`, or that there is no place."""
    return f"{clean(file_name(finding.file))}:{finding.line}" if finding.line else "no source location"
