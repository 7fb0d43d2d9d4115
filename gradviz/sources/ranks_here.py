"""The rank of this process, and the path of its trace."""

import os
import platform
import re
from pathlib import Path

# Launchers give each process its rank and the number of ranks in these variables. For Slurm, the number of tasks
# of a step is used, which only `srun` sets: the script of a job has a rank, too, and is one process. Lightning sets
# only the local rank.
RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("LOCAL_RANK", "WORLD_SIZE"),
)
_PLACES = re.compile(r"\{(rank|host)\}")


def rank_meta() -> dict[str, str]:
    """The rank of this process and the number of ranks, from the first variable above that is set; empty for a single
    process."""
    for rank_variable, world_variable in RANKS:
        rank, world = os.environ.get(rank_variable, ""), os.environ.get(world_variable, "1")
        if rank.isdigit() and (rank_variable != "LOCAL_RANK" or os.environ.get("NODE_RANK", "0") == "0"):
            return {"rank": rank, "world": world} if world != "1" else {}
    return {}


def of_this_rank(trace: Path | str) -> Path:
    """The trace of this process. Under `torchrun` each process writes its own, `NAME.rank0.gradviz`. If the name has
    `{rank}` or `{host}`, the rank and the host are inserted there instead."""
    return of_rank(trace, rank_meta().get("rank"))


def of_rank(trace: Path | str, rank: str | None) -> Path:
    """The trace of a rank; `rank` is None for a single process."""
    path = Path(trace)
    if _PLACES.search(path.name):
        texts = {"rank": rank or "0", "host": platform.node()}
        return path.with_name(_PLACES.sub(lambda place: texts[place[1]], path.name))
    return path if rank is None else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")
