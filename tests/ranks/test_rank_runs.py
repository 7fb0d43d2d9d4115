"""The ranks of one run as one thing: named by a folder or a pattern, checked together."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from gradviz.diagnose.rank_reports import on_ranks
from gradviz.graph.build import build
from gradviz.graph.joined import over_ranks
from gradviz.query import Query
from gradviz.sources import ranks_here
from gradviz.tracefile import TraceError, open_trace
from gradviz.tracefile.opening import in_order, traces_of
from tests.page.page_views import parsed_views
from tests.warm import python

# The loss of rank 1 alone is NaN.
PROGRAM = """\
import os
import gradviz.engine as torch
w = torch.tensor([1.0, 2.0], requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.01)
for step in range(3):
    loss = (w * 2).sum()
    if os.environ["RANK"] == "1":
        loss = loss + torch.log(w - 5).sum()
    optimizer.zero_grad()
    loss.backward()
    {step}
"""

# Rank 1 makes one pass fewer.
SHORTER = """\
import os
import gradviz.engine as torch
rank = int(os.environ["RANK"])
w = torch.tensor([1.0 + rank], requires_grad=True)
for step in range(1 if rank == 1 else 2):
    w.grad = None
    (w * 2).sum().backward()
"""


def recorded(folder: Path, count: int, step: str = "optimizer.step()", program: str = PROGRAM) -> None:
    """Record a program on `count` ranks, one after the other: they have nothing to say to one another."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(program.format(step=step))
    for rank in range(count):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(count)}
        command = [python(), "-m", "gradviz", "trace", "train.py"]
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the traces of two ranks of a run that never steps."""
    folder = tmp_path_factory.mktemp("ranks")
    recorded(folder, 2, step="pass")
    return folder


@pytest.mark.parametrize(
    "named",
    [["."], ["train.rank*.gradviz"], ["train.rank1.gradviz", "train.rank0.gradviz"]],
    ids=["folder", "pattern", "files"],
)
def test_what_all_ranks_have_is_one_finding(named: list[str], run: Path) -> None:
    done = gradviz(run, "check", *named, "--format", "json")
    assert done.returncode == 1
    found = {finding["rule"]: finding["ranks"] for finding in json.loads(done.stdout)["findings"]}
    assert found == {"not-updated": [0, 1], "nonfinite-forward": [1]}


@pytest.mark.slow
def test_text_says_which_ranks(run: Path) -> None:
    told = gradviz(run, "check", "train.rank*.gradviz").stdout
    assert "on rank 1" in told
    assert "on all ranks" in told
    assert "gradviz step train.rank1.gradviz --at" in told


@pytest.mark.slow
def test_sarif_says_which_ranks(run: Path) -> None:
    (log,) = json.loads(gradviz(run, "check", ".", "--format", "sarif").stdout)["runs"]
    ranks = {result["ruleId"]: result["properties"]["ranks"] for result in log["results"]}
    assert ranks["nonfinite-forward"] == [1]


def test_a_selected_rule_that_finds_nothing_ends_with_status_0(run: Path) -> None:
    assert gradviz(run, "check", "--select", "late-clip", "train.rank*.gradviz").returncode == 0


def test_info_shows_the_ranks_of_a_folder_in_order(run: Path) -> None:
    program, head, *rows = gradviz(run, "info", ".").stdout.splitlines()
    assert program.startswith("train.py on the numpy engine")
    assert head.split()[:3] == ["rank", "host", "ended"]
    assert [row.split()[0] for row in rows[:2]] == ["0", "1"]


@pytest.mark.slow
def test_a_report_of_ranks_has_the_findings_of_all(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "ranks.html"
    done = gradviz(run, "report", "train.rank*.gradviz", "-o", str(page))
    assert done.stdout == f"wrote {page}: 2 findings\n"
    text = page.read_text()
    assert "in all ranks" in text
    assert "in rank 1" in text


@pytest.mark.slow
def test_two_ranks_of_a_run_are_compared(run: Path) -> None:
    done = gradviz(run, "diff", "train.rank*.gradviz", "0", "1")
    assert "+ train.rank1.gradviz" in done.stdout
    missing = gradviz(run, "diff", ".", "0", "7")
    assert (missing.returncode, missing.stderr) == (2, "gradviz: . has no rank 7: it has 0, 1\n")


@pytest.mark.slow
def test_graph_and_step_take_a_pattern(run: Path, tmp_path: Path) -> None:
    picture = tmp_path / "both.svg"
    assert "values of rank 0" in gradviz(run, "graph", "train.rank*.gradviz", "-o", str(picture)).stdout
    stepped = gradviz(run, "step", ".", "--commands", "next").stdout
    assert stepped.splitlines()[0].split() == ["rank", "0", "rank", "1"]


@pytest.mark.slow
def test_the_graph_of_ranks_is_one_with_what_differs_at_the_box(run: Path, tmp_path: Path) -> None:
    picture = tmp_path / "ranks.json"
    gradviz(run, "graph", ".", "--pass", "1", "-o", str(picture))
    nodes = json.loads(picture.read_text())["nodes"]
    assert [node["ranks"] for node in nodes if node["name"] == "w"] == [[".grad"]]
    apart = {node["op"] for node in nodes if node.get("ranks") == ["node"] and node["kind"] == "op"}
    assert apart == {"log", "sub", "sum", "add"}  # `loss = loss + torch.log(w - 5).sum()`
    ops = [node["op"] for node in nodes if node["kind"] == "op"]
    assert ops.count("mul") == 1


@pytest.mark.slow
def test_the_picture_says_what_each_rank_has(run: Path, tmp_path: Path) -> None:
    picture = tmp_path / "ranks.svg"
    gradviz(run, "graph", ".", "--pass", "1", "-o", str(picture))
    text = html.unescape(picture.read_text())
    assert ".grad on rank 0: [2, 2]" in text
    assert ".grad on rank 1: [1.75, 1.667]" in text
    assert "only on rank 1" in text


@pytest.mark.slow
def test_a_page_of_ranks_is_that_of_the_first_finding_with_what_differs(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "ranks.html"
    told = gradviz(run, "graph", ".", "-o", str(page)).stdout
    assert told == (f"wrote {page}: this is rank 1; another rank: gradviz graph train.rank0.gradviz -o rank0.html\n")
    text = page.read_text()
    data = json.loads(re.findall(r'id="data">(.*?)</script>', text)[0])
    assert data["script"] == "train.py · rank 1"
    assert [one["message"].startswith("on rank 1: ") for one in data["findings"]] == [True, False]
    views = parsed_views(text)
    assert [view["pass"] for view in views] == [1, 3, 2]
    apart = {node["name"]: node["apart"] for node in views[0]["nodes"] if node.get("apart") and "name" in node}
    assert apart["w"] == [".grad on rank 1: [1.75, 1.667]", ".grad on rank 0: [2, 2]"]
    assert {node["op"] for node in views[0]["nodes"] if node.get("apart") == ["only on rank 1"]} >= {"log", "sub"}


# Rank 1 writes to a parameter before it trains.
WRITTEN = """\
import os
import gradviz.engine as torch
torch.manual_seed(0)
net = torch.nn.Linear(2, 1)
if os.environ["RANK"] == "1":
    with torch.no_grad():
        net.bias += 0.5
