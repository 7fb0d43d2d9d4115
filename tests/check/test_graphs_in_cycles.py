"""Graphs in cycles of references are freed when Python collects them: nothing in the program keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradviz.diagnose import Finding
from tests.zoo_programs import Program, checked

PROGRAM = """
import gc
import gradviz.engine as torch

class Holder:
    pass

gc.disable()
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for step in range(12):
    holder = Holder()
    holder.loss = model(torch.randn(4, 3)).pow(2).mean()
    optimizer.zero_grad()
    holder.loss.backward()
    optimizer.step()
    {keeping}
    if step == 3 or step == 7:
        gc.collect(0)
gc.enable()
"""


def found_in(text: str, folder: Path) -> list[Finding]:
    """The findings in a program."""
    return list(checked(Program("a program", "healthy", text), folder))


@pytest.mark.parametrize(
    ("keeping", "rules"), [("holder.itself = holder", []), ("kept.append(holder)", ["graph-leak"])]
)
def test_graphs_that_wait_for_a_collection_are_no_leak(tmp_path: Path, keeping: str, rules: list[str]) -> None:
    assert [finding.rule for finding in found_in(PROGRAM.format(keeping=keeping), tmp_path)] == rules


WINDOW = """
import gradviz.engine as torch

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
window, history, best = [], [], None
for step in range(23):
    loss = model(torch.randn(4, 3)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    window = window + [loss]
    if step % 5 == 2:
        {keeping}
    if len(window) == 5:
        window = []
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keeping", "messages"),
    [
        ("best = loss", []),
        (
            "history = history + [loss]",
            [
                "something keeps the graphs of several passes: at the end of pass 23, those of 6 earlier ones are "
                "still alive"
            ],
        ),
    ],
)
def test_graphs_that_stay_while_older_and_younger_ones_are_freed_at_once_are_a_leak(
    tmp_path: Path, keeping: str, messages: list[str]
) -> None:
    assert [finding.message for finding in found_in(WINDOW.format(keeping=keeping), tmp_path)] == messages


TWO_LISTS = WINDOW.replace("window = window + [loss]", "window.append(loss)").replace(
    "{keeping}", "history.append(loss)"
)


def test_a_line_is_named_only_if_no_other_line_keeps_the_same_tensor(tmp_path: Path) -> None:
    [finding] = found_in(TWO_LISTS, tmp_path)
    assert finding.line == 11
    assert finding.message.startswith("line 13 or line 15 keeps loss, and with it the graph of each pass: ")
