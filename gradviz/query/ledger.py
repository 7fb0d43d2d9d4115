"""The ledger: for each parameter and each step of an optimizer that holds it, what became of the parameter between the
step before and this one: the passes that gave it a gradient, who cleared or changed or read that gradient, the gradient
that the step used, and what the step changed. The first link that is broken is the reason why it does not learn."""

from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query.curves import change_norms, norms_of, step_writes
from gradviz.query.missing_gradients import Lacking, Lacks
from gradviz.query.ops import CLAMPING
from gradviz.query.pass_owners import PassOwners
from gradviz.query.query import Query
from gradviz.query.training import ACCUMULATED, BY_HAND, CLEARED, Training
from gradviz.query.writes import Writes
from gradviz.sets import contained, distinct, distinct_pairs, without

_STRETCH = 3  # the fewest steps of a stretch that is no chance
_BITS = 32  # of an event in a key: `leaf << 32 | event`


class Link(Enum):
    """The links of a row, from the use of a parameter to its change. A row has the first link that is broken, or
    LEARNS."""

    FROZEN = "it does not require grad"
    NO_GRADIENT = "no pass gives it a gradient"
    CLEARED = "its gradient is cleared before the step"
    ZERO = "its gradient is 0"
    UNCHANGED = "the step does not change it"
    LEARNS = "it learns"


LINKS = tuple(Link)
WITH_GRADIENT = [LINKS.index(link) for link in (Link.ZERO, Link.UNCHANGED, Link.LEARNS)]


class Rows(NamedTuple):
    """The rows, sorted by leaf and step. Row i is about `leaves[i]` at the event `steps[i]`, a step of the optimizer
    `optimizers[i]`, after its step before at `since[i]` (−1: there is none). `passes` and `lost` count the passes since
    then whose gradients were in `.grad` at the step, or were cleared before it; `cleared` is the last event that
    cleared it (−1: none). `norms` are the Euclidean norms of the gradient at the step, `changes` those of the change
    that the step made (−1 where they are not known); `links` are places in LINKS."""

    leaves: np.ndarray
    optimizers: np.ndarray
    steps: np.ndarray
    since: np.ndarray
    passes: np.ndarray
    lost: np.ndarray
    cleared: np.ndarray
    norms: np.ndarray
    changes: np.ndarray
    links: np.ndarray


class Stretch(NamedTuple):
    """Rows of a leaf, one after another, with the same link: their places in the rows, and the link."""

    first: int
    last: int
    link: Link


class Account(NamedTuple):
    """The history of a leaf: the optimizers that hold it, the passes that gave it a gradient, its stretches, and why it
    lacks a gradient, if no pass gives it one."""

    leaf: int
    optimizers: tuple[int, ...]
    passes: int
    stretches: tuple[Stretch, ...]
    lacking: Lacking | None

    @property
    def link(self) -> Link | None:
        """LEARNS if it learns at some step, else the broken link of its last step; None if nothing steps on it."""
        links = [stretch.link for stretch in self.stretches]
        return Link.LEARNS if Link.LEARNS in links else links[-1] if links else None


