"""A digest of each pass's structure: the nodes that ran, in order, and the nodes that each of them gave gradients to.

Passes of equal digest went through the same graph, so that a view of a training loop can show one pass for each digest.
Node numbers are replaced by the order in which nodes ran; names are hashed, not their numbers in this file, so that
digests of two files compare.
"""

import hashlib
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gradviz.events.event_layout import COLUMNS, LAYOUTS
from gradviz.events.kinds import Kind
from gradviz.tracefile.batch import ByKind


class FinishedPass(NamedTuple):
    """A pass by its number: its last event, the number of nodes that ran, its digest."""

    number: int
    last: int
    nodes: int
    digest: str


class _Run(NamedTuple):
    """A part of a run, in order: the passes, the nodes and the hashes of their names, beside each other; and the edges
    that gradients took: the passes, the nodes and the nodes that received them. Arrays of whole numbers."""

    passes: np.ndarray
    nodes: np.ndarray
    names: np.ndarray
    giving: np.ndarray
    sources: np.ndarray
    targets: np.ndarray

    def of(self, number: int) -> "_Run":
        """The part of one pass."""
        ran, gave = self.passes == number, self.giving == number
        return _Run(*(column[ran] for column in self[:3]), *(column[gave] for column in self[3:]))


class Digests:
    """Follows the passes of a run, batch by batch. `strings` are the names in the order of their numbers; each batch
    may add some."""

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings = strings
        self.hashes: list[int] = []
        self.open: dict[int, list[_Run]] = {}  # the parts of the passes that have begun and not ended
        self.finished: list[FinishedPass] = []

    def take_finished(self) -> list[FinishedPass]:
        """The passes finished since the last call."""
        finished, self.finished = self.finished, []
        return finished

    def read(self, batch: ByKind, links: np.ndarray) -> None:
        """Read one batch of events, with their links."""
        events = batch.rows
        began, ended, received, produced = map(batch.at, (_BEGAN, _ENDED, _RECEIVED, _PRODUCED))
        if not (len(began) or len(ended) or len(received) or len(produced)):
            return
        new = self.strings[len(self.hashes) :]
        self.hashes += [zlib.crc32(text.encode("utf-8", "replace")) for text in new]
        names = np.array(self.hashes, np.int64)[events[_NAME][received]]
        ran = events[_RECEIVED_IN][received], events[_NODE][received], names
        run = _Run(*ran, *_given(events, produced, links))
        self.open.update((number, []) for number in events[_NUMBER][began].tolist())
        lasts = dict(zip(events[_NUMBER_ENDED][ended].tolist(), ended.tolist(), strict=True))
        finished = {number: at for number, at in lasts.items() if number in self.open}
        before = [part for number in finished for part in self.open.pop(number)]
        for number, parts in self.open.items():
            part = run.of(number)
            if len(part.nodes) or len(part.giving):
                parts.append(part)
        whole = _Run(*map(np.concatenate, zip(*before, run, strict=True))) if before else run
        summed = _digests(whole, [*finished])
        self.finished += [FinishedPass(number, batch.first + at, *summed[number]) for number, at in finished.items()]


def _given(events: np.ndarray, produced: np.ndarray, links: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The edges that gradients took, from the events that record them: passes, sources and targets."""
    ends = np.cumsum(events["links"], dtype=np.int64)[produced]
    counts = events["links"][produced].astype(np.int64) // 2
    places = 2 * np.arange(counts.sum()) + np.repeat(ends - 2 * np.cumsum(counts), counts)
    passes, sources = (np.repeat(events[column][produced], counts) for column in (_PRODUCED_IN, _GIVER))
    return passes, sources, links[places]


def _digests(run: _Run, numbers: Sequence[int]) -> dict[int, tuple[int, str]]:
    """The number of nodes that ran in each of these passes, and its digest: 16 hexadecimal digits; empty for a pass
    without recorded nodes."""
    in_order, of_edges = run.passes.argsort(kind="stable"), run.giving.argsort(kind="stable")
    passes, names, giving = run.passes[in_order], run.names[in_order], run.giving[of_edges]
    starts, ends = passes.searchsorted(numbers).tolist(), passes.searchsorted(numbers, "right").tolist()
    firsts, lasts = giving.searchsorted(numbers).tolist(), giving.searchsorted(numbers, "right").tolist()
    of_run = _keys(passes, run.nodes[in_order])
    sources, targets = (_places(of_run, passes, _keys(giving, nodes[of_edges])) for nodes in (run.sources, run.targets))
    digests = {}
    for number, start, end, first, last in zip(numbers, starts, ends, firsts, lasts, strict=True):
        parts = np.array([end - start]), names[start:end], sources[first:last], targets[first:last]
        content = b"".join([part.astype(np.int64, copy=False).tobytes() for part in parts])
        digest = hashlib.blake2b(content, digest_size=8).hexdigest() if end > start else ""
        digests[number] = end - start, digest
    return digests


def _keys(passes: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    return passes.astype(np.uint64) << np.uint64(32) | nodes


def _places(ran: np.ndarray, passes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The place of each wanted node among the nodes that `ran` in its pass, −1 if it is not there. If a node ran twice,
    it is the last place."""
    if not len(ran):
        return np.full(len(wanted), -1)
    order = ran.argsort(kind="stable")
    at = ran.searchsorted(wanted, "right", order) - 1
    last = order[np.maximum(at, 0)]
    places = last - passes.searchsorted(passes[last])
    return np.where((at >= 0) & (ran[last] == wanted), places, -1)


def _column(kind: Kind, name: str) -> str:
    """The column of a row in which a field is kept."""
    names = [known.name for known in LAYOUTS[kind].columns]
    return COLUMNS[names.index(name)]


_BEGAN, _ENDED, _RECEIVED, _PRODUCED = (
    int(kind) for kind in (Kind.PASS_BEGAN, Kind.PASS_ENDED, Kind.RECEIVED, Kind.PRODUCED)
)
_NUMBER, _NUMBER_ENDED = _column(Kind.PASS_BEGAN, "number"), _column(Kind.PASS_ENDED, "number")
_NODE, _NAME, _RECEIVED_IN = (_column(Kind.RECEIVED, name) for name in ("node", "grad_fn", "in_pass"))
_GIVER, _PRODUCED_IN = _column(Kind.PRODUCED, "node"), _column(Kind.PRODUCED, "in_pass")


def renumbered(events: np.ndarray, numbers: Sequence[int]) -> np.ndarray:
    """The same events, with names by their places among `numbers`, which are in order."""
    copy = events.copy()
    received = np.flatnonzero((events["head"] & 0xFF) == _RECEIVED)
    copy[_NAME][received] = np.searchsorted(numbers, events[_NAME][received])
    return copy
