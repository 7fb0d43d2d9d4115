"""Custom Functions compared with finite differences while the program runs (`--check-functions`), on both engines."""

from __future__ import annotations

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gradviz.diagnose import check
from gradviz.diagnose.run_rules import Sure
from gradviz.events.kinds import FunctionCompared
from gradviz.query.query import Query
from gradviz.sources.script import Target, run
from gradviz.tracefile import open_trace
from gradviz.words.sentences import sentence
from gradviz.words.stop import Stop
from gradviz.words.words import Words
from tests.warm import python

ENGINES = ["numpy", pytest.param("torch", marks=pytest.mark.skipif(not find_spec("torch"), reason="no PyTorch"))]

BEGIN = """\
import torch
from torch.autograd import Function
torch.manual_seed(0)
"""


@pytest.fixture(params=ENGINES)
def compared(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """What is told of the Functions of a program: (Function, argument, verdict) of each, or the reason."""

    def told(text: str, **settings: Any) -> list[tuple[str, ...]]:
        script, file = tmp_path / "program.py", tmp_path / "run.gradviz"
        script.write_text(BEGIN + text)
        settings = {"engine": request.param, "check_functions": True, **settings}
        assert run(Target(str(script), False, []), file, **settings).status == 0
        with open_trace(file) as trace:
            return [
                (e.function, e.why_not or e.argument, *([] if e.why_not else ["wrong" if e.is_wrong else "right"]))
                for e in trace
                if isinstance(e, FunctionCompared)
            ]

    return told


PRODUCT = """
class Product(Function):
    @staticmethod
    def forward(ctx, x, w, scale):
        ctx.save_for_backward(x, w)
        ctx.scale = scale
        return x @ w * scale
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.T * ctx.scale, x.T @ g, None
x, w = torch.randn(4, 3, requires_grad=True), torch.randn(3, 2, requires_grad=True)
"""


def test_each_argument_of_a_function_that_is_not_elementwise_is_compared(compared: Any) -> None:
    assert compared(PRODUCT + "Product.apply(x, w, 2.0).sum().backward()") == [
        ("Product", "x", "right"),
        ("Product", "w", "wrong"),
    ]


def test_one_call_of_each_form_is_compared(compared: Any) -> None:
    text = "for scale in (1.0, 3.0, 3.0, 1.0):\n    Product.apply(x, w, scale).sum().backward()\n"
    assert [verdict for *_, verdict in compared(PRODUCT + text)] == ["right", "right", "right", "wrong"]


def test_a_class_that_is_made_anew_for_each_call_is_compared_once(compared: Any) -> None:
    text = """
def double(x):
    class Double(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2
        @staticmethod
        def backward(ctx, g):
            return g * 2
    return Double.apply(x)
for _ in range(3):
    double(torch.randn(4, requires_grad=True)).sum().backward()
"""
    assert compared(text) == [("Double", "x", "right")]


def test_an_argument_that_needs_no_gradient_is_not_compared(compared: Any) -> None:
    assert compared(PRODUCT + "Product.apply(x, w.detach(), 2.0).sum().backward()") == [("Product", "x", "right")]


def test_a_call_that_no_backward_reaches_keeps_no_other_from_being_compared(compared: Any) -> None:
    text = "for _ in range(9):\n    Product.apply(x, w, 2.0)\nProduct.apply(x, w, 2.0).sum().backward()\n"
    assert len(compared(PRODUCT + text)) == 2


def test_none_is_no_gradient(compared: Any) -> None:
    text = PRODUCT.replace("x.T @ g, None", "None, None")
    assert compared(text + "Product.apply(x, w, 1.0).sum().backward()") == [
        ("Product", "x", "right"),
        ("Product", "w", "wrong"),
    ]


def test_inputs_are_taken_as_they_were_before_a_function_that_works_in_place(compared: Any) -> None:
    text = """
class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.clone())
        ctx.mark_dirty(x)
        return x.mul_(x).mul_(x.sqrt())
    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * POWER * x ** (POWER - 1)
x = torch.rand(5, requires_grad=True)
Cube.apply(x + 1).sum().backward()
"""
    assert compared(text.replace("POWER", "3")) == [("Cube", "x", "right")]
    assert compared(text.replace("POWER", "2")) == [("Cube", "x", "wrong")]


def test_what_is_changed_afterwards_does_not_matter(compared: Any) -> None:
    text = """
class Double(Function):
    @staticmethod
    def forward(ctx, x):
        return x * x.detach().abs().sum()
    @staticmethod
    def backward(ctx, g):
        return g * 7
x = torch.tensor([1.0, -2.0, 4.0], requires_grad=True)
y = Double.apply(x)
with torch.no_grad():
    x.zero_()
    y.zero_()
y.sum().backward()
"""
    assert compared(text) == [("Double", "x", "wrong")]


def test_outputs_that_are_whole_numbers_or_not_differentiable_count_for_nothing(compared: Any) -> None:
    text = """
class Top(Function):
    @staticmethod
    def forward(ctx, x):
        values, places = x.max(dim=1)
        copy = x * 5
        ctx.mark_non_differentiable(places, copy)
        ctx.save_for_backward(x, values)
        return values, places, copy
    @staticmethod
    def backward(ctx, g, *_):
        x, values = ctx.saved_tensors
        return (x == values[:, None]) * g[:, None]
x = torch.randn(4, 3, requires_grad=True)
values, places, copy = Top.apply(x)
(values ** 2).sum().backward()
"""
    assert compared(text) == [("Top", "x", "right")]


def test_several_outputs_count_with_their_gradients(compared: Any) -> None:
    text = """
class Polar(Function):
    @staticmethod
    def forward(ctx, r, a):
        ctx.save_for_backward(r, a)
        return r * a.cos(), r * a.sin()
    @staticmethod
    def backward(ctx, gx, gy):
        r, a = ctx.saved_tensors
        return gx * a.cos() + gy * a.sin(), SIGN * gx * r * a.sin() + gy * r * a.cos()
r, a = torch.rand(6, requires_grad=True), torch.rand(6, requires_grad=True)
x, y = Polar.apply(r, a)
(x.exp() + 2 * y).sum().backward()
"""
    right = [("Polar", "r", "right"), ("Polar", "a", "right")]
    assert compared(text.replace("SIGN", "-1")) == right
    assert compared(text.replace("SIGN", "1")) == [right[0], ("Polar", "a", "wrong")]


def test_whole_numbers_among_the_inputs_stay_as_they_are(compared: Any) -> None:
    text = """
class Pick(Function):
    @staticmethod
    def forward(ctx, table, which):
        ctx.save_for_backward(which)
        ctx.shape = table.shape
        return table[which]
    @staticmethod
    def backward(ctx, g):
        which, = ctx.saved_tensors
        full = torch.zeros(ctx.shape)
        for row, place in enumerate(which.tolist()):
            full[place] += g[row]
        return full, None
table = torch.randn(5, 2, requires_grad=True)
Pick.apply(table, torch.tensor([0, 3, 3])).pow(2).sum().backward()
"""
    assert compared(text) == [("Pick", "table", "right")]


def test_dropout_runs_again_with_the_random_numbers_that_it_had(compared: Any) -> None:
    text = """
class Drop(Function):
    @staticmethod
    def forward(ctx, x):
        kept = torch.bernoulli(torch.full(x.shape, 0.5))
        ctx.save_for_backward(kept)
        return x * kept * 2
    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0] * FACTOR
x = torch.randn(40, requires_grad=True)
Drop.apply(x).sum().backward()
"""
    assert compared(text.replace("FACTOR", "2")) == [("Drop", "x", "right")]
    assert compared(text.replace("FACTOR", "1")) == [("Drop", "x", "wrong")]


def test_a_forward_that_gives_other_values_is_not_compared(compared: Any) -> None:
    text = """
import os
class Noise(Function):
    @staticmethod
    def forward(ctx, x):
        return x + os.urandom(1)[0] + 0.001 * int.from_bytes(os.urandom(2), "big")
    @staticmethod
    def backward(ctx, g):
        return g
x = torch.randn(4, requires_grad=True)
Noise.apply(x).sum().backward()
"""
    ((name, why),) = compared(text)
    assert (name, why.split(" (")[0]) == ("Noise", "run again, its forward gives other values")


def test_an_exception_is_the_reason_and_no_fault_of_the_run(compared: Any) -> None:
    text = """
class Once(Function):
    runs = 0
    @staticmethod
    def forward(ctx, x):
        Once.runs += 1
        if Once.runs > 1:
            raise ValueError("one run is enough")
        return x * 2
    @staticmethod
    def backward(ctx, g):
        return g * 2
x = torch.randn(4, requires_grad=True)
Once.apply(x).sum().backward()
assert x.grad.tolist() == [2.0] * 4
"""
    assert compared(text) == [("Once", "its forward does not run again (ValueError: one run is enough)")]


def test_a_function_that_is_given_a_module_is_not_compared(compared: Any) -> None:
    text = """
class Through(Function):
    @staticmethod
    def forward(ctx, layer, x):
        return layer(x)
    @staticmethod
    def backward(ctx, g):
        return None, g
norm = torch.nn.BatchNorm1d(3)
Through.apply(norm, torch.randn(4, 3, requires_grad=True)).sum().backward()
assert norm.num_batches_tracked == 1
"""
    assert compared(text) == [("Through", "its argument layer is a BatchNorm1d, which a run may change")]


def test_a_function_that_takes_float32_only_is_compared_in_float32(compared: Any) -> None:
    text = """
class Single(Function):
    @staticmethod
    def forward(ctx, x):
        assert x.dtype == torch.float32
        ctx.save_for_backward(x)
        return x ** 2
    @staticmethod
    def backward(ctx, g):
        return g * FACTOR * ctx.saved_tensors[0]
x = torch.randn(30, requires_grad=True)
Single.apply(x).sum().backward()
"""
    assert compared(text.replace("FACTOR", "2")) == [("Single", "x", "right")]
    assert compared(text.replace("FACTOR", "1")) == [("Single", "x", "wrong")]


def test_what_a_forward_makes_float32_inside_is_compared_with_larger_steps(compared: Any) -> None:
    text = """
class Inside(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.float().sin().to(x.dtype)
    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()
x = torch.randn(30, requires_grad=True)
Inside.apply(x).sum().backward()
"""
    assert compared(text) == [("Inside", "x", "right")]


@pytest.mark.slow
def test_at_a_kink_the_other_elements_are_compared(compared: Any) -> None:
    text = """
class Rectify(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)
    @staticmethod
    def backward(ctx, g):
        return g * (ctx.saved_tensors[0] > 0) * FACTOR
x = torch.tensor([0.0, 0.0, -1.0, 2.0], requires_grad=True)
Rectify.apply(x).sum().backward()
Rectify.apply(torch.zeros(3, requires_grad=True)).sum().backward()
"""
    nowhere = ("Rectify", "by differences there is no derivative for x here")
    assert compared(text.replace("FACTOR", "1")) == [("Rectify", "x", "right"), nowhere]
    assert compared(text.replace("FACTOR", "3")) == [("Rectify", "x", "wrong"), nowhere]


def test_a_function_with_setup_context_is_compared(compared: Any) -> None:
    text = """
class Power(Function):
    @staticmethod
    def forward(x, exponent):
        return x ** exponent
    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.exponent = inputs
        ctx.save_for_backward(x)
    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0] ** (ctx.exponent - 1), None
x = torch.rand(5, requires_grad=True)
Power.apply(x, 3).sum().backward()
"""
    assert compared(text) == [("Power", "x", "wrong")]


def test_a_gradient_that_the_engine_sums_to_the_shape_of_its_input_is_right(compared: Any) -> None:
    text = """
class Add(Function):
    @staticmethod
    def forward(ctx, x, b):
        return x + b
    @staticmethod
    def backward(ctx, g):
        return g, g
Add.apply(torch.randn(4, 3, requires_grad=True), torch.randn(3, requires_grad=True)).exp().sum().backward()
"""
    assert compared(text) == [("Add", "x", "right"), ("Add", "b", "right")]


def test_a_pass_that_can_be_differentiated_is_compared(compared: Any) -> None:
    text = PRODUCT + "torch.autograd.grad(Product.apply(x, w, 2.0).sum(), [x, w], create_graph=True)"
    assert [verdict for *_, verdict in compared(text)] == ["right", "wrong"]


INTENDED = """
class Round(Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()
    @staticmethod
    def backward(ctx, g):
        return g
class Reverse(Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x * 1
    @staticmethod
    def backward(ctx, g):
        return -ctx.strength * g, None  # gradviz: ignore[wrong-custom-gradient]
x = torch.randn(6, requires_grad=True)
Round.apply(x * 3).sum().backward()
Reverse.apply(x, 0.5).sum().backward()
"""


def test_a_gradient_that_is_wrong_on_purpose_deviates_too_and_a_comment_says_that_it_is_meant(
    compared: Any, tmp_path: Path
) -> None:
    assert compared(INTENDED) == [("Round", "x", "wrong"), ("Reverse", "x", "wrong")]
    (found,) = check(tmp_path / "run.gradviz")
    assert found.rule == "wrong-custom-gradient"
    assert "as that of a straight-through estimator" in found.message
    assert "# gradviz: ignore[wrong-custom-gradient]" in found.fix


UNCHANGED = """
import random, warnings
random.seed(0)
class Drop(Function):
    seen = []
    @staticmethod
    def forward(ctx, x):
        print("forward")
        warnings.warn("forward")
        kept = (torch.rand(x.shape) > 0.5).to(x.dtype) + random.random() * 0
        ctx.save_for_backward(kept)
        Drop.seen.append(ctx)
        return x * kept
    @staticmethod
    def backward(ctx, g):
        assert [name for name in vars(ctx) if not name.startswith("_")] == [] if hasattr(ctx, "__dict__") else True
        return g * ctx.saved_tensors[0]
x = torch.randn(8, requires_grad=True)
y = Drop.apply(x)
y.sum().backward()
print(torch.rand(3), random.random(), x.grad, y.grad_fn.name())
"""


@pytest.mark.slow
def test_the_run_does_not_change(compared: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def events(check_functions: bool) -> list[str]:
        compared(UNCHANGED, check_functions=check_functions)
        with open_trace(tmp_path / "run.gradviz") as trace:
            words = Words(trace)
            kept = [e for e in trace if not isinstance(e, FunctionCompared)]
            assert (len(kept) < len(trace)) == check_functions
            return [re.sub(r"\bt\d+", "t", sentence(Stop(words, e.index))) for e in kept]

    without = events(False)
    said = capfd.readouterr()
    assert events(True) == without
    again = capfd.readouterr()
    assert (again.out, again.err) == (said.out, said.err)
    assert again.out.count("forward\n") == 1


def test_the_rule_names_the_return_and_says_what_it_could_not_check(compared: Any, tmp_path: Path) -> None:
    compared(
        PRODUCT.replace("def forward(ctx, x, w, scale):", "def forward(ctx, x, w, scale):\n        float(x.sum())")
        + "Product.apply(x, w, 2.0).sum().backward()\n"
        + "class Nothing(Function):\n    @staticmethod\n    def forward(ctx, fn, x):\n        return fn(x)\n"
        + "    @staticmethod\n    def backward(ctx, g):\n        return None, g\n"
        + "Nothing.apply(torch.abs, x).sum().backward()\n"
    )
    report = check(tmp_path / "run.gradviz")
    (found,) = report
    line = next(
        n for n, text in enumerate((tmp_path / "program.py").read_text().split("\n"), 1) if "return g @ w.T" in text
    )
    assert (found.rule, found.severity, found.line) == ("wrong-custom-gradient", "error", line)
    assert "for w" in found.message
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert Query(trace).nodes.op(found.node) == found.events[1]
    assert [finding.rule for finding in Sure().new(report, passes=1)] == ["wrong-custom-gradient"]
    told = dict(report.not_checked)
    assert told["wrong-custom-gradient of Nothing"].startswith("its argument fn is a ")


def test_a_comparison_is_told_as_a_sentence(compared: Any, tmp_path: Path) -> None:
    compared(PRODUCT + "Product.apply(x, w, 2.0).sum().backward()\n")
    with open_trace(tmp_path / "run.gradviz") as trace:
        words = Words(trace)
        stops = [Stop(words, e.index) for e in trace if isinstance(e, FunctionCompared)]
        told = [sentence(stop) for stop in stops]
        assert [line.split(":")[0] for line in told] == [
            "the backward of Product is right for x",
            "the backward of Product is wrong for w",
        ]
        assert {stop.node_name for stop in stops} == {"ProductBackward"}


def test_with_a_scope_the_functions_inside_it_are_compared(compared: Any) -> None:
    text = PRODUCT + "Product.apply(x, w, 2.0).sum().backward()\n"
    assert len(compared(text, scope="Product")) == 2


def test_without_the_option_nothing_runs_again(compared: Any, tmp_path: Path) -> None:
    assert compared(PRODUCT + "Product.apply(x, w, 2.0).sum().backward()", check_functions=False) == []
    assert "wrong-custom-gradient" not in check(tmp_path / "run.gradviz").checked


@pytest.mark.slow
def test_the_option_of_check_and_the_selection_of_the_rule_compare(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(BEGIN + PRODUCT + "Product.apply(x, w, 2.0).sum().backward()\n")
    for options in (["--check-functions"], ["--select", "wrong-custom-gradient"]):
        done = subprocess.run(
            [python(), "-m", "gradviz", "check", "--engine", "numpy", *options, "program.py"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert "wrong-custom-gradient  program.py:14\n" in done.stdout
    done = subprocess.run(
        [python(), "-m", "gradviz", "check", "--check-functions", "program.gradviz"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "gradviz: --check-functions runs custom Functions again, so it needs SCRIPT: a trace is only read"
    ]