class Ledger:
    """The ledger of one trace. Use `query.of(Ledger)`."""

    def __init__(self, query: Query) -> None:
        self.query, self.trace, self.training = query, query.trace, query.of(Training)

    @cached_property
    def rows(self) -> Rows:
        """All rows."""
        leaves, optimizers, steps, since = self._begun()
        lives = self.training.lives
        keys = lives.leaves << _BITS | lives.events
        first = np.searchsorted(keys, leaves << _BITS | (since + 1))
        end = np.searchsorted(keys, leaves << _BITS | steps)
        last = np.where(lives.whats == CLEARED, np.arange(len(keys)), -1)
        cleared = np.append(-1, np.maximum.accumulate(last))[end]  # the row of the last clearing
        is_cleared = (cleared >= first) & (cleared >= 0)
        came = np.append(0, np.cumsum(lives.whats == ACCUMULATED))
        middle = np.where(is_cleared, cleared + 1, first)
        gradients = self.query.tensors.grads.last_of(leaves, steps - 1)
        norms = norms_of(self.trace, self.query.memory.rows_of(gradients, steps - 1))
        changes = self._changes(leaves, steps)
        rows = Rows(
            leaves,
            optimizers,
            steps,
            since,
            came[end] - came[middle],
            came[middle] - came[first],
            np.where(is_cleared, lives.events[cleared], -1) if len(keys) else cleared,
            norms,
            changes,
            np.zeros(len(leaves), np.int8),
        )
        rows.links[:] = self._links(rows, gradients)
        return rows

    def _begun(self) -> tuple[np.ndarray, ...]:
        """The leaf, the optimizer, the step and the step before of each row."""
        stepped, held = self.training.stepped, self.trace.table(Kind.HOLDS)
        lists, given = stepped.lists("parameters"), held.lists("parameters")
        pairs = np.concatenate(
            [
                np.stack([given.values, held["optimizer"][given.owners], held.events[given.owners]]),
                np.stack([lists.values, stepped["optimizer"][lists.owners], np.full(len(lists.values), -1)]),
            ],
            axis=1,
        )
        # what an optimizer holds comes first
        _, first = np.unique(pairs[0] << _BITS | pairs[1], return_index=True)
        leaves, optimizers, starts = pairs[:, first]
        own = []
        for optimizer, start in zip(optimizers.tolist(), starts.tolist(), strict=True):
            events = stepped.events[stepped["optimizer"] == optimizer]
            own.append(events[np.searchsorted(events, start) :])
        counts = np.array([len(one) for one in own], np.int64)
        by_hand, changed = self.training.by_hand
        leaves = np.concatenate([np.repeat(leaves, counts), changed])
        numbers = np.concatenate([np.repeat(optimizers, counts), np.full(len(changed), BY_HAND)])
        steps = np.concatenate([*own, by_hand]).astype(np.int64)
        order = np.lexsort((steps, numbers, leaves))
        leaves, numbers, steps = leaves[order], numbers[order], steps[order]
        is_new = np.append(True, (leaves[1:] != leaves[:-1]) | (numbers[1:] != numbers[:-1]))[: len(leaves)]
        since = np.where(is_new, -1, np.append(-1, steps[:-1])[: len(steps)])
        order = np.lexsort((steps, leaves))
        return leaves[order], numbers[order], steps[order], since[order]

    def _changes(self, leaves: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """The norms of the changes that the steps made; 0 where a step wrote nothing, −1 where they are not known."""
        written, norms = self.query.of(step_writes), self.query.of(change_norms)
        keys = written.tensors << _BITS | self.training.stepped.events[written.steps]
        order = np.argsort(keys, kind="stable")
        wanted = leaves << _BITS | steps
        at = np.searchsorted(keys[order], wanted)
        found = at < len(keys)
        found[found] = keys[order][at[found]] == wanted[found]
        changes = np.full(len(leaves), -1.0)
        changes[found] = norms.values[order][at[found]]
        return changes

    @cached_property
    def reads(self) -> tuple[np.ndarray, np.ndarray]:
        """(leaves, events): the ops outside of passes that read the gradient of a leaf and write another tensor, but
        those that clip it for a step, to a finite norm; sorted by leaf and event."""
        ops, log = self.trace.table(Kind.OP), self.query.tensors.grads
        inputs, outputs = ops.lists("inputs"), ops.lists("outputs")
        is_set = log.values > 0
        grads, first = np.unique(log.values[is_set], return_index=True)
        of = log.tensors[is_set][first]
        new = ~contained(outputs.firsts, grads) & (outputs.counts > 0)
        clipping = distinct(self.trace.table(Kind.CLIPPED).sites).tolist()
        new &= ~contained(ops.sites, [one for one in clipping if "inf" not in self.query.places.line_text(one)])
        reading = contained(inputs.values, grads) & new[inputs.owners] & ~(ops["in_pass"] > 0)[inputs.owners]
        leaves = of[np.searchsorted(grads, inputs.values[reading])] if len(grads) else log.values[:0]
        events = ops.events[inputs.owners[reading]]
        order = np.lexsort((events, leaves))
        return leaves[order].astype(np.int64), events[order].astype(np.int64)

    def are_read(self, leaves: np.ndarray, since: np.ndarray, until: np.ndarray) -> np.ndarray:
        """Whether an op reads the gradient of each leaf between two events."""
        of, events = self.reads
        keys = of << _BITS | events
        return np.asarray(
            np.searchsorted(keys, leaves << _BITS | since) < np.searchsorted(keys, leaves << _BITS | until)
        )

    def are_used_next(self, leaves: np.ndarray, events: np.ndarray) -> np.ndarray:
        """Whether the next step on each leaf after an event has a gradient of it."""
        rows = self.rows
        at = np.searchsorted(rows.leaves << _BITS | rows.steps, leaves << _BITS | events)
        known = at < len(rows.leaves)
        known[known] = rows.leaves[at[known]] == leaves[known]
        known[known] = contained(rows.links[at[known]], WITH_GRADIENT)
        return known

    def _links(self, rows: Rows, gradients: np.ndarray) -> np.ndarray:
        """The first broken link of each row."""
        states = self.trace.states
        links = np.full(len(rows.leaves), LINKS.index(Link.LEARNS))
        links[rows.changes == 0] = LINKS.index(Link.UNCHANGED)
        links[states.are_zero(self.query.memory.rows_of(gradients, rows.steps - 1))] = LINKS.index(Link.ZERO)
        is_used = contained(rows.steps, self.steps_with_passes) | (rows.optimizers == BY_HAND)
        unknown = contained(rows.leaves, self.query.of(Writes).unwatched_leaves)
        empty = (gradients == 0) & ~is_used & ~unknown
        links[empty] = LINKS.index(Link.NO_GRADIENT)
        links[empty & (rows.lost > 0)] = LINKS.index(Link.CLEARED)
        for row in np.flatnonzero(empty & (rows.lost == 0)).tolist():
            if not self.query.tensors.requires_grad(int(rows.leaves[row]), int(rows.steps[row])):
                links[row] = LINKS.index(Link.FROZEN)
        return links

    @cached_property
    def steps_with_passes(self) -> np.ndarray:
        """The steps of optimizers that run passes themselves, as LBFGS does with its closure."""
        firsts = [one.first for one in self.trace.passes if one.number in self.training.inside_steps]
        steps = self.training.stepped
        at = np.searchsorted(steps.events, firsts) - 1
        own = distinct(steps["optimizer"][at[at >= 0]]) if len(steps) else steps.events[:0]
        return steps.events[contained(steps["optimizer"], own)]

    # --- of one leaf

    def of(self, leaf: int) -> Account:
        """The history of a leaf."""
        start, end = np.searchsorted(self.rows.leaves, [leaf, leaf + 1]).tolist()
        stretches = tuple(self._stretches(start, end))
        came = self.trace.table(Kind.ACCUMULATED)
        passes = len(distinct(came["in_pass"][came["tensor"] == leaf]))
        holders = self.training.holders.get(leaf, set()) | self.training.owners.get(leaf, set())
        lacking = None if passes else self.query.of(Lacks).of(leaf)
        return Account(leaf, tuple(sorted(holders)), passes, stretches, lacking)

    def _stretches(self, start: int, end: int) -> Iterator[Stretch]:
        links = self.rows.links[start:end].tolist()
        for link, places in groupby(range(len(links)), links.__getitem__):
            own = [*places]
            yield Stretch(start + own[0], start + own[-1], LINKS[link])

    @cached_property
    def leaves(self) -> list[int]:
        """The leaves that have an account: those that optimizers hold, that the program steps on, or that get
        gradients as parameters of a module, in the order in which they were made."""
        got = distinct(self.trace.table(Kind.ACCUMULATED)["tensor"]).tolist()
        named = {leaf for leaf in got if leaf in self.trace.parameters}
        return sorted({*self.training.holders, *self.rows.leaves.tolist(), *named})

    @cached_property
    def starved(self) -> list[int]:
        """The leaves that got gradients, but had none at any step of an optimizer: only passes of other optimizers gave
        them some, which were cleared."""
        rows, came = self.rows, self.trace.table(Kind.ACCUMULATED)
        without_one = without(came["tensor"], rows.leaves[contained(rows.links, WITH_GRADIENT)])
        pairs = distinct_pairs(came["tensor"], came["in_pass"])
        of_pass, held_by = self.query.of(PassOwners).optimizers, self.training.holders
        meant = {leaf for leaf, number in pairs.tolist() if of_pass(number) & held_by.get(leaf, set())}
        return [leaf for leaf in without_one[contained(without_one, rows.leaves)].tolist() if leaf not in meant]

    @cached_property
    def stopped(self) -> dict[int, int]:
        """The leaves that had a gradient at the first steps of their only optimizer and at none of its last steps; with
        each leaf the last step that had one. Steps behind passes that were left out do not count."""
        rows, found = self.rows, dict[int, int]()
        left_out = [one.first for one in self.trace.passes if not one.recorded]
        seen = np.flatnonzero(np.searchsorted(left_out, rows.since) == np.searchsorted(left_out, rows.steps))
        for leaf in distinct(rows.leaves).tolist():
            own = seen[rows.leaves[seen] == leaf]
            fed = rows.passes[own] > 0
            count = int(fed.sum())
            is_one = len(distinct(rows.optimizers[own])) == 1
            is_late = min(count, len(fed) - count) >= _STRETCH and fed[:count].all()
            if is_one and is_late and not rows.lost[own[count:]].any():
                found[leaf] = int(rows.steps[own[count - 1]])
        return found

    @cached_property
    def homeless(self) -> list[int]:
        """The leaves that get gradients in two passes or more and that the program never changes between them, in no
        optimizer. Parameters whose shards are in an optimizer are left out, and buffers."""
        came = self.trace.table(Kind.ACCUMULATED)
        pairs = distinct_pairs(came["tensor"], came["in_pass"])
        leaves, counts = np.unique(pairs[:, 0], return_counts=True)
        still = ~contained(leaves, self.changed_between) & ~contained(leaves, sorted(self.training.trained))
        # `fully_shard` gives a part of the gradient to a parameter of the same name, without a pass
        trained = np.array(sorted(self.training.trained), np.int64)
        handed = trained[~contained(trained, came["tensor"])].tolist()
        sharded = {name for tensor in handed if (name := self.trace.parameters.get(tensor))}
        unchanged = leaves[still & (counts > 1)].tolist()
        names = sharded | self._in_parts if unchanged else sharded
        unchanged = [leaf for leaf in unchanged if leaf not in self.trace.buffers]
        return [leaf for leaf in unchanged if self.trace.parameters.get(leaf) not in names]

    @cached_property
    def changed_between(self) -> np.ndarray:
        """The leaves that were written to between their first and their last gradient. A clamp does not count. Nor does
        a checkpoint that is loaded at the end: it trains nothing."""
        came, writes = self.trace.table(Kind.ACCUMULATED), self.query.of(Writes)
        leaves, at = np.unique(came["tensor"][::-1], return_index=True)
        last = dict(zip(leaves.tolist(), came.events[::-1][at].tolist(), strict=True))
        changed: set[int] = set()
        for event, leaf in zip(writes.events.tolist(), writes.leaves.tolist(), strict=True):
            if leaf in changed or not writes.started(leaf) < event < last.get(leaf, -1):
                continue  # a leaf of a long run is written to thousands of times
            if self.query.tensors.writer(event) not in CLAMPING and not self._leaves_as_it_is(event, leaf):
                changed.add(leaf)
        return np.array(sorted(changed), np.int64)

    def _leaves_as_it_is(self, event: int, leaf: int) -> bool:
        """Whether a write is known to leave a leaf as it was: `self.w.data = self.w.data.to(dtype)` in each forward."""
        states = self.trace.states
        rows = states.rows_of(np.array([leaf, leaf]), np.array([event - 1, event]))
        return bool((rows >= 0).all() and (states.stats[rows[0]] == states.stats[rows[1]]).all())

    @property
    def _in_parts(self) -> set[str]:
        """The names of the parameters that optimizers hold in parts on several ranks. A part has no gradient if no pass
        reduces the gradient of the whole."""
        last = self.trace.count - 1
        values = {tensor: self.trace.snapshot(tensor, last) for tensor in self.training.holders}
        return {
            name
            for tensor, value in values.items()
            if value is not None and value.part is not None and (name := self.trace.parameters.get(tensor))
        }
