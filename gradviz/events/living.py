"""The graphs of earlier passes that are still alive: a source registers the nodes of each pass, and asks at its end."""

from __future__ import annotations

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
        self._watched: deque[tuple[int, list[ref[Any]]]] = deque(maxlen=_PASSES)

    def ended(self, number: int, nodes: Iterable[Any], count: int) -> list[Living]:
        """The earlier graphs that are alive as a pass through `count` nodes ends; empty if they are few."""
        alive = [(n, [node for node in watched if node() is not None]) for n, watched in self._watched]
        alive = [(n, watched) for n, watched in alive if watched]
        step = max(count // _NODES, 1)
        # A node of an earlier graph, as that of `self.gate = nn.Parameter(w).to(dtype)`, is in the graph of each pass,
        # and does not keep it.
        shared = {id(node()) for _, watched in alive for node in watched}
        own = (node for node in islice(nodes, 0, step * _NODES, step) if id(node) not in shared)
        self._watched = deque(alive, _PASSES)
        self._watched.append((number, [ref(node) for node in own]))
        return [Living(n, len(watched)) for n, watched in alive] if len(alive) >= _LEAST else []
