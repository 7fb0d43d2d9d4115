"""`what-if`: a recorded pass runs again, equals what was recorded, and tells what becomes of it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.events.kinds import Kind  # noqa: E402
from gradviz.query.query import Query  # noqa: E402
from gradviz.replay.changed_pass import WhatIf, what_if  # noqa: E402
from gradviz.replay.outcome import Check, Edits, checked  # noqa: E402
from gradviz.replay.plan import Call, Plan, ReplayError, plan_of  # noqa: E402
from gradviz.sources.script import Target, run  # noqa: E402
from gradviz.sources.torch_replay import TorchRunner, runner_of  # noqa: E402
from gradviz.tracefile import open_trace  # noqa: E402
from gradviz.tracefile.redaction import redact  # noqa: E402
from gradviz.words.stop import UnknownName  # noqa: E402
from gradviz.words.words import Words  # noqa: E402
from tests.invoked import invoked  # noqa: E402
from tests.replay.replayed_programs import PROGRAMS, Double, hidden_state, in_bfloat16, recorded  # noqa: E402

pytestmark = pytest.mark.torch
F = torch.nn.functional


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.gradviz"


def asked(path: Path, number: int | None = None, *sets: str, dtype: str = "", without: tuple[str, ...] = ()) -> WhatIf:
    with open_trace(path) as trace:
        return what_if(Words(trace), TorchRunner(), number, sets, dtype, without)


def after(found: WhatIf) -> dict[str, Any]:
    return {change.called: None if change.after is None else change.after.tolist() for change in found.changes}


def checks(path: Path) -> list[Check]:
    with open_trace(path) as trace:
        query = Query(trace)
        plans = [plan_of(query, run.number) for run in trace.passes]
        return [checked(query, plan, TorchRunner().run(plan, Edits())) for plan in plans]


def are_equal(path: Path, passes: int) -> bool:
    """Whether all passes give what was recorded, with something to compare in each."""
    found = checks(path)
    assert len(found) == passes
    assert all(check.gradients or check.roots for check in found)
    return not [check.differences for check in found if check.differences]


# --- what is known by hand


def square(path: Path) -> None:
    def program() -> None:
        x = torch.tensor(3.0, requires_grad=True)
        loss = x**2 * 5
        loss.backward()

    recorded(path, program)


def test_another_value_gives_another_loss_and_another_gradient(path: Path) -> None:
    square(path)
    found = asked(path, 1, "x=4")
    assert [change.before for change in found.changes] == [45.0, 30.0]
    assert after(found) == {"loss": 80.0, "x.grad": 40.0}
    assert found.first is not None
    assert found.first.op == "pow"


def test_without_an_option_the_pass_is_compared_with_what_was_recorded(path: Path) -> None:
    square(path)
    found = asked(path)
    assert not found.is_edited
    assert found.check == Check(1, 1, 1, 1, 1, ())


def test_one_element_is_set(path: Path) -> None:
    def program() -> None:
        w = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
        loss = (w**2).sum()
        loss.backward()

    recorded(path, program)
    assert after(asked(path, None, "w[0,2]=10")) == {"loss": 105.0, "w.grad": [[2.0, 4.0, 20.0]]}
    assert after(asked(path, None, "w[0, :2]=0")) == {"loss": 9.0, "w.grad": [[0.0, 0.0, 6.0]]}


def hidden(path: Path) -> None:
    def program() -> None:
        w, v = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor(3.0, requires_grad=True)
        h = w * 2
        loss = (h**2 * v).sum()
        loss.backward()

    recorded(path, program)


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (("h=1",), {"loss": 6.0, "w.grad": [0.0, 0.0], "v.grad": 2.0}),
        (("h[0]=0",), {"loss": 48.0, "w.grad": [0.0, 48.0], "v.grad": 16.0}),
        (("h[0]=0", "h[1]=1", "v=2"), {"loss": 2.0, "w.grad": [0.0, 0.0], "v.grad": 1.0}),
        (("loss=2",), {"loss": 2.0, "w.grad": [0.0, 0.0], "v.grad": 0.0}),
    ],
)
def test_a_computed_tensor_is_held_at_a_value(path: Path, sets: tuple[str, ...], expected: dict[str, Any]) -> None:
    hidden(path)
    assert after(asked(path, 1, *sets)) == expected


def test_the_call_whose_result_is_held_is_the_first_that_differs(path: Path) -> None:
    hidden(path)
    found = asked(path, 1, "h[0]=0")
    assert found.first is not None
    assert found.first.op == "mul"
    with pytest.raises(ReplayError, match=r"outside of its shape \(2,\)"):
        asked(path, 1, "h[2]=0")


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
def test_an_element_is_set_though_a_tensor_has_its_name(path: Path, number: int) -> None:
    def program() -> None:
        w = torch.tensor([1.0, 2.0], requires_grad=True)
        for _ in range(2):
            loss = (w**2).sum()
            loss.backward()
            w.grad = None
            (w[0] * 3).backward()
            w.grad = None

    recorded(path, program)
    before, now = (asked(path, number, *sets).changes[0] for sets in ((), ("w[0]=5",)))
    assert before.before == (5.0 if number == 1 else 3.0)
    assert now.after == (29.0 if number == 1 else 15.0)


def test_a_gradient_that_is_added_to_an_earlier_one_is_said_to_be_of_its_pass(path: Path) -> None:
    def program() -> None:
        w = torch.tensor(3.0, requires_grad=True)
        for _ in range(2):
            loss = w**2
            loss.backward()

    recorded(path, program)
    told = "here as of this pass alone: w.grad"
    assert told not in invoked(["what-if", str(path), "--pass", "1"]).stdout
    assert told in invoked(["what-if", str(path), "--pass", "2"]).stdout
    assert asked(path, 2).changes[1].before == 6.0  # w.grad is 12 then


def test_a_gradient_that_underflows_is_there_in_float64(path: Path) -> None:
    def program() -> None:
        x = torch.tensor(1e-30, requires_grad=True)
        loss = x**2
        (loss * 1e-20).backward()

    recorded(path, program)
    found = asked(path, dtype="float64")
    gradient = found.changes[-1]
    assert gradient.before == 0.0
    assert gradient.after == pytest.approx(2e-50, rel=1e-5)


@pytest.mark.slow
def test_without_a_detach_its_gradient_is_there(path: Path) -> None:
    def program() -> None:
        w = torch.tensor(2.0, requires_grad=True)
        v = torch.tensor(3.0, requires_grad=True)
        h = (w * 5).detach()
        loss = h * v
        loss.backward()

    recorded(path, program)
    line = program.__code__.co_firstlineno + 3
    found = asked(path, without=(f"detach@{line}",))
    gradients = {change.called: (change.before, change.after) for change in found.changes}
    assert gradients["v.grad"] == (10.0, 10.0)
    assert gradients["w.grad"] == (None, 15.0)


def test_a_clamp_is_left_out(path: Path) -> None:
    def program() -> None:
        x = torch.tensor([-2.0, 0.5], requires_grad=True)
        loss = x.clamp(0, 1).sum()
        loss.backward()

    recorded(path, program)
    line = program.__code__.co_firstlineno + 2
    assert after(asked(path, without=(f"clamp@{line}",))) == {"loss": -1.5, "x.grad": [1.0, 1.0]}


@pytest.mark.slow
def test_what_cannot_be_computed_again_is_said_to_be_held(path: Path) -> None:
    def program() -> None:
        x = torch.tensor(3.0, requires_grad=True)
        with torch.no_grad():
            target = x * 2
        loss = (x - target) ** 2
        loss.backward()

    recorded(path, program)
    found = asked(path, None, "x=4")
    assert after(found)["loss"] == 4.0  # (4 − 6)²: the target stays
    assert [name.partition(",")[0] for _, name in found.held] == ["target"]


def test_a_state_of_an_earlier_pass_is_held_and_not_said_to_be_impossible(path: Path) -> None:
    recorded(path, hidden_state)
    shown = invoked(["what-if", str(path), "--set", "cell.weight_hh[0, 0]=1"]).stdout
    assert "held as recorded, not computed again: h, line" in shown


@pytest.mark.slow
def test_another_dtype_is_named_where_the_gradients_keep_theirs(path: Path) -> None:
    recorded(path, in_bfloat16)
    found = asked(path, dtype="float32")
    loss = found.changes[0]
    assert loss.before is not None
    assert loss.after is not None
    assert loss.before.dtype == loss.after.dtype
    assert loss.before != loss.after
    shown = invoked(["what-if", str(path), "--dtype", "float32"]).stdout
    assert "floating-point numbers are computed in float32" in shown
    assert "no call gives anything else" not in shown


# --- what is known by autograd


def network(path: Path) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(20, 30), torch.nn.BatchNorm1d(30), torch.nn.ReLU(), torch.nn.Dropout(0.4),
        torch.nn.Linear(30, 3),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters())

    def program() -> None:
        for _ in range(3):
            x, y = torch.randn(16, 20), torch.randint(0, 3, (16,))
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()

    recorded(path, program)


@pytest.mark.slow
def test_every_pass_of_a_training_gives_what_was_recorded(path: Path) -> None:
    network(path)
    assert are_equal(path, 3)


def test_a_changed_element_of_a_network_gives_the_gradients_of_autograd(path: Path) -> None:
    torch.manual_seed(1)
    w, x, y = torch.randn(20, 3, requires_grad=True), torch.randn(8, 20), torch.randint(0, 3, (8,))
    recorded(path, lambda: F.cross_entropy((x @ w).tanh(), y).backward())
    with torch.no_grad():
        w[4, 1] = 2.5
    w.grad = None
    loss = F.cross_entropy((x @ w).tanh(), y)
    loss.backward()
    with open_trace(path) as trace:
        plan = plan_of(Query(trace), 1)
        value = np.array(plan.inputs[1].value.array)
        value[4, 1] = 2.5
        found = TorchRunner().run(plan, Edits({plan.inputs[1].tensor: value}))
    (gradient,) = found.gradients.values()
    assert gradient is not None
    assert np.array_equal(gradient, w.grad.numpy())
    assert next(iter(found.roots.values())) == loss.detach().numpy()


def test_a_dropout_in_float64_drops_the_same_elements(path: Path) -> None:
    torch.manual_seed(0)
    x = torch.ones(50, requires_grad=True)
    recorded(path, lambda: F.dropout(x * 1, 0.25).sum().backward())
    found = asked(path, dtype="float64")
    before, now = found.changes[-1].before, found.changes[-1].after
    assert before is not None
    assert now is not None
    assert np.array_equal(before == 0, now == 0)
    assert now.max() == 1 / 0.75


def test_the_random_numbers_of_this_process_stay(path: Path) -> None:
    network(path)
    before = torch.get_rng_state()
    asked(path)
    assert torch.equal(torch.get_rng_state(), before)


# --- memory, and passes that hang together


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_pass_gives_what_was_recorded(path: Path, program: Callable[[], object]) -> None:
    recorded(path, program)
    assert are_equal(path, PROGRAMS[program])


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [{"passes": {3}}, {"last": 1}, {"every": 3}])
def test_a_chosen_pass_gives_what_was_recorded(path: Path, chosen: dict[str, Any]) -> None:
    torch.manual_seed(0)
    net, frozen = torch.nn.Linear(9, 9), torch.randn(9, 9)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with gradviz.record(path, values="inputs", **chosen):
        for _ in range(3):
            optimizer.zero_grad()
            (net(torch.randn(4, 9)) @ frozen).square().mean().backward()
            optimizer.step()
    found = asked(path, 3)
    assert found.check.differences == ()
    assert found.check.gradients == 2


@pytest.mark.slow
def test_a_pass_does_not_go_back_beyond_a_detached_state(path: Path) -> None:
    recorded(path, hidden_state)
    with open_trace(path) as trace:
        query = Query(trace)
        assert len({len(plan_of(query, number).calls) for number in (2, 3)}) == 1


@pytest.mark.slow
def test_a_difference_is_told_where_it_first_appears(path: Path) -> None:
    square(path)
    with open_trace(path) as trace:
        query = Query(trace)
        plan = plan_of(query, 1)
        found = checked(query, plan, TorchRunner().run(plan, Edits({plan.leaves[0]: np.array(4.0, np.float32)})))
    assert not found.is_equal
    assert found.differences[0].event == plan.calls[0].event
    assert found.differences[0].largest == 7.0  # 16 − 9


def test_a_tensor_may_be_set_to_a_list_of_numbers(path: Path) -> None:
    def program() -> None:
        w = torch.tensor([1.0, 2.0], requires_grad=True)
        (w * w).sum().backward()

    recorded(path, program)
    assert after(asked(path, 1, "w=[3, -1.5]")) == after(asked(path, 1, "w[0]=3", "w[1]=-1.5"))


# --- refusals


@pytest.mark.slow
def test_what_is_asked_for_in_vain_is_one_line(path: Path, tmp_path: Path) -> None:
    square(path)
    for number, sets, told in (
        (7, (), "there is no pass 7: the trace has 1"),
        (1, ("x",), "--set takes NAME=NUMBER"),
        (1, ("x=red",), "red is no number that x can have"),
        (1, ("x=[red]",), r"\[red\] is no number that x can have"),
        (1, ("x=[1, 2]",), r"x has the shape \(\): \[1, 2\] has another"),
    ):
        with pytest.raises(ReplayError, match=told):
            asked(path, number, *sets)
    with pytest.raises(UnknownName):
        asked(path, 1, "nobody=2")
    with pytest.raises(ReplayError, match=r"--without takes OP@LINE"):
        asked(path, 1, without=("detach",))
    redact_to = tmp_path / "shared.gradviz"
    with open_trace(path) as trace:
        redact(trace, redact_to)
    with pytest.raises(ReplayError, match="a redacted trace has no elements"):
        asked(redact_to)


def test_of_many_inputs_the_first_are_named_and_the_others_are_counted(path: Path) -> None:
    def program() -> None:
        inputs = [torch.ones(2, requires_grad=True) for _ in range(8)]
        product = sum(inputs)
        product.mul_(2)
        product.sum().backward()

    recorded(path, program)
    with pytest.raises(ReplayError, match=r"set what enters it, as .* and 2 more"):
        asked(path, 1, "product=2")


def test_a_trace_of_another_grade_says_how_to_record_it(path: Path) -> None:
    with gradviz.record(path, values="none"):
        torch.ones(2, requires_grad=True).sum().backward()
    with pytest.raises(ReplayError, match="--values inputs"):
        asked(path)


def test_a_script_of_another_grade_is_named_in_the_command_that_records_it(path: Path) -> None:
    script = path.with_name("my script.py")
    script.write_text("import torch\ntorch.ones(65, requires_grad=True).sum().backward()\n")
    run(Target(str(script), False, []), path, engine="numpy")
    with pytest.raises(ReplayError, match=r'trace --values inputs "\S*my script\.py"$'):
        asked(path)


@pytest.mark.slow
def test_a_script_that_ran_on_our_engine_runs_again_on_it(path: Path) -> None:
    script = path.with_name("script.py")
    script.write_text("import torch\ntorch.ones(65, requires_grad=True).sum().backward()\n")
    run(Target(str(script), False, []), path, values="inputs", engine="numpy")
    with open_trace(path) as trace:
        found = what_if(Words(trace), runner_of(Query(trace)))
    assert found.runner == "gradviz's engine"
    assert found.check.is_equal


def test_hooks_that_changed_a_gradient_are_said_not_to_run(path: Path) -> None:
    def program() -> None:
        x = torch.tensor(3.0, requires_grad=True)
        y = x * 2
        y.register_hook(lambda gradient: gradient * 10)
        y.backward()

    recorded(path, program)
    found = asked(path)
    assert found.has_hooks
    assert found.check.equal_gradients == 0
    shown = invoked(["what-if", str(path), "--set", "x=1"]).stdout
    assert "hooks changed gradients of this pass: they do not run again" in shown
    assert "numbers and branches that the program worked out in Python stay" in shown


@pytest.mark.slow
def test_a_custom_function_is_a_leaf_of_the_replay(path: Path) -> None:
    def program() -> None:
        w = torch.tensor(3.0, requires_grad=True)
        doubled = Double.apply(w)
        loss = doubled**2
        loss.backward()

    recorded(path, program)
    assert after(asked(path, None, "doubled=1")) == {"loss": 1.0, "doubled.grad": 2.0}


class Adjoint(torch.autograd.Function):
    """The sine of a product, whose backward differentiates inside a pass of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return (x * w).sin()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        with torch.enable_grad():
            x, w = (saved.detach().requires_grad_() for saved in ctx.saved_tensors)
            return torch.autograd.grad((x * w).sin(), (x, w), gradient)


