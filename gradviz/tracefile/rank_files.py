"""The traces of a run of several processes: a folder or a pattern names them all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from glob import glob, has_magic
from pathlib import Path

from gradviz.tracefile.opening import open_trace
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
    if len(found) > 1 and not are_of_one_run(found):
        runs = sorted({_run_of(trace) for trace in found})
        raise TraceError(
            f"there are traces of several runs {where}: {', '.join(runs[:3])}; name those of one"
        )
    return by_rank(found)


def by_rank(paths: Iterable[Path]) -> list[Path]:
    """Paths by their ranks, in their names or else in the traces: 2 before 10."""
    known = list(paths)
    ranks = dict(zip(known, _told_ranks(known) or map(rank_in, known), strict=True))
    return sorted(known, key=lambda path: (ranks[path], path.name))


def are_of_one_run(paths: Iterable[Path]) -> bool:
    """Whether the paths are those of ranks of one run: by their names, or by what the traces say."""
    known = list(paths)
    if all(map(_is_of_rank, known)) and len({(path.parent, _run_of(path)) for path in known}) == 1:
        return True
    return bool(_told_ranks(known))


def _told_ranks(paths: Sequence[Path]) -> list[int]:
    """The ranks that traces with other names tell, if they are those of one run: one script, as many processes, each
    rank once. Else none."""
    if all(map(_is_of_rank, paths)) and len({_run_of(path) for path in paths}) <= 1:
        return []
    told = []
    for path in paths:
        try:
            with open_trace(path) as trace:
                told.append(tuple(trace.meta.get(name, "") for name in ("script", "world", "rank")))
        except TraceError:
            return []
    ranks = [rank for *_, rank in told]
    is_one = (
        len({one[:2] for one in told}) == 1 and all(map(str.isdigit, ranks)) and len(set(ranks)) == len(ranks)
    )
    return list(map(int, ranks)) if is_one else []


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
