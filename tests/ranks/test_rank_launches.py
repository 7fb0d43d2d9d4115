"""Ranks are recorded however they are started."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import gradviz
from gradviz.tracefile import open_trace
from tests.warm import python

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a process of Windows cannot become another")

# Starts two ranks by `multiprocessing`, in the way that the first argument names.
PROCESSES = """\
import multiprocessing
import sys
import gradviz.engine as torch

def work(rank):
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    for _ in range(rank + 1):
        (w * rank).sum().backward()
    print("rank", rank, w.grad.tolist(), flush=True)
    if rank == 1:
        sys.exit(5)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    processes = [context.Process(target=work, args=(rank,)) for rank in range(2)]
    for process in processes:
        process.start()
        process.join()
    print([process.exitcode for process in processes], multiprocessing.current_process().name)
"""
# Starts two ranks as scripts, as `torchrun` and Lightning do; the module is imported by each.
SCRIPTS = """\
import os
import subprocess
import sys
for rank in range(2):
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}
    run = subprocess.run([sys.executable, "-O", "-W", "ignore", *sys.argv[1:], "a b", "--c"], env=environment)
    print(run.returncode)
"""
RANK = """\
import sys
import gradviz.engine as torch
x = torch.tensor(2.0, requires_grad=True)
(x * x).backward()
print(sys.argv[1:], sys.flags.optimize, x.grad.item(), sys.path[0] == sys.argv[0].rpartition("/")[0], flush=True)
sys.exit(4)
"""
SPAWN = """\
import os
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

def work(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for (x,) in DataLoader(TensorDataset(torch.randn(4, 2)), batch_size=2, num_workers=1):
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    torch.multiprocessing.spawn(work, args=(port,), nprocs=2)
"""

# Is rank 0, and starts rank 1 as the same script, as Lightning does.
FIRST = """\
import os
import socket
import subprocess
import sys
import torch
import torch.distributed as dist

rank = int(os.environ.get("LOCAL_RANK", "0"))
if "LOCAL_RANK" not in os.environ:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": "0"}
    subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, **place, "LOCAL_RANK": "1", "WORLD_SIZE": "2"})
    os.environ.update(place)
dist.init_process_group("gloo", rank=rank, world_size=2)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
for _ in range(2):
    net(torch.ones(1, 2)).sum().backward()
dist.barrier()
dist.destroy_process_group()
if rank == 0:
    os.wait()
else:
    del os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"]  # as Lightning does at the end
