"""CopySlices: the node of a tensor of which a view was written over."""

from __future__ import annotations

from typing import Any

from gradviz.engine.basics.errors import backward_twice
from gradviz.engine.core.node import Edge, Node
from gradviz.engine.core.state import next_node_number
from gradviz.engine.table import kernels as k


class CopySlices(Node):
    """The node of a base after an op in place on a view: the op's node `inner` works on the view's part alone.

    As in PyTorch, the edge of the op's first input is replaced by that of the base."""

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
        """Let go of the op, whether it saved anything or not: PyTorch does."""
        self.inner = None

    def saved(self) -> list:
        """What the op saved."""
        return [] if self.inner is None else self.inner.saved()

    def vjp(self, g: Any) -> tuple:
        """The gradient of the base, in the view's part that of the op's input; those of the other inputs."""
        return self._through(g, "vjp")

    def vjp_recorded(self, g: Any) -> tuple:
        """As `vjp`, on Tensors."""
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
