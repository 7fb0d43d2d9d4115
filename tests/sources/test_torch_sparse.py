"""Sparse tensors under the recorder: their values are those of the dense tensors that they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.diagnose import check  # noqa: E402
from gradviz.events.values import stats_of  # noqa: E402
from gradviz.query import Query  # noqa: E402
from gradviz.sources.torch_recorder.tensor_values import TorchReader  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:Sparse")]


def of_coordinates(values: Any, shape: tuple[int, ...]) -> Any:
    return torch.sparse_coo_tensor([[0, 3, 0]], values, shape)


@pytest.mark.parametrize(
    "sparse",
    [
        of_coordinates([1.0, -2.0, 4.0], (5,)),  # one element twice
        of_coordinates([[1.0, 2.0], [3.0, 0.0], [5.0, 6.0]], (4, 2)),
        of_coordinates([1.0, float("nan"), float("inf")], (5,)),
        of_coordinates([-1.0, -2.0, -3.0], (4,)),
        torch.tensor([[0.0, 2.0], [3.0, 0.0]]).to_sparse_csr(),
        torch.zeros(3, 3).to_sparse(),
        torch.ones(2, 2).to_sparse(),
    ],
)
def test_the_values_of_a_sparse_tensor_are_those_of_the_dense_one(sparse: Any) -> None:
    dense, reader = sparse.to_dense().numpy(), TorchReader()
    assert reader.keep(sparse, True) == dense.tobytes()
    assert np.array_equal(reader.array(sparse), dense, equal_nan=True)
    assert np.frombuffer(reader.keep(sparse, False)) == pytest.approx(tuple(stats_of(dense)), nan_ok=True)


def test_a_sparse_tensor_that_is_too_large_to_be_dense_has_statistics(tmp_path: Path) -> None:
    large = torch.sparse_coo_tensor([[0, 9], [1, 2]], [3.0, 4.0], (10**6, 10**6))
    with gradviz.record(tmp_path / "run.gradviz", values="full"):
        assert float((large * 2).coalesce().values().sum()) == 14
    reader = TorchReader()
    assert reader.keep(large, True) is None
    assert np.frombuffer(reader.keep(large, False))[[0, 1, 6]].tolist() == [0, 4, 10**12 - 2]


def test_a_sparse_gradient_that_is_not_finite_is_found(tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "run.gradviz"):
        table = torch.nn.Embedding(5, 2, sparse=True)
        torch.nn.init.zeros_(table.weight)
        loss = table(torch.tensor([1, 1])).sqrt().sum()
        loss.backward()
    trace = gradviz.open(tmp_path / "run.gradviz")
    (leaf,) = trace.parameters
    grad = Query(trace).tensors.grad(leaf, trace.count - 1)
    assert trace.snapshot(grad).stats.inf == 2
    assert [finding.rule for finding in check(trace).findings] == ["singular-derivative"]


def test_no_node_is_made_when_the_values_of_a_sparse_tensor_are_read(tmp_path: Path) -> None:
    """PyTorch numbers its nodes: a node of ours would change the numbers of the program's."""

    def number() -> int:
        sparse = torch.eye(3).to_sparse().requires_grad_()
        first, last = (sparse * 2).grad_fn, (sparse * 3).grad_fn
        return int(last._sequence_nr() - first._sequence_nr())

    plain = number()
    with gradviz.record(tmp_path / "run.gradviz", values="full"):
        assert number() == plain
