"""A digest of each pass's structure: which nodes ran in which order, and what each gave to which.

Passes of equal digest went through the same graph, so that a reader of a training loop can be shown one of
each. Node numbers are replaced by the order in which nodes ran; names are hashed, not their numbers in this
file, so that digests of two files compare.
"""

from __future__ import annotations

import hashlib
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.events.layout import COLUMNS, LAYOUTS


def _integers() -> array[int]:
    return array("q")


@dataclass
class _OpenPass:
    """What is known of a pass so far: the nodes that ran with their names' hashes, and the edges that gradients
    took, as node numbers."""

    nodes: array[int] = field(default_factory=_integers)
    names: array[int] = field(default_factory=_integers)
    sources: array[int] = field(default_factory=_integers)
    targets: array[int] = field(default_factory=_integers)


@dataclass(frozen=True, slots=True)
class FinishedPass:
    """A pass by its number: its last event, how many nodes ran, its digest."""

    number: int
    last: int
    nodes: int
    digest: str


class Digests:
    """Follows the passes of a run, batch by batch. `strings` are the names in the order of their numbers; there
    may be more of them at each batch."""

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings = strings
        self.hashes: list[int] = []
        self.open: dict[int, _OpenPass] = {}
        self.finished: list[FinishedPass] = []

    def take_finished(self) -> list[FinishedPass]:
        """The passes finished since the last call."""
        finished, self.finished = self.finished, []
        return finished

    def read(self, first: int, events: np.ndarray, links: np.ndarray) -> None:
        """Take in one batch of events, the first of which is number `first`."""
        kinds = events["head"] & 0xFF
        marks = {kind: np.flatnonzero(kinds == kind) for kind in (_RECEIVED, _PRODUCED, _BEGAN, _ENDED)}
        if not any(map(len, marks.values())):
            return
        self._hash_names()
        for number in events[_NUMBER][marks[_BEGAN]].tolist():
            self.open[number] = _OpenPass()
        received, produced = events[marks[_RECEIVED]], marks[_PRODUCED]
        if len(received) > _FEW * max(len(self.open), 1):
            self._take_in(received, events, produced, links)
        else:
            self._take_in_few(received, events, produced, links)
        for at in marks[_ENDED].tolist():
            number = int(events[_NUMBER_ENDED][at])
            run = self.open.pop(number, None)
            if run is not None:
                self.finished.append(FinishedPass(number, first + at, len(run.nodes), digest_of(run)))

    def _take_in(
        self, received: np.ndarray, events: np.ndarray, produced: np.ndarray, links: np.ndarray
    ) -> None:
        """Take in the nodes that ran, pass by pass: quicker where a pass has many."""
        ends = np.cumsum(events["links"], dtype=np.int64)[produced]
        given = events[produced]
        counts = given["links"].astype(np.int64) // 2
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        targets = links[np.repeat(ends - 2 * counts, counts) + 2 * offsets]
        sources = np.repeat(given[_GIVER], counts)
        flow_passes = np.repeat(given[_PRODUCED_IN], counts)
        hashes = np.array(self.hashes)
        for number, run in self.open.items():
            own = received[received[_RECEIVED_IN] == number]
            _extend(run.nodes, own[_NODE])
            _extend(run.names, hashes[own[_NAME]])
            here = flow_passes == number
            _extend(run.targets, targets[here])
            _extend(run.sources, sources[here])

    def _take_in_few(
        self, received: np.ndarray, events: np.ndarray, produced: np.ndarray, links: np.ndarray
    ) -> None:
        """The same, event by event: quicker for the few events of small passes."""
        columns = (received[name].tolist() for name in (_RECEIVED_IN, _NODE, _NAME))
        for number, node, name in zip(*columns, strict=True):
            run = self.open.get(number)
            if run is not None:
                run.nodes.append(node)
                run.names.append(self.hashes[name])
        ends = np.cumsum(events["links"], dtype=np.int64)[produced].tolist()
        columns = (events[name][produced].tolist() for name in (_PRODUCED_IN, _GIVER, "links"))
        flat = links.tolist()
        for number, node, count, end in zip(*columns, ends, strict=True):
            run = self.open.get(number)
            if run is not None:
                run.sources.extend([node] * (count // 2))
                run.targets.extend(flat[end - count : end : 2])

    def _hash_names(self) -> None:
        new = self.strings[len(self.hashes) :]
        self.hashes += [zlib.crc32(text.encode("utf-8", "replace")) for text in new]


def _column(kind: Kind, name: str) -> str:
    """The column of a row that a field is kept in."""
    names = [known.name for known in LAYOUTS[kind].columns]
    return COLUMNS[names.index(name)]


_BEGAN, _ENDED, _RECEIVED, _PRODUCED = (
    int(kind) for kind in (Kind.PASS_BEGAN, Kind.PASS_ENDED, Kind.RECEIVED, Kind.PRODUCED)
)
_NUMBER, _NUMBER_ENDED = _column(Kind.PASS_BEGAN, "number"), _column(Kind.PASS_ENDED, "number")
_NODE, _NAME, _RECEIVED_IN = (_column(Kind.RECEIVED, name) for name in ("node", "grad_fn", "in_pass"))
_GIVER, _PRODUCED_IN = _column(Kind.PRODUCED, "node"), _column(Kind.PRODUCED, "in_pass")
_FEW = 50  # events of a pass in a batch


def renumbered(events: np.ndarray, numbers: Sequence[int]) -> np.ndarray:
    """The same events, with names by their places among `numbers`, which are in order."""
    found = events.copy()
    received = np.flatnonzero((events["head"] & 0xFF) == _RECEIVED)
    found[_NAME][received] = np.searchsorted(numbers, events[_NAME][received])
    return found


def _extend(integers: array[int], more: np.ndarray) -> None:
    integers.frombytes(more.astype(np.int64).tobytes())


def digest_of(run: _OpenPass) -> str:
    """The digest of a finished pass: 16 hexadecimal digits; none of one in which no node was told."""
    if not run.nodes:
        return ""
    ranks = _ranks_of_many if len(run.nodes) > _FEW else _ranks_of_few
    places = ranks(run.nodes, run.sources + run.targets)
    content = array("q", [len(run.nodes)]).tobytes() + run.names.tobytes() + places.tobytes()
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _ranks_of_few(nodes: Sequence[int], wanted: Sequence[int]) -> np.ndarray:
    """For each wanted node its place among `nodes`, −1 for one that is not there."""
    place = {node: i for i, node in enumerate(nodes)}
    return np.array([place.get(node, -1) for node in wanted], np.int64)


def _ranks_of_many(nodes: Sequence[int], wanted: Sequence[int]) -> np.ndarray:
    """As `_ranks_of_few`; quicker where there are many."""
    ran, sought = np.array(nodes, np.int64), np.array(wanted, np.int64)
    order = np.argsort(ran, kind="stable")
    found = order[np.searchsorted(ran, sought, sorter=order).clip(0, len(ran) - 1)]
    return np.where(ran[found] == sought, found, -1)
