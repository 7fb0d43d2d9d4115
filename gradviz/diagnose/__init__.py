"""Diagnosis: rules find what went wrong in a run, on which line, and how to mend it."""

from gradviz.diagnose.check import UnknownRule, check
from gradviz.diagnose.finding import Finding, Report
from gradviz.diagnose.rules import RULES

__all__ = ["RULES", "Finding", "Report", "UnknownRule", "check"]
