"""What passed PyTorch's own samples when docs/conformance.md was written passes them still."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")

from tests.conformance import opinfo

pytestmark = [pytest.mark.torch, pytest.mark.slow]

WRITE = "if this is meant, run `python -m tests.conformance.opinfo`, which writes what is expected"


@pytest.fixture(scope="module")
def results() -> list[opinfo.Result]:
    return opinfo.run()


@pytest.fixture(scope="module")
def expected() -> dict[str, dict]:
    return json.loads(Path(opinfo.EXPECTED).read_text(encoding="utf-8"))


def test_no_entry_passes_fewer_samples_than_it_did(results: list[opinfo.Result], expected: dict[str, dict]) -> None:
    found = {result.name: result.row() for result in results}
    worse = {
        name: f"{found.get(name)} passed, failed, not supported; expected {row['counts']}"
        for name, row in expected.items()
        if name not in found or found[name][0] < row["counts"][0] or found[name][1] > row["counts"][1]
    }
    assert not worse, WRITE


def test_nodes_have_the_names_of_pytorchs_but_for_those_listed(
    results: list[opinfo.Result], expected: dict[str, dict]
) -> None:
    listed = {name: {tuple(pair) for pair in row["nodes"]} for name, row in expected.items()}
    new = {result.name: pairs for result in results if (pairs := result.nodes - listed.get(result.name, set()))}
    assert not new, WRITE


def test_the_report_says_what_the_samples_say(results: list[opinfo.Result]) -> None:
    report = opinfo.REPORT.read_text(encoding="utf-8")
    assert opinfo.totals(results) in report, WRITE
