"""A node at which thousands of gradients meet: each view names the first of them and counts the others, in time that
grows with their number."""

from __future__ import annotations

import pytest

import gradviz
import gradviz.engine as torch
from gradviz.events.kinds import Kind
from gradviz.query import Query
from gradviz.query.moment import MOST_ADDED
from gradviz.tracefile import Trace, open_trace
from gradviz.words import Words
from gradviz.words.chain import so_far
from gradviz.words.words import MOST_LISTED

USES = MOST_ADDED + 100


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    path = tmp_path_factory.mktemp("many") / "run.gradviz"
    with gradviz.record(path):
        w = torch.tensor(2.0, requires_grad=True)
        torch.stack([w * k for k in range(USES)]).sum().backward()
    return open_trace(path)


def leaf_of(query: Query) -> int:
    """The node of the leaf."""
    (node,) = {int(node) for node in query.trace.table(Kind.ACCUMULATED)["node"]}
    return node


@pytest.mark.slow
def test_a_long_sum_names_the_first_terms_and_counts_the_others(trace: Trace) -> None:
    query = Query(trace)
    moment = query.at(trace.count - 1)
    leaf = leaf_of(query)
    meeting = moment.meeting(leaf)
    assert (len(meeting.arrivals), meeting.of, meeting.complete) == (USES, USES, True)
    assert meeting.total is None
    told = so_far(Words(query), moment, leaf)
    assert told.count(" + ") == MOST_LISTED
    assert told.endswith(f" + {USES - MOST_LISTED} more")


def test_each_gradient_has_arrived_from_its_event_on(trace: Trace) -> None:
    query = Query(trace)
    leaf = leaf_of(query)
    arrived = query.at(trace.count - 1).meeting(leaf).arrivals
    assert [one.event for one in arrived] == sorted(one.event for one in arrived)
    for position in (0, 1, USES // 2, USES - 1):
        at = arrived[position].event
        assert len(query.at(at).arrivals(leaf)) == position + 1
        assert len(query.at(at - 1).arrivals(leaf)) == position
