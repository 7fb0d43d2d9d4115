"""The graphs of earlier passes that are still alive: a source registers the nodes of each pass, and asks at its end."""

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any
from weakref import ref

from gradviz.events.field_types import Living

_PASSES, _NODES = 64, 8  # the number of last passes that are watched, and of nodes of each
_LEAST = 3  # the fewest graphs for an event: a loop keeps the graph of its last round until the next


class LivingGraphs:
    """Watches some nodes of each of the last passes. It keeps none of them alive."""

    def __init__(self) -> None:
        # the number of each pass, the first node, and the watched nodes
        self._watched: deque[tuple[int, ref[Any], list[ref[Any]]]] = deque(maxlen=_PASSES)

    def ended(self, number: int, nodes: Iterable[Any], count: int) -> tuple[list[Living], bool]:
        """The earlier graphs that are alive as a pass through `count` nodes ends, and whether they are alive from the
        nodes on that their passes began at; none if they are few. The first of `nodes` is one that the pass began at,
        if that is no leaf."""
        alive = [(n, first, [node for node in watched if node() is not None]) for n, first, watched in self._watched]
        alive = [(n, first, watched) for n, first, watched in alive if watched]
        step = max(count // _NODES, 1)
        # A node of an earlier graph, as that of `self.gate = nn.Parameter(w).to(dtype)`, is in the graph of each pass,
        # and does not keep it.
        shared = {id(node()) for *_, watched in alive for node in watched}
        some = list(islice(nodes, 0, step * _NODES, step))
        self._watched = deque(alive, _PASSES)
        if some:
            self._watched.append((number, ref(some[0]), [ref(node) for node in some if id(node) not in shared]))
        if len(alive) < _LEAST:
            return [], False
        are_whole = all(first() is not None for _, first, _ in alive)
        return [Living(n, len(watched)) for n, _, watched in alive], are_whole
