"""The page of a rule, made from the docstring of its file, for `check --explain`, for SARIF and for the docs."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from textwrap import dedent

from gradviz.diagnose.rank_rule import RankRule
from gradviz.diagnose.rule import Rule

_SECTIONS = re.compile(r"\n\n(Why it is bad|Example|Cure|Not reported):\s")


@dataclass(frozen=True, slots=True)
class RulePage:
    """The sections of a rule's page. `spared` is what looks alike and is not reported."""

    rule: Rule | RankRule
    finds: str
    why: str
    example: str
    cure: str
    spared: str


def page_of(rule: Rule | RankRule) -> RulePage:
    """The page of a rule. Its texts are empty if Python leaves docstrings out (`-OO`)."""
    header = sys.modules[rule.search.__module__].__doc__ or ""
    finds, *parts = _SECTIONS.split(header)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    return RulePage(
        rule,
        _sentences(finds.removeprefix(f"`{rule.id}`: ")),
        _sentences(sections.get("Why it is bad", "")),
        dedent(sections.get("Example", "")).strip("\n"),
        _sentences(sections.get("Cure", "")),
        _sentences(sections.get("Not reported", "")),
    )


def _sentences(text: str) -> str:
    """The text with one line for each paragraph and a capital first letter."""
    text = "\n\n".join(" ".join(part.split()) for part in text.strip().split("\n\n"))
    return text[:1].upper() + text[1:]


def markdown(page: RulePage, cured: str = "") -> str:
    """The page as Markdown, with the `cured` example if it is given."""
    without = f"Cured:\n\n```python\n{cured}\n```\n\n" if cured else ""
    asked = ", if it is selected" if page.rule.opt_in else ""
    return (
        f"# {page.rule.id}\n\n*{page.rule.severity}{asked}*: {page.rule.looks_for}.\n\n{page.finds}\n\n"
        f"## Why it is bad\n\n{page.why}\n\n## Example\n\n```python\n{page.example}\n```\n\n"
        f"## Cure\n\n{page.cure}\n\n{without}## Not reported\n\n{page.spared}\n"
    )
