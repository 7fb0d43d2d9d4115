"""`check`: rules find what went wrong in a run, on which line, and how to mend it."""

from gradviz.diagnose.finding import Finding, Report
from gradviz.diagnose.rules import RULES
from gradviz.diagnose.run_rules import UnknownRule, check

__all__ = ["RULES", "Finding", "Report", "UnknownRule", "check"]
