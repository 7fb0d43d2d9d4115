"""What the graph of a pass had saved, in bytes: the same as PyTorch's own hooks on saved tensors see."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gradviz.events.kinds import Kind
from gradviz.query import Query
from gradviz.query.overview import saved_storages
from gradviz.tracefile import open_trace
from gradviz.words import Stop, Words
from gradviz.words.sentences import sentence
from tests.warm import python

pytest.importorskip("torch", reason="pip install torch")
pytestmark = pytest.mark.torch

PROGRAM = """
import json, sys
import torch
from torch import nn

torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv1d(3, 8, 3, padding=1), nn.BatchNorm1d(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8), nn.Dropout(0.1))
        self.gru, self.head = nn.GRU(8, 6, batch_first=True), nn.Linear(6, 5)

    def forward(self, x):
        x = self.bn(self.conv(x)).relu_().transpose(1, 2)
        x = x + self.attention(x, x, x)[0]
        x = x + self.ff(x)
        return self.head(self.gru(x)[0][:, -1])

net, x, y = Net(), torch.randn(4, 3, 10), torch.randint(0, 5, (4,))
sizes, kept = {}, []

def pack(tensor):
    kept.append(tensor)
    storage = tensor.untyped_storage()
    sizes[storage._cdata] = storage.nbytes()
    return tensor

hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
if "--count" in sys.argv:
    hooks.__enter__()
loss = nn.functional.cross_entropy(net(x), y)
parameters = {one.untyped_storage()._cdata for one in (*net.parameters(), *net.buffers())}
counted = {one: size for one, size in sizes.items() if size > 8}
print(json.dumps([sum(size for one, size in counted.items() if (one in parameters) == held) for held in (False, True)]))
loss.backward()
"""


def gradviz(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python(), "-m", "gradviz", *words], cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program and its trace under `--profile`."""
    folder = tmp_path_factory.mktemp("saved")
    (folder / "net.py").write_text(PROGRAM)
    assert gradviz(folder, "trace", "--profile", "net.py").returncode == 0
    return folder


def test_the_bytes_are_those_that_hooks_on_saved_tensors_see(folder: Path) -> None:
    counted = subprocess.run([python(), "net.py", "--count"], cwd=folder, capture_output=True, text=True, timeout=120)
    own, of_parameters = json.loads(counted.stdout)  # without scalars: the hooks do not see Python's numbers
    with open_trace(folder / "net.gradviz") as trace:
        number, storages = saved_storages(Query(trace))
    assert number == 1
    assert own > 10_000
    assert sum(one.size for one in storages if one.size > 8 and not one.is_parameter) == own
    assert sum(one.size for one in storages if one.size > 8 and one.is_parameter) == of_parameters


def test_a_storage_belongs_to_the_modules_that_all_of_its_nodes_are_in(folder: Path) -> None:
    with open_trace(folder / "net.gradviz") as trace:
        query = Query(trace)
        _, storages = saved_storages(query)
        largest = storages[0]
        assert largest.size == 4 * 10 * 32 * 4  # the hidden layer
        assert query.nodes.name(largest.node) in ("GeluBackward0", "AddmmBackward0")
        assert {"net", "net.ff"} <= set(largest.modules)
        assert {query.labels.of(one.leaf) for one in storages if one.leaf} >= {"x", "y", "net.head.weight"}


def test_info_tells_what_was_saved_and_what_a_checkpoint_computes_again(folder: Path) -> None:
    shown = gradviz(folder, "info", "net.gradviz", "--saved").stdout
    assert shown.startswith("When pass 1 began, its graph had saved ")
    assert "GeluBackward0" in shown
    assert "checkpoint(MODULE, ...)" in shown
    assert "net.ff" in shown.partition("checkpoint")[2]
    told = json.loads(gradviz(folder, "info", "net.gradviz", "--saved", "--json").stdout)
    assert told["storages"][0]["size"] == 5120
    both = json.loads(gradviz(folder, "info", "net.gradviz", "net.gradviz", "--saved", "--json").stdout)
    assert both == [told, told]


def test_a_report_has_what_was_saved(folder: Path) -> None:
    assert gradviz(folder, "report", "net.gradviz").returncode == 0
    assert 'id="saved-for-backward"' in (folder / "net.report.html").read_text()


def test_without_profile_the_command_says_what_records_it(folder: Path) -> None:
    gradviz(folder, "trace", "-o", "plain.gradviz", "net.py")
    result = gradviz(folder, "info", "plain.gradviz", "--saved")
    assert result.returncode == 2
    assert "trace --profile records it" in result.stderr


def test_the_sentence_of_the_event_names_its_node(folder: Path) -> None:
    with open_trace(folder / "net.gradviz") as trace:
        events = trace.table(Kind.STORAGE_SAVED).events.tolist()
        assert sentence(Stop(Words(trace), events[0])) == "NllLossBackward0 has saved 80 bytes"


def test_a_redacted_trace_keeps_the_bytes(folder: Path) -> None:
    gradviz(folder, "redact", "net.gradviz", "-o", "redacted.gradviz")
    shown = [gradviz(folder, "info", name, "--saved").stdout for name in ("net.gradviz", "redacted.gradviz")]
    first, second = (text.partition(".")[0] for text in shown)
    assert first == second
