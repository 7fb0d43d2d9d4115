"""A digest of each pass's structure: which nodes ran in which order, and what each gave to which.

Passes of equal digest went through the same graph, so that a reader of a training loop can be shown one of
each. Node numbers are replaced by the order in which nodes ran; names are hashed, not their numbers in this
file, so that digests of two files compare.
"""

from __future__ import annotations

import hashlib
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gradviz.events.kinds import Kind


def _integers() -> array[int]:
    return array("q")


@dataclass
class _OpenPass:
    """What is known of a pass so far: the nodes that ran with their names' hashes, and the edges that gradients
    took, as node numbers."""

    number: int
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

    def __init__(self, strings: Iterable[str]) -> None:
        self.strings = strings
        self.hashes: list[int] = []
        self.open: dict[int, list[_OpenPass]] = {}  # by thread, the innermost last
        self.finished: list[FinishedPass] = []

    def take_finished(self) -> list[FinishedPass]:
        """The passes finished since the last call."""
        finished, self.finished = self.finished, []
        return finished

    def read(self, first: int, events: np.ndarray, links: np.ndarray) -> None:
        """Take in one batch of events, the first of which is number `first`."""
        kinds = events["head"] & 0xFF
        if not np.isin(kinds, _KINDS).any():
            return
        self._hash_names()
        ends = np.cumsum(events["links"], dtype=np.int64)
        marks = np.flatnonzero((kinds == _BEGAN) | (kinds == _ENDED)).tolist()
        start = 0
        for mark in [*marks, len(events)]:
            if mark - start > _FEW:
                self._take_in(events[start:mark], ends[start:mark], links)
            elif mark > start:
                self._take_in_few(events[start:mark].tolist(), ends[start:mark].tolist(), links)
            start = mark
            if mark == len(events):
                break
            thread = int(events["head"][mark]) >> 16
            stack = self.open.setdefault(thread, [])
            if kinds[mark] == _BEGAN:
                stack.append(_OpenPass(int(events["subject"][mark])))
            elif stack:
                run = stack.pop()
                self.finished.append(FinishedPass(run.number, first + mark, len(run.nodes), digest_of(run)))

    def _take_in(self, events: np.ndarray, ends: np.ndarray, links: np.ndarray) -> None:
        """Take in events between which no pass began or ended."""
        for thread, stack in self.open.items():
            if not stack:
                continue
            run = stack[-1]
            heads = events["head"] & 0xFFFF00FF  # without flags
            received = heads == _RECEIVED | thread << 16
            _extend(run.nodes, events["subject"][received])
            _extend(run.names, np.array(self.hashes)[events["name"][received]])
            produced = heads == _PRODUCED | thread << 16
            counts = events["links"][produced].astype(np.int64)
            halves = counts // 2
            offsets = np.arange(halves.sum()) - np.repeat(np.cumsum(halves) - halves, halves)
            _extend(run.targets, links[np.repeat(ends[produced] - counts, halves) + offsets])
            _extend(run.sources, np.repeat(events["subject"][produced], halves))

    def _take_in_few(self, rows: list[tuple], ends: list[int], links: np.ndarray) -> None:
        """The same, row by row, which is quicker for the few events of a small pass."""
        for (head, _, name, subject, _, _, n_links), end in zip(rows, ends, strict=True):
            stack = self.open.get(head >> 16)
            if not stack:
                continue
            if head & 0xFF == _RECEIVED:
                stack[-1].nodes.append(subject)
                stack[-1].names.append(self.hashes[name])
            elif head & 0xFF == _PRODUCED:
                half = n_links // 2
                stack[-1].sources.extend([subject] * half)
                stack[-1].targets.extend(links[end - n_links : end - half].tolist())

    def _hash_names(self) -> None:
        texts = list(self.strings)
        self.hashes += [zlib.crc32(text.encode("utf-8", "replace")) for text in texts[len(self.hashes) :]]


def _extend(integers: array[int], more: np.ndarray) -> None:
    integers.frombytes(more.astype(np.int64).tobytes())


_BEGAN, _ENDED = int(Kind.PASS_BEGAN), int(Kind.PASS_ENDED)
_RECEIVED, _PRODUCED = int(Kind.RECEIVED), int(Kind.PRODUCED)
_FEW = 50  # events
_KINDS = [_BEGAN, _ENDED, _RECEIVED, _PRODUCED]


def digest_of(run: _OpenPass) -> str:
    """The digest of a finished pass: 16 hexadecimal digits."""
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
