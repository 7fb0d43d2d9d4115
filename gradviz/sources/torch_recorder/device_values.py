"""Values of tensors on a device: what an event launches there, and how the fetched results become values.

Nothing here waits for the device, and what an event launches is mostly one copy: a launch takes the program some ten
microseconds. The statistics of a small copy are computed on the CPU. A larger copy is reduced on the device, together
with all others that wait, when they are fetched: by rows of `ROW` elements, in the tensor's own precision with sums in
float32; the CPU joins the rows in float64. These reductions lose the finite elements of a row that has others, and
squares can leave the range of float32. In these cases the CPU computes the statistics from the copy. Where there is no
room for copies, a tensor is reduced at once, in blocks, by many launches."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
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
    is_neg,
    numel,
    reshape,
    stride,
)

FEW = 1024  # a tensor of so many elements or fewer is copied and not reduced
ROW = 1024  # elements of a row: few enough to be summed and counted in float32
COPIES = (
    64 << 20
)  # bytes of copies on one device at once, while it is not known how much memory is free there
MOST_COPIES = 512 << 20  # ...and where much is free
WIDENED = 16 << 20  # the most bytes of a widened tensor of integers or eight-bit numbers
BLOCK = 64 << 20  # bytes of a block
_SQUARABLE = 1e-15, 1e15  # the squares of magnitudes in this range neither vanish nor overflow in float32
_REAL = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_WHOLE = {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}
_norm = torch.linalg.vector_norm
Fetch = Callable[[torch.Tensor], bytes]
Finish = Callable[[Sequence[bytes], Fetch], bytes]


class OnDevice:
    """Data that waits on a device: `parts` are fetched as bytes, and `finish` makes a value's bytes of them, given a
    function to fetch more. Of `rows`, whole rows of a copy, five reductions are fetched before the parts. `stream`
    computes the parts and the rows; it is None on a device without streams."""

    __slots__ = ("finish", "parts", "rows", "stream")

    def __init__(
        self, parts: Sequence[torch.Tensor], finish: Finish, rows: torch.Tensor | None = None
    ) -> None:
        self.parts, self.finish, self.rows = parts, finish, rows
        self.stream: Any = None

    @property
    def device(self) -> torch.device:
        """The device that the parts are on."""
        return self.parts[0].device

    @property
    def held(self) -> int:
        """The number of bytes to be fetched."""
        return sum(part.nbytes for part in self.parts)


class Room:
    """The limit for bytes of copies on a device, and the bytes in use."""

    def __init__(self) -> None:
        self.limit, self.taken = COPIES, 0
        self.lock = threading.Lock()

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


def whole_of(value: torch.Tensor) -> OnDevice:
    """All elements of a tensor."""
    return OnDevice([_copy_of(value)], lambda parts, fetch: parts[0])


def statistics_of(value: torch.Tensor, room: Room) -> OnDevice:
    """The statistics of a tensor. An expanded tensor is reduced once for its distinct elements."""
    if 0 not in stride(value) or not numel(value):
        return _statistics_of(value, room)
    once = value[tuple([slice(None) if step else slice(1) for step in stride(value)])]
    stats = _statistics_of(once, room)
    finish, times = stats.finish, numel(value) // numel(once)
    stats.finish = lambda parts, fetch: _repeated(finish(parts, fetch), times)
    return stats


def _statistics_of(value: torch.Tensor, room: Room) -> OnDevice:
    if numel(value) <= FEW:
        copy, dtype = _copy_of(value), value.dtype
        return OnDevice([copy], lambda parts, fetch: packed_stats_of(elements_in(parts[0], dtype)))
    is_real = value.dtype in _REAL
    size = value.nbytes if is_real else 4 * numel(value)
    if (not is_real and size > WIDENED) or not room.take(size):
        return _in_blocks(_flat(value), room.limit)
    try:
        copy = _copy_of(_flat(value)) if is_real else _real(_flat(value))
        weakref.finalize(copy, room.free, size).atexit = False
    except BaseException:
        room.free(size)
        raise
    return _by_rows(_flat(value) if value.dtype in _WHOLE else copy, copy)


def _copy_of(value: torch.Tensor) -> torch.Tensor:
    return clone(value, memory_format=torch.contiguous_format)


def _flat(value: torch.Tensor) -> torch.Tensor:
    """A tensor's elements in the order of its memory, without a copy if the tensor shows each element of its memory
    once."""
    if is_conj(value) or is_neg(value) or not is_dense(value):
        return reshape(value, -1)
    return as_strided(value, (numel(value),), (1,))


def _real(flat: torch.Tensor) -> torch.Tensor:
    """Elements of other kinds as float32 or float64; complex numbers as their magnitudes."""
    return TENSORS.abs(flat) if is_complex(flat) else TENSORS.to(flat, torch.float32)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums are computed."""
    return torch.float64 if dtype is torch.float64 else torch.float32


