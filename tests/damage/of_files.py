"""Ways to damage the file of a trace, and what lies beside it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.damage.ways import JOURNAL, PAGE, run, way

# --- the file


def _changed(path: Path, change: Callable[[bytearray], None]) -> None:
    content = bytearray(path.read_bytes())
    if content:
        change(content)
        path.write_bytes(content)


@way("bytes")
def flipped_bits(rng: Random, path: Path) -> None:
    """Some bits are others."""

    def change(content: bytearray) -> None:
        for _ in range(rng.choice([1, 2, 10, 100])):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)

    _changed(path, change)


@way("bytes")
def other_bytes(rng: Random, path: Path) -> None:
    """A stretch of bytes is another."""

    def change(content: bytearray) -> None:
        start = rng.randrange(len(content))
        length = rng.choice([1, 4, 16, 300])
        content[start : start + length] = rng.choice([bytes(length), b"\xff" * length, rng.randbytes(length)])

    _changed(path, change)


@way("bytes")
def cut_short(rng: Random, path: Path) -> None:
    """The end of the file is missing."""
    _changed(path, lambda content: content.__delitem__(slice(rng.randrange(len(content)), None)))


@way("pages")
def swapped_pages(rng: Random, path: Path) -> None:
    """Two pages are in each other's place, or one is there twice."""

    def change(content: bytearray) -> None:
        pages = len(content) // PAGE
        one, two = (rng.randrange(1, pages) * PAGE for _ in range(2))
        first, second = content[one : one + PAGE], content[two : two + PAGE]
        content[one : one + PAGE] = second
        if rng.random() < 0.5:
            content[two : two + PAGE] = first

    _changed(path, change)


@way("pages")
def a_cell_of_a_page(rng: Random, path: Path) -> None:
    """The header of a page, or a pointer in it, says something else."""

    def change(content: bytearray) -> None:
        page = rng.randrange(len(content) // PAGE) * PAGE + (100 if rng.random() < 0.2 else 0)
        at = page + rng.randrange(24)
        content[at : at + 2] = rng.choice([b"\0\0", b"\xff\xff", b"\x7f\xff", rng.randbytes(2)])

    _changed(path, change)


@way("header")
def a_field_of_the_header(rng: Random, path: Path) -> None:
    """A field of SQLite's header is another number."""

    def change(content: bytearray) -> None:
        at = rng.choice([16, 18, 20, 21, 22, 23, *range(24, 72, 4), 92, 96])
        width = 4 if at >= 24 else 2 if at in (16, 18) else 1
        number = rng.choice([0, 1, 2, 3, (1 << 8 * width) - 1, rng.randrange(1 << 8 * width)])
        content[at : at + width] = number.to_bytes(width, "big")

    _changed(path, change)


@way("header")
def another_version(rng: Random, path: Path) -> None:
    """The version of the format, or the application, is another."""
    what = rng.choice(["user_version", "application_id"])
    number = rng.choice([0, 1, 2, 5, 99, 2**31 - 1, -1])
    run(path, f"PRAGMA {what} = {number}")


@way("journals")
def a_journal_of_rubbish(rng: Random, path: Path) -> None:
    """A journal lies beside it that no recording wrote."""
    count = rng.choice([0, 1, 0xFFFFFFFF, rng.randrange(1 << 32)])
    pages = rng.choice([0, 1, 16, 0xFFFFFFFF])
    header = JOURNAL + struct.pack(">IIIII", count, rng.randrange(1 << 32), pages, rng.choice([512, 0, 7]), PAGE)
    body = header.ljust(512, b"\0") + b"".join(
        struct.pack(">I", rng.choice([0, 1, 2, 0xFFFFFFFF])) + rng.randbytes(PAGE) + rng.randbytes(4) for _ in range(2)
    )
    Path(f"{path}-journal").write_bytes(body[: rng.choice([0, 8, 28, 512, len(body)])])


@way("journals")
def a_super_journal(rng: Random, path: Path) -> None:
    """A journal lies beside it that names a file of the user's."""
    name = str(path.parent / "thesis.txt").encode()
    header = JOURNAL + struct.pack(">IIIII", 0, 1234, path.stat().st_size // PAGE, 512, PAGE)
    record = struct.pack(">I", (1 << 30) // PAGE + 1) + name + struct.pack(">II", len(name), sum(name))
    Path(f"{path}-journal").write_bytes(header.ljust(512, b"\0") + record + JOURNAL)


@way("journals")
def a_write_ahead_log(rng: Random, path: Path) -> None:
    """It was turned to a write-ahead log, with or without one beside it."""
    run(path, "PRAGMA journal_mode = WAL")
    if rng.random() < 0.5:
        Path(f"{path}-wal").write_bytes(rng.randbytes(rng.choice([0, 32, 5000])))
