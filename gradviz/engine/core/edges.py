"""GradientEdge: an edge of the graph that programs can keep when the tensor is gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gradviz.engine.core.node import edge_node, edge_nr, output_edge
from gradviz.engine.core.state import state
from gradviz.engine.core.tensor import Tensor, gradient_edge, new_tensor, number_of


class _Edge(NamedTuple):
    node: Any
    output_nr: int
    ownership_token: Any = None


class GradientEdge(_Edge):
    """A node and one of its outputs. `backward` and `grad` take it in the place of a tensor."""

    number = 0  # of the tensor that it was made from, for a listener


def get_gradient_edge(tensor: Tensor) -> GradientEdge:
    """The edge that gradients of a tensor flow to. Raises RuntimeError where the tensor does not require grad."""
    if not tensor.requires_grad:
        raise RuntimeError("It is not possible to get the gradient edge for a Tensor that does not require gradients")
    edge: Any = gradient_edge(tensor)
    place = GradientEdge(edge_node(edge).as_shown(), edge_nr(edge))  # type: ignore[union-attr]
    if state.listener is not None:
        place.number = number_of(tensor)
    return place


def as_sequence(tensors: Any) -> list[Any]:
    """One tensor or GradientEdge, or several of them, as a list."""
    return [tensors] if isinstance(tensors, (Tensor, GradientEdge)) else list(tensors)


def as_tensors(things: Sequence[Any], gradients: Sequence[Any] | None = None) -> list[Tensor]:
    """The tensors. A GradientEdge becomes a tensor with that edge, of its gradient's shape where the gradient is
    given."""
    given = [None] * len(things) if gradients is None else gradients
    return [
        _stand_in(thing, gradient) if isinstance(thing, GradientEdge) else thing
        for thing, gradient in zip(things, given, strict=True)
    ]


def _stand_in(edge: GradientEdge, gradient: Any) -> Tensor:
    array = np.empty_like(gradient.array) if isinstance(gradient, Tensor) else np.empty(0, np.float32)
    node = getattr(edge.node, "_node", edge.node)  # the node of a custom Function is behind its ctx
    tensor = new_tensor(array, output_edge(node, edge.output_nr))
    # 0 where the listener does not know the tensor.
    tensor._number = edge.number if edge.number >= state.first_number else 0
    return tensor
