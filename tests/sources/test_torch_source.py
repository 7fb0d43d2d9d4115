"""PyTorch programs are recorded as PyTorch runs them, and the recording changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.events.kinds import Accumulated, OpRan, PassSummed  # noqa: E402
from gradviz.graph.build import build  # noqa: E402
from gradviz.graph.model import to_json  # noqa: E402
from gradviz.query import Query  # noqa: E402
from gradviz.sources.script import Target, run  # noqa: E402
from gradviz.sources.torch_recorder.saved import IS_KNOWN  # noqa: E402
from tests import torch_programs as programs  # noqa: E402
from tests.warm import python  # noqa: E402

pytestmark = pytest.mark.torch
NAMES = [program.stem for program in programs.PROGRAMS]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, programs.Recorded]:
    folder = tmp_path_factory.mktemp("traces")
    return {p.stem: programs.recorded(p, folder / f"{p.stem}.gradviz") for p in programs.PROGRAMS}


@pytest.mark.parametrize("program", programs.PROGRAMS, ids=NAMES)
def test_a_recorded_run_is_the_same_bit_by_bit(program: Path, recordings: dict[str, programs.Recorded]) -> None:
    printed, left = programs.run(program)
    traced = recordings[program.stem]
    assert traced.printed == printed
    assert traced.left == left
    assert "random" in left
    assert len(left) > 3


@pytest.mark.parametrize("name", NAMES)
def test_nodes_and_edges_are_those_of_next_functions(name: str, recordings: dict[str, programs.Recorded]) -> None:
    traced = recordings[name]
    query = Query(traced.trace)
    assert len(traced.trace.passes) == len(traced.walked) > 0
    for number, walked in enumerate(traced.walked, 1):
        roots = [root.node for root in query.passes.began(number).roots]
        assert programs.recorded_walk(query, roots) == walked.structure


@pytest.mark.parametrize("name", NAMES)
def test_the_recorded_gradient_of_each_leaf_is_its_grad(name: str, recordings: dict[str, programs.Recorded]) -> None:
    traced = recordings[name]
    found = programs.accumulated(traced.trace)
    assert found
    for number, walked in enumerate(traced.walked, 1):
        if walked.gradients:
            assert sorted(found[number]) == sorted(walked.gradients)


# --- the same program on both engines

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def graph_of(trace: gradviz.tracefile.Trace, **settings: Any) -> tuple[list[Any], list[Any]]:
    """The graph's JSON, with ids that count up for each kind."""
    data = to_json(build(trace, **settings))
    counts: Counter[str] = Counter()
    ids = {}
    for node in data["nodes"]:
        ids[node["id"]] = f"{node['kind']} {counts[node['kind']]}"
        counts[node["kind"]] += 1
        node["id"] = ids[node["id"]]
        node["file"] = node["file"] and os.path.basename(node["file"])
    return data["nodes"], [(ids[edge["source"]], ids[edge["target"]], edge["kind"]) for edge in data["edges"]]


@pytest.fixture(scope="module")
def both_engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """The traces of all examples, by gradviz's engine and by PyTorch."""
    folder = tmp_path_factory.mktemp("examples")
    for example in EXAMPLES:
        text = example.read_text().replace("gradviz.engine as torch", "torch").replace("gradviz.engine", "torch")
        (folder / example.name).write_text(text)
    runs = [
        "from gradviz.sources.script import Target, run",
        "import sys",
        "for name in sys.argv[2:]:",
        "    run(Target(f'{name}.py', False, ()), f'{name}.{sys.argv[1]}.gradviz', engine=sys.argv[1])",
    ]
    for engine in ("numpy", "torch"):
        names = [example.stem for example in EXAMPLES]
        subprocess.run([python(), "-c", "\n".join(runs), engine, *names], cwd=folder, check=True, timeout=300)
    return {
        example.stem: tuple(gradviz.open(folder / f"{example.stem}.{engine}.gradviz") for engine in ("numpy", "torch"))
        for example in EXAMPLES
    }


