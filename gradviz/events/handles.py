"""Handles of values: how a recorder reads the values that a source computes with.

A source emits its values as they are (a NumPy array, a PyTorch tensor), and registers once, as a `Reader`, how they are
read. A reader keeps of a value either bytes at once or something that is settled later, many values in one go: so that
a device need not be synchronised at every op.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from gradviz.events.values import packed_stats_of

_PART = re.compile(r" \(([0-9]+) of ([0-9]+)\)\Z")


def device_of_part(device: str, here: int, count: int) -> str:
    """The device of a tensor that lies on several ranks, with the values of `here` elements on this rank:
    `cpu (6 of 12)`."""
    return f"{device} ({here} of {count})"


def part_of(device: str) -> tuple[int, int] | None:
    """The numbers of a tensor's elements here and in the whole; None if it lies on one rank."""
    match = _PART.search(device)
    return (int(match[1]), int(match[2])) if match is not None else None


def whole_device(device: str) -> str:
    """A device without the text about a part."""
    return _PART.sub("", device)


class Form(NamedTuple):
    """The common properties of values of a kind: shape, dtype by name (`float32`, `bfloat16`) and device (`cpu`)."""

    shape: tuple[int, ...]
    dtype: str
    device: str


class Later(NamedTuple):
    """Something kept of a value, from which bytes are made later; `whole` as in `Reader.keep`. `held` is the number of
    bytes of memory, roughly, that it holds until then; `is_distant` says that settling it may wait for a device."""

    kept: Any
    whole: bool
    held: int
    is_distant: bool = False


# A small value, read in one go: its form, the number of its elements, their bytes, and their dtype. Values of equal
# form have the same object as form.
AtOnce = tuple[Form, int, bytes, np.dtype]


class Reader(Protocol):
    """Reads the values of one source."""

    def at_once(self, value: Any) -> AtOnce | None:
        """The contents of a small value. None if `form`, `size` and `keep` are needed instead."""

    def form(self, value: Any) -> Form:
        """The shape, dtype and device of a value."""

    def keep(self, value: Any, whole: bool) -> bytes | Later | None:
        """The part of a value to keep, as it is now: with `whole` all its elements in C order, else seven doubles
        (`values.Stats`). None if neither is available."""

    def settle(self, waiting: Sequence[Later]) -> list[bytes | None]:
        """The bytes of values that were kept for later, None for a value that is not available after all. Called by the
        recorder's own thread."""

    def size(self, value: Any) -> int:
        """The number of elements of a value."""

    def array(self, value: Any) -> np.ndarray | None:
        """The elements of a value as they are now, for use at once; as float32 for a dtype that NumPy lacks. None if
        they are not available."""


class Changed(NamedTuple):
    """The handle of a value that a step of an optimizer has written, with the Euclidean norm of its change: a number,
    or something that the value's reader settles to the bytes of a double."""

    value: Any
    norm: float | Later


class NumpyReader:
    """NumPy arrays, which are read at once."""

    def at_once(self, value: np.ndarray) -> None:
        """None: the contents of an array are known without it."""

    def form(self, value: np.ndarray) -> Form:
        """The shape and dtype of an array."""
        return Form(value.shape, value.dtype.name, "cpu")

    def keep(self, value: np.ndarray, whole: bool) -> bytes:
        """The bytes of an array, or its statistics."""
        return value.tobytes() if whole else packed_stats_of(value)

    def settle(self, waiting: Sequence[Later]) -> list[bytes | None]:
        """An empty list: nothing waits."""
        return []

    def size(self, value: np.ndarray) -> int:
        """The number of elements of an array."""
        return value.size

    def array(self, value: np.ndarray) -> np.ndarray:
        """The array itself."""
        return value


class ChangedReader:
    """Reads the value of a `Changed`. The norm is kept by who knows what it belongs to."""

    def at_once(self, value: Changed) -> None:
        """None: it is read in its parts."""

    def form(self, value: Changed) -> Form:
        """The shape, dtype and device of the value."""
        return reader_of(value.value).form(value.value)

    def keep(self, value: Changed, whole: bool) -> bytes | Later | None:
        """The part of the value to keep."""
        return reader_of(value.value).keep(value.value, whole)

    def settle(self, waiting: Sequence[Later]) -> list[bytes | None]:
        """An empty list: the reader of the value settles what waits."""
        return []

    def size(self, value: Changed) -> int:
        """The number of elements of the value."""
        return reader_of(value.value).size(value.value)

    def array(self, value: Changed) -> np.ndarray | None:
        """The elements of the value."""
        return elements_of(value.value)


_NUMPY = NumpyReader()
READERS: dict[type, Reader] = {np.ndarray: _NUMPY, np.generic: _NUMPY, Changed: ChangedReader()}


def reader_of(value: Any) -> Reader:
    """The reader of a value. Raises TypeError if no source has registered one."""
    for known in type(value).__mro__:
        if known in READERS:
            READERS[type(value)] = READERS[known]
            return READERS[known]
    raise TypeError(f"no source reads values of type {type(value).__name__}")


def elements_of(value: Any) -> np.ndarray | None:
    """The elements of a value as they are now; None if they are not available."""
    return value if isinstance(value, np.ndarray) else reader_of(value).array(value)
