"""`--profile`: the time, the memory and the operations of PyTorch's ops, by module and by line."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import gradviz  # noqa: E402
from gradviz.events.kinds import KernelRan, Kind, OpMeasured  # noqa: E402
from gradviz.query import Query  # noqa: E402
from gradviz.query.overview import BACKWARD, FORWARD, OPTIMIZER, Cost, model_summary, profile  # noqa: E402
from gradviz.tracefile import Trace  # noqa: E402
from gradviz.tracefile.redaction import redact  # noqa: E402
from gradviz.words import Stop, Words  # noqa: E402
from gradviz.words.sentences import sentence  # noqa: E402

pytestmark = pytest.mark.torch
Command = Callable[..., subprocess.CompletedProcess[str]]

PROGRAM = """\
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(20, 40)
for _ in range(2):
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item().hex())
"""


@pytest.fixture
def traced(tmp_path: Path, gradviz_here: Command) -> Callable[..., Trace]:
    """The trace of a program, with options."""

    def run(program: str, *options: str, name: str = "run") -> Trace:
        (tmp_path / "program.py").write_text(program)
        done = gradviz_here("trace", *options, "-o", f"{name}.gradviz", "program.py")
        assert done.returncode == 0, done.stderr
        (tmp_path / f"{name}.txt").write_text(done.stdout)
        return gradviz.open(tmp_path / f"{name}.gradviz")

    return run


def of_line(trace: Trace, line: int) -> Cost:
    found = profile(Query(trace)).lines
    return next((cost for (_, number), cost in found.items() if number == line), Cost())


def test_all_else_is_as_without(traced: Callable[..., Trace], tmp_path: Path) -> None:
    with traced(PROGRAM) as plain, traced(PROGRAM, "--profile", name="profile") as trace:
        assert (tmp_path / "run.txt").read_text() == (tmp_path / "profile.txt").read_text()
        measured = np.isin(trace.kinds, [Kind.MEASURED, Kind.STORAGE_SAVED])
        assert measured.sum() > 50
        assert not {Kind.MEASURED, Kind.STORAGE_SAVED} & set(plain.kinds.tolist())
        assert trace.kinds[~measured].tolist() == plain.kinds.tolist()


def test_operations_are_those_that_pytorch_counts(tmp_path: Path) -> None:
    def steps() -> None:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 5))
        net(torch.randn(2, 3, 8, 8)).pow(2).mean().backward()
        with torch.inference_mode():
            net(torch.randn(2, 3, 8, 8))

    with FlopCounterMode(display=False) as counter:
        steps()
    with gradviz.record(tmp_path / "run.gradviz", profile=True):
        steps()
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        total = profile(Query(trace)).total
    assert sum(total.flops.values()) == counter.get_total_flops() > 0
    assert total.flops[BACKWARD] > 0


def test_costs_count_at_the_line_and_in_the_module_of_an_op(traced: Callable[..., Trace]) -> None:
    with traced(PROGRAM, "--profile") as trace:
        forward = 2 * 2 * 20 * (40 * 30 + 30)  # a product of a × b and b × c is 2abc, and there are two steps
        called, steps = of_line(trace, 8), of_line(trace, 11)
        assert called.flops == {FORWARD: forward, BACKWARD: forward + 2 * 2 * 20 * 30, OPTIMIZER: 0}
        assert called.seconds[FORWARD] > 0 < called.seconds[BACKWARD]
        assert called.seconds[OPTIMIZER] == 0
        assert steps.seconds[OPTIMIZER] > 0
        assert steps.seconds[FORWARD] == steps.seconds[BACKWARD] == 0
        modules = profile(Query(trace)).modules
        assert modules["net.0"].flops[FORWARD] == 2 * 2 * 20 * 40 * 30
        assert modules["net"].flops[FORWARD] == forward
        assert modules["net.1"].seconds[BACKWARD] > 0
        assert modules["net"].ops < called.ops
        first = {row.path: row.flops for row in model_summary(Query(trace))}
        assert first["net"] == forward / 2
        assert first["net.1"] == 0


def test_memory_is_what_comes_with_results(traced: Callable[..., Trace]) -> None:
    program = "import torch\nx = torch.zeros(1000)\nx.add_(1)\ny = x[10:]\nz = x * 2\nw = torch.cat([x, z])\n"
    with traced(program, "--profile") as trace:
        made = {line: of_line(trace, line).made[FORWARD] for line in range(2, 7)}
    assert made == {2: 4000, 3: 0, 4: 0, 5: 4000, 6: 8000}


def test_a_closure_is_no_part_of_its_optimizer(traced: Callable[..., Trace]) -> None:
    program = """\
import torch
w = torch.ones(3, requires_grad=True)
optimizer = torch.optim.LBFGS([w], max_iter=2)
def closure():
    optimizer.zero_grad()
    loss = w.pow(4).sum()
    loss.backward()
    return loss
optimizer.step(closure)
"""
    with traced(program, "--profile") as trace:
        loss = of_line(trace, 6)
        assert loss.seconds[OPTIMIZER] == 0 < loss.seconds[BACKWARD]
        assert of_line(trace, 9).seconds[OPTIMIZER] > 0


@pytest.mark.slow
def test_the_slowest_line_is_first(traced: Callable[..., Trace], gradviz_here: Command, tmp_path: Path) -> None:
    program = """\
