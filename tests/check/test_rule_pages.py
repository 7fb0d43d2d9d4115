"""The page of each rule: in the header of its file, in the docs, in SARIF and from `check --explain`."""

from __future__ import annotations

from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from gradviz.diagnose import RULES, Report
from gradviz.diagnose.between_ranks import RANK_RULES
from gradviz.diagnose.rank_rule import RankRule
from gradviz.diagnose.rule import Rule
from gradviz.diagnose.text import as_sarif, page_of
from tests.check.rule_pages import FOLDER, pages, zoo_program


@pytest.mark.parametrize("rule", [*RULES, *RANK_RULES], ids=lambda rule: rule.id)
def test_a_header_says_what_why_how_and_what_is_spared(rule: Rule | RankRule) -> None:
    page = page_of(rule)
    for text in (page.finds, page.why, page.cure, page.spared):
        assert text[0].isupper() or not text[0].isalpha()
        assert text.endswith(".")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_the_example_is_a_program_of_the_zoo(rule: Rule) -> None:
    assert zoo_program(page_of(rule)) is not None


def test_the_docs_are_made_from_the_headers() -> None:
    made = pages()
    assert {file.name for file in FOLDER.iterdir()} == made.keys()
    for name, text in made.items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text, name


def test_explain_prints_the_page(gradviz: Callable[..., CompletedProcess[str]]) -> None:
    done = gradviz("check", "--explain", "stale-gradient")
    page = page_of(next(rule for rule in RULES if rule.id == "stale-gradient"))
    told = " ".join(done.stdout.split())
    for text in (page.finds, page.why, page.cure, page.spared, page.example):
        assert " ".join(text.split()) in told
    assert (done.returncode, done.stderr) == (0, "")


def test_explain_of_no_rule_names_the_one_that_was_meant(gradviz: Callable[..., CompletedProcess[str]]) -> None:
    done = gradviz("check", "--explain", "stale-gradiant")
    assert done.returncode == 2
    assert done.stderr == "gradviz: there is no rule 'stale-gradiant': did you mean stale-gradient?\n"


def test_sarif_has_the_page_as_help() -> None:
    report = Report([], tuple(rule.id for rule in (*RULES, *RANK_RULES)), ())
    (run,) = as_sarif(report)["runs"]
    for told in run["tool"]["driver"]["rules"]:
        assert told["help"]["markdown"].startswith(f"# {told['id']}\n")
