"""The place of a finding, as text."""

from __future__ import annotations

from gradviz.diagnose.finding import Finding


def place_of(finding: Finding) -> str:
    """`train.py:12`, or that there is no place."""
    return finding.place or "no source location"
