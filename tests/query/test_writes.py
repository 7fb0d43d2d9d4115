"""The writes to leaves: by any name of their memory, with their time and their author."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradviz.query import Query
from gradviz.query.training import BY_HAND, STEPPED, Training
from gradviz.query.writes import Author, Writes, writes_by_any_name
from gradviz.sources.script import Target, run
from gradviz.tracefile import open_trace

SPELLINGS = [
    "w.data.add_(-0.1 * w.grad)",
    "w.data -= 0.1 * w.grad",
    "w.data = w.data - 0.1 * w.grad",
    "w.data.sub_(0.1 * w.grad.data)",
    "w.data.add_(w.grad, alpha=-0.1)",
    "w.data.copy_(w.data - 0.1 * w.grad)",
    "w.detach().sub_(0.1 * w.grad)",
    "w.data[:] = w.data - 0.1 * w.grad",
    "w.data[0] -= 0.1 * w.grad[0]",
]
PROGRAM = """
import torch
w = torch.ones(3, requires_grad=True)
for step in range(2):
    (w * w).sum().backward()
    {}
    w.grad.zero_()
"""


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_step_by_hand_is_a_step_in_any_spelling(spelling: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(spelling))
    run(Target(str(tmp_path / "program.py"), False, []), tmp_path / "run.gradviz", engine="numpy")
    with open_trace(tmp_path / "run.gradviz") as trace:
        lives = Query(trace).of(Training).lives
        assert (lives.numbers[lives.whats == STEPPED] == BY_HAND).tolist() == [True, True]


AUTHORS = """
import torch
net = torch.nn.Linear(2, 1)
torch.nn.init.ones_(net.weight)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.ones(1, 2)).sum().backward()
optimizer.step()
net.weight.data.clamp_(-1, 1)
net.load_state_dict({name: value.clone() for name, value in net.state_dict().items()})
"""


def test_a_write_has_an_author(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(AUTHORS)
    run(Target(str(tmp_path / "program.py"), False, []), tmp_path / "run.gradviz", engine="numpy")
    with open_trace(tmp_path / "run.gradviz") as trace:
        query = Query(trace)
        weight = query.names.tensor_called("net.weight", trace.count - 1)
        writes = query.of(Writes)
        authors = [writes.author(e, weight) for e in writes.events[writes.leaves == weight].tolist()]
        assert authors == [Author.INITIALISER, Author.OPTIMIZER, Author.PROGRAM, Author.LOAD]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_writes_of_a_stretch_are_those_of_the_run_within_it(spelling: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(spelling))
    run(Target(str(tmp_path / "program.py"), False, []), tmp_path / "run.gradviz", engine="numpy")
    with open_trace(tmp_path / "run.gradviz") as trace:
        query = Query(trace)
        moment = query.at(trace.count - 1)
        gradient = moment.grad(moment.leaves[0])
        every = writes_by_any_name(query, gradient)
        assert len(every) > 1
        for since in range(trace.count):
            for until in (since + 1, trace.count):
                expected = [k for k in every if since <= k < until]
                assert writes_by_any_name(query, gradient, since, until) == expected
