"""Several parameters are called by their module if they are all of its parameters, and not by a module around it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gradviz.diagnose import check
from gradviz.query import Query
from gradviz.sources.script import Target, run
from gradviz.tracefile import open_trace

AVERAGE_OF_A_FROZEN_PART = """\
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.query = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
        self.key = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3))).requires_grad_(False)
    def forward(self, x):
        return (self.query(x) - self.key(x)).pow(2).mean()
torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.query.parameters(), lr=0.1)
for step in range(3):
    with torch.no_grad():
        for own, other in zip(net.key.parameters(), net.query.parameters()):
            own = own * 0.9 + other * 0.1
    optimizer.zero_grad()
    net(torch.randn(8, 4)).backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def average(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Query]:
    folder = tmp_path_factory.mktemp("average")
    (folder / "script.py").write_text(AVERAGE_OF_A_FROZEN_PART, encoding="utf-8")
    run(Target(str(folder / "script.py"), False, ()), folder / "script.gradviz", engine="numpy")
    with open_trace(folder / "script.gradviz") as trace:
        yield Query(trace)


def test_a_lost_average_names_the_frozen_part_and_not_the_model_around_it(average: Query) -> None:
    [finding] = check(average.trace).findings
    assert finding.rule == "not-updated"
    assert "net.key (6 parameters) never change" in finding.message


@pytest.mark.parametrize(
    ("beginnings", "paths"),
    [
        (("net.key.",), ["net.key"]),
        (("net.query.",), ["net"]),  # all of the model that requires grad
        (("net.query.", "net.key."), ["net"]),
        (("net.key.0.", "net.key.1.weight"), ["net.key.0", "net.key.1.weight"]),
        (("net.query.0.", "net.key.0."), ["net.query.0", "net.key.0"]),
    ],
)
def test_a_module_is_whole_with_all_that_requires_grad_or_with_all_if_nothing_does(
    average: Query, beginnings: tuple[str, ...], paths: list[str]
) -> None:
    leaves = [leaf for leaf, name in average.trace.parameters.items() if name.startswith(beginnings)]
    assert sorted(path for path, _ in average.modules.whole(leaves)) == sorted(paths)
