"""What is told beside each chunk of a recording, so that a reader finds the few chunks that it needs of many.

Most tensors and nodes live within a chunk or two. So a chunk tells the highest numbers that there were up to its end,
which says where a tensor or node was first told of, and lists the *old* tensors that it tells something new of. It also
tells from which event on a reader has to read it, so that no scope or pass is open where the reading begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import LEAF, REQUIRES_GRAD, WHOLE, Kind
from gradviz.sets import contained, distinct
from gradviz.tracefile.expected import AS_IS, HEADER, NUMBER, as_is, header_of
from gradviz.tracefile.nans import with_nan

# The lists of a chunk, in the order in which they are kept.
VALUED, FLAGGED, GIVEN, PUSHED, LATE, LEAVES, PLACES, HOLDERS, NEWEST, NEWEST_AT = range(10)
LISTS = 10

NOT_PLAIN = ("gradient", "data")  # makers of tensors that are not shown as leaves

_BEGIN, _END = (Kind.SCOPE_ENTERED, Kind.PASS_BEGAN), (Kind.SCOPE_LEFT, Kind.PASS_ENDED)
# The kinds of events that give a tensor its `.grad`, and its tangent.
GIVING = {GIVEN: (Kind.ACCUMULATED, Kind.RETAINED, Kind.GRAD_ASSIGNED), PUSHED: (Kind.TANGENT,)}
SCOPE = 2**32 - 1  # stands for a scope among the ops of a site
_PAGE = 13  # bits of a number within a page
_NEVER = -1


class Told(NamedTuple):
    """What is told beside a chunk: the event from which on it can be read; the highest tensor and node so far; how many
    ops ran and how many nodes were new; the first event with a NaN, −1 for none; how many tensors were written that
    are views of all of another, or got a tangent (a moment of such a run is known from the whole only); the lists."""

    since_event: int
    highest_tensor: int
    highest_node: int
    ops: int
    new_nodes: int
    first_nan: int
    entangled: int
    lists: bytes


def _table(kinds: Sequence[Kind]) -> np.ndarray:
    """For each number of a kind, whether it is one of these."""
    found = np.zeros(256, bool)
    found[list(kinds)] = True
    return found


_of_kinds = {which: _table(kinds) for which, kinds in GIVING.items()}
_step = _table(_BEGIN).astype(np.int64) - _table(_END)
_of_pass = _table((Kind.PASS_BEGAN, Kind.PASS_ENDED))


class Contents:
    """Sums up the chunks of a recording, in order. `new_ops` are the (site, op) pairs that it met first in the last
    chunk, and `last_ops` the sites whose last op is another one now."""

    def __init__(self) -> None:
        self.highest_tensor = self.highest_node = 0
        self.open_since: int | None = None  # since when scopes and passes have been open without a break
        self.depths: dict[int, int] = {}  # of threads, in scopes and in passes, where not 0
        self.nodes, self.views = _Seen(), _Seen()
        self.ops_at: set[int] = set()
        self.last_op: dict[int, int] = {}
        self.made_at: set[int] = set()  # sites of TENSOR events
        self.new_ops: list[tuple[int, int]] = []
        self.changed_ops: list[tuple[int, int]] = []

    def chunk(
        self,
        first: int,
        rows: np.ndarray,
        states: np.ndarray,
        payload: Sequence[bytes],
        dtypes: Mapping[int, str],
        not_plain: Sequence[int],
    ) -> Told:
        """Sum up a chunk. `not_plain` are the texts for makers whose tensors are no leaves to speak of."""
        kinds = rows["head"] & 0xFF
        since = first if self.open_since is None else self.open_since
        bad = with_nan(states, payload, dtypes)
        lists = [
            *self._told_again(rows, states, kinds),
            self._late(rows["a"][kinds == Kind.NODE]),
            self._leaves(states, kinds[states["event"] - first]),
            self._places(rows, kinds, not_plain),
            self._holders(rows, kinds),
            *self._newest(rows, states, first),
        ]
        told = Told(
            since,
            max(self.highest_tensor, int(states["tensor"].max(initial=0))),
            max(self.highest_node, int(rows["a"][kinds == Kind.NODE].max(initial=0))),
            int(np.count_nonzero(kinds == Kind.OP)),
            self.nodes.add(rows["a"][(kinds == Kind.NODE) | (kinds == Kind.RECEIVED)]),
            int(bad.min()) if len(bad) else _NEVER,
            self._writes_through_views(states) + int(np.count_nonzero(kinds == Kind.TANGENT)),
            _packed(lists),
        )
        self.highest_tensor, self.highest_node = told.highest_tensor, told.highest_node
        self._note_open(first, rows, kinds)
        self._note_ops(rows, kinds)
        return told

    def _told_again(self, rows: np.ndarray, states: np.ndarray, kinds: np.ndarray) -> list[np.ndarray]:
        """The tensors from before the chunk whose value, flags, gradient or tangent it tells of."""
        told, has_form = states["tensor"], states["form"] > 0
        given = [rows["a"][_of_kinds[which][kinds]] for which in GIVING]
        return [
            distinct(part[part <= self.highest_tensor]) for part in (told[has_form], told[~has_form], *given)
        ]

    def _late(self, nodes: np.ndarray) -> np.ndarray:
        """Nodes that were told of after others with higher numbers."""
        return distinct(nodes[nodes <= self.highest_node])

    def _leaves(self, states: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        """The tensors that became leaves that require grad, or other leaves than before; `kinds` are those of the
        states' events."""
        wanted = LEAF | REQUIRES_GRAD
        told = (states["what"] & wanted == wanted) & (kinds != Kind.MUTATED)
        return distinct(states["tensor"][told | ((states["form"] == 0) & (states["what"] & LEAF > 0))])

    def _places(self, rows: np.ndarray, kinds: np.ndarray, not_plain: Sequence[int]) -> np.ndarray:
        """The first tensors that were made at a site, other than by an op."""
        made = rows[kinds == Kind.TENSOR]
        made = made[~contained(made["b"], not_plain)]
        sites, at = np.unique(made["site"], return_index=True)
        found = [
            int(made["a"][place])
            for site, place in zip(sites.tolist(), at.tolist(), strict=True)
            if site not in self.made_at
        ]
        self.made_at.update(sites.tolist())
        return np.array(sorted(found), np.uint32)

    @staticmethod
    def _holders(rows: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        """The tensors that kept their gradient, or whose `.grad` was assigned and not to None."""
        assigned = (kinds == Kind.GRAD_ASSIGNED) & (rows["b"] > 0)
        return distinct(rows["a"][assigned | (kinds == Kind.RETAINED)])

    def _newest(self, rows: np.ndarray, states: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
        """The newest tensors of the chunk that each site made and that are leaves without `requires_grad`; and the
        sites."""
        plain = (states["what"] & (LEAF | REQUIRES_GRAD) == LEAF) & (states["tensor"] > self.highest_tensor)
        newest = states[plain][::-1]
        sites, at = np.unique(rows["site"][newest["event"] - first], return_index=True)
        return newest["tensor"][at], sites

    def _writes_through_views(self, states: np.ndarray) -> int:
        """How many tensors were written that are views of all of another."""
        self.views.add(states["tensor"][(states["what"] & WHOLE > 0) & (states["base"] > 0)])
        if not self.views.pages:
            return 0
        told = np.sort(states["tensor"][states["form"] > 0])
        again = np.append(told[1:] == told[:-1], False)[: len(told)] | (told <= self.highest_tensor)
        return int(np.count_nonzero(self.views.holds(told[again])))

    def _note_open(self, first: int, rows: np.ndarray, kinds: np.ndarray) -> None:
        """Note since when scopes and passes have been open at the end of a chunk."""
        steps = _step[kinds]
        at = np.flatnonzero(steps)
        if not len(at):
            return
        steps = steps[at]
        keys = (rows["head"][at] >> 16).astype(np.int64) << 1 | _of_pass[kinds[at]]
        is_open = np.zeros(len(at), bool)  # after each of them
        for key in {*distinct(keys).tolist(), *self.depths}:
            depth = self.depths.get(key, 0) + np.cumsum(np.where(keys == key, steps, 0))
            is_open |= depth != 0
            self.depths[key] = int(depth[-1])
        self.depths = {key: depth for key, depth in self.depths.items() if depth}
        if not is_open[-1]:
            self.open_since = None
            return
        closed = np.flatnonzero(~is_open)
        if len(closed):
            self.open_since = first + int(at[closed[-1] + 1])
        elif self.open_since is None:
            self.open_since = first + int(at[0])

    def _note_ops(self, rows: np.ndarray, kinds: np.ndarray) -> None:
        """Note which ops ran at which sites, and which ran last."""
        ops, scopes = rows[kinds == Kind.OP], rows["site"][kinds == Kind.SCOPE_ENTERED]
        at_ops = ops["site"].astype(np.int64) << 32 | ops["a"]
        pairs = distinct(np.concatenate([at_ops, distinct(scopes).astype(np.int64) << 32 | SCOPE]))
        new = [pair for pair in pairs.tolist() if pair not in self.ops_at]
        self.ops_at.update(new)
        self.new_ops = [(pair >> 32, pair & SCOPE) for pair in new]
        backwards = ops[::-1]
        sites, last = np.unique(backwards["site"], return_index=True)
        lasts = zip(sites.tolist(), backwards["a"][last].tolist(), strict=True)
        self.changed_ops = [(site, op) for site, op in lasts if self.last_op.get(site) != op]
        self.last_op.update(self.changed_ops)


class _Seen:
    """A set of numbers that mostly count up, with a bit for each: a day's run has hundreds of millions of nodes."""

    def __init__(self) -> None:
        self.pages: dict[int, np.ndarray] = {}

    def add(self, numbers: np.ndarray) -> int:
        """Add numbers; returns how many of them are new."""
        new = 0
        numbers = distinct(numbers[numbers > 0])
        for page in distinct(numbers >> _PAGE).tolist():
            own = numbers[numbers >> _PAGE == page] & (1 << _PAGE) - 1
            packed = self.pages.get(page)
            bits = np.zeros(1 << _PAGE, bool) if packed is None else np.unpackbits(packed).astype(bool)
            new += int(np.count_nonzero(~bits[own]))
            bits[own] = True
            self.pages[page] = np.packbits(bits)
        return new

    def holds(self, numbers: np.ndarray) -> np.ndarray:
        """For each of these numbers whether it is in the set."""
        found = np.zeros(len(numbers), bool)
        for page in distinct(numbers >> _PAGE).tolist():
            own = numbers >> _PAGE == page
            if page in self.pages:
                found[own] = np.unpackbits(self.pages[page]).astype(bool)[numbers[own] & (1 << _PAGE) - 1]
        return found


def _packed(lists: Sequence[np.ndarray]) -> bytes:
    """Lists of numbers: their lengths, and then one after the other."""
    lengths = np.array([len(found) for found in lists], NUMBER)
    return as_is(lengths.tobytes(), *(found.astype(NUMBER).tobytes() for found in lists))


def unpacked(data: bytes) -> list[np.ndarray]:
    """What `_packed` packed. Raises ValueError where it is damaged."""
    if header_of(data).how != AS_IS:
        raise ValueError("what is told beside a chunk is kept in a way that there is not")
    numbers = np.frombuffer(data, NUMBER, offset=HEADER)
    ends = list(accumulate(numbers[:LISTS].tolist(), initial=LISTS))
    if len(ends) != LISTS + 1 or ends[-1] != len(numbers):
        raise ValueError("what is told beside a chunk does not add up")
    return [numbers[first:end] for first, end in pairwise(ends)]