def test_the_last_pass_is_none_that_ran_inside_another(path: Path) -> None:
    def program() -> None:
        x = torch.tensor(2.0, requires_grad=True)
        for _ in range(2):
            loss = Adjoint.apply(x, torch.ones(())) * x
            loss.backward()

    recorded(path, program)
    with open_trace(path) as trace:
        assert len(trace.passes) == 4
    found = asked(path, None, "x=1")
    assert found.plan.number == 3
    assert "loss" in after(found)


def test_two_leaves_of_one_name_are_told_apart(path: Path) -> None:
    def program() -> None:
        def weight(value: float) -> torch.Tensor:
            w = torch.tensor(value, requires_grad=True)
            return w  # noqa: RET504 (it gives the tensor its name)

        three, five = weight(1.0), weight(2.0)
        loss = three * 3 + five * 5
        loss.backward()

    recorded(path, program)
    with open_trace(path) as trace:
        three, five = plan_of(Query(trace)).leaves
    assert after(asked(path, None, f"t{five}=1")) == {"loss": 8.0, f"w.grad (t{three})": 3.0, f"w.grad (t{five})": 5.0}


# --- hostile traces


@pytest.mark.slow
def test_a_function_that_is_not_in_the_table_is_never_called(path: Path) -> None:
    square(path)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE strings SET text = 'torch.load' WHERE text LIKE 'Tensor.%pow%'")
    connection.commit()
    connection.close()
    with pytest.raises(ReplayError, match=r"torch\.load is not among the functions"):
        asked(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "tree",
    [
        [[{"tensor": 7}], {}],
        [[{"tensor": -1}], {}],
        [[{"code": "print"}], {}],
        [[{"dtype": "load"}], {}],
        [[{"slice": 3}], {}],
        [[{"tensor": 0, "tuple": []}], {}],
        [[{"tensor": 0}, {"device": "/etc/passwd"}], {}],
        [[{"tensor": 0}], {"no_such": 1}],
        [[{"slice": [1, 2, 3, 4]}], {}],
    ],
)
def test_arguments_of_no_known_form_are_refused(path: Path, tree: Any) -> None:
    square(path)
    with open_trace(path) as trace:
        plan = plan_of(Query(trace), 1)
    with pytest.raises(ReplayError):
        TorchRunner().run(with_arguments(plan, tree), Edits())