for step in range(2):
    net.zero_grad()
    net(torch.ones(3, 2)).pow(2).sum().backward()
"""


@pytest.mark.slow
def test_a_parameter_that_one_rank_has_written_is_one_box_with_both_values(tmp_path: Path) -> None:
    recorded(tmp_path, 2, program=WRITTEN)
    queries = {rank: Query(open_trace(tmp_path / f"train.rank{rank}.gradviz")) for rank in range(2)}
    graph = over_ranks({rank: build(query, 1) for rank, query in queries.items()}, queries)
    biases = [node for node in graph.nodes.values() if node.name == "net.bias"]
    assert [[one.what for one in node.apart] for node in biases] == [["value", ".grad"]]


# Rank 1 has frozen `first`, and leaves out a function.
FROZEN = """\
import os
import gradviz.engine as torch
first, second = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
if os.environ["RANK"] == "1":
    first.requires_grad_(False)
def twice(x):
    for _ in range(50):
        x = x.exp().log()
    return x
for step in range(2):
    x = first * second
    if os.environ["RANK"] == "0":
        x = twice(x)
    x.sum().backward()
"""


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frozen")
    recorded(folder, 2, program=FROZEN)
    return folder


@pytest.mark.slow
def test_each_accumulator_is_compared_with_that_of_the_same_leaf(frozen: Path) -> None:
    queries = {rank: Query(open_trace(frozen / f"train.rank{rank}.gradviz")) for rank in range(2)}
    graph = over_ranks({rank: build(query, 1) for rank, query in queries.items()}, queries)
    accumulators = [node for node in graph.nodes.values() if node.grad_fn == "AccumulateGrad"]
    assert {(node.base, bool(node.apart)) for node in accumulators} == {("first", True), ("second", False)}


@pytest.mark.slow
def test_a_box_that_one_rank_has_says_so(frozen: Path, tmp_path: Path) -> None:
    gradviz(frozen, "graph", ".", "--pass", "1", "-o", str(tmp_path / "ranks.svg"))
    text = html.unescape((tmp_path / "ranks.svg").read_text())
    assert "only on rank 0" in text
    assert "inside not the same" not in text


# Each rank has another part of a layer.
PARTS = """\
import os
import gradviz.engine as torch
part = torch.full((3,), 1.0 + int(os.environ["RANK"])).requires_grad_()
optimizer = torch.optim.SGD([part], lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    (part * part).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_the_parts_of_a_layer_are_not_compared(tmp_path: Path) -> None:
    recorded(tmp_path, 2, program=PARTS)
    written = gradviz(tmp_path, "graph", ".", "--pass", "1", "-o", "ranks.json").stdout
    assert "each rank has its own values of 1 leaf: not compared" in written
    nodes = json.loads((tmp_path / "ranks.json").read_text())["nodes"]
    assert [node.get("ranks") for node in nodes if node["name"] == "part"] == [None]


@pytest.mark.slow
def test_a_rank_without_the_pass_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SHORTER)
    for rank in range(3):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "3"}
        command = [python(), "-m", "gradviz", "trace", "train.py"]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    done = gradviz(tmp_path, "graph", ".", "--pass", "2", "-o", "ranks.svg")
    assert "no pass 2 on rank 1" in done.stdout
    text = html.unescape((tmp_path / "ranks.svg").read_text())
    assert "value on rank 0: [1]" in text
    assert "value on rank 2: [3]" in text


