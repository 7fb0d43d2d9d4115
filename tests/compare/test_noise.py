"""`diff --noise`: what rounding does to a pass is allowed, and no more."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from tests.invoked import invoked  # noqa: E402

pytestmark = pytest.mark.torch


def net(dtype: Any = torch.float32) -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(32, 1)).to(dtype)


def trained(model: Any, scale: float = 1.0, call: Callable[..., Any] | None = None) -> None:
    """Make one pass; the second layer's result is multiplied by `scale`."""
    torch.manual_seed(1)
    x = torch.randn(16, 32).to(model[0].weight.dtype)
    hidden = (call or model[:3])(x)
    if scale != 1:
        hidden = hidden * scale
    loss = model[3:](hidden).float().pow(2).mean()
    loss.backward()


def run(path: Path, program: Callable[[], object], values: str = "") -> Path:
    with gradviz.record(path, **({"values": values} if values else {})):
        program()
    return path


def compared(one: Path, other: Path, *options: str) -> dict[str, Any]:
    done = invoked(["diff", str(one), str(other), "--noise", "--format", "json", *options])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def first_line(program: Callable[..., object], text: str) -> int:
    """The line of this file that has a text, in a function."""
    start = program.__code__.co_firstlineno
    lines = Path(__file__).read_text().splitlines()
    return next(at for at in range(start, len(lines)) if text in lines[at - 1])


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in float32 that can run again."""
    return run(tmp_path_factory.mktemp("noise") / "fp32.gradviz", lambda: trained(net()), "inputs")


@pytest.mark.slow
def test_a_run_is_itself_but_for_rounding(reference: Path, tmp_path: Path) -> None:
    found = compared(reference, run(tmp_path / "again.gradviz", lambda: trained(net())))
    assert found["same"]
    assert [gradient["apart"] for gradient in found["gradients"]] == pytest.approx([0] * 6, abs=1e-12)
    assert found["compared"] == {"entering": 6, "forward": 7, "backward": 15, "gradients": 6}


@pytest.mark.slow
@pytest.mark.parametrize("values", ["inputs", ""])
def test_a_hundredth_in_one_layer_is_found_at_its_line(reference: Path, values: str, tmp_path: Path) -> None:
    other = run(tmp_path / "bug.gradviz", lambda: trained(scaled_net(), call=None), values)
    found = compared(reference, other)
    assert not found["same"]
    assert found["forward"]["other"]["line"] == first_line(Scaled.forward, "functional.linear")
    assert found["forward"]["apart"] == pytest.approx(0.01, rel=0.1)
    assert found["forward"]["allowed"] < 1e-4
    assert any(gradient["beyond"] for gradient in found["gradients"])


class Scaled(torch.nn.Linear):
    """A layer with a bug of a hundredth."""

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.linear(x, self.weight * 1.01, self.bias * 1.01)


def scaled_net() -> Any:
    model = net()
    model[2].__class__ = Scaled
    return model


def test_float64_is_apart_by_the_rounding_of_float32(reference: Path, tmp_path: Path) -> None:
    found = compared(reference, run(tmp_path / "wide.gradviz", lambda: trained(net(torch.float64))))
    assert (found["same"], found["dtype"]) == (True, "float32")


def test_bfloat16_is_apart_by_its_own_rounding(reference: Path, tmp_path: Path) -> None:
    other = run(tmp_path / "half.gradviz", lambda: trained(net(torch.bfloat16)))
    found = compared(reference, other)
    assert (found["same"], found["dtype"]) == (True, "bfloat16")


def test_a_sum_in_another_order_is_rounding(reference: Path, tmp_path: Path) -> None:
    def turned(x: Any) -> Any:
        hidden = model[1](model[0](x))
        order = torch.randperm(32)
        return torch.nn.functional.linear(hidden[:, order], model[2].weight[:, order], model[2].bias)

    model = net()
    other = run(tmp_path / "turned.gradviz", lambda: trained(model, call=turned))
    found = compared(reference, other)
    assert found["same"]
    assert any(gradient["apart"] for gradient in found["gradients"])


@pytest.mark.slow
def test_compiled_code_is_apart_by_rounding_and_a_bug_before_it_by_more(reference: Path, tmp_path: Path) -> None:
    def compiled(scale: float) -> None:
        model = net()
        trained(model, scale, call=torch.compile(model[:3], backend="aot_eager"))

    found = compared(reference, run(tmp_path / "compiled.gradviz", lambda: compiled(1)))
    assert (found["same"], found["compared"]["gradients"]) == (True, 6)
    found = compared(reference, run(tmp_path / "bug.gradviz", lambda: compiled(1.01)))
    assert {gradient["beyond"] for gradient in found["gradients"]} == {True}
    assert {gradient["line"] for gradient in found["gradients"]} >= {first_line(trained, "model[3:](hidden)")}


def test_other_parameters_are_named_before_what_follows_from_them(reference: Path, tmp_path: Path) -> None:
    def changed() -> None:
        model = net()
        with torch.no_grad():
            model[2].weight.mul_(1.01)
        trained(model)

    found = compared(reference, run(tmp_path / "other.gradviz", changed))
    assert found["entering"]["one"]["what"].endswith(".2.weight")
    assert not found["same"]


def test_without_a_run_that_can_run_again_the_command_says_how_to_record_one(reference: Path, tmp_path: Path) -> None:
    plain = run(tmp_path / "plain.gradviz", lambda: trained(net()))
    done = invoked(["diff", str(plain), str(plain), "--noise"])
    assert done.exit_code == 2
    assert "record it with gradviz trace --values inputs" in done.output + done.stderr
    again = compared(plain, reference)  # the second can
    assert (again["replayed"], again["same"]) == ("fp32.gradviz", True)


def test_the_text_says_what_is_beyond_rounding(reference: Path, tmp_path: Path) -> None:
    other = run(tmp_path / "bug.gradviz", lambda: trained(scaled_net()))
    told = invoked(["diff", str(reference), str(other), "--noise", "--exit-code"], env={"COLUMNS": "200"})
    assert told.exit_code == 1
    assert "4 replays of fp32.gradviz with inputs disturbed by one unit in the last place of float32" in told.stdout
    assert re.search(r"first beyond it: 0\.0\d+ apart, where rounding puts at most [\d.]+e-\d", told.stdout)
    assert "the runs are apart by more than rounding" in told.stdout


SCALED = """
import torch
torch.manual_seed(0)
w = torch.randn(4, 4, requires_grad=True)
x = torch.randn(8, 4)
scaled = x * {factor}
hidden = torch.dropout(scaled @ w, {share}, True)
hidden.tanh().pow(2).mean().backward()
"""


def scaled_run(folder: Path, name: str, factor: str = "3", share: str = "0.5") -> Path:
    script, trace = folder / f"{name}.py", folder / f"{name}.gradviz"
    script.write_text(SCALED.format(factor=factor, share=share))
    invoked(["trace", "--engine", "torch", "--values", "inputs", "-o", str(trace), str(script)])
    return trace


@pytest.mark.slow
def test_a_scaling_of_the_data_is_named_at_its_own_line(tmp_path: Path) -> None:
    one, other = scaled_run(tmp_path, "one"), scaled_run(tmp_path, "other", factor="3.03")
    found = compared(one, other)
    assert (found["forward"]["one"]["line"], found["forward"]["other"]["line"]) == (6, 6)
    told = invoked(["diff", str(one), str(other), "--noise"], env={"COLUMNS": "200"}).stdout
    assert "numbers  line 6: mul with 3.03 instead of 3.0" in told


@pytest.mark.slow
def test_of_several_arguments_those_that_differ_are_named(tmp_path: Path) -> None:
    found = compared(scaled_run(tmp_path, "one"), scaled_run(tmp_path, "other", share="0.6"))
    assert found["numbers"]["other"]["line"] == 7
    assert found["numbers"]["arguments"] == ["p=0.5", "p=0.6"]


@pytest.mark.slow
def test_runs_with_the_same_numbers_have_no_others(tmp_path: Path) -> None:
    one, other = scaled_run(tmp_path, "one"), scaled_run(tmp_path, "other")
    assert compared(one, other)["numbers"] is None
    assert "numbers" not in invoked(["diff", str(one), str(other), "--noise"]).stdout


def test_one_pass_is_compared_with_the_ops_on_its_data(tmp_path: Path) -> None:
    one, other = scaled_run(tmp_path, "one"), scaled_run(tmp_path, "other", factor="3.03")
    done = invoked(["diff", str(one), str(other), "--pass", "1", "--format", "json"])
    assert json.loads(done.stdout)["forward"]["other"]["line"] == 6
