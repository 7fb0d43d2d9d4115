"""Values of tensors on a device: what an event launches there, and how the fetched results become values.

Nothing here waits for the device, and what an event launches is mostly one copy: a launch takes the program some ten
microseconds. Where there is no room for copies, a tensor is reduced at once, in blocks, by many launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from gradviz.events.values import packed_stats_of
from gradviz.sources.torch_recorder.device_copies import ROW, Copied, Room, elements_in, repeated, wide_of
from gradviz.sources.torch_recorder.memory import is_dense
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

FEW = 1024  # a copy of so many elements or fewer is made in any case
BLOCK = 64 << 20  # bytes of a block
_REAL = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_COPIED = _REAL | {
    torch.int64,
    torch.int32,
}  # the others are widened as they are copied, which keeps all digits
_norm = torch.linalg.vector_norm
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
    is_copied = value.dtype in _COPIED
    size = value.nbytes if is_copied or is_complex(value) else 4 * numel(value)
    if numel(value) <= FEW:
        size = 0
    elif not room.take(size):
        return _in_blocks(_flat(value), room.limit)
    try:
        return Copied(clone(value) if is_copied else _real(value), room, size)
    except BaseException:
        room.free(size)
        raise


def _flat(value: torch.Tensor) -> torch.Tensor:
    """A tensor's elements in the order of its memory, without a copy if the tensor shows each element of its memory
    once."""
    if is_conj(value) or is_neg(value) or not is_dense(value):
        return reshape(value, -1)
    return as_strided(value, (numel(value),), (1,))


def _real(value: torch.Tensor) -> torch.Tensor:
    """Elements of other kinds as float32 or float64; complex numbers as their magnitudes."""
    return TENSORS.abs(value) if is_complex(value) else TENSORS.to(value, torch.float32)


def _in_blocks(flat: torch.Tensor, room: int) -> OnDevice:
    """Reductions of whole rows, block by block, of the finite elements only."""
    size = min(BLOCK, room, flat.nbytes) // wide_of(flat.dtype).itemsize // ROW * ROW
    end = numel(flat) // ROW * ROW
    blocks = [_block(block) for block in torch.split(flat[:end], max(size, ROW))] if end else []
    parts, dtype = [part for block in blocks for part in block], flat.dtype

    def finish(fetched: Sequence[bytes]) -> bytes:
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