def with_arguments(plan: Plan, tree: Any) -> Plan:
    steps = tuple(step._replace(arguments=tree) if isinstance(step, Call) else step for step in plan.steps)
    return plan._replace(steps=steps)


def test_more_memory_than_there_is_is_refused(path: Path) -> None:
    recorded(path, lambda: torch.ones(2, requires_grad=True).repeat(3).sum().backward())
    with open_trace(path) as trace:
        plan = plan_of(Query(trace), 1)
    with pytest.raises(ReplayError, match="cannot be called"):
        TorchRunner().run(with_arguments(plan, [[{"tensor": 0}, 10**13], {}]), Edits())


# --- the command


def test_the_command_shows_a_table_or_json(path: Path) -> None:
    square(path)
    shown = invoked(["what-if", str(path), "--set", "x=4"])
    assert shown.exit_code == 0
    assert "it gives the recorded loss to the last bit and 1 of 1 recorded gradient" in shown.stdout
    assert [line.split() for line in shown.stdout.splitlines() if line.startswith(("loss", "x.grad"))] == [
        ["loss", "45", "80", "35"],
        ["x.grad", "30", "40", "10"],
    ]
    told = json.loads(invoked(["what-if", str(path), "--pass", "1", "--set", "x=4", "--json"]).stdout)
    assert told["replay"]["equal"] is True
    assert told["changes"][1] == {"of": "x.grad", "before": 30.0, "after": 40.0, "change": "10"}


