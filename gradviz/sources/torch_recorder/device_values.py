"""Values of tensors on a device: what an event launches there, and how the fetched results become values.

Nothing here waits for the device, and what an event launches is mostly one copy: a launch takes the program some ten
microseconds. Where there is no room for copies, a tensor is reduced at once, in blocks, by many launches."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from gradviz.events.values import packed_stats_of
from gradviz.sources.torch_recorder.memory import dtype_name, is_dense
from gradviz.sources.torch_recorder.pytorchs_own import (
    TENSORS,
    as_strided,
    clone,
    is_complex,
    is_conj,
    is_floating_point,
    is_neg,
    numel,
    reshape,
    stride,
)
from gradviz.system.turns import new_turn

ROW = 1024  # elements of a row: few enough to be summed and counted in float32
# bytes of copies on one device at once, while it is not known how much memory is free there
COPIES = 64 << 20
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
            elements_in(data, part.dtype).astype(np.float64) for data, part in zip(fetched, self.parts, strict=True)
        ]
        count = len(self.of_rows)
        with np.errstate(all="ignore"):
            table, is_exact = self._table(numbers[:count], *numbers[count:])
        packed, exact = table.tobytes(), is_exact.tolist()
        size = table.strides[0]
        return [
            packed[at * size : (at + 1) * size]
            if exact[at]
            else repeated(packed_stats_of(elements_in(read(one.copy), self.dtype)), one.times)
            for at, one in enumerate(self.copies)
        ]

    def _table(self, of_rows: Sequence[np.ndarray], rest: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
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


FEW = 1024  # a copy of so many elements or fewer is made in any case
BLOCK = 64 << 20  # bytes of a block
_REAL = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
# the others are widened as they are copied, which keeps all digits
_COPIED = _REAL | {torch.int64, torch.int32}

Finish = Callable[[Sequence[bytes]], bytes]


class OnDevice:
    """Data that waits on a device: `parts` are fetched as bytes, and `finish` makes a value's bytes of them. `stream`
    computes the parts; it is None on a device without streams."""

    __slots__ = ("finish", "parts", "stream")

    def __init__(self, parts: Sequence[torch.Tensor], finish: Finish) -> None:
        self.parts, self.finish = parts, finish
        self.stream: Any = None

    @property
    def device(self) -> torch.device:
        """The device that the parts are on."""
        return self.parts[0].device

    @property
    def held(self) -> int:
        """The number of bytes to be fetched."""
        return sum(part.nbytes for part in self.parts)


def whole_of(value: torch.Tensor) -> OnDevice:
    """All elements of a tensor."""
    return OnDevice([clone(value, memory_format=torch.contiguous_format)], lambda parts: parts[0])


def statistics_of(value: torch.Tensor, room: Room) -> Copied | OnDevice:
    """The statistics of a tensor. An expanded tensor is reduced once for its distinct elements."""
    if 0 not in stride(value) or not numel(value):
        return _statistics_of(value, room)
    once = value[tuple([slice(None) if step else slice(1) for step in stride(value)])]
    stats, times = _statistics_of(once, room), numel(value) // numel(once)
    if isinstance(stats, Copied):
        stats.times = times
        return stats
    finish = stats.finish
    return OnDevice(stats.parts, lambda parts: repeated(finish(parts), times))


def _statistics_of(value: torch.Tensor, room: Room) -> Copied | OnDevice:
    is_copied, of_complex = value.dtype in _COPIED, is_complex(value)
    size = value.nbytes if is_copied or of_complex else 4 * numel(value)
    if numel(value) <= FEW:
        size = 0
    elif not room.take(size):
        return _in_blocks(_flat(value), room.limit)
    try:
        copied = clone(value) if is_copied else TENSORS.abs(value) if of_complex else TENSORS.to(value, torch.float32)
        return Copied(copied, room, size)
    except BaseException:
        room.free(size)
        raise


def _flat(value: torch.Tensor) -> torch.Tensor:
    """A tensor's elements in the order of its memory, without a copy if the tensor shows each element of its memory
    once."""
    if is_conj(value) or is_neg(value) or not is_dense(value):
        return reshape(value, -1)
    return as_strided(value, (numel(value),), (1,))


def _in_blocks(flat: torch.Tensor, room: int) -> OnDevice:
    """Reductions of whole rows, block by block, of the finite elements only."""
    size = min(BLOCK, room, flat.nbytes) // wide_of(flat.dtype).itemsize // ROW * ROW
    end = numel(flat) // ROW * ROW
    blocks = [_block(block) for block in torch.split(flat[:end], max(size, ROW))] if end else []
    parts, dtype = [part for block in blocks for part in block], flat.dtype

    def finish(fetched: Sequence[bytes]) -> bytes:
        numbers = [elements_in(data, part.dtype).astype(np.float64) for data, part in zip(fetched, parts, strict=False)]
        segments = [_of_block(*numbers[at : at + 8]) for at in range(0, len(numbers), 8)]
        return _joined([*segments, _of_rest(elements_in(fetched[-1], dtype))])

    return OnDevice([*parts, flat[end:].clone()], finish)


def _block(flat: torch.Tensor) -> list[torch.Tensor]:
    """The reductions that `_of_block` joins. The finite elements of each row are divided by the largest, so that no
    square is too large or too small; a row of zeros becomes NaN, which is never read."""
    elements = flat.view(-1, ROW)
    wide = wide_of(torch.float32 if is_complex(flat) else flat.dtype)
    nan, nonzero = (elements != elements).sum(1), _nonzero(elements, wide)
    rows = elements.abs().to(wide) if is_complex(flat) else elements.to(wide, copy=True)
    infinity = torch.inf
    low = torch.nan_to_num_(rows, infinity, infinity, infinity).amin(1)
    high = torch.nan_to_num_(rows, posinf=-infinity).amax(1)
    finite = _nonzero(torch.nan_to_num_(rows, neginf=0.0), wide)
    size = _norm(rows, infinity, 1, keepdim=True)
    rows.div_(size)
    return [low, high, rows.sum(1), _norm(rows, 2, 1), size, nonzero, finite, nan]


def _nonzero(rows: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    if rows.dtype in _REAL:
        return _norm(rows, 0, 1, dtype=wide)
    return rows.count_nonzero(1)


def _of_block(
    low: np.ndarray, high: np.ndarray, total: np.ndarray, norm: np.ndarray, size: np.ndarray,
    nonzero: np.ndarray, finite: np.ndarray, nan: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """The statistics of a block, from the reductions of its rows."""
    count = len(low) * ROW
    with_size = size > 0
    sums = float((total * size)[with_size].sum())
    squares = float(np.square(norm * size)[with_size].sum())
    others = int((nonzero - finite).sum())
    nans = int(nan.sum())
    return _segment(low, high, sums, squares, count - others, nans, others - nans, count - nonzero.sum())


def _segment(
    low: np.ndarray, high: np.ndarray, total: float, squares: float, finite: int, nan: int, inf: int, zeros: float
) -> np.ndarray:  # fmt: skip
    """The statistics of a part of a tensor: lowest, highest, sum, sum of squares, NaNs, infinities, zeros, and the
    count of finite elements."""
    if not finite:
        return np.array([np.nan, np.nan, 0, 0, nan, inf, zeros, 0], np.float64)
    return np.array([low.min(), high.max(), total, squares, nan, inf, zeros, finite], np.float64)


def _of_rest(rest: np.ndarray) -> np.ndarray:
    low, high, mean, rms, nan, inf, zeros = np.frombuffer(packed_stats_of(rest))
    finite = int(rest.size - nan - inf)
    if not finite:
        return _segment(low, high, 0, 0, 0, nan, inf, zeros)
    return _segment(low, high, mean * finite, rms * rms * finite, finite, nan, inf, zeros)


def _joined(segments: Sequence[np.ndarray]) -> bytes:
    """The packed statistics of a tensor, from those of its parts."""
    low, high, total, squares, nan, inf, zeros, finite = np.array(segments).T
    count = finite.sum()
    if not count:
        return np.array([np.nan] * 4 + [nan.sum(), inf.sum(), zeros.sum()]).tobytes()
    mean, rms = total.sum() / count, np.sqrt(squares.sum() / count)
    return np.array([np.nanmin(low), np.nanmax(high), mean, rms, nan.sum(), inf.sum(), zeros.sum()]).tobytes()
