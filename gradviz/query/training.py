"""The events of training: the steps of optimizers, and the changes to the `.grad` of each leaf, in order."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import COMPILED, WHOLE, Kind
from gradviz.query.copies import has_numbers_of_gradient
from gradviz.query.flow import reach, sources
from gradviz.query.ops import ZEROS
from gradviz.query.optimizer_steps import rates_of_groups
from gradviz.query.query import Query
from gradviz.query.writes import Writes
from gradviz.sets import contained, distinct, distinct_pairs
from gradviz.tracefile import Site
from gradviz.tracefile.columns import Table

ACCUMULATED, CLEARED, CHANGED, STEPPED, UNKNOWN = range(1, 6)
BY_HAND = 0  # the optimizer of a step that the program computes itself: `w -= lr * w.grad`
_WITH_ITS_GRADIENT = 2  # events: a leaf from before the recording is made, its gradient is made, and assigned
_LOOKED_AT = 64  # the most tensors behind a write that are searched for a gradient
_ZEROING = ("zero_", "zero_grad")


class Lives(NamedTuple):
    """The changes to gradients, sorted by leaf and event. At `events[i]` the `.grad` of `leaves[i]` was accumulated
    into, cleared, changed, or used by a step (`whats[i]`). UNKNOWN means that the `.grad` differs from before, and no
    event says why. `numbers[i]` is the pass, or the optimizer. `windows[i]` is a number that rises with each leaf, and
    each time that a gradient is cleared or no longer known."""

    leaves: np.ndarray
    events: np.ndarray
    whats: np.ndarray
    numbers: np.ndarray
    windows: np.ndarray

    def before(self, rows: np.ndarray) -> np.ndarray:
        """The number of marked rows that come before each row in its window."""
        return _exclusive(rows, self.windows)

    def after(self, rows: np.ndarray) -> np.ndarray:
        """The number of marked rows that come after each row in its window."""
        return _exclusive(rows[::-1], self.windows[::-1])[::-1]

    @property
    def begins_known(self) -> np.ndarray:
        """Whether all is known that came to a gradient since the window of each row began: passes that were not watched
        may have added to it before."""
        return np.asarray(self.whats[np.searchsorted(self.windows, self.windows)] != UNKNOWN)

    @property
    def ends_cleared(self) -> np.ndarray:
        """Whether the window of each row ends with a clearing, and not with the run or where it is no longer known."""
        following = np.searchsorted(self.windows, self.windows, side="right")
        known = following < len(self.windows)
        ends = np.zeros(len(self.windows), bool)
        next_rows = following[known]
        is_same = self.leaves[next_rows] == self.leaves[known]
        ends[known] = is_same & (self.whats[next_rows] == CLEARED)
        return ends


def _line(site: Site | None) -> tuple[str, int, int] | None:
    return None if site is None else (site.place.file, site.place.line, site.place.col)


def _exclusive(marked: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The running count of marked rows in each group of equal neighbours, without the row itself."""
    counted = np.cumsum(marked) - marked
    starts = np.flatnonzero(np.append(True, groups[1:] != groups[:-1])) if len(groups) else np.zeros(0, int)
    lengths = np.diff(np.append(starts, len(groups)))
    return counted - np.repeat(counted[starts], lengths)


