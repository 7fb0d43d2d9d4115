"""Paths as other systems write them: a trace that was recorded on one is read on another."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath


def pure_path(path: str) -> PurePath:
    """A path, of Windows if it looks so: `C:\\x\\train.py`, `x\\train.py`."""
    windows = PureWindowsPath(path)
    return windows if windows.drive or ("\\" in path and "/" not in path) else PurePosixPath(path)


@lru_cache(maxsize=1000)
def file_name(path: str) -> str:
    """The last part of a path."""
    return pure_path(path).name


def uri(path: str) -> str:
    """A path as a reference: `file:///C:/x/train.py`, and without a scheme `/x/train.py` and `x/train.py`."""
    pure = pure_path(path)
    return pure.as_uri() if pure.is_absolute() and pure.drive else pure.as_posix()


def absolute(path: str) -> str:
    """A path as `python` makes that of a script absolute."""
    if sys.platform == "win32":
        return os.path.abspath(path)
    try:
        return os.path.join(os.getcwd(), path)  # what is in it stays as it is
    except OSError:  # this directory is gone
        return path


def data_folder() -> Path:
    """Where gradviz keeps a user's data. `XDG_DATA_HOME` is respected on every system."""
    if xdg := os.environ.get("XDG_DATA_HOME"):
        return Path(xdg, "gradviz")
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local", "gradviz")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "gradviz"
    return Path.home() / ".local" / "share" / "gradviz"
