"""The place of a finding, as text."""

from __future__ import annotations

from gradviz.diagnose.finding import Finding


def place_of(finding: Finding) -> str:
    """The place of a finding: `train.py:12`, or `no source location`."""
    return finding.place or "no source location"