def _without_repeats(
    events: np.ndarray, leaves: np.ndarray, lines: np.ndarray, passes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The writes without repetitions of the write before at the same leaf and line, with no pass between: one
    statement, as `p.data[:, 0] -= ...`, writes several times."""
    order = np.lexsort((events, leaves))
    keys = np.stack([leaves, lines, np.searchsorted(passes, events)])[:, order]
    new = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0))[: len(events)]
    kept = np.sort(order[new])
    return events[kept], leaves[kept]


def _by_parameter(table: Table) -> dict[int, set[int]]:
    by_parameter: dict[int, set[int]] = {}
    held = table.lists("parameters")
    for tensor, optimizer in distinct_pairs(held.values, table["optimizer"][held.owners]).tolist():
        by_parameter.setdefault(tensor, set()).add(optimizer)
    return by_parameter


class Training:
    """The steps of one trace, and the lives of its gradients."""

    def __init__(self, query: Query) -> None:
        self.query, self.trace = query, query.trace
        self.stepped = self.trace.table(Kind.STEPPED)

    # --- optimizers

    @cached_property
    def owners(self) -> dict[int, set[int]]:
        """The optimizers that have stepped on each parameter."""
        return _by_parameter(self.stepped)

    @cached_property
    def holders(self) -> dict[int, set[int]]:
        """The optimizers that hold each parameter, with or without a gradient."""
        return _by_parameter(self.trace.table(Kind.HOLDS))

    def optimizer_class(self, optimizer: int) -> str:
        """The class of an optimizer: `SGD` also for a step that the program computes itself."""
        held = self.trace.table(Kind.HOLDS)
        types = held["type"][held["optimizer"] == optimizer]
        return self.trace.text(int(types[0])) if len(types) else "SGD"

    def made_at(self, optimizer: int) -> int:
        """The event at which an optimizer was made; the end of the run if it is not in the trace."""
        held = self.trace.table(Kind.HOLDS)
        return int(held.events[held["optimizer"] == optimizer].min(initial=self.trace.count))

    def held_by(self, optimizer: int) -> tuple[int, ...]:
        """The parameters that an optimizer holds."""
        return tuple(tensor for tensor, holders in self.holders.items() if optimizer in holders)

    def steps_of(self, optimizers: Iterable[int]) -> np.ndarray:
        """The events at which one of some optimizers steps, in order."""
        return self.stepped.events[contained(self.stepped["optimizer"], [*optimizers])]

    @cached_property
    def inside_steps(self) -> set[int]:
        """The passes that the step of an optimizer ran itself, as LBFGS does with its closure. Where a library has the
        line of the step, they lie between the event of a step and its writes."""
        firsts = np.array([one.first for one in self.trace.passes], np.int64)
        steps = np.append(self.stepped.events, self.trace.count)
        writes = np.append(self.query.of(Writes).of_optimizers, self.trace.count)
        at = np.searchsorted(steps, firsts)
        inside = (at > 0) & (writes[np.searchsorted(writes, firsts)] < steps[at])
        sites = {one.site for one, is_inside in zip(self.trace.passes, inside, strict=True) if is_inside}
        sites |= {site for site in {one.site for one in self.trace.passes} if self.is_inside_step(site)}
        return {one.number for one in self.trace.passes if one.site in sites}

    def is_inside_step(self, site: int) -> bool:
        """Whether a call of an optimizer's `step` led to a site."""
        lines = self._lines_of_steps
        return bool(lines) and any(_line(caller) in lines for caller in self.query.places.callers(site)[1:])

    @cached_property
    def _lines_of_steps(self) -> set[tuple[str, int, int] | None]:
        site_of = self.query.places.site
        lines = {_line(site_of(site)) for site in distinct(self.stepped.sites).tolist()}
        return lines - {None}

    @cached_property
    def rates(self) -> np.ndarray:
        """The highest learning rate of the groups of each step; NaN if it is unknown."""
        highest = np.full(len(self.stepped), np.nan)
        np.fmax.at(highest, self.stepped.lists("groups").owners, self.query.of(rates_of_groups))
        return highest

    @cached_property
    def trained(self) -> set[int]:
        """The leaves that an optimizer or the program itself steps on, and the leaves whose gradients an optimizer
        clears."""
        cleared = self.trace.table(Kind.GRADS_CLEARED)
        lists = cleared.lists("tensors")
        of_optimizer = contained(cleared["how"][lists.owners], self.stepped["type"])
        leaves = np.concatenate([self.by_hand[1], lists.values[of_optimizer]])
        return set(self.owners) | set(distinct(leaves).tolist()) | self._held_with_gradient

    @cached_property
    def _held_with_gradient(self) -> set[int]:
        """The leaves that got a gradient and are held by an optimizer that steps."""
        stepping = set(self.stepped["optimizer"].tolist())
        return {t for t in self._wanting.tolist() if self.holders.get(t, set()) & stepping}

    @cached_property
    def by_hand(self) -> tuple[np.ndarray, np.ndarray]:
        """The events of steps that the program computes itself, and the leaf that each changes. They are writes to a
        leaf of values that come from a gradient, or writes by code whose ops are not recorded."""
        writes = self.query.of(Writes)
        others = np.concatenate([writes.of_optimizers, writes.unwatched])
        candidates = contained(writes.leaves, self._wanting) & ~contained(writes.events, others)
        events, leaves = writes.events[candidates], writes.leaves[candidates]
        sites = self.trace.events["site"][events]
        known: dict[int, bool] = {}
        for site, event in zip(sites.tolist(), events.tolist(), strict=True):
            if site not in known:
                known[site] = self._comes_from_gradient(event)
        by_hand = np.array([known[site] for site in sites.tolist()], bool)
        lines: dict[tuple[str, int], int] = {}
        of_site = {site: lines.setdefault(self._line_of(site), len(lines)) for site in known}
        own_lines = np.array([of_site[site] for site in sites[by_hand].tolist()], np.int64)
        return _without_repeats(events[by_hand], leaves[by_hand], own_lines, self.trace.pass_spans[0])

    def _line_of(self, number: int) -> tuple[str, int]:
        site = self.trace.sites.get(number)
        return ("", number) if site is None else (site.place.file, site.place.line)

    @cached_property
    def _wanting(self) -> np.ndarray:
        """The leaves that got a gradient."""
        return distinct(self.trace.table(Kind.ACCUMULATED)["tensor"])

    def _comes_from_gradient(self, event: int) -> bool:
        """Whether the values that an event writes were computed from the `.grad` of a leaf, by ops or from numbers that
        the program read."""
        if self.query.tensors.is_op(event):
            written = self.query.tensors.op(event).inputs[1:]
        else:
            mutation = self.query.tensors.mutation(event)
            if mutation.how == COMPILED:
                return True
            written = (mutation.source,)
        return any(map(self._gradient_of, self._behind(written))) or has_numbers_of_gradient(self.query, event)

    def _behind(self, tensors: Iterable[int]) -> Iterator[int]:
        """The tensors that tensors were computed from, these first."""
        return reach(tensors, lambda tensor: sources(self.query, tensor, through_memory=True), _LOOKED_AT)

    def stems_from_gradient(self, tensor: int, before: int) -> bool:
        """Whether a tensor was the `.grad` of a leaf before an event, or was computed from such a gradient."""
        born, bases = self._first_as_gradient, self._bases
        names = (name for one in self._behind([tensor]) for name in (one, bases.get(one, 0)))
        return any(born.get(name, before) < before for name in names)

    @cached_property
    def _first_as_gradient(self) -> dict[int, int]:
        """The first event at which each tensor became the `.grad` of a leaf."""
        log = self.query.tensors.grads
        order = np.argsort(-log.events, kind="stable")
        order = order[log.values[order] > 0]
        return dict(zip(log.values[order].tolist(), log.events[order].tolist(), strict=True))

    # --- gradients

    @cached_property
    def _of_gradients(self) -> dict[int, int]:
        """The leaf of each tensor that is its `.grad` at any time."""
        log = self.query.tensors.grads
        is_set = log.values > 0
        return dict(zip(log.values[is_set].tolist(), log.tensors[is_set].tolist(), strict=True))

    def _gradient_of(self, tensor: int) -> int:
        """The leaf whose `.grad` a tensor is, or shares the memory of; 0 if there is none."""
        return self._of_gradients.get(tensor, 0) or self._of_gradients.get(self._bases.get(tensor, 0), 0)

    @cached_property
    def _bases(self) -> dict[int, int]:
        """The base of each tensor that shares all its memory."""
        states = self.trace.states
        return states.bases_at(np.flatnonzero(states.flags & WHOLE))

    @cached_property
    def _leaves_with_a_part(self) -> dict[int, set[int]]:
        """The leaves whose `.grad` is a part of the memory of a tensor, such as a flat buffer, by that tensor."""
        bases = self.trace.states.bases_at(np.flatnonzero(self.trace.states.bases))
        by_base: dict[int, set[int]] = {}
        for grad, leaf in self._of_gradients.items():
            base, seen = bases.get(grad, 0), {grad}
            while base and base not in seen:
                by_base.setdefault(base, set()).add(leaf)
                seen.add(base)
                base = bases.get(base, 0)
        return by_base

    @cached_property
    def lives(self) -> Lives:
        """The changes to the gradient of each leaf. If a pass accumulates into an empty `.grad` again, a clearing was
        not recorded, as in a compiled function: it is entered at the event of the accumulation."""
        accumulated = self.trace.table(Kind.ACCUMULATED)
        came = accumulated["in_pass"] > 0
        came_to, came_at = accumulated["tensor"][came], accumulated.events[came]
        parts = [
            (came_to, came_at, np.full(len(came_at), ACCUMULATED), accumulated["in_pass"][came]),
            self._assigned(),
            self._written(),
            *self._steps(),
        ]
        leaves, events, whats, numbers = (
            np.concatenate([part[side] for part in parts]).astype(np.int64) for side in range(4)
        )
        order = np.lexsort((events, leaves))
        leaves, events, whats, numbers = leaves[order], events[order], whats[order], numbers[order]
        first = contained(events, accumulated.events[accumulated["gradient"] == accumulated["grad"]])
        unseen = np.flatnonzero(first[1:] & (leaves[1:] == leaves[:-1]) & (whats[:-1] != CLEARED)) + 1
        whats, numbers = np.insert(whats, unseen, CLEARED), np.insert(numbers, unseen, 0)
        leaves, events = (np.insert(part, unseen, part[unseen]) for part in (leaves, events))
        cleared = (whats == CLEARED) | (whats == UNKNOWN)
        new_leaf = np.append(False, leaves[1:] != leaves[:-1])[: len(leaves)]
        windows = np.cumsum(cleared | new_leaf)
        return Lives(leaves, events, whats, numbers, windows)

    def _assigned(self) -> tuple[np.ndarray, ...]:
        assigned = self.trace.table(Kind.GRAD_ASSIGNED)
        leaves, events, grads = assigned["tensor"], assigned.events, assigned["grad"]
        before = self.query.tensors.grads.last_of(leaves, events - 1)
        clears = self._become_zero(events, grads, before)
        clears |= (grads == 0) | contained(grads, self._made_of_zeros)
        whats = np.where(clears, CLEARED, CHANGED)
        whats[contained(events, self._unwatched_gradients)] = UNKNOWN
        return leaves, events, whats, np.zeros(len(assigned), np.int64)

    @cached_property
    def _unwatched_gradients(self) -> np.ndarray:
        """The events which say that a leaf has another `.grad` after passes that were not watched. They have no site.
        Nor has the `.grad` of a leaf from before the recording, which is emitted together with the leaf."""
        assigned = self.trace.table(Kind.GRAD_ASSIGNED)
        silent = assigned.sites == 0
        events, leaves = assigned.events[silent], assigned["tensor"][silent]
        makers = [self.query.tensors.maker(leaf) for leaf in leaves.tolist()]
        made = np.array([-1 if maker is None else maker for maker in makers], np.int64)
        return events[events > made + _WITH_ITS_GRADIENT]

    def _written(self) -> tuple[np.ndarray, ...]:
        """The writes in place to gradients; a write that makes a gradient 0 clears it."""
        events, tensors = self.query.tensors.all_writes
        outside = ~self.query.passes.contains(events)
        events, tensors = events[outside], tensors[outside]
        leaves = np.array([self._gradient_of(tensor) for tensor in tensors.tolist()], np.int64)
        of_leaf = leaves > 0
        parts = [
            (leaf, event, tensor)
            for event, tensor in zip(events[~of_leaf].tolist(), tensors[~of_leaf].tolist(), strict=True)
            for leaf in self._leaves_with_a_part.get(tensor, ())
        ]
        leaves, events, tensors = np.concatenate(
            [np.stack([leaves, events, tensors])[:, of_leaf], np.array(parts, np.int64).reshape(-1, 3).T], axis=1
        )
        clears = contained(events, self._zeroing) | self._become_zero(events, tensors, tensors)
        whats = np.where(clears, CLEARED, CHANGED)
        whats[contained(events, self.query.of(Writes).unwatched)] = UNKNOWN
        return leaves, events, whats, np.zeros(len(events), np.int64)

    def _become_zero(self, events: np.ndarray, tensors: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Whether each tensor is 0 just after its event, while the tensor in its place before the event was not 0."""
        states = self.trace.states
        was_zero = states.are_zero(states.rows_of(before, events - 1))
        return states.are_zero(states.rows_of(tensors, events)) & ~was_zero

    @cached_property
    def _made_of_zeros(self) -> np.ndarray:
        """The tensors that ops such as `zeros_like` made."""
        made = self.trace.table(Kind.TENSOR)
        return made["tensor"][self.trace.named(made["how"], ZEROS)]

    @cached_property
    def _zeroing(self) -> np.ndarray:
        """The events that write zeros."""
        by = ((Kind.OP, "op"), (Kind.MUTATED, "how"))
        return np.concatenate([self.trace.events_named(kind, column, _ZEROING) for kind, column in by])

    def _steps(self) -> list[tuple[np.ndarray, ...]]:
        held = self.stepped.lists("parameters")
        by_hand, tensors = self.by_hand
        step = np.full(len(by_hand), STEPPED)
        return [
            (
                held.values,
                self.stepped.events[held.owners],
                np.full(len(held.values), STEPPED),
                self.stepped["optimizer"][held.owners],
            ),
            (tensors, by_hand, step, np.full(len(by_hand), BY_HAND)),
        ]
