"""Diagnosis: rules find what went wrong in a run, on which line, and how to mend it; `why` says where a gradient
came from, `diff` where two runs part."""

from gradviz.diagnose.check import UnknownRule, check
from gradviz.diagnose.diff import diff
from gradviz.diagnose.finding import Finding, Report
from gradviz.diagnose.rules import RULES
from gradviz.diagnose.why import why

__all__ = ["RULES", "Finding", "Report", "UnknownRule", "check", "diff", "why"]
