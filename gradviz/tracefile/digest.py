"""A digest of each pass's structure: which nodes ran in which order, and what each gave to which.

Passes of equal digest went through the same graph, so that a reader of a training loop can be shown one of
each. Node numbers are replaced by the order in which nodes ran; names are hashed, not their numbers in this
file, so that digests of two files compare.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradviz.events.kinds import Kind


@dataclass
class _OpenPass:
    number: int
    thread: int
    nodes: list[np.ndarray] = field(default_factory=list)
    names: list[np.ndarray] = field(default_factory=list)
    sources: list[np.ndarray] = field(default_factory=list)
    targets: list[np.ndarray] = field(default_factory=list)


class Digests:
    """Follows the passes of a run, batch by batch. `strings` gives names their numbers."""

    def __init__(self, strings: Any) -> None:
        self.strings = strings
        self.hashes: list[int] = []
        self.open: list[_OpenPass] = []
        self.finished: list[tuple[int, int, str, int]] = []

    def take_finished(self) -> list[tuple[int, int, str, int]]:
        """Passes finished since the last call: (last event, nodes, digest, number)."""
        finished, self.finished = self.finished, []
        return finished

    def read(self, first: int, events: np.ndarray, links: np.ndarray) -> None:
        """Take in one batch of events, the first of which is number `first`."""
        kinds = events["head"] & 0xFF
        ends = np.cumsum(events["links"], dtype=np.int64)
        threads = events["head"] >> 16
        marks = np.flatnonzero((kinds == Kind.PASS_BEGAN) | (kinds == Kind.PASS_ENDED))
        start = 0
        for mark in [*marks.tolist(), len(events)]:
            if self.open and mark > start:
                self._take_in(slice(start, mark), kinds, threads, events, links, ends)
            start = mark
            if mark == len(events):
                break
            thread = int(threads[mark])
            if kinds[mark] == Kind.PASS_BEGAN:
                self.open.append(_OpenPass(int(events["subject"][mark]), thread))
            else:
                self._finish(thread, first + mark)

    def _take_in(self, part: slice, kinds: Any, threads: Any, events: Any, links: Any, ends: Any) -> None:
        for thread in {one.thread for one in self.open}:
            run = next(one for one in reversed(self.open) if one.thread == thread)
            received = np.flatnonzero((kinds[part] == Kind.RECEIVED) & (threads[part] == thread)) + part.start
            if len(received):
                run.nodes.append(events["subject"][received])
                run.names.append(events["name"][received])
            produced = np.flatnonzero((kinds[part] == Kind.PRODUCED) & (threads[part] == thread)) + part.start
            if len(produced):
                halves = events["links"][produced].astype(np.int64) // 2
                starts = ends[produced] - 2 * halves
                offsets = np.arange(halves.sum()) - np.repeat(np.cumsum(halves) - halves, halves)
                run.targets.append(links[np.repeat(starts, halves) + offsets])
                run.sources.append(np.repeat(events["subject"][produced], halves))

    def _finish(self, thread: int, event: int) -> None:
        at = next((i for i in reversed(range(len(self.open))) if self.open[i].thread == thread), None)
        if at is None:
            return
        run = self.open.pop(at)
        self.finished.append((event, sum(len(part) for part in run.nodes), self._digest(run), run.number))

    def _digest(self, run: _OpenPass) -> str:
        nodes = _joined(run.nodes)
        order = np.argsort(nodes, kind="stable")
        digest = hashlib.blake2b(digest_size=8)
        digest.update(self._name_hashes(_joined(run.names)).tobytes())
        for part in (_joined(run.sources), _joined(run.targets)):
            digest.update(_ranks(part, nodes, order).tobytes())
        return digest.hexdigest()

    def _name_hashes(self, names: np.ndarray) -> np.ndarray:
        texts = list(self.strings.known)
        self.hashes += [zlib.crc32(text.encode()) for text in texts[len(self.hashes) :]]
        return np.array(self.hashes, np.uint32)[names] if len(names) else names


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, np.uint32)


def _ranks(part: np.ndarray, nodes: np.ndarray, order: np.ndarray) -> np.ndarray:
    """For each node number its place in the order of running, −1 for one that did not run."""
    if not len(nodes) or not len(part):
        return np.full(len(part), -1, np.int32)
    found = np.searchsorted(nodes, part, sorter=order).clip(0, len(nodes) - 1)
    places = order[found]
    return np.where(nodes[places] == part, places, -1).astype(np.int32)