def test_the_command_refuses_in_one_line(path: Path) -> None:
    square(path)
    done = invoked(["what-if", str(path), "--set", "y=4"])
    assert done.exit_code == 2
    assert done.stderr.startswith("gradviz: no tensor is called y")
    assert done.stderr.count("\n") == 1


WITHOUT_PYTORCH = """
import sys
import gradviz.sources.pytorch
gradviz.sources.pytorch.is_installed = lambda: False
from gradviz.cli.main import main
status = main(sys.argv[1:], standalone_mode=False)
assert "torch" not in sys.modules
"""


@pytest.mark.slow
def test_without_pytorch_a_pass_runs_again_on_our_engine(path: Path) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(30, 3))
    x, y = torch.randn(16, 20), torch.randint(0, 3, (16,))
    recorded(path, lambda: F.cross_entropy(net(x), y).backward())
    command = [sys.executable, "-c", WITHOUT_PYTORCH, "what-if", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["runner"].startswith("gradviz's engine")
    expected = asked(path)
    for change, here in zip(expected.changes, told["changes"], strict=True):
        assert change.before is not None
        rms = np.sqrt(np.mean(np.square(change.before, dtype=np.float64)))
        given = here["before"]
        found = given["rms"] if isinstance(given, dict) else np.sqrt(np.mean(np.square(given)))
        assert found == pytest.approx(rms, rel=1e-4)
    assert max(one["largest"] for one in told["replay"]["differences"] if one["largest"] != "nan") < 1e-5


class Scaled(torch.nn.Parameter):
    """A class of parameters of the program's own, which computes as PyTorch's does."""


@pytest.mark.parametrize("full", [True, False], ids=["hooks of both sides", "a hook before"])
def test_a_pass_goes_through_the_backward_hooks_of_modules(path: Path, full: bool) -> None:
    def program() -> None:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
        for layer in net:
            if full:
                layer.register_full_backward_hook(lambda *_: None)
            else:
                layer.register_full_backward_pre_hook(lambda *_: None)
        net(torch.randn(8, 4, requires_grad=True)).square().mean().backward()

    recorded(path, program)
    (check,) = checks(path)
    assert check.is_equal
    assert check.gradients == 5


def test_a_pass_goes_through_parameters_of_a_class_of_their_own(path: Path) -> None:
    def program() -> None:
        torch.manual_seed(0)
        net = torch.nn.Module()
        net.w = Scaled(torch.randn(4, 2))
        (torch.randn(8, 4) @ net.w).square().mean().backward()

    recorded(path, program)
    (check,) = checks(path)
    assert check.is_equal
    assert check.gradients == 1
    with open_trace(path) as trace:
        how = [trace.event(event).how for event in trace.indices(Kind.TENSOR).tolist()]
    assert "Parameter" in how
    assert "earlier" not in how
