"""The ranks of a run in the stepper: all at the same collective, and one by itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("PyTorch was built without torch.distributed", allow_module_level=True)

from gradviz.query import Query  # noqa: E402
from gradviz.query.collective_calls import collective_clock  # noqa: E402
from gradviz.tracefile import open_trace  # noqa: E402
from tests.warm import python  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]
ROOT = Path(__file__).parents[2]

# Rank 1 calls one collective fewer, and makes more events before the second.
UNEVEN = """\
import os
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(2)
dist.all_reduce(x)
for _ in range(rank):
    x = x * 2
dist.broadcast(x, 0)
if rank == 0:
    dist.barrier()
x = x + 1
"""

AVERAGED = """\
import torch
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
for _ in range(3):
    model(torch.ones(2, 3)).sum().backward()
"""


def recorded(folder: Path, text: str, count: int = 2) -> Path:
    """A folder with the traces of a program on some ranks, each a group of its own."""
    folder.mkdir()
    (folder / "train.py").write_text(text)
    for rank in range(count):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(count)}
        command = [python(), "-m", "gradviz", "trace", "train.py"]
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs `even`, of three ranks, and `uneven`, of two."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "even").mkdir()
    command = [python(), "-m", "tests.ranks.many_ranks", str(folder / "even"), "3"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    recorded(folder / "uneven", UNEVEN)
    return folder


def stepped(run: Path, text: str, *options: str) -> list[str]:
    """The lines that the stepper prints after commands, in columns of 90 characters."""
    command = [python(), "-m", "gradviz", "step", str(run), "--commands", text, *options]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "COLUMNS": str(90 * len([*run.iterdir()]))}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def line_with(lines: list[str], word: str) -> str:
    """The only line that has a word."""
    (line,) = [line for line in lines if word in line]
    return " ".join(line.split())


def test_all_ranks_come_to_the_next_collective(runs: Path) -> None:
    lines = stepped(runs / "even", "collective 2")
    assert line_with(lines, "collective 2 of 24") == " ".join(["collective 2 of 24: all_reduce (16,)"] * 3)
    assert line_with(lines, "▶").count("dist.all_reduce(p.grad)") == 3


def test_a_rank_that_is_behind_comes_along(runs: Path) -> None:
    lines = stepped(runs / "even", "rank 1; next 200; rank; collective")
    numbers = {line.split("collective ")[1].split()[0] for line in lines if line.startswith("collective ")}
    assert len(numbers) == 1


def test_a_collective_has_other_events_before_it_on_each_rank(runs: Path) -> None:
    lines = stepped(runs / "uneven", "collective 2")
    assert line_with(lines, "collective 2 of") == (
        "collective 2 of 3: broadcast (2,) collective 2 of 2: broadcast (2,)"
    )
    assert line_with(lines, "▶").count("dist.broadcast(x, 0)") == 2
    events = [part.split(" of ")[0] for part in line_with(lines, " · forward").split("event ")[1:]]
    assert int(events[1]) == int(events[0]) + 1


def test_a_rank_that_calls_fewer_says_so(runs: Path) -> None:
    lines = stepped(runs / "uneven", "collective 3; collective")
    assert line_with(lines, "collective 3 of 3") == (
        "collective 3 of 3: barrier; not the same on all ranks there is no collective 3: 2 are called"
    )
    assert "there is no later collective" in " ".join(lines)


def test_the_collective_before_is_the_same_one_on_all_ranks(runs: Path) -> None:
    lines = stepped(runs / "even", "collective 4; next 3; collective-back; collective-back 2; collective-back 9")
    told = [line.split(":")[0] for line in lines if line.startswith("collective ")]
    assert told == ["collective 4 of 24", "collective 4 of 24", "collective 2 of 24", "collective 1 of 24"]


def test_one_rank_is_looked_into_by_itself(runs: Path) -> None:
    lines = stepped(runs / "even", "collective 3; rank 1; next 2; collective 2; rank")
    heads = [" ".join(line.split()) for line in lines if line.startswith("rank ")]
    assert heads == ["rank 0 rank 1 rank 2", *["rank 1"] * 3]
    assert "collective 5 of 24" in line_with(lines, "collective 5 of 24")
    together = line_with(lines[-20:], " of 449")  # the others have come to the same collective
    assert len({part.split(" of ")[0] for part in together.split("event ")[1:]}) == 1
    assert together.count("event ") == 3


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("rank 7", "there is no rank 7: the ranks are 0, 1 and 2"),
        ("rank one", "not a number: one"),
        ("collective-back", "there is no earlier collective"),
    ],
)
def test_what_cannot_be_done_is_said(command: str, said: str, runs: Path) -> None:
    assert said in " ".join(stepped(runs / "even", command))


def test_one_trace_has_collectives_and_no_ranks(runs: Path) -> None:
    trace = runs / "even" / "train.rank1.gradviz"
    command = [python(), "-m", "gradviz", "step", str(trace), "--commands"]
    done = subprocess.run([*command, "collective"], capture_output=True, text=True)
    assert "collective 1 of 24: all_reduce (16, 8)" in done.stdout
    done = subprocess.run([*command, "rank 1"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "gradviz step shows all ranks of a folder or a pattern" in done.stderr


def test_what_a_replica_averages_is_a_collective(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", AVERAGED)
    with open_trace(run / "train.rank0.gradviz") as trace:
        events = [call.event for call in Query(trace).of(collective_clock)]
        passes = [(one.first, one.last) for one in trace.passes]
    assert len(events) == 3
    assert all(first < event <= (last or 0) for (first, last), event in zip(passes, events, strict=True))


def test_a_finding_is_shown_on_the_rank_that_has_it(runs: Path) -> None:
    lines = stepped(runs / "uneven", "", "--finding", "1")
    assert line_with(lines, "ranks-collectives").startswith("finding 1 of 1: ranks-collectives: collective 3")


def test_a_finding_is_told_in_full_before_what_commands_say(runs: Path) -> None:
    (told, *others) = stepped(runs / "uneven", "next; next", "--finding", "1")
    assert told.startswith("finding 1 of 1: ranks-collectives: collective 3 is not the same on all ranks")
    assert not told.endswith("…")
    assert [line for line in others if "finding 1 of 1" in line] == []


@pytest.fixture
def terminal(runs: Path) -> Iterator[Callable[[str, int, int], Any]]:
    """Begins the stepper on a run, in a terminal of a size."""
    for needed in ("pexpect", "pyte", "termios"):
        pytest.importorskip(needed)
    from tests.step.test_step_terminal import Terminal

    begun: list[Terminal] = []

    def begin(run: str, width: int, height: int) -> Terminal:
        begun.append(Terminal(runs / run, width, height))
        return begun[-1]

    yield begin
    for one in begun:
        one.child.close(force=True)


def test_keys_move_all_ranks_and_look_into_one(terminal: Callable[[str, int, int], Any]) -> None:
    stepper = terminal("even", 160, 30)
    stepper.wait("rank 0 · collective 0 of 24.*rank 1 · collective 0 of 24.*rank 2 · collective 0 of 24")
    stepper.press("}", "rank 0 · collective 1 of 24.*rank 1 · collective 1 of 24.*rank 2 · collective 1 of 24")
    shown = stepper.press("R2\r", r"^ rank 2 · collective 1 of 24 *\n")
    assert "rank 0" not in shown
    stepper.press("}}", r"^ rank 2 · collective 3 of 24 *\n")
    stepper.press("{", r"^ rank 2 · collective 2 of 24 *\n")
    stepper.press("R\r", "rank 0 · collective 2 of 24.*rank 1 · collective 2 of 24.*rank 2 · collective 2 of 24")
    stepper.child.send("q")
    assert stepper.ended() == 0
    assert stepper.restored()


def test_where_there_is_no_room_for_all_ranks_one_can_be_chosen(terminal: Callable[[str, int, int], Any]) -> None:
    stepper = terminal("even", 100, 30)
    stepper.wait("1 more: widen the terminal to 146 columns, or look into one, as in :rank 1")
    stepper.press(":rank 2\r", r"^ rank 2 · collective 0 of 24 *\n")
