"""The ids of a graph's nodes: the same run has the same ids."""

from __future__ import annotations

from gradviz.query import FIRST, State
from gradviz.query.tensors import Tensors


class _Made(dict[int, str]):
    """Ids for things of one kind, by number, each made once: every table about a graph has them as keys."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def __missing__(self, number: int) -> str:
        name = self[number] = f"{self._prefix}{number}"
        return name


class Ids:
    """`op7` for the op or write of event 7, `n5` for a node, `t12` for a tensor, `t12v1` after its first write."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors
        self._unwritten = _Made("t")
        self.op, self.node = _Made("op"), _Made("n")

    def tensor(self, state: State) -> str:
        """The id of a tensor in a state."""
        if state.since == FIRST:
            return self._unwritten[state.tensor]
        return f"t{state.tensor}v{self._tensors.place_among_writes(state)}"
