"""Paths as other systems write them: a trace may be read on another system than it was recorded on."""

import os
import re
import shlex
import sys
from functools import lru_cache
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath


def pure_path(path: str) -> PurePath:
    """A path, treated as a Windows path if it looks like one: `C:\\x\\train.py`, `x\\train.py`."""
    windows = PureWindowsPath(path)
    return windows if windows.drive or ("\\" in path and "/" not in path) else PurePosixPath(path)


@lru_cache(maxsize=1000)
def file_name(path: str) -> str:
    """The last part of a path."""
    return pure_path(path).name


def is_cell(file: str) -> bool:
    """Whether a file of a place is a cell of a notebook: `In[2]`."""
    return file.startswith("In[")


def uri(path: str) -> str:
    """A path as a reference: `file:///C:/x/train.py`, and without a scheme `/x/train.py` and `x/train.py`."""
    pure = pure_path(path)
    return pure.as_uri() if pure.is_absolute() and pure.drive else pure.as_posix()


def absolute(path: str) -> str:
    """A script's path as `python` makes it absolute."""
    if sys.platform == "win32":
        return os.path.abspath(path)
    try:
        return os.path.join(os.getcwd(), path)  # the path itself is not normalised
    except OSError:  # the current directory is gone
        return path


def data_folder() -> Path:
    """The folder of a user's gradviz data. `XDG_DATA_HOME` is respected on every system."""
    if xdg := os.environ.get("XDG_DATA_HOME"):
        return Path(xdg, "gradviz")
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local", "gradviz")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "gradviz"
    return Path.home() / ".local" / "share" / "gradviz"


def as_argument(path: Path | str) -> str:
    """A path as an argument that can be typed in a shell. Double quotes mean the same in all of them."""
    name = str(path)
    if re.fullmatch(r"[\w@%+=:,./\\-]+", name):
        return name
    return shlex.quote(name) if re.search(r"[$`\"!]", name) else f'"{name}"'