import torch
w = torch.randn(700, 700, requires_grad=True)
small = w[:2, :2] @ w[:2, :2]
large = torch.linalg.svd(w)[1]
(small.sum() + large.sum()).backward()
"""
    with traced(program, "--profile") as trace:
        total = profile(Query(trace)).total.all_seconds
        assert of_line(trace, 4).all_seconds > 0.5 * total
    assert gradviz_here("report", "run.gradviz", "-o", "report.html").returncode == 0
    page = (tmp_path / "report.html").read_text()
    table = page.partition('<section id="profile">')[2].partition("</section>")[0]
    assert re.search(r'<tbody><tr><th scope="row">program.py:4</th>', table)
    assert "torch.linalg.svd(w)[1]" in table
    assert "_linalg_svd" in table


def test_a_sentence_and_info_say_what_ops_cost(traced: Callable[..., Trace], gradviz_here: Command) -> None:
    with traced(PROGRAM, "--profile") as trace:
        words = Words(trace)
        found = next(event for event in trace if isinstance(event, OpMeasured) and event.op == "addmm")
        told = sentence(Stop(words, found.index))
    assert re.fullmatch(r"aten addmm takes [\d.]+ (m|µ)?s, makes 2.4 kB, 48 kFLOP", told)
    info = gradviz_here("info", "run.gradviz").stdout
    assert re.search(r"^profile +\d+ ops took .* \(forward .*, backward .*, optimizer .*\)", info, re.MULTILINE)


def test_with_the_aten_level_both_are_told(tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "run.gradviz", aten=True, profile=True):
        torch.ones(3, requires_grad=True).exp().sum().backward()
    assert torch._C._len_torch_dispatch_stack() == 0
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        kernels, measured = (
            [event.op for event in trace if isinstance(event, kind)] for kind in (KernelRan, OpMeasured)
        )
    assert measured == kernels
    assert "exp" in kernels


def test_a_redacted_copy_has_the_costs(traced: Callable[..., Trace], tmp_path: Path) -> None:
    with traced(PROGRAM, "--profile") as trace:
        redact(trace, tmp_path / "copy.gradviz")
        before = profile(Query(trace)).total
    with gradviz.open(tmp_path / "copy.gradviz") as copy:
        assert profile(Query(copy)).total.seconds == pytest.approx(before.seconds)


@pytest.mark.slow
def test_gradvizs_own_engine_is_not_measured(gradviz_here: Command, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import torch\ntorch.nn.Linear(3, 2)(torch.ones(2, 3)).sum().backward()\n")
    done = gradviz_here("trace", "--engine", "numpy", "--profile", "program.py")
    assert "--profile measures PyTorch's ops" in done.stderr
    assert "profile" not in gradviz_here("info", "program.gradviz").stdout
    assert gradviz_here("report", "program.gradviz", "-o", "report.html").returncode == 0
    model = (tmp_path / "report.html").read_text().partition('<section id="model">')[2]
    assert "Ops are those of the first call of a module, with those of modules inside." in model


@pytest.mark.parametrize(
    "program",
    [
        "n = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])\n"
        "y = n @ torch.nested.nested_tensor([torch.ones(3, 2), torch.ones(3, 2)])",
        "s = torch.eye(3).to_sparse()\ny = torch.sparse.mm(s, torch.ones(3, 2))",
        "y = torch.ones(2, 3, device='meta') @ torch.ones(3, 2, device='meta')",
        "import warnings\nwarnings.simplefilter('ignore')\n"
        "y = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)",
    ],
    ids=["nested", "sparse", "meta", "quantized"],
)
def test_a_tensor_without_plain_memory_does_not_end_the_recording(
    program: str, tmp_path: Path, gradviz_here: Command
) -> None:
    after = "w = torch.ones(2, requires_grad=True)\nw.exp().sum().backward()\n"
    (tmp_path / "program.py").write_text(f"import torch\n{program}\n{after}")
    done = gradviz_here("trace", "--profile", "program.py")
    assert done.returncode == 0, done.stderr
    assert "stopped" not in done.stderr
    with gradviz.open(tmp_path / "program.gradviz") as trace:
        assert any(isinstance(event, OpMeasured) and event.op == "exp" for event in trace)


def test_what_is_taken_apart_under_inference_mode_gives_the_same(traced: Callable[..., Trace], tmp_path: Path) -> None:
    program = (
        "import torch\ntorch.manual_seed(0)\n"
        "net = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 3), torch.nn.Linear(8, 4), torch.nn.Softmax(-1))\n"
        "with torch.inference_mode():\n    y = net(torch.randn(5, 2, 10))\n"
        "print([v.hex() for v in (y @ y.mT).flatten().tolist()])\n"
    )
    with traced(program), traced(program, "--profile", name="profile") as trace:
        assert (tmp_path / "run.txt").read_text() == (tmp_path / "profile.txt").read_text() != ""
        assert profile(Query(trace)).total.flops[FORWARD] > 0
