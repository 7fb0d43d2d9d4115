"""The writes to leaves, through any tensor on their memory: `p.data.add_(...)` changes `p`. Each has a time (a write
before the first gradient of a leaf is its initialisation), an author and a place."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import cached_property

import numpy as np

from gradviz.events.kinds import LEAF, REQUIRES_GRAD, UNWATCHED, Kind, OpRan
from gradviz.query.copies import original
from gradviz.query.flow import reach
from gradviz.query.ops import COPYING
from gradviz.query.query import Query
from gradviz.sets import contained, distinct

_FAR = 8  # the most views of views that are followed
_LOADING = ("load_state_dict", "copy_")


class Author(Enum):
    """The kinds of authors of writes to leaves."""

    OPTIMIZER = "the step of an optimizer"
    INITIALISER = "what gave the leaf its first values"
    LOAD = "values that are loaded from another tensor"
    PROGRAM = "the program itself"
    UNKNOWN = "whatever ran in passes that were not watched"


class Writes:
    """The writes to the leaves of one trace, in order: `events` has the event of each, `leaves` the leaf. A leaf is a
    tensor that was a leaf and required grad at some time. Use `query.of(Writes)`."""

    def __init__(self, query: Query) -> None:
        self.query, self.trace = query, query.trace
        events, tensors = query.tensors.all_writes
        originals = ~contained(events, self._echoes)
        events, tensors = events[originals], tensors[originals]
        written, which = np.unique(tensors, return_inverse=True)
        leaves = np.array([self.leaf_of(tensor) for tensor in written.tolist()], np.int64)[which]
        self.events, self.leaves = events[leaves > 0], leaves[leaves > 0]

    def leaf_of(self, tensor: int) -> int:
        """The leaf that a tensor is, or shares memory with; 0 if there is none."""
        return next((name for name in self._on_memory(tensor) if name in self._wanted), 0)

    def touched(self, tensor: int) -> bool:
        """Whether anything wrote to the memory of a tensor, by any of its names."""
        return not self._with_bases_written.isdisjoint(self._on_memory(tensor))

    @cached_property
    def _with_bases_written(self) -> set[int]:
        _, tensors = self.query.tensors.all_writes
        return {name for tensor in distinct(tensors).tolist() for name in self._on_memory(tensor)}

    def _on_memory(self, tensor: int) -> Iterator[int]:
        """A tensor and its bases, from view to view."""
        for _ in range(_FAR):
            if not tensor:
                return
            yield tensor
            tensor = self._bases.get(tensor, 0)

    def author(self, event: int, leaf: int) -> Author:
        """The author of a write to a leaf at an event."""
        if event in self._set_of_optimizers:
            return Author.OPTIMIZER
        if self.query.tensors.writer(event) == UNWATCHED:
            return Author.UNKNOWN
        if event < self.started(leaf):
            return Author.INITIALISER
        return Author.LOAD if self.query.tensors.writer(event) in _LOADING else Author.PROGRAM

    def started(self, leaf: int) -> int:
        """The event after which a write to a leaf is no initialisation: the leaf's first gradient; for a leaf without a
        gradient, the beginning of the first pass."""
        return self._first_gradients.get(leaf, self._first_pass)

    def has_loaded_values(self, leaf: int) -> bool:
        """Whether the program gave a leaf the values of another tensor before its first gradient: from a checkpoint, or
        from another network."""
        events = self.events[self.leaves == leaf]
        early = events[events < self.started(leaf)].tolist()
        return any(self.query.tensors.writer(event) in _LOADING for event in early) or original(
            self.query, leaf
        ) not in (0, leaf)

    @cached_property
    def changed(self) -> np.ndarray:
        """The leaves that were written to after their initialisation."""
        started = np.array([self.started(leaf) for leaf in self.leaves.tolist()], np.int64)
        return distinct(self.leaves[self.events > started])

    @cached_property
    def trained(self) -> np.ndarray:
        """The leaves that were changed after their initialisation by more than a load."""
        started = np.array([self.started(leaf) for leaf in self.leaves.tolist()], np.int64)
        late = self.events > started
        events, leaves = self.events[late], self.leaves[late]
        is_training = [
            self.author(event, leaf) is not Author.LOAD for event, leaf in zip(events, leaves, strict=True)
        ]
        return distinct(leaves[np.array(is_training, bool)])

    @cached_property
    def of_optimizers(self) -> np.ndarray:
        """The events at which optimizers changed their parameters: the writes whose writer is the type of the step
        before them."""
        mutated, stepped = self.trace.table(Kind.MUTATED), self.trace.table(Kind.STEPPED)
        if not len(stepped):
            return mutated.events[:0]
        at = np.searchsorted(stepped.events, mutated.events) - 1
        return mutated.events[(at >= 0) & (stepped["type"][at] == mutated["how"])]

    @cached_property
    def unwatched(self) -> np.ndarray:
        """The events which say that a tensor was written to in passes that were not watched."""
        mutated = self.trace.table(Kind.MUTATED)
        return mutated.events[self.trace.named(mutated["how"], (UNWATCHED,))]

    @cached_property
    def unwatched_leaves(self) -> np.ndarray:
        """The leaves that were written to in passes that were not watched."""
        return distinct(self.leaves[contained(self.events, self.unwatched)])

    @cached_property
    def _set_of_optimizers(self) -> set[int]:
        return set(self.of_optimizers.tolist())

    @cached_property
    def _echoes(self) -> np.ndarray:
        """The events that repeat, for the base of a view, an op's write to the view."""
        mutated = self.trace.table(Kind.MUTATED)
        events, _ = self.query.tensors.all_writes
        return mutated.events[contained(mutated["op"], events)]

    @cached_property
    def _first_gradients(self) -> dict[int, int]:
        came = self.trace.table(Kind.ACCUMULATED)
        leaves, at = np.unique(came["tensor"], return_index=True)
        return dict(zip(leaves.tolist(), came.events[at].tolist(), strict=True))

    @cached_property
    def _first_pass(self) -> int:
        return self.trace.passes[0].first if self.trace.passes else self.trace.count

    @cached_property
    def _wanted(self) -> set[int]:
        states, wanted = self.trace.states, LEAF | REQUIRES_GRAD
        return set(distinct(states.tensors[states.flags & wanted == wanted]).tolist())

    @cached_property
    def _bases(self) -> dict[int, int]:
        """The base of each tensor that shares memory from the first."""
        return self.trace.states.bases_at(self.trace.states.firsts)

    def follows_another(self, leaf: int) -> bool:
        """Whether a leaf gets its values from another leaf, at once or as an average over time: a target network."""
        for event in self.events[self.leaves == leaf].tolist():
            if self.query.tensors.is_op(event):
                sources = self.query.tensors.op(event).inputs[1:]
            else:
                sources = (self.query.tensors.mutation(event).source,)
            if any(source and self._stems_from_another(source, leaf) for source in sources):
                return True
        return False

    def _stems_from_another(self, tensor: int, leaf: int) -> bool:
        """Whether a tensor was computed, element by element, from another leaf of the same shape."""

        def onward(source: int) -> tuple[int, ...]:
            made = self.query.tensors.made(source)
            return (
                made.inputs
                if isinstance(made, OpRan) and (made.rule.elementwise or made.op in COPYING)
                else ()
            )

        shape = self.trace.shape
        return any(
            self.leaf_of(source) not in (0, leaf) and shape(source) == shape(leaf)
            for source in reach([tensor], onward, _FAR)
        )
