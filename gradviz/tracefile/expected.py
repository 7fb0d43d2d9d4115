"""The two forms of the packed arrays of a chunk in the file: as they are, or by what repeats in them.

A training loop emits the same events again and again. After one *period* each number is as it was, or it has grown by
as much as in the period before. So the file has only the numbers of an array that do not continue the two periods
before them. Values do not repeat: their bytes are rearranged, the same byte of the same tensor in all
periods together, because zlib packs that better.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

AS_IS, UNEXPECTED, REARRANGED = 0, 1, 2
NUMBER = np.dtype("<u4")
LONGEST = 1 << 24  # bytes of an array; a longer array is kept as it is
_HEADER = struct.Struct("<5I")
_RARE = 4  # an array is kept as it is unless fewer than one number in so many is unexpected


class Header(NamedTuple):
    """The form of a kept array. Unless it is kept as it is: its period in numbers (in bytes if it is rearranged), its
    length in bytes when expanded, the number of unexpected numbers, and the number of earlier numbers it depends on."""

    how: int
    period: int
    length: int
    unexpected: int
    known: int


HEADER = _HEADER.size


def header_of(data: bytes) -> Header:
    """The header before a kept array. Raises ValueError if it is not a possible one."""
    if len(data) < HEADER:
        raise ValueError("an array is missing")
    header = Header(*_HEADER.unpack_from(data))
    if header.how > REARRANGED or (header.how != AS_IS and not 0 < header.period <= LONGEST >= header.length):
        raise ValueError("an array has an unknown form")
    return header


def as_is(*parts: bytes) -> bytes:
    """An array as the file keeps it, unchanged. Its parts may be large, so they are copied only once."""
    return b"".join([_HEADER.pack(AS_IS, 0, 0, 0, 0), *parts])


def unexpected(before: np.ndarray, data: bytes, period: int, columns: int = 0) -> bytes:
    """An array of numbers as the file keeps it: by its unexpected numbers, if they are few; else rearranged by
    `columns`. `before` are the numbers of its group before it, two periods at best; `period` counts numbers, 0 for
    none."""
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
    """Values, or rows of numbers, as the file keeps them, packed if that makes them smaller. `period` is the length in
    bytes of one period of the values, or of a row; with 0 they are kept as they are."""
    if not 0 < sum(map(len, values)) <= LONGEST or not 0 < period <= LONGEST:
        return as_is(*values)
    data = b"".join(values)
    packed = zlib.compress(_turned(np.frombuffer(data, np.uint8), period).tobytes(), 1)
    if len(packed) >= len(data):
        return as_is(data)
    return _HEADER.pack(REARRANGED, period, len(data), 0, 0) + packed


def expanded(data: bytes, before: np.ndarray | None = None) -> bytes:
    """A kept array as it was before packing. `before` are all numbers of its group before it, or as many as it depends
    on.

    Raises ValueError if it is damaged. `LONGEST` bounds the memory that it takes, whatever the file says."""
    header = header_of(data)
    if header.how == AS_IS:
        return data[HEADER:]
    if header.how == REARRANGED:
        values = np.frombuffer(_unpacked(data, header.length), np.uint8)
        whole = len(values) // header.period * header.period
        return np.concatenate([values[:whole].reshape(header.period, -1).T.reshape(-1), values[whole:]]).tobytes()
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
        raise ValueError("an array follows from numbers that are missing")
    return _grown(_filled(known, 2 * header.period), surprise, header.period).tobytes()


def _filled(known: np.ndarray, count: int) -> np.ndarray:
    """The known numbers, filled with zeros before them to `count` numbers."""
    return np.concatenate([np.zeros(count - len(known), NUMBER), known])


def _grown(known: np.ndarray, surprise: np.ndarray, period: int) -> np.ndarray:
    """The numbers that the two periods before them predict, each plus its `surprise`."""
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
    """The bytes of the first place in each period, then those of the second place, and so on; the rest behind the last
    whole period stays behind them."""
    whole = len(values) // period * period
    return np.concatenate([values[:whole].reshape(-1, period).T.reshape(-1), values[whole:]])


def _unpacked(data: bytes, length: int) -> bytes:
    """The bytes that zlib packed behind the header, `length` of them."""
    unpacking = zlib.decompressobj()
    try:
        unpacked = unpacking.decompress(memoryview(data)[HEADER:], length) if length else b""
    except zlib.error as error:
        raise ValueError(f"an array cannot be unpacked: {error}") from None
    if len(unpacked) != length:
        raise ValueError("an array is shorter than it should be")
    return unpacked
