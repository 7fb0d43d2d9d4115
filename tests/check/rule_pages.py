"""Writes docs/rules from the headers of the rules: `python -m tests.check.rule_pages`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradviz.diagnose import RULES
from gradviz.diagnose.between_ranks import RANK_RULES
from gradviz.diagnose.rank_rule import RankRule
from gradviz.diagnose.rule import Rule
from gradviz.diagnose.text import RulePage, markdown, page_of
from tests.ranks.rank_examples import PRELUDE, cured_example
from tests.zoo_programs import ALL, Program

FOLDER = Path(__file__).parents[2] / "docs/rules"


def zoo_program(page: RulePage) -> Program | None:
    """The program of the zoo that the example of a rule is; None if it is none."""
    return next((one for one in ALL if one.rule == page.rule.id and _text(one) == page.example), None)


def _text(program: Program) -> str:
    return program.text.removeprefix("import torch\n").strip("\n")


def cured(page: RulePage) -> str:
    """The example of a rule as its cured twin in the zoo."""
    broken = zoo_program(page)
    assert broken is not None, page.rule.id
    return next(_text(one) for one in ALL if one.name == broken.name and one.state == "cured")


def pages() -> dict[str, str]:
    """The text of each file of docs/rules, by its name."""
    found = {f"{rule.id}.md": _page(rule) for rule in RULES}
    found |= {f"{rule.id}.md": _page_of_ranks(rule) for rule in RANK_RULES}
    found["README.md"] = (
        "# The rules of check\n\nA page for each, made from the header of its file "
        "(`python -m tests.check.rule_pages`). `gradviz check --explain RULE` prints the same.\n\n"
        f"{_rows(RULES)}\n\n## Between ranks\n\n"
        "These compare the [ranks of one run](../check.md#between-ranks). Their examples begin with\n\n"
        f"```python\n{PRELUDE}```\n\n{_rows(RANK_RULES)}\n"
    )
    return found


def _rows(rules: Sequence[Rule | RankRule]) -> str:
    return "\n".join(f"- [{rule.id}]({rule.id}.md) ({rule.severity}): {rule.looks_for}" for rule in rules)


def _page_of_ranks(rule: RankRule) -> str:
    """The page of a rule between ranks. The cure of its example stands in tests/ranks/rank_programs.py, which needs
    PyTorch to be run, and not to be read."""
    page = page_of(rule)
    return markdown(page, cured_example(rule.id, page.example))


def _page(rule: Rule) -> str:
    page = page_of(rule)
    return markdown(page, cured(page))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
