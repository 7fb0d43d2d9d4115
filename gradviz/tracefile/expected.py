"""How the packed arrays of a chunk lie in the file: as they are, or by what repeats in them.

A training loop tells the same events again and again. After one *period* each number is as it was, or it has grown by
as much as in the period before. So of an array of numbers the file holds only those that the two periods before them
do not let expect. Values do not repeat: their bytes are rearranged, the same byte of the same tensor in all periods
together, because zlib packs that better.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

AS_IS, UNEXPECTED, REARRANGED = 0, 1, 2
NUMBER = np.dtype("<u4")
LONGEST = 1 << 24  # bytes of an array; a longer one is kept as it is
_HEADER = struct.Struct("<5I")
_RARE = 4  # an array is kept as it is unless fewer than one number in so many is unexpected


class Header(NamedTuple):
    """How an array is kept. Where it is not kept as it is: its period in numbers (in bytes where it is rearranged), its
    length in bytes when it is expanded, how many numbers are unexpected, and how many before it were looked at."""

    how: int
    period: int
    length: int
    unexpected: int
    known: int


HEADER = _HEADER.size


def header_of(data: bytes) -> Header:
    """What is said before a kept array. Raises ValueError where that cannot be."""
    if len(data) < HEADER:
        raise ValueError("an array is missing")
    header = Header(*_HEADER.unpack_from(data))
    if header.how > REARRANGED or (header.how != AS_IS and not 0 < header.period <= LONGEST >= header.length):
        raise ValueError("an array is kept in a way that there is not")
    return header


def as_is(*parts: bytes) -> bytes:
    """An array as the file keeps it, unchanged; its parts are copied once, for they may be large."""
    return b"".join([_HEADER.pack(AS_IS, 0, 0, 0, 0), *parts])


def unexpected(before: np.ndarray, data: bytes, period: int, columns: int = 0) -> bytes:
    """An array of numbers as the file keeps it, by those that are unexpected, if they are few; else rearranged by so
    many `columns`. `before` are numbers of its group that come before it, two periods at best; `period` counts numbers,
    0 for none."""
    numbers = np.frombuffer(data, NUMBER)
    if not 0 < period <= len(before) + len(numbers) or not 0 < len(data) <= LONGEST:
        return rearranged([data], columns * NUMBER.itemsize)
    known = before[-2 * period :]
    whole = np.concatenate([_filled(known, 2 * period), numbers])
    grown = whole[period:] - whole[:-period]
    surprise = grown[period:].copy()
    surprise -= grown[:-period][: len(surprise)]
    (places,) = surprise.nonzero()
    if len(places) * _RARE > len(numbers):
        return rearranged([data], columns * NUMBER.itemsize)
    steps = places.astype(NUMBER)
    steps[1:] -= steps[:-1].copy()
    packed = zlib.compress(steps.tobytes() + surprise[places].tobytes())
    return _HEADER.pack(UNEXPECTED, period, len(data), len(places), len(known)) + packed


def rearranged(values: Sequence[bytes], period: int) -> bytes:
    """Values, or rows of numbers, as the file keeps them, packed if that makes them smaller. `period` is the length of
    those of one period, or of a row, in bytes; 0 for none: then they are kept as they are."""
    if not 0 < sum(map(len, values)) <= LONGEST or not 0 < period <= LONGEST:
        return as_is(*values)
    data = b"".join(values)
    packed = zlib.compress(_turned(np.frombuffer(data, np.uint8), period).tobytes(), 1)
    if len(packed) >= len(data):
        return as_is(data)
    return _HEADER.pack(REARRANGED, period, len(data), 0, 0) + packed


def expanded(data: bytes, before: np.ndarray | None = None) -> bytes:
    """A kept array as it was packed. `before` are all numbers of its group before it, or as many as it looks at.

    Raises ValueError where it is damaged. What it takes is bounded by `LONGEST`, whatever the file says."""
    header = header_of(data)
    if header.how == AS_IS:
        return data[HEADER:]
    if header.how == REARRANGED:
        found = _unpacked(data, header.length)
        return _turned_back(np.frombuffer(found, np.uint8), header.period).tobytes()
    count = header.length // NUMBER.itemsize
    if header.length % NUMBER.itemsize or header.unexpected > count:
        raise ValueError("an array of numbers has no whole number of them")
    if header.period > count + (0 if before is None else len(before)):
        raise ValueError("an array follows from more numbers than there are")
    parts = np.frombuffer(_unpacked(data, 2 * NUMBER.itemsize * header.unexpected), NUMBER)
    places = np.cumsum(parts[: header.unexpected], dtype=np.int64)
    if header.unexpected and places[-1] >= count:
        raise ValueError("a number lies behind the end of its array")
    surprise = np.zeros(count, NUMBER)
    surprise[places] = parts[header.unexpected :]
    known = np.zeros(0, NUMBER) if before is None else before[len(before) - header.known :]
    if len(known) != header.known or header.known > 2 * header.period:
        raise ValueError("an array looks at others that there are not")
    return _grown(_filled(known, 2 * header.period), surprise, header.period).tobytes()


def _filled(known: np.ndarray, count: int) -> np.ndarray:
    """So many numbers: these, with zeros before them."""
    return np.concatenate([np.zeros(count - len(known), NUMBER), known])


def _grown(known: np.ndarray, surprise: np.ndarray, period: int) -> np.ndarray:
    """The numbers that are so much more than two periods before let expect."""
    rows = -(-len(surprise) // period)
    table = np.zeros((rows, period), NUMBER)
    table.reshape(-1)[: len(surprise)] = surprise
    if rows:
        table[0] += known[period:] - known[:period]
        np.cumsum(table, axis=0, dtype=NUMBER, out=table)
        table[0] += known[period:]
        np.cumsum(table, axis=0, dtype=NUMBER, out=table)
    return table.reshape(-1)[: len(surprise)]


def _turned(values: np.ndarray, period: int) -> np.ndarray:
    """The bytes of the first place in each period, then those of the second, and so on; what is no whole period stays
    behind them."""
    whole = len(values) // period * period
    return np.concatenate([values[:whole].reshape(-1, period).T.reshape(-1), values[whole:]])


def _turned_back(values: np.ndarray, period: int) -> np.ndarray:
    """What `_turned` turned."""
    whole = len(values) // period * period
    return np.concatenate([values[:whole].reshape(period, -1).T.reshape(-1), values[whole:]])


def _unpacked(data: bytes, length: int) -> bytes:
    """What zlib packed behind the header, of that length."""
    unpacking = zlib.decompressobj()
    try:
        found = unpacking.decompress(memoryview(data)[HEADER:], length) if length else b""
    except zlib.error as error:
        raise ValueError(f"an array cannot be unpacked: {error}") from None
    if len(found) != length:
        raise ValueError("an array is shorter than it should be")
    return found
