"""Copies of values on a device, of which the statistics of all that wait are computed together when they are fetched.

The elements of each copy are cut into rows of `ROW`. The device reduces the rows of all copies of a dtype in their own
precision, with sums in float32; the CPU reduces what is left behind the rows, and joins all in float64. This loses the
finite elements of a copy that has others, and squares can leave the range of float32. In these cases the CPU computes
the statistics from the whole copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from gradviz.events.values import packed_stats_of
from gradviz.sources.torch_recorder.memory import dtype_name
from gradviz.sources.torch_recorder.pytorchs_own import TENSORS, as_strided, is_floating_point, numel
from gradviz.system.turns import new_turn

ROW = 1024  # elements of a row: few enough to be summed and counted in float32
COPIES = (
    64 << 20
)  # bytes of copies on one device at once, while it is not known how much memory is free there
MOST_COPIES = 512 << 20  # ...and where much is free
_SQUARABLE = 1e-15, 1e15  # the squares of magnitudes in this range neither vanish nor overflow in float32
_norm = torch.linalg.vector_norm
_flat_together = torch._C._nn.flatten_dense_tensors
Read = Callable[[torch.Tensor], bytes]


class Room:
    """The limit for bytes of copies on a device, and the bytes in use."""

    def __init__(self) -> None:
        self.limit, self.taken = COPIES, 0
        self.lock = new_turn()

    def take(self, size: int) -> bool:
        """Take room for so many bytes; False if there is not enough."""
        with self.lock:
            if self.taken + size > self.limit:
                return False
            self.taken += size
            return True

    def free(self, size: int) -> None:
        """Give room back."""
        with self.lock:
            self.taken -= size


class Copied:
    """A dense copy of a value that shows each of its elements `times` times. The bytes that it has `taken` of a `room`
    are given back when nobody holds it any more. `stream` makes the copy; it is None on a device without streams."""

    __slots__ = ("copy", "room", "stream", "taken", "times")

    def __init__(self, copy: torch.Tensor, room: Room, taken: int = 0) -> None:
        self.copy, self.room, self.taken, self.times = copy, room, taken, 1
        self.stream: Any = None

    def __del__(self) -> None:
        if self.taken:
            self.room.free(self.taken)

    @property
    def device(self) -> torch.device:
        """The device that the copy is on."""
        return self.copy.device

    @property
    def held(self) -> int:
        """The number of bytes to be fetched: five numbers of a row, and what is left behind the rows."""
        rows, rest = divmod(numel(self.copy), ROW)
        return (5 * rows + rest) * self.copy.itemsize


def groups_of(copies: Sequence[Copied], most: int) -> Iterator[list[Copied]]:
    """The copies that are reduced together: of one dtype, and of at most `most` bytes, unless it is one."""
    groups: dict[torch.dtype, list[Copied]] = {}
    sizes: dict[torch.dtype, int] = {}
    for one in copies:
        dtype, size = one.copy.dtype, one.copy.nbytes
        if dtype in groups and sizes[dtype] + size > most:
            yield groups.pop(dtype)
        sizes[dtype] = size if dtype not in groups else sizes[dtype] + size
        groups.setdefault(dtype, []).append(one)
    yield from groups.values()


class Reductions:
    """The statistics of some copies of one dtype: `parts` are to be brought to the CPU, and `finish` makes statistics
    of their bytes, given what reads more from the device."""

    def __init__(self, copies: Sequence[Copied]) -> None:
        self.copies = copies
        self.dtype = copies[0].copy.dtype
        rows, rests = [], []
        for one in copies:
            rest = numel(one.copy) % ROW
            end = numel(one.copy) - rest
            if end:
                rows.append(as_strided(one.copy, (end,), (1,)) if rest else one.copy)
            if rest:
                rests.append(as_strided(one.copy, (rest,), (1,), end) if end else one.copy)
        self.sizes = np.array([numel(one.copy) for one in copies])
        self.of_rows = _reduced(_flat_together(rows).view(-1, ROW)) if rows else []
        self.parts = [*self.of_rows, *([_flat_together(rests)] if rests else ())]

    def finish(self, fetched: Sequence[bytes], read: Read) -> list[bytes]:
        """The packed statistics of each copy."""
        numbers = [
            elements_in(data, part.dtype).astype(np.float64)
            for data, part in zip(fetched, self.parts, strict=True)
        ]
        count = len(self.of_rows)
        with np.errstate(all="ignore"):
            table, is_exact = self._table(numbers[:count], *numbers[count:])
        packed, exact = table.tobytes(), is_exact.tolist()
        size = table.strides[0]
        return [
            packed[at * size : (at + 1) * size] if exact[at] else self._from_elements(one, read)
            for at, one in enumerate(self.copies)
        ]

    def _table(
        self, of_rows: Sequence[np.ndarray], rest: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """A row of seven statistics for each copy, and whether they are exact: its elements are finite, and their
        squares in the range of float32."""
        count = len(self.copies)
        low, high = np.full(count, np.inf), np.full(count, -np.inf)
        total, squares, nonzero = sums = np.zeros((3, count))

        def join(lengths: np.ndarray, lows: np.ndarray, highs: np.ndarray, *addends: np.ndarray) -> None:
            there = np.flatnonzero(lengths)
            starts = (np.cumsum(lengths) - lengths)[there]
            low[there] = np.minimum(low[there], np.minimum.reduceat(lows, starts))
            high[there] = np.maximum(high[there], np.maximum.reduceat(highs, starts))
            for sum_of_each, column in zip(sums, addends, strict=True):
                sum_of_each[there] += np.add.reduceat(column, starts, dtype=np.float64)

        if of_rows:
            lows, highs, totals, norms, counts = of_rows
            join(self.sizes // ROW, lows, highs, totals, np.square(norms), counts)
        if rest is not None:
            join(self.sizes % ROW, rest, rest, rest, np.square(rest), rest != 0)
        least, most = _SQUARABLE
        size = np.maximum(-low, high)
        is_exact = (size < most) & ((size > least) | (size == 0)) & (self.sizes > 0)  # NaN is neither
        zeros = (self.sizes - nonzero) * [one.times for one in self.copies]
        mean, rms, none = total / self.sizes, np.sqrt(squares / self.sizes), np.zeros(count)
        return np.stack([low, high, mean, rms, none, none, zeros], axis=1), is_exact

    def _from_elements(self, one: Copied, read: Read) -> bytes:
        return repeated(packed_stats_of(elements_in(read(one.copy), self.dtype)), one.times)


def _reduced(rows: torch.Tensor) -> list[torch.Tensor]:
    """The least, the greatest, the sum, the norm and the count of nonzero elements of each row."""
    wide = wide_of(rows.dtype)
    numbers = rows if is_floating_point(rows) else TENSORS.to(rows, wide)
    return [
        rows.amin(1), rows.amax(1), numbers.sum(1, dtype=wide), _norm(numbers, 2, 1, dtype=wide),
        _norm(numbers, 0, 1, dtype=wide),
    ]  # fmt: skip


def wide_of(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums are computed."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def elements_in(data: bytes, dtype: torch.dtype) -> np.ndarray:
    """The elements in some bytes, as float32 if NumPy does not have their dtype."""
    try:
        return np.frombuffer(data, dtype_name(dtype))
    except TypeError:
        if not data:
            return np.empty(0, np.float32)
        return torch.frombuffer(bytearray(data), dtype=dtype).float().numpy()


def repeated(packed: bytes, times: int) -> bytes:
    """The statistics of a tensor that repeats each element so many times."""
    if times == 1:
        return packed
    numbers = np.frombuffer(packed).copy()
    numbers[4:] *= times
    return numbers.tobytes()
