"""A capsule: one pass of a trace, as a trace and as a program, that gives what was recorded."""

from __future__ import annotations

import ast
import json
import runpy
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gradviz.query.query import Query  # noqa: E402
from gradviz.replay.outcome import Edits, Outcome, checked  # noqa: E402
from gradviz.replay.pass_capsule import write, write_script  # noqa: E402
from gradviz.replay.plan import plan_of  # noqa: E402
from gradviz.sources.torch_replay import TorchRunner  # noqa: E402
from gradviz.tracefile import open_trace  # noqa: E402
from tests.invoked import invoked  # noqa: E402
from tests.replay.replayed_programs import PROGRAMS, recorded  # noqa: E402
from tests.warm import python  # noqa: E402

pytestmark = pytest.mark.torch
F = torch.nn.functional


def training() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(20, 30), torch.nn.BatchNorm1d(30), torch.nn.ReLU(), torch.nn.Dropout(0.4),
        torch.nn.Linear(30, 3),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        x, y = torch.randn(16, 20), torch.randint(0, 3, (16,))
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()


def names_of_the_script() -> None:
    file = torch.tensor([1.0, 2.0], requires_grad=True)
    gradients = torch.tensor([3.0, 4.0], requires_grad=True)
    float = torch.tensor([5.0, 6.0])
    start_loss = torch.tensor([7.0, 8.0])
    (slope,) = torch.autograd.grad((file**2 * gradients).sum(), file, create_graph=True)
    loss = (slope * gradients + float * file * start_loss).clamp(max=1e999)
    loss.backward(torch.tensor([9.0, 10.0]))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.gradviz"


def outcome(path: Path, number: int) -> Outcome:
    """What a pass gives, which is what was recorded."""
    with open_trace(path) as trace:
        query = Query(trace)
        plan = plan_of(query, number)
        found = TorchRunner().run(plan, Edits())
        check = checked(query, plan, found)
        assert check.differences == ()
        assert check.roots or check.gradients
        return found


def cut_out(path: Path, number: int) -> Path:
    capsule = path.with_name("bad.gradviz")
    with open_trace(path) as trace:
        query = Query(trace)
        write(query, plan_of(query, number), capsule)
    return capsule


CASES = [(training, 4), (training, 1), (names_of_the_script, 2), *PROGRAMS.items()]


@pytest.mark.slow
@pytest.mark.parametrize(("program", "number"), CASES)
def test_a_capsule_gives_what_was_recorded(path: Path, program: Callable[[], object], number: int) -> None:
    recorded(path, program)
    whole, alone = outcome(path, number), outcome(cut_out(path, number), number)
    assert whole.checksums
    assert list(whole.checksums.values()) == list(alone.checksums.values())
    assert whole.gradients.keys() == alone.gradients.keys()


@pytest.mark.slow
def test_a_capsule_holds_one_pass_and_is_read_by_every_command(path: Path) -> None:
    recorded(path, training)
    capsule = cut_out(path, 4)
    with open_trace(capsule) as trace:
        assert [run.number for run in trace.passes] == [4]
        assert len(trace) < 250
    for command in (
        ["info"],
        ["check"],
        ["why", str(capsule), "net.0.weight[0, 1]"],
        ["step", "--commands", "next; last"],
    ):
        words = command if len(command) > 2 and command[0] == "why" else [command[0], str(capsule), *command[1:]]
        assert invoked(words).exit_code in (0, 1), words


@pytest.mark.slow
@pytest.mark.parametrize(("program", "number"), CASES)
def test_the_script_of_a_pass_gives_what_was_recorded(path: Path, program: Callable[[], object], number: int) -> None:
    recorded(path, program)
    expected = outcome(path, number)
    script = path.with_name("bad_step.py")
    with open_trace(path) as trace:
        query = Query(trace)
        plan = plan_of(query, number)
        write_script(query, plan, script)
    found = ran(script)
    loss = next(reversed([value for name, value in found.items() if torch.is_tensor(value) and name == root(script)]))
    (value,) = expected.roots.values()
    assert np.array_equal(loss.detach().float().numpy(), value.astype(np.float32))
    gradients = [value.grad for value in found.values() if torch.is_tensor(value) and value.is_leaf]
    given = [gradient.numpy() for gradient in gradients if gradient is not None]
    wanted = [gradient for gradient in expected.gradients.values() if gradient is not None]
    assert sorted(one.tobytes() for one in given) == sorted(one.tobytes() for one in wanted)


@pytest.mark.slow
def test_no_variable_of_a_script_is_called_as_a_tensor_without_a_name(path: Path) -> None:
    program = path.with_name("program.py")
    program.write_text(
        "import torch\n"
        "w = torch.ones(2, requires_grad=True)\n"
        "t4 = torch.full((2,), 2.0, requires_grad=True)\n"
        "loss = (t4.exp() * w + t4).sum()\n"
        "loss.backward()\n"
    )
    command = [python(), "-m", "gradviz", "trace", "--values", "inputs", "-o", str(path), str(program)]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    expected = outcome(path, 1)
    script = path.with_name("step.py")
    assert invoked(["capsule", str(path), "--script", str(script)]).exit_code == 0
    assert "t4 = t2.exp()" in script.read_text()
    (value,) = expected.roots.values()
    assert ran(script)["loss"].detach().numpy() == value