"""


def traced(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `gradviz trace` in a folder."""
    for name, text in {
        "processes": PROCESSES,
        "scripts": SCRIPTS,
        "rank": RANK,
        "spawned": SPAWN,
        "first": FIRST,
    }.items():
        (folder / f"{name}.py").write_text(text)
    return subprocess.run(
        [python(), "-m", "gradviz", "trace", *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )


def recorded(folder: Path) -> dict[str, tuple[int, str]]:
    """The traces of a folder by name: the passes, and the rank."""
    found = {}
    for path in folder.glob("*.gradviz"):
        with gradviz.open(path) as trace:
            found[path.name] = len(trace.passes), trace.meta.get("rank", "")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_processes_of_a_script_are_ranks_and_what_each_prints_is_kept_in_its_trace(method: str, tmp_path: Path) -> None:
    done = traced(tmp_path, "--ranks", "--printed", "processes.py", method)
    plain = subprocess.run([sys.executable, "processes.py", method], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (plain.stdout, plain.returncode), done.stderr
    assert recorded(tmp_path) == {"processes.rank0.gradviz": (1, "0"), "processes.rank1.gradviz": (2, "1")}
    assert done.stderr.splitlines() == [
        "gradviz: recorded 2 ranks, backward passes of each: 1 to 2 → processes.rank*.gradviz",
        'gradviz: next gradviz check "processes.rank*.gradviz" · gradviz info "processes.rank*.gradviz"',
    ]
    assert "rank 1 [2.0, 2.0]" in done.stdout
    assert printed_in(tmp_path, "processes") == [["rank 0 [0.0, 0.0]"], ["rank 1 [2.0, 2.0]"]]


def printed_in(folder: Path, name: str) -> list[list[str]]:
    """The printed lines in the traces of two ranks."""
    found = []
    for rank in range(2):
        with open_trace(folder / f"{name}.rank{rank}.gradviz") as trace:
            found.append([line.text for line in trace.printed])
    return found


@pytest.mark.parametrize("what", [["rank.py"], ["-m", "rank"]], ids=["script", "module"])
def test_ranks_that_run_scripts_are_recorded_with_what_they_print(what: list[str], tmp_path: Path) -> None:
    done = traced(tmp_path, "--ranks", "--printed", "--values", "none", "scripts.py", *what)
    plain = subprocess.run([sys.executable, "scripts.py", *what], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (plain.stdout, plain.returncode), done.stderr
    assert recorded(tmp_path) == {"rank.rank0.gradviz": (1, "0"), "rank.rank1.gradviz": (1, "1")}
    with gradviz.open(tmp_path / "rank.rank0.gradviz") as trace:
        assert trace.meta["values"] == "none"
    (first,), (second,) = printed_in(tmp_path, "rank")
    assert first == second
    assert first.startswith("['a b', '--c'] 1 4.0 ")
    assert {first} < {*plain.stdout.splitlines()}


@pytest.mark.slow
def test_without_ranks_it_is_said_that_processes_are_not_recorded(tmp_path: Path) -> None:
    done = traced(tmp_path, "scripts.py", "rank.py")
    assert list(recorded(tmp_path)) == ["scripts.gradviz"]
    assert "those that it started are not recorded" in done.stderr
    assert "gradviz trace --ranks SCRIPT records each" in done.stderr


@pytest.mark.slow
def test_a_name_has_the_rank_and_the_host_where_it_says(tmp_path: Path) -> None:
    for rank in range(2):
        traced(tmp_path, "-o", "my.{rank}.{host}.gradviz", "rank.py", RANK=str(rank), WORLD_SIZE="2")
    assert sorted(rank for _, rank in recorded(tmp_path).values()) == ["0", "1"]
    command = [python(), "-m", "gradviz", "info", "my.*.gradviz"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    assert [row.split()[0] for row in shown.splitlines()[2:4]] == ["0", "1"]


@pytest.mark.slow
def test_a_sitecustomize_of_the_user_is_run_too(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.was_here = True\n")
    (tmp_path / "rank.py").write_text("print(was_here)\n")
    (tmp_path / "start.py").write_text("import subprocess, sys\nsubprocess.run([sys.executable, 'rank.py'])\n")
    command = [sys.executable, "-m", "gradviz", "trace", "--ranks", "start.py"]
    environment = {**os.environ, "PYTHONPATH": str(own)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.slow
def test_a_launcher_of_one_process_that_is_no_rank_is_recorded(tmp_path: Path) -> None:
    # `accelerate launch` without GPUs runs the script as it is: a stand-in of that name does the same
    launcher = tmp_path / "bin" / "accelerate"
    launcher.parent.mkdir()
    launcher.write_text(
        f"#!{sys.executable}\nimport subprocess, sys\nsys.exit(subprocess.call([sys.executable, *sys.argv[2:]]))\n"
    )
    launcher.chmod(0o755)
    done = traced(
        tmp_path, "accelerate", "launch", "rank.py", PATH=f"{launcher.parent}{os.pathsep}{os.environ['PATH']}"
    )
    assert done.returncode == 4, done.stderr
    assert recorded(tmp_path) == {"rank.gradviz": (1, "")}


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
class TestPyTorch:
    """Launchers of PyTorch."""

    def test_what_spawn_starts_is_recorded_and_workers_are_not(self, tmp_path: Path) -> None:
        done = traced(tmp_path, "--ranks", "spawned.py")
        assert done.returncode == 0, done.stderr
        assert recorded(tmp_path) == {"spawned.rank0.gradviz": (2, "0"), "spawned.rank1.gradviz": (2, "1")}
        with gradviz.open(tmp_path / "spawned.rank0.gradviz") as trace:
            assert trace.meta["world"] == "2"

    def test_a_process_that_starts_the_others_is_rank_0(self, tmp_path: Path) -> None:
        done = traced(tmp_path, "--ranks", "first.py", OMP_NUM_THREADS="1")
        assert done.returncode == 0, done.stderr
        assert recorded(tmp_path) == {"first.rank0.gradviz": (2, "0"), "first.rank1.gradviz": (2, "1")}
        assert "are not recorded" not in done.stderr
        assert done.stderr.splitlines()[-2] == (
            "gradviz: recorded 2 ranks, backward passes of each: 2 → first.rank*.gradviz"
        )

    def test_of_a_process_that_starts_the_others_it_is_said_that_these_are_not_recorded(self, tmp_path: Path) -> None:
        done = traced(tmp_path, "first.py", OMP_NUM_THREADS="1")
        assert recorded(tmp_path) == {"first.gradviz": (2, "0")}
        told = "this process is rank 0 of 2, and the others are not recorded: gradviz trace --ranks SCRIPT records each"
        assert f"gradviz: ranks {told}" in done.stderr.splitlines()

    def test_a_launcher_is_run_and_its_ranks_are_checked_together(self, tmp_path: Path) -> None:
        (tmp_path / "train.py").write_text(
            "import torch\n"
            "import torch.distributed as dist\n"
            "dist.init_process_group('gloo')\n"
            "torch.manual_seed(0)\n"
            "w = torch.randn(2, requires_grad=True)\n"
            "optimizer = torch.optim.SGD([w], lr=0.1)\n"
            "for step in range(2):\n"
            "    optimizer.zero_grad()\n"
            "    (w * (dist.get_rank() + 1)).sum().backward()\n"
            "    optimizer.step()\n"
            "dist.destroy_process_group()\n"
        )
        launcher = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "train.py"]
        done = subprocess.run(
            [python(), "-m", "gradviz", "check", *launcher],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 1
        assert "ranks-unreduced" in done.stdout
        assert "on all ranks" in done.stdout
        assert recorded(tmp_path) == {"train.rank0.gradviz": (2, "0"), "train.rank1.gradviz": (2, "1")}

    def test_what_each_rank_of_a_launcher_prints_is_kept(self, tmp_path: Path) -> None:
        (tmp_path / "train.py").write_text(
            "import os, torch\n"
            "w = torch.ones(2, requires_grad=True)\n"
            "w.sum().backward()\n"
            "print('rank', os.environ['RANK'], w.grad.tolist())\n"
        )
        launcher = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "train.py"]
        done = traced(tmp_path, "--printed", *launcher, OMP_NUM_THREADS="1")
        assert printed_in(tmp_path, "train") == [["rank 0 [1.0, 1.0]"], ["rank 1 [1.0, 1.0]"]], done.stderr
