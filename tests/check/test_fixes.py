"""A cure is edits of the source: no code reads its text back, and SARIF has the edits of the patch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradviz.diagnose.fix import SourceText, rewritten
from gradviz.diagnose.text import as_sarif
from tests.zoo_programs import ALL, checked

PACKAGE = Path(__file__).parents[2] / "gradviz"
SEARCHES = {
    "find", "index", "count", "startswith", "endswith", "partition", "rpartition", "split", "rsplit", "replace",
    "removeprefix", "removesuffix", "search", "match", "fullmatch", "findall", "finditer", "sub",
}  # fmt: skip
OF_PROGRAMS = {"failure", "error", "event", "e", "session"}  # their messages are those of PyTorch and of the stepper


def searched(tree: ast.Module) -> Iterator[int]:
    """The lines that search in the cure or in the message of a finding, or compare parts of them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(isinstance(one, ast.In | ast.NotIn) for one in node.ops):
            asked = [node.comparators[0]]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SEARCHES:
            asked = [node.func.value, *node.args]
        else:
            continue
        if any(_is_prose(one) for one in asked):
            yield node.lineno


def _is_prose(node: ast.expr) -> bool:
    owner = node.value if isinstance(node, ast.Attribute) and node.attr in ("fix", "message") else None
    return isinstance(owner, ast.expr) and not (isinstance(owner, ast.Name) and owner.id in OF_PROGRAMS)


@pytest.mark.slow
def test_no_code_searches_in_the_cure_or_the_message_of_a_finding() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if "engine" not in path.parts]
    assert len(files) > 300
    found = [
        (str(path.relative_to(PACKAGE)), line)
        for path in files
        for line in searched(ast.parse(path.read_text("utf-8")))
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "'no_grad' in finding.fix",
        "finding.fix.startswith('leave out')",
        "re.match(r'dim=(-?\\d+)', spot.finding.fix)",
        "typed not in one.message",
    ],
)
def test_a_search_in_a_finding_is_seen(code: str) -> None:
    assert list(searched(ast.parse(code))) == [1]


def with_replacements(text: str, fix: dict) -> str:  # type: ignore[type-arg]
    """A text with the replacements of a SARIF fix."""
    (change,) = fix["artifactChanges"]
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for replacement in reversed(change["replacements"]):
        region = replacement["deletedRegion"]
        start = starts[region["startLine"] - 1] + region["startColumn"] - 1
        end = starts[region["endLine"] - 1] + region["endColumn"] - 1
        text = text[:start] + replacement["insertedContent"]["text"] + text[end:]
    return text


@pytest.mark.parametrize(
    "rule", ["stale-gradient", "broadcast-surprise", "singular-derivative", "detached-path", "discarded-gradient"]
)
def test_a_sarif_fix_makes_the_text_of_the_patch(rule: str, tmp_path: Path) -> None:
    program = next(one for one in ALL if one.rule == rule and one.state == "broken" and not one.needs_torch)
    report = checked(program, tmp_path)
    patch = report.findings[0].patch
    (result, *_) = as_sarif(report)["runs"][0]["results"]
    assert patch is not None
    (fix,) = result["fixes"]
    assert fix["description"]["text"] == report.findings[0].fix
    assert with_replacements(program.text, fix) == patch.after != program.text


def test_advice_has_no_sarif_fix(tmp_path: Path) -> None:
    program = next(one for one in ALL if one.name == "none-grad: cleared before it is read")
    report = checked(program, tmp_path)
    assert report.findings[0].patch is None
    assert "fixes" not in as_sarif(report)["runs"][0]["results"][0]


EXPRESSIONS = {
    "a part around another": (
        "torch.log(\n    p*q,  # why\n)", "torch.log(p * q)", "torch.log((p * q).clamp(min=1e-8))",
        "torch.log(\n    (p*q).clamp(min=1e-8),  # why\n)",
    ),
    "a part that stays": ("F.softmax(net( x ), dim=1)", "F.softmax(net(x), dim=1)", "net(x)", "net( x )"),
    "a part that needs brackets": ("2*(a+b).detach()", "(a + b).detach()", "a + b", "2*(a + b)"),
    "a part inside": ("a.sum()**0.5", "a.sum() ** 0.5", "(a.sum() + 1e-12) ** 0.5", "(a.sum() + 1e-12)**0.5"),
    "a part in brackets": ("(a+b)**0.5", "(a + b) ** 0.5", "(a + b + 1e-12) ** 0.5", "(a+b + 1e-12)**0.5"),
    "an argument before a comma": ("f(x,  # x\n)", "f(x)", "f(x, dim=1)", "f(x, dim=1,  # x\n)"),
    "an argument in brackets": ("f((x))", "f(x)", "f(x, dim=1)", "f((x), dim=1)"),
    "other arguments": ("Loss(a, b,k=1)", "Loss(a, b, k=1)", "Loss(k=1)(a, b)", "Loss(k=1)(a, b)"),
}  # fmt: skip


@pytest.mark.parametrize(("code", "old", "new", "expected"), EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_an_edit_of_an_expression_keeps_what_stays_as_it_is_written(
    code: str, old: str, new: str, expected: str
) -> None:
    source = SourceText(f"y = {code}\n")
    node = next(n for n in ast.walk(source.tree) if isinstance(n, ast.expr) and ast.unparse(n) == old)
    assert source.edited(rewritten(source, node, new)) == f"y = {expected}\n"
