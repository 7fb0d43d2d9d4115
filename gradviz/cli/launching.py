"""Runs launchers of ranks, such as `torchrun` or `mpirun`, so that each rank is recorded."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from time import time
from typing import Any

from gradviz.cli.common import all_opened, say
from gradviz.cli.running import Program
from gradviz.sources.child_processes import record_children
from gradviz.sources.ranks_here import of_rank, rank_meta
from gradviz.tracefile import open_trace
from gradviz.tracefile.rank_files import pattern_of, rank_in
from gradviz.words.numbers import plural

_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_COMMANDS = ("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun")
# Launchers that start a single process without a rank, if there is only one device.
_ONE, _ONE_MODULE = ("accelerate", "accelerate.exe"), "accelerate.commands.launch"
_SIGNALLED = 128  # a shell adds this to the number of a signal


def launcher(program: Program) -> list[str]:
    """The command line of a launcher, if a launcher is to be run: `-m torch.distributed.run`, or `torchrun` if there
    is no script of that name; otherwise empty."""
    module, script, arguments = program.module, program.script, program.arguments
    if module in _MODULES:
        return [sys.executable, "-m", module, *([] if script is None else [script]), *arguments]
    if module is None and script in _COMMANDS and not Path(script).exists():
        file = shutil.which(script)
        return [file, *arguments] if file is not None else []
    return []


def launch(command: Sequence[str], settings: Mapping[str, Any]) -> tuple[int, list[Path]]:
    """Run a launcher, and record each of its ranks. Returns its exit status, and the traces."""
    import subprocess  # here, since other commands do not need it

    record_children(
        {**settings, "quiet": True}, starts_one=Path(command[0]).name in _ONE or _ONE_MODULE in command
    )
    began = time()
    status = subprocess.call(command)
    traces = _recorded_since(began, Path())
    if not traces:
        say("gradviz: no rank was recorded here: none ran a script of Python, or they have another folder")
    return (status if status >= 0 else _SIGNALLED - status), traces


def named_by_rank(trace: Path) -> Path:
    """Rename the trace of a process that started the other ranks and is a rank itself, as Lightning's first process,
    by its rank, which is known only from its collectives. Returns the new path."""
    if not trace.exists() or rank_meta() or rank_in(trace) >= 0:
        return trace
    with open_trace(trace) as recorded:
        rank = recorded.meta.get("rank")
    return trace if rank is None else trace.rename(of_rank(trace, rank))


def only_started_ranks(trace: Path, began: float, quiet: bool, kept_earlier: bool) -> bool:
    """Report the ranks that were recorded beside a process, or with it. Returns whether nothing else needs to be
    reported: the process is one of the ranks, or has only started them. In the second case its empty trace is
    removed, if the trace is not an earlier one."""
    ranks = [path for path in _recorded_since(began, trace.parent) if rank_in(path) >= 0]
    is_rank = trace in ranks and not rank_meta()
    if len(ranks) == is_rank:
        return False
    with open_trace(trace) as recorded:
        is_empty = not is_rank and (kept_earlier or not recorded.passes)
    if is_empty and not kept_earlier:
        trace.unlink()
    if not quiet:
        tell_ranks(ranks)
    return is_empty or is_rank


def _recorded_since(began: float, folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.gradviz") if path.stat().st_mtime >= began]


def tell_ranks(traces: Sequence[Path]) -> None:
    """Report the ranks that were recorded, and the next commands."""
    by_pattern: dict[str, list[Path]] = {}
    for path in traces:
        pattern = _pattern_of(traces) if rank_in(path) < 0 and len(traces) > 1 else pattern_of(path.name)
        by_pattern.setdefault(pattern, []).append(path)
    for pattern, paths in by_pattern.items():
        with all_opened(tuple(paths)) as recorded:
            counts = sorted({trace.passes_begun for trace in recorded})
        passes = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
        is_one = len(paths) == 1 and rank_in(paths[0]) < 0
        ranks = "1 process" if is_one else plural(len(paths), "rank")
        say(f"gradviz: recorded {ranks}, backward passes of each: {passes} → {pattern}")
        say(f'gradviz: next gradviz check "{pattern}"  ·  gradviz info "{pattern}"')


def _pattern_of(traces: Sequence[Path]) -> str:
    """The pattern for traces whose names do not contain ranks."""
    letters = zip(*(path.name for path in traces), strict=False)
    common = takewhile(lambda own: len(set(own)) == 1, letters)
    return "".join(own[0] for own in common) + "*.gradviz"