def ran(script: Path) -> dict[str, Any]:
    state = torch.get_rng_state()
    try:
        return runpy.run_path(str(script))
    finally:
        torch.set_rng_state(state)
        torch.set_default_dtype(torch.float32)
        torch.set_autocast_enabled("cpu", False)


def root(script: Path) -> str:
    """The variable that the script calls backward on."""
    line = next(line for line in script.read_text().splitlines() if "backward(" in line and line[0] != "#")
    return line.partition(".backward")[0] if "autograd" not in line else line.partition("[")[2].partition("]")[0]


def test_the_script_is_written_as_a_person_would(path: Path) -> None:
    def program() -> None:
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        y = x**2 + 3 * x[0]
        loss = y.sum(dim=0)
        loss.backward()

    recorded(path, program)
    script = path.with_name("step.py")
    shown = invoked(["capsule", str(path), "--script", str(script)])
    assert shown.exit_code == 0
    text = script.read_text()
    assert "x ** 2" in text
    assert "x[0]" in text
    assert "loss = y.sum(dim=0)" in text
    assert "loss.backward()" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Tensor.sum", "torch.load"),
        ("Tensor.sum", "Tensor.sum(); import os"),
        ('[[{"tensor":0}],{"dim":0}]', '[[{"tensor":0}],{"dim=0); import os; (x":0}]'),
        ('[[{"tensor":0}],{"dim":0}]', '[[{"tensor":0}],{"dim":{"dtype":"float32; import os"}}]'),
        ('[[{"tensor":0}],{"dim":0}]', '[[{"tensor":0}],{"dim":{"code":"import os"}}]'),
    ],
)
def test_no_code_of_a_trace_gets_into_the_script(path: Path, before: str, after: str) -> None:
    recorded(path, lambda: torch.ones(2, requires_grad=True).sum(dim=0).backward())
    connection = sqlite3.connect(path)
    assert connection.execute("UPDATE strings SET text = ? WHERE text = ?", (after, before)).rowcount == 1
    connection.commit()
    connection.close()
    script = path.with_name("step.py")
    done = invoked(["capsule", str(path), "--script", str(script)])
    assert done.exit_code == 2
    assert not script.exists()


def test_names_and_places_of_a_trace_stay_names_and_comments(path: Path) -> None:
    recorded(path, training)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE parameters SET name = 'import os\n' || name")
    connection.execute("UPDATE sites SET file = 'a.py' || char(10) || 'import os'")
    connection.execute('UPDATE meta SET value = \'"""\nimport os\n"""\' WHERE key = \'script\'')
    connection.commit()
    connection.close()
    script = path.with_name("step.py")
    with open_trace(path) as trace:
        query = Query(trace)
        write_script(query, plan_of(query, 2), script)
    tree = ast.parse(script.read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported == {"numpy", "torch", "torch.nn.functional"}


@pytest.mark.slow
def test_a_capsule_does_not_take_the_place_of_its_trace(path: Path) -> None:
    recorded(path, training)
    done = invoked(["capsule", str(path), "-o", str(path)])
    assert done.exit_code == 2
    assert "is the trace itself" in done.stderr
    assert invoked(["capsule", str(path)]).exit_code == 2


def two_steps() -> None:
    torch.manual_seed(0)
    w, b = torch.randn(40, 40, requires_grad=True), torch.zeros(40, requires_grad=True)
    optimizer = torch.optim.Adam([w, b], lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        (torch.randn(5, 40) @ w + b).pow(2).mean().backward()
        optimizer.step()


@pytest.mark.slow
def test_a_capsule_has_the_step_behind_its_pass_and_no_other(path: Path) -> None:
    recorded(path, two_steps)
    capsule = cut_out(path, 2)
    asked = ["--scale", "lr=0.5", "--json"]
    whole = invoked(["what-if", str(path), "--pass", "2", *asked])
    alone = invoked(["what-if", str(capsule), *asked])
    said, of_capsule = (json.loads(done.stdout) for done in (whole, alone))
    assert said["changes"] == of_capsule["changes"]
    assert said["losses"] == of_capsule["losses"]


@pytest.mark.slow
def test_a_capsule_of_a_pass_without_a_step_has_none(path: Path) -> None:
    def program() -> None:
        w = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        (w * 2).sum().backward()
        (w * 3).sum().backward()
        optimizer.step()

    recorded(path, program)
    done = invoked(["what-if", str(cut_out(path, 1)), "--scale", "lr=0.5"])
    assert done.exit_code == 2
    assert "no optimizer steps between pass 1 and the next one" in done.stderr
