"""The optimizers that a backward pass belongs to: the optimizers whose steps use its gradients next. A leaf is judged
by the passes of its own optimizers: a generator by the pass before its own step, not by that of the discriminator."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query.query import Query
from gradviz.query.training import BY_HAND, Training
from gradviz.sets import contained
from gradviz.tracefile import PassInfo


class PassOwners:
    """The owners of the passes of one trace. Use `query.of(PassOwners)`."""

    def __init__(self, query: Query) -> None:
        self.query, self.training = query, query.of(Training)
        self._events, self._optimizers = self._steps()
        self._of_pass = self._owners()

    def _steps(self) -> tuple[np.ndarray, np.ndarray]:
        """The events of all steps, in order, and the optimizer of each."""
        stepped, by_hand = self.training.stepped, self.training.by_hand[0]
        events = np.concatenate([stepped.events, by_hand])
        optimizers = np.concatenate([stepped["optimizer"], np.full(len(by_hand), BY_HAND)])
        order = np.argsort(events, kind="stable")
        return events[order], optimizers[order].astype(np.int64)

    def _owners(self) -> dict[int, set[int]]:
        """The optimizers of each pass: those that step after it, and before the first pass that begins after a step."""
        firsts = np.array([backward_pass.first for backward_pass in self.query.trace.passes], np.int64)
        begins = np.searchsorted(self._events, firsts)
        known = begins < len(self._events)
        ends = np.full(len(firsts), len(self._events))
        following = np.searchsorted(firsts, self._events[begins[known]])
        limits = np.append(firsts, self.query.trace.count)[following]
        ends[known] = np.searchsorted(self._events, limits)
        return {
            backward_pass.number: set(self._optimizers[begin:end].tolist())
            for backward_pass, begin, end in zip(
                self.query.trace.passes, begins.tolist(), ends.tolist(), strict=True
            )
        }

    def optimizers(self, pass_number: int) -> set[int]:
        """The optimizers that a pass belongs to; empty if no step follows it."""
        return self._of_pass.get(pass_number, set())

    def passes_of(self, leaf: int) -> list[PassInfo]:
        """The passes that belong to the optimizers of a leaf; only those that gave some parameter of these optimizers a
        gradient, if any did. All passes, if the leaf is in no optimizer or no pass belongs to it."""
        training, passes = self.training, self.query.trace.passes
        optimizers = frozenset(training.holders.get(leaf, set()) | training.owners.get(leaf, set()))
        belonging = [
            backward_pass for backward_pass in passes if optimizers & self.optimizers(backward_pass.number)
        ]
        giving = self._giving_to(optimizers) if belonging else set()
        return (
            [backward_pass for backward_pass in belonging if backward_pass.number in giving]
            or belonging
            or passes
        )

    def _giving_to(self, optimizers: Iterable[int]) -> set[int]:
        """The passes that gave a gradient to some parameter of these optimizers."""
        wanted = set(optimizers)
        parts = (self.training.holders, self.training.owners)
        held = {leaf for part in parts for leaf, holders in part.items() if holders & wanted}
        came = self.query.trace.table(Kind.ACCUMULATED)
        return set(came["in_pass"][contained(came["tensor"], sorted(held))].tolist())
