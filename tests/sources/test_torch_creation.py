"""No node is missed: PyTorch says from 2.14 on which it creates, and the recorder, which finds them by a walk from what
an operation returns, knows each of them.

The walk has stayed where the hook exists. Of the programs of tests/versions it misses only nodes that are no
operation's of the program: inside what is compiled or transformed, and those that an operation of PyTorch's own drops
again before it returns or raises. A hook would have to leave these out by such a walk, and holds nodes, or calls Python
once more, for each.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.events.kinds import NodeMade  # noqa: E402
from gradviz.sources.record import _recording  # noqa: E402
from tests.versions.programs import programs  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not hasattr(torch.autograd.graph, "node_creation_hook"),
        reason=f"PyTorch {torch.__version__} has no node_creation_hook, which is new in 2.14",
    ),
]
LEFT_OUT = {
    "compile", "compile with a differentiated graph", "transforms", "torch.jit.trace",  # nobody sees inside
    "gru with packed sequences", "a custom Function",  # drop nodes again before they return
    "checkpoint of a sequence", "an error of shapes",  # end an operation by an exception
    "a DataLoader with workers", "a script that exits", "threads",  # not of this thread alone
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(programs().keys() - LEFT_OUT))
def test_each_node_that_pytorch_creates_is_known(name: str, tmp_path: Path) -> None:
    created: list[Any] = []
    with warnings.catch_warnings(), gradviz.record(tmp_path / "run.gradviz"):
        warnings.simplefilter("ignore")
        key = _recording[-1].attachment.recorder.source.identity.key
        with torch.autograd.graph.node_creation_hook(created.append):
            try:
                exec(programs()[name], {"__name__": name})
            except (RuntimeError, ValueError):
                assert "error" in name or "raises" in name or "NaN" in name
        missed = [node.name() for node in created if key not in node.metadata]
    assert missed == []
    inner = [node for node in created if not hasattr(node, "variable")]
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        assert sum(isinstance(event, NodeMade) for event in trace) >= len(inner)