# The derivative of `x³` multiplies by a number: in PyTorch, whose derivatives are written in C++, that is another node
# than a product in Python.
IN_A_DERIVATIVE = {"MulBackward1": "MulBackward0"}


def renamed(nodes: list[Any]) -> list[Any]:
    return [
        {key: IN_A_DERIVATIVE.get(value, value) if isinstance(value, str) else value for key, value in n.items()}
        for n in nodes
    ]


@pytest.mark.slow
@pytest.mark.skipif(not IS_KNOWN, reason=f"PyTorch {torch.__version__} does not tell what its nodes saved")
@pytest.mark.parametrize("name", [example.stem for example in EXAMPLES])
def test_both_engines_give_the_same_graph(name: str, both_engines: dict[str, tuple[Any, Any]]) -> None:
    numpy, pytorch = both_engines[name]
    assert (numpy.meta["engine"], pytorch.meta["engine"]) == ("numpy", "torch")
    for settings in ({}, {"show": "backward"}, {"show": "forward"}, {"whole": True}):
        nodes, edges = graph_of(pytorch, **settings)
        shown = renamed(nodes) if name == "double_backward" else nodes
        assert (shown, edges) == graph_of(numpy, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("name", [example.stem for example in EXAMPLES])
def test_both_engines_show_the_same_formulas(name: str, both_engines: dict[str, tuple[Any, Any]]) -> None:
    ours, theirs = (
        [(event.op, event.rule) for event in trace if isinstance(event, OpRan) and event.grad_enabled]
        for trace in both_engines[name]
    )
    both = [(mine, its) for mine, its in zip(ours, theirs, strict=True) if mine[1].inputs and its[1].inputs]
    assert both
    for (op, rule), (its_op, its_rule) in both:
        assert its_op == op
        known = [pair for pair in zip(rule.inputs, its_rule.inputs, strict=True) if pair[1][1]]
        assert all(mine == its for mine, its in known)


WITHOUT_NODES = """
import torch
x, y = torch.tensor([[3.0, 1.0], [2.0, 2.0]]), torch.tensor([1, 2, 2, 0])
edges = torch.tensor([0.0, 1.5, 3.0])
(x > 1).any(dim=1), (x > 1).all(), (x > 1).any(0, True)
x.argmax(1), x.argmin(dim=1, keepdim=True), torch.count_nonzero(x, dim=0), torch.count_nonzero(x)
torch.isclose(x, x + 1e-9), torch.isin(y, torch.tensor([2, 3])), torch.allclose(x, x)
x.nonzero(), torch.argwhere(x), torch.nonzero(x, as_tuple=True)
torch.bincount(y), torch.histc(x), torch.bucketize(x, edges), torch.searchsorted(edges, x)
torch.unique_consecutive(y), torch.linalg.matrix_rank(x)
"""


def test_both_engines_tell_of_ops_that_make_no_node(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(WITHOUT_NODES)
    told = {}
    for engine in ("numpy", "torch"):
        file = tmp_path / f"{engine}.gradviz"
        assert run(Target(str(tmp_path / "program.py"), False, []), file, engine=engine).status == 0
        with gradviz.open(file) as trace:
            ops = [event for event in trace if isinstance(event, OpRan)]
            told[engine] = [
                (
                    op.op, op.args, len(op.inputs), trace.sites[op.site].place.line,
                    [trace.snapshot(out, op.index).shape for out in op.outputs],
                )
                for op in ops
            ]  # fmt: skip
    assert len(told["numpy"]) == 22
    assert told["numpy"] == told["torch"]


def test_the_formulas_are_those_of_the_engine() -> None:
    from tests.versions import formula_table

    kept = Path(gradviz.__file__).parent / "sources" / "formulas.json"
    assert json.loads(kept.read_text()) == json.loads(json.dumps(formula_table.table()))


# --- what it costs: passes that nobody asked for


LOOP = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.ones(2, 3)
for step in range(6):
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""


def traced(folder: Path, *options: str, script: str = LOOP, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "loop.py").write_text(script)
    command = [python(), "-m", "gradviz", "trace", *options, "loop.py"]
    env = {**os.environ, **environment}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, env=env, check=False)


@pytest.mark.slow
def test_only_the_passes_asked_for_are_recorded_in_detail(tmp_path: Path) -> None:
    whole = traced(tmp_path)
    chosen = traced(tmp_path, "--passes", "2,every:5", "-o", "chosen.gradviz")
    assert chosen.returncode == 0, chosen.stderr
    assert chosen.stdout == whole.stdout
    with gradviz.open(tmp_path / "chosen.gradviz") as some, gradviz.open(tmp_path / "loop.gradviz") as all_:
        assert [run.recorded for run in some.passes] == [False, True, False, False, True, False]
        assert [run.digest for run in some.passes if run.recorded] == [all_.passes[1].digest] * 2
        leaves = [event for event in some if isinstance(event, Accumulated)]
        assert {event.in_pass for event in leaves} == {2, 5}
        assert all(some.snapshot(event.grad, event.index).array is not None for event in leaves)
        assert [event.in_pass for event in some if isinstance(event, PassSummed)] == [1, 2, 3, 4, 5, 6]
        assert graph_of(some, passes=5, show="backward") == graph_of(all_, passes=5, show="backward")
        assert some.count < all_.count / 1.8


@pytest.mark.slow
def test_a_module_that_moves_to_where_it_is_can_be_recorded(tmp_path: Path) -> None:
    moves = 'model = torch.nn.Linear(2, 1).to("cpu").float()\nmodel.share_memory()\n'
    done = traced(tmp_path, script=f"import torch\n{moves}model(torch.ones(3, 2)).sum().backward()\n")
    assert done.returncode == 0, done.stderr
    with gradviz.open(tmp_path / "loop.gradviz") as trace:
        assert len(trace.passes) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0", "'0' is no range of passes: they count up from 1"),
        ("3-1", "'3-1' is no range of passes: they count up from 1"),
        ("every:0", "'every:0' is not of the form every:50"),
        ("each:5", "'each:5' is not of the form every:50"),
        ("x", "'x' is neither all, nor auto, nor of the form 1-3,100,every:50"),
    ],
)
def test_what_names_no_passes_is_refused(text: str, told: str, tmp_path: Path) -> None:
    done = traced(tmp_path, "--passes", text)
    assert done.returncode == 2
    assert told in done.stderr


@pytest.mark.slow
def test_each_of_several_ranks_writes_its_own_trace(tmp_path: Path) -> None:
    done = traced(tmp_path, "-o", "run.gradviz", RANK="1", WORLD_SIZE="2")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.glob("*.gradviz")] == ["run.rank1.gradviz"]


FORKS = """
import os
import torch
from torch.utils.data import DataLoader, TensorDataset
if __name__ == "__main__":  # from Python 3.14 on the loader's processes import the script
    x = torch.ones(2, requires_grad=True)
    (x * 2).sum().backward()
    for (batch,) in DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2, num_workers=1):
        print(batch.sum().item())
    child = os.fork()
    if child == 0:
        (x * 3).sum().backward()
        os._exit(0)
    print(os.waitpid(child, 0)[1])
    (x * 4).sum().backward()
"""


@pytest.mark.slow
def test_child_processes_are_left_alone(tmp_path: Path) -> None:
    done = traced(tmp_path, script=FORKS)
    assert done.stdout == "4.0\n4.0\n0\n", done.stderr
    with gradviz.open(tmp_path / "loop.gradviz") as trace:
        assert len(trace.passes) == 2
        assert trace.meta["ended"] == "ok"
