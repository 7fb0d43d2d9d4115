"""The traces of a run of several processes: a folder or a pattern names them all."""

from __future__ import annotations

import re
from collections.abc import Iterable
from glob import glob, has_magic
from pathlib import Path

from gradviz.tracefile.unreadable import TraceError

ENDING = ".gradviz"
_RANK = re.compile(r"\.rank(\d+)")


def traces_of(path: Path) -> list[Path]:
    """The traces that a path names, by rank: those of a folder or of a pattern, else the path itself. Raises TraceError
    where there is none, or where there are those of several runs."""
    if path.is_dir():
        found, where = list(path.glob(f"*{ENDING}")), f"in the folder {path}"
    elif has_magic(str(path)) and not path.exists():
        found, where = [Path(name) for name in glob(str(path))], f"with a name like {path}"
    else:
        return [path]
    if not found and path.is_dir():
        raise TraceError(f"{path} is a directory, and there is no trace in it")
    if not found:
        raise TraceError(f"there is no trace {where}")
    runs = sorted({_run_of(trace) for trace in found})
    if len(runs) > 1 or (len(found) > 1 and not all(map(_is_of_rank, found))):
        raise TraceError(
            f"there are traces of several runs {where}: {', '.join(runs[:3])}; name those of one"
        )
    return by_rank(found)


def by_rank(paths: Iterable[Path]) -> list[Path]:
    """Paths by the ranks in their names: 2 before 10."""
    return sorted(paths, key=lambda path: (rank_in(path), path.name))


def are_of_one_run(paths: Iterable[Path]) -> bool:
    """Whether the paths are those of ranks of one run, by their names."""
    known = list(paths)
    return all(map(_is_of_rank, known)) and len({(path.parent, _run_of(path)) for path in known}) == 1


def rank_in(path: Path) -> int:
    """The rank in the name of a trace; -1 if there is none."""
    found = _RANK.search(path.name)
    return int(found[1]) if found else -1


def pattern_of(name: str) -> str:
    """The pattern that names the traces of all ranks, by the name of one: `train.rank*.gradviz`."""
    return _RANK.sub(".rank*", name)


def _is_of_rank(path: Path) -> bool:
    return rank_in(path) >= 0


def _run_of(path: Path) -> str:
    """The name of a trace without its rank."""
    return _RANK.sub("", path.name)
