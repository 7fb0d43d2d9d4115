"""A tensor that gives an op only a shape or a dtype is no input that a gradient could go to."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.graph.build import build  # noqa: E402
from gradviz.query import Query  # noqa: E402
from gradviz.query.flow import shortest_way  # noqa: E402
from gradviz.tracefile import open_trace  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("op", ["expand_as", "view_as", "reshape_as", "type_as"])
def test_the_shape_of_a_tensor_is_no_way_to_it(op: str, tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "run.gradviz"):
        w = torch.ones(3, requires_grad=True)
        like = torch.ones(3, requires_grad=True)
        (getattr(w, op)(like.exp()) * 2).sum().backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        query = Query(trace)
        assert [edge.cut for edge in build(query).edges if edge.cut] == []
        (root,) = query.passes.began(1).roots
        leaves = [query.names.tensor_called(name, trace.count) for name in ("w", "like")]
        assert [bool(shortest_way(query, leaf, root.tensor)) for leaf in leaves] == [True, False]


def test_what_is_cut_all_the_same_is_told(tmp_path: Path) -> None:
    w = torch.ones(3, requires_grad=True)
    with gradviz.record(tmp_path / "run.gradviz"):
        (w.detach().expand_as(w) * w).sum().backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert [edge.cut for edge in build(Query(trace)).edges if edge.cut] == ["detach"]
