"""The ids of a graph's nodes. The same run always gives the same ids."""

from __future__ import annotations

from gradviz.query import FIRST, State
from gradviz.query.tensors import Tensors


class _Made(dict[int, str]):
    """Ids for things of one kind, by number. Each string is made once, because many tables use it as a key."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def __missing__(self, number: int) -> str:
        name = self[number] = f"{self._prefix}{number}"
        return name


class Ids:
    """`op7` is the op or write of event 7, `n5` a node, `t12` a tensor, and `t12v1` the tensor after its
    first write."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors
        self._unwritten = _Made("t")
        self.op, self.node = _Made("op"), _Made("n")

    def tensor(self, state: State) -> str:
        """The id of a tensor in a given state."""
        if state.since == FIRST:
            return self._unwritten[state.tensor]
        return f"t{state.tensor}v{self._tensors.place_among_writes(state)}"
