"""The ids of a graph's nodes. The same run always gives the same ids."""

from __future__ import annotations

from collections.abc import Iterable

from gradviz.query import State


class _Made(dict[int, str]):
    """Ids for things of one kind, by number. Each string is made once, because many tables use it as a key."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def __missing__(self, number: int) -> str:
        name = self[number] = f"{self._prefix}{number}"
        return name


class Ids:
    """The ids of the nodes of one graph. `op7` is the op or write of event 7, `n5` a node, `t12` a tensor as the graph
    shows it first, and `t12v1` the same tensor after the first write that the graph shows. `states` are the states of
    tensors in the graph."""

    def __init__(self, states: Iterable[State] = ()) -> None:
        self.op, self.node = _Made("op"), _Made("n")
        self._tensors: dict[State, str] = {}
        tensor = version = 0
        for state in sorted(states):
            version = version + 1 if state.tensor == tensor else 0
            tensor = state.tensor
            self._tensors[state] = f"t{tensor}v{version}" if version else f"t{tensor}"

    def tensor(self, state: State) -> str:
        """The id of a tensor in a given state; for a state that is not in the graph, an id that no node has."""
        return self._tensors.get(state) or f"t{state.tensor}@{state.since}"
