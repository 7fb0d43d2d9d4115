"""The ledger: one row for each parameter and each step of an optimizer that holds it, with the first broken link."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from gradviz.query import Query
from gradviz.query.ledger import Ledger, Link
from gradviz.query.missing_gradients import Lack
from gradviz.sources.script import Target, run
from gradviz.tracefile import open_trace

PROGRAM = """
import torch
learns = torch.ones(3, requires_grad=True)
unused = torch.ones(3, requires_grad=True)
flat = torch.ones(3, requires_grad=True)
cut = torch.ones(3, requires_grad=True)
late = torch.ones(3, requires_grad=True)
idle = torch.ones(3, requires_grad=True)
free = torch.ones(3, requires_grad=True)
held = torch.optim.SGD([learns, unused, flat, cut, late], lr=0.1)
waiting = torch.optim.Adam([idle])
for step in range(6):
    loss = (learns * learns).sum() + torch.round(flat).sum() + cut.detach().sum() + (idle * free).sum()
    if step >= 2:
        loss = loss + (late * late).sum()
    held.zero_grad()
    loss.backward()
    if step == 3:
        learns.grad.norm()
        learns.grad = None
    held.step()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ledger")
    (folder / "program.py").write_text(PROGRAM)
    run(Target(str(folder / "program.py"), False, []), folder / "run.gradviz", engine="numpy")
    return folder / "run.gradviz"


@pytest.fixture
def ledger(recorded: Path) -> Iterator[Ledger]:
    with open_trace(recorded) as trace:
        yield Query(trace).of(Ledger)


def leaf(ledger: Ledger, name: str) -> int:
    return ledger.query.names.tensor_called(name, ledger.trace.count)


@pytest.mark.parametrize(
    ("name", "links"),
    [
        ("learns", [(Link.LEARNS, 3), (Link.CLEARED, 1), (Link.LEARNS, 2)]),
        ("unused", [(Link.NO_GRADIENT, 6)]),
        ("flat", [(Link.ZERO, 6)]),
        ("cut", [(Link.NO_GRADIENT, 6)]),
        ("late", [(Link.NO_GRADIENT, 2), (Link.LEARNS, 4)]),
        ("idle", []),
    ],
)
def test_a_parameter_is_judged_at_each_step_of_its_optimizer(
    ledger: Ledger, name: str, links: list[tuple[Link, int]]
) -> None:
    stretches = ledger.of(leaf(ledger, name)).stretches
    assert [(stretch.link, stretch.last - stretch.first + 1) for stretch in stretches] == links


def test_what_cleared_and_what_read_a_gradient_is_known(ledger: Ledger) -> None:
    rows = ledger.rows
    (row,) = (row for row in range(len(rows.leaves)) if rows.lost[row])
    lines = PROGRAM.splitlines()
    leaves, events = ledger.reads
    (event,) = events[(leaves == rows.leaves[row]) & (events < rows.cleared[row])]
    read, cleared = (ledger.query.places.at(int(one)) for one in (event, rows.cleared[row]))
    assert read is not None
    assert cleared is not None
    assert "learns.grad.norm()" in lines[read.place.line - 1]
    assert "learns.grad = None" in lines[cleared.place.line - 1]


def test_a_row_has_the_gradient_and_the_change_of_the_step(ledger: Ledger) -> None:
    rows, first = ledger.rows, ledger.of(leaf(ledger, "learns")).stretches[0].first
    assert rows.norms[first] == pytest.approx(2 * 3**0.5)
    assert rows.changes[first] == pytest.approx(0.1 * 2 * 3**0.5)
    assert (rows.passes[first], rows.since[first]) == (1, -1)


def test_the_reason_of_a_parameter_without_a_gradient_is_in_its_account(ledger: Ledger) -> None:
    reasons = {name: ledger.of(leaf(ledger, name)).lacking for name in ("unused", "cut", "learns")}
    assert {name: why and why.lack for name, why in reasons.items()} == {
        "unused": Lack.UNUSED,
        "cut": Lack.CUT,
        "learns": None,
    }


def test_a_parameter_with_gradients_in_no_optimizer_is_homeless(ledger: Ledger) -> None:
    assert leaf(ledger, "free") in ledger.homeless
    assert leaf(ledger, "learns") not in ledger.homeless


Command = Callable[..., CompletedProcess[str]]


def test_info_shows_first_what_does_not_learn(recorded: Path, gradviz_here: Command) -> None:
    shown = gradviz_here("info", "--ledger", str(recorded)).stdout.splitlines()
    assert "steps 1 to 2: no pass gives it a gradient" in "\n".join(shown)
    names = [line.split()[0] for line in shown[1:]]
    assert set(names[-2:]) == {"learns", "late"}
    assert set(names[:-2]) == {"unused", "flat", "cut", "idle"}


def test_info_gives_the_ledger_as_data(recorded: Path, gradviz_here: Command) -> None:
    lines = {
        line["parameter"]: line for line in json.loads(gradviz_here("info", "--ledger", "--json", str(recorded)).stdout)
    }
    assert (lines["flat"]["gradient"], lines["flat"]["learns"], lines["flat"]["passes"]) == (0, False, 6)
    assert lines["idle"]["account"] == "its optimizer never steps"


def test_why_ends_with_the_account_of_the_tensor(recorded: Path, gradviz_here: Command) -> None:
    assert "learns, held by SGD: 6 passes gave it a gradient;" in " ".join(
        gradviz_here("why", str(recorded), "learns").stdout.split()
    )