@pytest.mark.slow
@pytest.mark.parametrize("command", ["info", "check", "graph"])
@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("none.rank*.gradviz", "no trace with a name like"),
        ("[1].gradviz", "no trace with a name like"),
        ("mixed", "traces of several runs in the folder mixed"),
    ],
)
def test_what_is_no_run_is_refused_in_one_line(command: str, named: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "mixed").mkdir()
    for name in ("a.rank0.gradviz", "b.rank0.gradviz"):
        (tmp_path / "mixed" / name).touch()
    done = gradviz(tmp_path, command, named)
    assert done.returncode == 2
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_ranks_come_by_their_numbers(tmp_path: Path) -> None:
    names = ["run.rank10.gradviz", "run.rank2.gradviz", "run.rank0.gradviz"]
    for name in names:
        (tmp_path / name).touch()
    ordered = ["run.rank0.gradviz", "run.rank2.gradviz", "run.rank10.gradviz"]
    assert [path.name for path in traces_of(tmp_path)] == ordered
    assert [path.name for path in in_order(map(Path, names)) or ()] == ordered


def test_a_name_with_brackets_is_a_file_if_there_is_one(tmp_path: Path) -> None:
    file = tmp_path / "run[1].gradviz"
    file.touch()
    assert traces_of(file) == [file]


def test_traces_without_ranks_are_no_run(tmp_path: Path) -> None:
    for name in ("a.gradviz", "a.rank0.gradviz"):
        (tmp_path / name).touch()
    with pytest.raises(TraceError, match="several runs"):
        traces_of(tmp_path)


@pytest.mark.parametrize(
    ("ranks", "count", "said"),
    [
        ((0, 1, 2), 3, "on all ranks"),
        ((1,), 3, "on rank 1"),
        ((0, 2), 3, "on ranks 0 and 2"),
        ((0, 1, 3), 4, "on ranks 0, 1 and 3"),
        ((*range(17), *range(18, 64)), 64, "on ranks 0 to 16 and 18 to 63"),
        (tuple(range(0, 64, 2)), 64, "on 32 ranks (0, 2, 4, 6, 8, 10, 12, 14 and so on)"),
    ],
)
def test_ranks_are_named(ranks: tuple[int, ...], count: int, said: str) -> None:
    assert on_ranks(ranks, count) == said


@pytest.mark.parametrize(
    ("variables", "meta"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2"}, {"rank": "1", "world": "2"}),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, {"rank": "1", "world": "4"}),
        ({"PMI_RANK": "3", "PMI_SIZE": "4"}, {"rank": "3", "world": "4"}),
        ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3"}, {"rank": "2", "world": "3"}),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, {}),  # the script of a job, that srun did not start
        ({"RANK": "0", "WORLD_SIZE": "1", "PMI_RANK": "1", "PMI_SIZE": "2"}, {}),
        ({"RANK": "1", "WORLD_SIZE": "8", "SLURM_PROCID": "0"}, {"rank": "1", "world": "8"}),
        ({"PMI_RANK": "one", "PMI_SIZE": "2"}, {}),
    ],
)  # fmt: skip
def test_the_rank_is_what_the_launcher_says(
    variables: dict[str, str], meta: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for pair in ranks_here.RANKS:
        for name in pair:
            monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ranks_here.rank_meta() == meta


def gradviz(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run gradviz in a folder."""
    return subprocess.run([python(), "-m", "gradviz", *arguments], cwd=folder, capture_output=True, text=True)
