"""An operation with thousands of inputs, as `stack` in a loop, is told in a few lines that count the others."""

from __future__ import annotations

import pytest

import gradviz.engine as torch
from gradviz.events.kinds import NodeMade, Produced
from gradviz.sources.record import record
from gradviz.tracefile import Trace, open_trace
from gradviz.words import Stop, Words
from gradviz.words.rows import rows
from gradviz.words.words import MOST_LISTED

INPUTS = 3000


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    path = tmp_path_factory.mktemp("many") / "run.gradviz"
    with record(path):
        parts = [torch.tensor(float(i), requires_grad=True) for i in range(INPUTS)]
        torch.stack(parts).sum().backward()
    return open_trace(path)


@pytest.mark.parametrize("kind", [NodeMade, Produced])
def test_the_rows_of_a_node_with_thousands_of_edges_are_few(trace: Trace, kind: type) -> None:
    words = Words(trace)
    event = max((event for event in trace if isinstance(event, kind)), key=lambda event: len(repr(event)))
    told = rows(Stop(words, event.index))
    assert f"… and {INPUTS - MOST_LISTED:,} more" in {row.text for row in told}
    assert len(told) < 3 * MOST_LISTED
    assert max(len(row.text) for row in told) < 1000
