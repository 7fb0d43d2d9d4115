"""What is wrong between the ranks of one run: each fault in real processes, beside healthy runs. All programs run in
one launch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("PyTorch was built without torch.distributed", allow_module_level=True)

import gradviz as gradviz_package  # noqa: E402
from gradviz.compare.noise import noise  # noqa: E402
from gradviz.diagnose.between_ranks import BETWEEN_RANKS  # noqa: E402
from gradviz.diagnose.finding import NOTE, Finding  # noqa: E402
from gradviz.diagnose.rank_reports import check_ranks  # noqa: E402
from gradviz.graph.build import build  # noqa: E402
from gradviz.pictures.scene import scene_of  # noqa: E402
from gradviz.query import Query  # noqa: E402
from gradviz.query.ranks import ranked_traces  # noqa: E402
from gradviz.query.reduced_gradients import norm_of  # noqa: E402
from gradviz.query.replicas import optimizer_steps  # noqa: E402
from gradviz.sources.torch_replay import TorchRunner  # noqa: E402
from gradviz.tracefile import open_trace  # noqa: E402
from gradviz.tracefile.opening import traces_of  # noqa: E402
from tests.ranks import rank_programs  # noqa: E402
from tests.ranks.rank_programs import FAULTY, HEALTHY, texts  # noqa: E402
from tests.warm import python  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]  # two processes, each of which imports PyTorch
ROOT = Path(__file__).parents[2]
HEALTHY_NAMES = [*(f"{rule}.cured" for rule in BETWEEN_RANKS), *(one.__name__ for one in HEALTHY)]
FAULTY_NAMES = [*BETWEEN_RANKS, *(one.__name__ for one in FAULTY)]
# What a rank has by itself, beside its difference from the others.
ALSO = {
    "used_on_one_rank": ["unused-parameter"],
    "ranks-mode": ["wrong-mode"],
    "ranks-unused": ["unused-parameter"],
    "stepped_on_rank_0_alone": ["not-updated"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the traces of all programs, each on two ranks."""
    folder = tmp_path_factory.mktemp("runs")
    ran = record_programs(folder, 2)
    made = {path.name for path in folder.glob("*.gradviz")}
    assert made == {f"{name}.rank{rank}.gradviz" for name in texts() for rank in range(2)}, ran.stderr
    return folder


