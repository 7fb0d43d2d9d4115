"""Claims a file name for a recording, so that each of several runs in a folder has a file of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from gradviz.system.descriptors import HIGH, high_copy, identity
from gradviz.system.locks import DELETES_OPEN_FILES, is_locked
from gradviz.tracefile.schema import APPLICATION_ID

_HEADER = 100  # bytes of SQLite's header; the application's id is at 68
MOMENT = 0.02  # seconds to wait for another program
_PATIENCE = 10  # seconds to wait for programs that only look whether the file is being recorded
_ANOTHER = "choose another name for the trace"
_claimed: dict[Path, int] = {}  # the files of recordings that have not begun, with a descriptor of each


class TakenError(OSError):
    """Another run records into the file."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is being recorded by another run: {_ANOTHER}")


def claim_first(paths: Iterable[Path]) -> Path:
    """Claim the first of some names that no other run records into. Raises OSError if no file can be made."""
    for path in paths:
        try:
            _claimed[path.absolute()] = _new_file(path)
        except TakenError:
            continue
        return path
    raise OSError("no name is left for the trace")


def locked_file(path: Path) -> int:
    """The descriptor of a new file at `path`, in place of an earlier trace. No other run replaces it while the
    descriptor is open. Raises TakenError if another run records into it, OSError for a file that is no trace."""
    claimed = _claimed.pop(path.absolute(), None)
    return _new_file(path) if claimed is None else claimed


def stays_locked(descriptor: int, shared: bool = False) -> bool:
    """Whether another run holds the lock of a file; if not, it is now ours. A reader shares the lock while it tests it,
    which takes long if the machine is busy: it is waited for. (On Windows it cannot share, and has only a moment.)"""
    until = time.monotonic() + _PATIENCE
    while is_locked(descriptor, shared):
        time.sleep(MOMENT)
        if is_locked(descriptor, shared=True) or time.monotonic() > until:
            return True
    return False


def _new_file(path: Path) -> int:
    with ExitStack() as stack:  # the lock of an earlier file is held until the new file is there and locked
        _lock_earlier(path, stack)
        try:
            for leftover in (path, Path(f"{path}-journal")):
                leftover.unlink(missing_ok=True)
            low = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise TakenError(path) from None
        except OSError as error:
            raise OSError(f"cannot write {path}: {error.strerror}") from error
        descriptor = high_copy(low) if low < HIGH else low
        if descriptor != low:
            os.close(low)
        if stays_locked(descriptor) or identity(descriptor) != identity(path):  # another run was faster
            os.close(descriptor)
            raise TakenError(path)
        return descriptor


def _lock_earlier(path: Path, stack: ExitStack) -> None:
    """Take the lock of an earlier trace. Raises OSError if the file must not be lost."""
    if not path.exists():
        return
    if not path.is_file():
        raise OSError(f"{path} is not a regular file: {_ANOTHER}")
    file = stack.enter_context(path.open("rb"))
    if stays_locked(file.fileno()):
        raise TakenError(path)
    header = file.read(_HEADER)
    if header and (
        not header.startswith(b"SQLite format 3\0") or header[68:72] != APPLICATION_ID.to_bytes(4, "big")
    ):
        raise OSError(f"{path} is not a gradviz trace, and is not overwritten: {_ANOTHER}")
    if not DELETES_OPEN_FILES:
        file.close()
