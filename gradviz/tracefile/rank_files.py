"""The traces of a run of several processes: a folder or a pattern names them all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from glob import glob, has_magic
from pathlib import Path

from gradviz.tracefile.database import TraceError
from gradviz.tracefile.opening import open_trace
from gradviz.tracefile.reader import Trace

ENDING = ".gradviz"
_RANK = re.compile(r"\.rank(\d+)")


def traces_of(path: Path) -> list[Path]:
    """The traces that a path names, by rank: the traces of a folder or of a pattern, else the path itself. Raises
    TraceError if there is none, or if there are traces of several runs."""
    if path.is_dir():
        traces, where = list(path.glob(f"*{ENDING}")), f"in the folder {path}"
    elif has_magic(str(path)) and not path.exists():
        traces, where = [Path(name) for name in glob(str(path))], f"with a name like {path}"
    else:
        return [path]
    if not traces and path.is_dir():
        raise TraceError(f"{path} is a directory, and there is no trace in it")
    if not traces:
        raise TraceError(f"there is no trace {where}")
    ordered = in_order(traces)
    if ordered is None and len(traces) > 1:
        runs = sorted({_run_of(trace) for trace in traces})
        raise TraceError(
            f"there are traces of several runs {where}: {', '.join(runs[:3])}; name those of one"
        )
    return ordered or traces


def in_order(paths: Iterable[Path]) -> list[Path] | None:
    """The traces of the ranks of one run by their ranks, 2 before 10; None if they are not of one run. Their names show
    it, or else the traces themselves."""
    known = list(paths)
    if _are_named_alike(known):
        return sorted(known, key=lambda path: (rank_in(path), path.name))
    if len(known) < 2:
        return None
    try:
        ranks = _ranks_of([_meta_of(path) for path in known])
    except TraceError:
        return None
    return [path for _, path in sorted(zip(ranks, known, strict=True))] if ranks else None


def are_of_one_run(traces: Sequence[Trace]) -> bool:
    """Whether several open traces are those of the ranks of one run."""
    if len(traces) < 2:
        return False
    return _are_named_alike([trace.path for trace in traces]) or bool(
        _ranks_of([trace.meta for trace in traces])
    )


def _are_named_alike(paths: Sequence[Path]) -> bool:
    """Whether paths differ only in the ranks in their names."""
    have_ranks = all(rank_in(path) >= 0 for path in paths)
    return have_ranks and len({(path.parent, _run_of(path)) for path in paths}) == 1


def _ranks_of(metas: Sequence[Mapping[str, str]]) -> list[int]:
    """The ranks that traces record, if they are of one run: one script, one number of processes, each rank once. Else
    empty."""
    ranks = [meta.get("rank", "") for meta in metas]
    runs = {(meta.get("script", ""), meta.get("world", "")) for meta in metas}
    is_one = len(runs) == 1 and all(map(str.isdigit, ranks)) and len(set(ranks)) == len(ranks)
    return list(map(int, ranks)) if is_one else []


def _meta_of(path: Path) -> Mapping[str, str]:
    with open_trace(path) as trace:
        return trace.meta


def rank_in(path: Path) -> int:
    """The rank in the name of a trace; -1 if there is none."""
    match = _RANK.search(path.name)
    return int(match[1]) if match else -1


def pattern_of(name: str) -> str:
    """The pattern for the names of the traces of all ranks, by the name of one trace: `train.rank*.gradviz`."""
    return _RANK.sub(".rank*", name)


def _run_of(path: Path) -> str:
    """The name of a trace without its rank."""
    return _RANK.sub("", path.name)
