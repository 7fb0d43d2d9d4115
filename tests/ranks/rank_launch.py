"""`torchrun -m tests.ranks.rank_launch FOLDER` runs all programs of several ranks, and records each."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import gradviz
from tests.ranks import rank_helpers, rank_programs
from tests.ranks.rank_programs import REFUSED, texts


def main(folder: Path, names: Sequence[str]) -> None:
    """Run and record programs by their names; all of them, if there are none."""
    torch.set_num_threads(1)
    rank_helpers.rank, rank_helpers.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    programs = texts()
    if names:
        dist.init_process_group("gloo")
        record_all(folder, {name: programs[name] for name in names})
        dist.destroy_process_group()
        return
    hanging = {name: programs.pop(name) for name in [*programs] if name.startswith("ranks-collectives")}
    broken = {"ranks-unused": programs.pop("ranks-unused")}  # rank 1 goes while rank 0 waits
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # each waits for itself alone
    record_all(folder, hanging)
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    record_all(folder, programs)
    record_all(folder, broken, waiting=False)
    dist.destroy_process_group()


def record_all(folder: Path, programs: dict[str, str], waiting: bool = True) -> None:
    """Run and record some programs, by their names, `waiting` for the other ranks after each. A program that is a
    function runs from a file of its own, too."""
    rank = rank_helpers.rank
    known = {"torch": torch, "dist": dist, "nn": nn, "rank": rank, "world": rank_helpers.world}
    for name, text in programs.items():
        path = folder / f"{name}.{rank}.py"
        path.write_text(text)
        refused = contextlib.suppress(RuntimeError) if name in REFUSED else contextlib.nullcontext()
        with refused, gradviz.record(folder / f"{name}.rank{rank}.gradviz"):
            if hasattr(rank_programs, name):
                names = {**vars(rank_programs), **known}
                exec(compile(text, path, "exec"), names)
                names[name]()
            else:
                runpy.run_path(str(path), init_globals=known)
        if waiting:
            dist.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
