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


@dataclass
class _OpenPass:
    """What is known of a pass so far: the nodes that ran with their names' hashes, and the edges that gradients
    took, as node numbers."""

    number: int
    nodes: list[int] = field(default_factory=list)
    names: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)


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

    def read(self, first: int, events: np.ndarray, links: Sequence[int]) -> None:
        """Take in one batch of events, the first of which is number `first`."""
        kinds = events["head"] & 0xFF
        of_passes = np.flatnonzero(np.isin(kinds, _KINDS))
        if not len(of_passes):
            return
        self._hash_names()
        rows = events[of_passes]
        ends = np.cumsum(events["links"], dtype=np.int64)[of_passes].tolist()
        columns = (rows[name].tolist() for name in ("head", "subject", "name", "links"))
        for index, end, head, subject, name, n_links in zip(of_passes.tolist(), ends, *columns, strict=True):
            kind, thread = head & 0xFF, head >> 16
            if kind == _BEGAN:
                self.open.setdefault(thread, []).append(_OpenPass(subject))
                continue
            stack = self.open.get(thread)
            if not stack:
                continue
            run = stack[-1]
            if kind == _RECEIVED:
                run.nodes.append(subject)
                run.names.append(self.hashes[name])
            elif kind == _PRODUCED:
                half = n_links // 2
                run.sources += [subject] * half
                run.targets += links[end - n_links : end - half]
            else:
                stack.pop()
                finished = FinishedPass(run.number, first + index, len(run.nodes), digest_of(run))
                self.finished.append(finished)

    def _hash_names(self) -> None:
        texts = list(self.strings)
        self.hashes += [zlib.crc32(text.encode("utf-8", "replace")) for text in texts[len(self.hashes) :]]


_BEGAN, _RECEIVED, _PRODUCED = int(Kind.PASS_BEGAN), int(Kind.RECEIVED), int(Kind.PRODUCED)
_KINDS = [_BEGAN, _RECEIVED, _PRODUCED, int(Kind.PASS_ENDED)]


def digest_of(run: _OpenPass) -> str:
    """The digest of a finished pass: 16 hexadecimal digits."""
    place = {node: i for i, node in enumerate(run.nodes)}
    sources = [place.get(node, -1) for node in run.sources]
    targets = [place.get(node, -1) for node in run.targets]
    content = array("q", [len(run.nodes), *run.names, *sources, *targets])
    return hashlib.blake2b(content.tobytes(), digest_size=8).hexdigest()
