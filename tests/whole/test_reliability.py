"""Every promise of docs/reliability.md names a test that there is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reliability.md"
PROMISES = re.findall(r"^\| (?!promise |-)(.+) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def named_in(file: str) -> set[str]:
    """The tests and classes of tests of a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.name.lower().startswith("test")
    }


@pytest.mark.parametrize(("promise", "tests"), PROMISES, ids=[promise[:50] for promise, _ in PROMISES])
def test_a_promise_names_its_tests(promise: str, tests: str) -> None:
    named = re.findall(r"`(tests/\w+/\w+\.py)::(\w+)(?:::(\w+))?`", tests)
    assert named, f"{promise} has no test"
    for file, *names in named:
        assert {name for name in names if name} <= named_in(file)


def test_there_are_promises() -> None:
    assert len(PROMISES) > 20
