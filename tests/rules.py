"""What tests each rule: `python -m tests.rules` lists the programs of the zoo, and the tests that name the rule."""

from __future__ import annotations

from pathlib import Path

from gradviz.diagnose import RULES
from gradviz.diagnose.between_ranks import BETWEEN_RANKS
from tests.zoo_programs import ALL

TESTS = Path(__file__).parent


def programs_of(rule: str) -> list[str]:
    """The programs of a rule: those that name it as their fault, and the sound ones beside them in its file. Rules
    between ranks have theirs in tests/ranks/rank_programs.py."""
    return [program.name for program in ALL if rule in (program.rule, program.name.partition(":")[0])]


def tests_of(rule: str) -> list[str]:
    """The files of tests in which a rule is named."""
    files = sorted(TESTS.rglob("test_*.py"))
    return [str(file.relative_to(TESTS)) for file in files if f'"{rule}' in file.read_text(encoding="utf-8")]


if __name__ == "__main__":
    for rule in (*(rule.id for rule in RULES), *BETWEEN_RANKS):
        own = "ranks/rank_programs.py" if rule in BETWEEN_RANKS else f"{len(programs_of(rule))} of the zoo"
        shared = "ranks/test_rank_rules.py" if rule in BETWEEN_RANKS else "check/test_check_zoo.py"
        print(f"{rule}: {own} → {', '.join(dict.fromkeys([shared, *tests_of(rule)]))}")