def record_programs(folder: Path, ranks: int, *names: str) -> subprocess.CompletedProcess[str]:
    """Record programs by their names, all if there are none, on so many ranks."""
    command = [
        python(), "-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--rdzv-backend", "c10d",
        "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1", "-m", "tests.ranks.rank_launch",
        str(folder), *names,
    ]  # fmt: skip
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    environment = {**os.environ, "PYTHON_EXEC": python(), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": loopback}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)


def found_in(folder: Path, name: str) -> list[Finding]:
    """What `check` finds in the run of a program."""
    with ExitStack() as stack:
        paths = traces_of(folder / f"{name}.rank*.gradviz")
        traces = [stack.enter_context(open_trace(path)) for path in paths]
        return [*check_ranks(ranked_traces(traces))]


@pytest.mark.parametrize("name", FAULTY_NAMES)
def test_a_fault_between_ranks_is_named_on_its_line(name: str, runs: Path) -> None:
    text = texts()[name]
    (marked,) = [line for line in text.splitlines() if "# <- " in line]
    rule = marked.rpartition("# <- ")[2]
    found = found_in(runs, name)
    named = [finding for finding in found if finding.rule in BETWEEN_RANKS]
    assert [finding.rule for finding in named] == [rule]
    source = Path(named[0].file).read_text().splitlines()
    assert source[named[0].line - 1].strip() == marked.strip()
    others = [finding.rule for finding in found if finding.severity != NOTE and finding not in named]
    assert others == ALSO.get(name, [])


@pytest.mark.parametrize(
    ("name", "parameters"), [("ranks-clip", "model.parameters()"), ("part_of_no_model_clipped", "[w]")]
)
def test_the_clip_that_is_advised_names_the_parameters(name: str, parameters: str, runs: Path) -> None:
    (found,) = found_in(runs, name)
    assert found.fix.startswith(f"torch.nn.utils.clip_grad_norm_({parameters}, 0.01)")


def test_the_refusal_of_a_replica_says_which_parameters_are_frozen_and_where(runs: Path) -> None:
    (found,) = found_in(runs, "frozen_before_it_is_wrapped")
    assert found.message == (
        "parameter 1 of shape (4, 3) and parameter 2 of shape (4,) do not require a gradient on rank 1 when the run "
        "ends, and do on the others, for which DistributedDataParallel refuses the model"
    )
    assert found.fix == "net[0].requires_grad_(False)  # on all ranks, or on none"


@pytest.mark.parametrize(("name", "is_same"), [("averaged_by_hand", True), ("divided_by_another_number", False)])
def test_the_gradients_of_two_ranks_are_those_of_one_but_for_rounding(
    name: str, is_same: bool, runs: Path, tmp_path: Path
) -> None:
    with gradviz_package.record(tmp_path / "one.gradviz", values="inputs"):
        net = rank_programs.model()
        x = torch.cat([rank_programs.batches(1, seed=rank + 1)[0] for rank in range(2)])
        net(x).pow(2).mean().backward()
    with open_trace(tmp_path / "one.gradviz") as one, open_trace(runs / f"{name}.rank1.gradviz") as other:
        found = noise(one, other, TorchRunner())
    assert (found.same, found.entering) == (is_same, None)
    assert found.compared == {"entering": 4, "forward": 0, "backward": 0, "gradients": 4}


def test_a_rank_on_which_no_part_of_a_gradient_lies_is_no_reason_to_be_silent(tmp_path: Path) -> None:
    ran = record_programs(tmp_path, 3, "clipped_by_a_given_norm_of_the_part", "clipped_by_a_given_norm_of_the_whole")
    assert ran.returncode == 0, ran.stderr
    (found,) = found_in(tmp_path, "clipped_by_a_given_norm_of_the_part")
    assert (found.rule, found.ranks) == ("ranks-clip", (0, 1))
    assert "on rank 1, nothing on rank 2" in found.message
    assert found.fix.startswith("torch.nn.utils.clip_grad_norm_(net.parameters(), 0.01)")
    assert found_in(tmp_path, "clipped_by_a_given_norm_of_the_whole") == []


@pytest.mark.parametrize("name", ["in_shards", "parts_clipped_by_the_norm_of_the_whole"])
def test_the_parts_of_gradients_are_clipped_when_the_optimizer_steps(name: str, runs: Path) -> None:
    squares = 0.0
    for rank in range(2):
        with open_trace(runs / f"{name}.rank{rank}.gradviz") as trace:
            query = Query(trace)
            step = query.of(optimizer_steps)[0]
            for parameter in step.parameters:
                gradient = trace.snapshot(query.tensors.grad(parameter, step.index), step.index)
                assert gradient is not None
                squares += norm_of(gradient) ** 2
    assert squares**0.5 == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("name", ["divided_by_two_other_numbers", "weights_averaged_and_all_summed"])
def test_what_is_said_of_a_sum_is_said_of_the_parameters_it_holds_for(name: str, runs: Path) -> None:
    (found,) = found_in(runs, name)
    assert found.message.startswith("the gradient of net.0.weight and net.2.weight is ")


@pytest.mark.parametrize("name", HEALTHY_NAMES)
def test_a_healthy_run_of_ranks_is_not_accused(name: str, runs: Path) -> None:
    assert [(finding.rule, finding.message) for finding in found_in(runs, name)] == []


@pytest.mark.parametrize(
    ("name", "number", "gates"),
    [
        ("averaged_by_hand", 1, 4),
        ("of_one_replica_after_another", 2, 4),
        ("averaged_in_one_piece", 1, 4),  # through a copy of all
        ("accumulated", 1, 0),  # under no_sync
        ("accumulated", 2, 4),
    ],
)
def test_what_is_averaged_is_a_gate_in_the_picture_of_the_pass(name: str, number: int, gates: int, runs: Path) -> None:
    with open_trace(runs / f"{name}.rank0.gradviz") as trace:
        scene = scene_of(build(Query(trace), number))
    drawn = [thing.lines[0][1] for thing in scene.things.values() if "gate" in thing.classes]
    assert drawn == ["all_reduce · 2 ranks"] * gates


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (
            "dist.all_reduce(torch.ones(2 + rank))\n",
            "all_reduce of shape (2,) on rank 0, all_reduce of shape (3,) on rank 1",
        ),
        (  # which fails as if rank 1 had not answered
            "if rank == 0: dist.all_reduce(torch.ones(7), op=dist.ReduceOp.BAND)\n",
            "all_reduce of shape (7,) on rank 0, none any more on rank 1",
        ),
        ("if rank == 0: dist.barrier()\n", "barrier on rank 0, none any more on rank 1"),
    ],
)
def test_the_first_collective_that_is_not_the_same_is_named(calls: str, said: str, tmp_path: Path) -> None:
    record_calls(tmp_path, calls)
    (found,) = checked(tmp_path, "--select", "ranks-collectives")
    assert found["line"] == 7
    assert "collective 2 is not the same on all ranks" in found["message"]
    assert found["message"].endswith(said)


