"""The file in which a tensor at hand was recorded, and its number there. Nothing here keeps a tensor alive."""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

_MOST = 4  # recordings that have ended and are remembered


class Numbers(NamedTuple):
    """The numbers of the tensors of one recording: a range for gradviz's engine, by identity for PyTorch."""

    first: int
    end: int
    of_torch: dict[int, tuple[weakref.ref[Any], int]]

    def of(self, tensor: Any) -> int:
        """The number of a tensor of either engine; 0 if it was not recorded."""
        found, number = self.of_torch.get(id(tensor), (None, 0))
        if found is not None and found() is tensor:
            return number
        if not self.end:
            return 0
        from gradviz.engine.core.tensor import Tensor

        number = getattr(tensor, "_number", 0) if isinstance(tensor, Tensor) else 0
        return number if self.first <= number < self.end else 0


class _Ended(NamedTuple):
    numbers: Numbers
    stamp: tuple[int, int]


_ended: OrderedDict[Path, _Ended] = OrderedDict()


def numbers_now(engine: Any, of_torch: Any) -> Numbers:
    """The numbers that a recording has given until now; the arguments are its attachments to both engines."""
    first = end = 0
    if engine.began:
        from gradviz.engine.core.state import state
        from gradviz.events.counters import next_tensor_number

        first, end = state.first_number, next_tensor_number()
    recorder = of_torch.recorder if of_torch is not None else None
    known = list(recorder.source.identity.known.values()) if recorder is not None else []
    alive = [(tensor, one.number) for one in known if (tensor := one()) is not None]
    return Numbers(first, end, {id(tensor): (weakref.ref(tensor), number) for tensor, number in alive})


def remember(path: Path, numbers: Numbers) -> None:
    """Remember the tensors of a recording that has ended; only the last few recordings are kept. The path has to be
    absolute: the program may have changed its directory."""
    stamp = _stamp(path)
    _ended.pop(path, None)
    if stamp is not None:
        _ended[path] = _Ended(numbers, stamp)
    while len(_ended) > _MOST:
        _ended.popitem(last=False)


def in_an_ended(tensor: Any) -> tuple[Path, Numbers] | None:
    """The file and the numbers of the newest ended recording that has a tensor; None if there is none, or the file
    has changed since."""
    for path, (numbers, stamp) in reversed(_ended.items()):
        if numbers.of(tensor) and _stamp(path) == stamp:
            return path, numbers
    return None


def _stamp(path: Path) -> tuple[int, int] | None:
    """The stamp of a file, which changes when the file is overwritten; None if there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
