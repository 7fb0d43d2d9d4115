"""CopySlices: the node of a tensor after one of its views was modified in place."""

from __future__ import annotations

from typing import Any

from gradviz.engine.basics.errors import backward_twice
from gradviz.engine.core.node import Edge, Node
from gradviz.engine.core.state import next_node_number
from gradviz.engine.table import kernels as k


class CopySlices(Node):
    """The node of a base after an in-place op on a view. The op's node `inner` works on the part of the view only.

    As in PyTorch, the edge of the op's first input is replaced by the edge of the base."""

    __slots__ = ("_edges", "geometry", "inner")
    inner: Any  # None: released

    def __init__(self, base_edge: Edge, inner: Node, geometry: k.Geometry) -> None:
        self.number = next_node_number()
        self.rare = None
        self._edges = (base_edge, *inner.edges[1:])
        self.inner, self.geometry = inner, geometry

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The base's edge, and those of the op's other inputs."""
        return self._edges

    def release(self) -> None:
        """Free the op's node, even where it saved nothing, as PyTorch does."""
        self.inner = None

    def saved(self) -> list:
        """What the op saved."""
        return [] if self.inner is None else self.inner.saved()

    def vjp(self, g: Any) -> tuple:
        """The gradients of the base and of the op's other inputs. In the part of the view, the base gets the gradient
        of the op's first input."""
        return self._through(g, "vjp")

    def vjp_recorded(self, g: Any) -> tuple:
        """`vjp` on Tensors."""
        return self._through(g, "vjp_recorded")

    def _through(self, g: Any, way: str) -> tuple:
        if self.inner is None:
            raise backward_twice(self.name())
        result = getattr(self.inner, way)(k.shown(g, self.geometry))
        first, *others = result if isinstance(result, tuple) else (result,)
        whole = k.outside_slices(g, self.geometry)
        if first is not None:
            whole = whole + k.strided_back(first, g.shape, self.geometry)
        return (None if self._edges[0] is None else whole, *others)