def test_collectives_of_a_group_of_some_ranks_need_not_be_the_same(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os\nimport torch\nimport torch.distributed as dist\n"
        "from torch.testing._internal.distributed.fake_pg import FakeStore\n"
        "rank = int(os.environ['RANK'])\n"
        "dist.init_process_group('fake', rank=rank, world_size=4, store=FakeStore())\n"
        "some, all_of_them = dist.new_group([rank, 3]), dist.new_group([0, 1, 2, 3])\n"
        "dist.all_reduce(torch.ones(5 + rank), group=some)\n"
        "dist.all_reduce(torch.ones(2 + rank), group=all_of_them)\n"
    )
    record_two_ranks(tmp_path)
    (found,) = checked(tmp_path, "--select", "ranks-collectives")
    assert found["line"] == 9
    assert "collective 1 is not the same on all ranks" in found["message"]


def test_settings_choose_rules_between_ranks(tmp_path: Path) -> None:
    record_calls(tmp_path, "dist.all_reduce(torch.ones(2 + rank))\n")

    def found_with(line: str) -> list[str]:
        (tmp_path / "pyproject.toml").write_text(f"[tool.gradviz]\n{line}\n")
        return [finding["rule"] for finding in checked(tmp_path)]

    assert found_with('ignore = ["late-clip"]') == ["ranks-collectives"]
    assert found_with('ignore = ["ranks-collectives"]') == []
    assert found_with('select = ["ranks-collectives"]') == ["ranks-collectives"]
    assert found_with('select = ["late-clip", "ranks-sum"]') == []
    report = gradviz(tmp_path, "report", ".", "-o", "page.html")
    assert report.stdout == "wrote page.html: 0 findings\n"


@pytest.mark.parametrize(
    ("comment", "found"),
    [("# gradviz: ignore[ranks-collectives]", []), ("# gradviz: ignore[late-clip]", ["ranks-collectives"])],
)
def test_a_comment_ignores_a_rule_between_ranks(comment: str, found: list[str], tmp_path: Path) -> None:
    record_calls(tmp_path, f"dist.all_reduce(torch.ones(2 + rank))  {comment}\n")
    assert [finding["rule"] for finding in checked(tmp_path)] == found


def record_calls(folder: Path, calls: str) -> None:
    """Record two ranks that call collectives, `calls` in line 7. Each is a group of its own: with one another they
    would hang."""
    (folder / "train.py").write_text(
        "import os\n"
        "import torch\n"
        "import torch.distributed as dist\n"
        "rank = int(os.environ['RANK'])\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "dist.all_reduce(torch.ones(2))\n" + calls
    )
    record_two_ranks(folder)


def record_two_ranks(folder: Path) -> None:
    """Record train.py as rank 0 and as rank 1."""
    for rank in ("0", "1"):
        gradviz(folder, "trace", "train.py", RANK=rank, WORLD_SIZE="2")


def checked(folder: Path, *options: str) -> list[dict[str, Any]]:
    """The findings in the run of a folder."""
    found: list[dict[str, Any]] = json.loads(gradviz(folder, "check", ".", "--format", "json", *options).stdout)[
        "findings"
    ]
    return found


def gradviz(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run gradviz in a folder."""
    command = [python(), "-m", "gradviz", *arguments]
    return subprocess.run(command, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True)
