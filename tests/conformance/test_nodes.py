"""Whole graphs of composed operations: the nodes that PyTorch makes, in its order."""

from __future__ import annotations

from typing import Any

import pytest

from gradviz import engine

torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")

pytestmark = pytest.mark.torch

MATRICES = [
    ((2, 3, 4), (4, 5)), ((2, 3, 4), (4,)), ((3, 4), (2, 4, 5)), ((4,), (2, 4, 5)), ((2, 3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (2, 4, 5)), ((2, 3, 1, 4), (4,)), ((1, 4), (4,)), ((4,), (4, 5)), ((4,), (4,)),
]  # fmt: skip
WANTED = [(True, True), (True, False), (False, True)]


def graph(tensor: Any) -> Any:
    """The names of the nodes that lead to a tensor, as nested tuples."""

    def walk(node: Any) -> Any:
        return None if node is None else (node.name(), *[walk(target) for target, _ in node.next_functions])

    return walk(tensor.grad_fn)


@pytest.mark.parametrize("wanted", WANTED, ids=["both", "left", "right"])
@pytest.mark.parametrize("shapes", MATRICES, ids=str)
def test_matmul_folds_or_batches_as_pytorch_does(shapes: tuple, wanted: tuple[bool, bool]) -> None:
    def product(library: Any) -> Any:
        x, y = (library.ones(*s, requires_grad=w) for s, w in zip(shapes, wanted, strict=True))
        return library.matmul(x, y)

    assert graph(product(engine)) == graph(product(torch))


@pytest.mark.parametrize("transposed", [False, True])
def test_reshape_is_a_view_where_it_can_be_and_else_a_copy(transposed: bool) -> None:
    def reshaped(library: Any) -> Any:
        x = library.ones(2, 3, 4, requires_grad=True)
        return (x.transpose(0, 1) if transposed else x).reshape(6, 4)

    assert graph(reshaped(engine)) == graph(reshaped(torch))


def test_contiguous_copies_only_what_is_not() -> None:
    def both(library: Any) -> tuple:
        x = library.ones(2, 3, requires_grad=True) * 1
        return graph(x.contiguous()), graph(x.t().contiguous()), x.t().contiguous().is_contiguous()

    assert both(engine) == both(torch)
