"""The share of PyTorch's database of operators that runs again, as the documentation has it."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")

from tests.replay.operator_replays import EQUAL, PAGE, known, named, outcome, table
from tests.torch_samples import take_no_stacks

pytestmark = [pytest.mark.torch, pytest.mark.slow]
FOUND = known()
DIFFER = [name for name, told in FOUND.items() if told != EQUAL]
SOME = sorted({*list(FOUND)[::20], *DIFFER[::3], "nn.functional.max_pool2d", "nn.functional.normalize"})


def test_the_table_of_the_page_is_what_was_found() -> None:
    assert table(FOUND) in PAGE.read_text(encoding="utf-8"), "python -m tests.replay.operator_replays writes it anew"


def test_of_twenty_entries_nineteen_give_the_recorded_bits() -> None:
    counts = Counter(FOUND.values())
    assert counts.total() > 500
    assert counts[EQUAL] >= 0.95 * counts.total()


@pytest.mark.parametrize("name", SOME)
def test_an_entry_runs_again_as_it_did_when_the_table_was_made(tmp_path: Path, name: str) -> None:
    op = named().get(name)
    if op is None:
        pytest.skip("the installed PyTorch has no such entry")
    take_no_stacks()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert outcome(op, tmp_path) == FOUND[name]