# --- by rows


def _by_rows(flat: torch.Tensor, copy: torch.Tensor) -> OnDevice:
    """The reductions of a copy's whole rows, and the elements after them. Of whole numbers the extremes are those of
    `flat`, since the copy rounds large ones."""
    end = numel(copy) // ROW * ROW
    own, wide = copy.dtype, _wide(copy.dtype)
    dtypes = [own, own, wide, wide, wide, own]
    exact: list[torch.Tensor] = []
    if flat is not copy:
        ordered = flat[:end].view(-1, ROW)
        exact = [ordered.amin(1), ordered.amax(1)]
        dtypes[:2] = [flat.dtype] * 2

    def finish(fetched: Sequence[bytes], fetch: Fetch) -> bytes:
        *numbers, rest = [*fetched[5:-1], *fetched[2:5], fetched[-1]] if exact else fetched
        reduced = [elements_in(data, dtype) for data, dtype in zip([*numbers, rest], dtypes, strict=True)]
        stats = _of_finite_rows(reduced[:-1], reduced[-1])
        return packed_stats_of(elements_in(fetch(copy), own)) if stats is None else stats

    return OnDevice([*exact, copy[end:]], finish, copy[:end].view(-1, ROW))


def reductions_of(rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The least, the greatest, the sum, the norm and the count of nonzero elements of each row of some matrices of one
    dtype."""
    together = torch.cat(list(rows)) if len(rows) > 1 else rows[0]
    wide = _wide(together.dtype)
    return [
        together.amin(1), together.amax(1), together.sum(1, dtype=wide), _norm(together, 2, 1, dtype=wide),
        _norm(together, 0, 1, dtype=wide),
    ]  # fmt: skip


def _of_finite_rows(reduced: Sequence[np.ndarray], rest: np.ndarray) -> bytes | None:
    """The statistics of rows and of the elements after them, from the rows' extremes, sums, norms and counts of
    nonzero elements. None if these are not enough: an element is not finite, or a square left the range of
    float32."""
    low, high, total, norm, nonzero = (numbers.astype(np.float64) for numbers in reduced)
    least, most = _SQUARABLE
    size = max(float(-low.min(initial=0)), float(high.max(initial=0)))
    if not size < most or 0 < size <= least:  # NaN is not less
        return None
    count = len(low) * ROW
    zeros = count - nonzero.sum()
    rows = low, high, total.sum(), np.square(norm).sum(), count, 0, 0, zeros
    return _joined([_segment(*rows), *([_of_rest(rest)] if rest.size else [])])


# --- in blocks


def _in_blocks(flat: torch.Tensor, room: int) -> OnDevice:
    """Reductions of whole rows, block by block, of the finite elements only."""
    size = min(BLOCK, room, flat.nbytes) // _wide(flat.dtype).itemsize // ROW * ROW
    end = numel(flat) // ROW * ROW
    blocks = [_block(block) for block in torch.split(flat[:end], max(size, ROW))] if end else []
    parts, dtype = [part for block in blocks for part in block], flat.dtype

    def finish(fetched: Sequence[bytes], fetch: Fetch) -> bytes:
        numbers = [
            elements_in(data, part.dtype).astype(np.float64)
            for data, part in zip(fetched, parts, strict=False)
        ]
        segments = [_of_block(*numbers[at : at + 8]) for at in range(0, len(numbers), 8)]
        return _joined([*segments, _of_rest(elements_in(fetched[-1], dtype))])

    return OnDevice([*parts, flat[end:].clone()], finish)


def _block(flat: torch.Tensor) -> list[torch.Tensor]:
    """The reductions that `_of_block` joins. The finite elements of each row are divided by the largest, so that no
    square is too large or too small; a row of zeros becomes NaN, which is never read."""
    elements = flat.view(-1, ROW)
    wide = _wide(torch.float32 if is_complex(flat) else flat.dtype)
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


# --- joining the reductions on the CPU


def elements_in(data: bytes, dtype: torch.dtype) -> np.ndarray:
    """The elements in some bytes, as float32 if NumPy does not have their dtype."""
    try:
        return np.frombuffer(data, dtype_name(dtype))
    except TypeError:
        if not data:
            return np.empty(0, np.float32)
        return torch.frombuffer(bytearray(data), dtype=dtype).float().numpy()


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


def _repeated(packed: bytes, times: int) -> bytes:
    """The statistics of a tensor that repeats each element so many times."""
    numbers = np.frombuffer(packed).copy()
    numbers[4:] *= times
    return numbers.tobytes()
