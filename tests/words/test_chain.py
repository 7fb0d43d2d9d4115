"""The chain rule as views show it: each local line, evaluated with the recorded numbers, gives what was recorded."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import gradviz
import gradviz.engine as torch
from gradviz.engine.table.derivatives import TABLE
from gradviz.events.kinds import Accumulated, Kind, OpRan, Produced, Received
from gradviz.query.chain_step import ChainStep, chain_step
from gradviz.tracefile import open_trace
from gradviz.words.chain import local, multiplied, numbers_of, product, summed
from gradviz.words.chain_rule import why
from gradviz.words.rows import rows
from gradviz.words.stop import Stop
from gradviz.words.words import Words
from tests.engine.derivative_samples import DIFFERENTIABLE, RNG, leaves, run, samples, with_statistics
from tests.engine.test_formulas import SPECIAL, WORDS, is_evaluated, shown_gradient

CASES = [(key, i) for key in DIFFERENTIABLE for i in range(len(samples(key)))]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Words:
    """The words of one trace: pass n + 1 is the backward of case n."""
    path = tmp_path_factory.mktemp("chain") / "rows.gradviz"
    with gradviz.record(path, values="full"):
        for key, i in CASES:
            arrays, args = samples(key)[i]
            out = run(TABLE[key], leaves(arrays), args)
            out.backward(torch.tensor(RNG.normal(size=out.shape)))
    return Words(open_trace(path))


@cache
def steps_of(words: Words, number: int) -> list[ChainStep]:
    """All steps of a pass: four tests look at them."""
    query = words.query
    produced = query.trace.table(Kind.PRODUCED)
    found = []
    for event in produced.events[produced["in_pass"] == number].tolist():
        ran = produced.object(event)
        assert isinstance(ran, Produced)
        made, received = query.nodes.event(ran.node), query.at(event).received(ran.node)
        if made is not None:
            found += [chain_step(query, made, i, received, ran) for i, flow in enumerate(ran.flows) if flow.gradient]
    return found


def close(found: object, expected: object, digits: float) -> None:
    np.testing.assert_allclose(found, expected, rtol=digits, atol=digits)


def sum_over(array: np.ndarray, step: ChainStep) -> np.ndarray:
    assert step.downstream is not None
    return array.sum(step.summed).reshape(step.downstream.shape) if step.summed else array


def in_numbers(steps: list[ChainStep]) -> list[tuple[ChainStep, np.ndarray, np.ndarray]]:
    """The steps of which both gradients are known, with these. Skips the test if there is none."""
    found = [
        (step, step.upstream.array, step.downstream.array)
        for step in steps
        if step.upstream is not None and step.downstream is not None
        if step.upstream.array is not None and step.downstream.array is not None
    ]
    if not found:
        pytest.skip("of no step are both gradients known: the node has several outputs")
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("number", "key", "i"), [(n + 1, *case) for n, case in enumerate(CASES)])
def test_each_step_gives_the_recorded_gradient(words: Words, number: int, key: str, i: int) -> None:
    steps = steps_of(words, number)
    assert steps
    assert all(step.upstream is not None or len(step.made.outputs) > 1 for step in steps)
    for step, up, down in in_numbers(steps):
        assert not step.made.rule.elementwise or bool(step.summed) == (up.shape != down.shape)
        if step.local is not None:
            close(sum_over(np.broadcast_to(up * step.local, up.shape), step), down, 1e-9)
        if step.product is not None:
            assert step.product.array is not None
            close(sum_over(step.product.array, step), down, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "key", "i"), [(n + 1, *case) for n, case in enumerate(CASES)])
def test_the_local_derivative_of_an_elementwise_op_is_known_in_numbers(
    words: Words, number: int, key: str, i: int
) -> None:
    for step in steps_of(words, number):
        _, args = samples(key)[i]
        plain = all(isinstance(arg, (int, float)) for arg in args)
        unknown = not plain or step.formula in ("", *WORDS) or any(name in step.formula for name in SPECIAL)
        if step.made.rule.elementwise and not unknown and not step.is_whole:
            assert step.local is not None, step.formula


@pytest.mark.slow
@pytest.mark.parametrize(("number", "key", "i"), [(n + 1, *case) for n, case in enumerate(CASES)])
def test_the_lines_that_are_shown_can_be_calculated(words: Words, number: int, key: str, i: int) -> None:
    for step, up, down in in_numbers(steps_of(words, number)):
        value = local(words, step).rpartition(" = ")[2]
        if step.local is not None and value.startswith("["):
            product = np.broadcast_to(up * numbers(value), up.shape)
            close(sum_over(product, step), down, 5e-3)
        told = summed(words, step)
        if told and step.product is not None and "rms" not in told:
            left, right = told.split(" summed over ")
            close(sum_over(numbers(left), step), numbers(right.partition(" = ")[2]), 5e-3)


def numbers(text: str) -> np.ndarray:
    return np.array(ast.literal_eval(text.replace("−", "-")))


@pytest.mark.parametrize(("number", "key", "i"), [(n + 1, *case) for n, case in enumerate(CASES)])
def test_the_formula_of_each_op_gives_the_recorded_gradient(words: Words, number: int, key: str, i: int) -> None:
    op, query, compared = TABLE[key], words.query, 0
    for step in steps_of(words, number):
        ran = query.tensors.op(step.made.op)
        inputs = [] if ran is None else [query.memory.value(tensor, step.made.index) for tensor in ran.inputs]
        arrays = [value.array for value in inputs if value is not None and value.array is not None]
        if len(arrays) != len(op.inputs) or step.upstream is None or step.made.grad_fn != op.node_name:
            continue
        args = with_statistics(arrays, samples(key)[i][1])
        if step.made.rule != op.rule(args) or not is_evaluated(key, step.symbol, args):
            continue
        out = query.memory.value(step.output, step.made.index)
        assert out is not None
        assert step.downstream is not None
        found = shown_gradient(key, step.position, step.formula, arrays, args, out.array, step.upstream.array)
        close(step.downstream.array, found, 1e-6)
        compared += 1
    if not compared:
        pytest.skip("its formula is no expression, or not all that it reads was recorded")


# --- what is said


PROGRAM = """
import gradviz.engine as torch
x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
m = torch.tensor([[3.0], [7.0]], requires_grad=True)
b = torch.tensor([1.0, 5.0], requires_grad=True)
y = (x - m) * b
y.backward(torch.tensor([[1.0, 0.0], [2.0, 1.0]]))
"""


@pytest.fixture(scope="module")
def broadcast(tmp_path_factory: pytest.TempPathFactory) -> tuple[Words, dict[str, ChainStep]]:
    """The steps of a program that broadcasts, by the name of the tensor that the gradient is of."""
    path: Path = tmp_path_factory.mktemp("broadcast") / "b.gradviz"
    with gradviz.record(path):
        exec(compile(PROGRAM, "b.py", "exec"), {"__name__": "b"})
    words = Words(open_trace(path))
    return words, {words.called(step.tensor): step for step in steps_of(words, 1)}


def test_the_sum_over_broadcast_dimensions_is_a_step(broadcast: tuple[Words, dict[str, ChainStep]]) -> None:
    words, steps = broadcast
    assert summed(words, steps["m"]) == "[[-1, 0], [-2, -5]] summed over dim 1 = [[-1], [-7]]"
    assert summed(words, steps["b"]) == "[[-2, 0], [-8, -3]] summed over dim 0 = [-10, -3]"
    assert summed(words, steps["x"]) == ""


def test_the_product_is_shown_before_its_sum(broadcast: tuple[Words, dict[str, ChainStep]]) -> None:
    words, steps = broadcast
    assert product(words, steps["m"]) == "upstream × −1, summed over dim 1"
    assert multiplied(words, steps["m"]) == "[[-1, 0], [-2, -5]] = [[1, 0], [2, 5]] × −1"


def test_a_number_is_rounded_once() -> None:
    """Rounding to five digits and then to four gave 9.888 where the value itself is shown as 9.887."""
    assert numbers_of(np.array([5.545, 9.88746])) == "[5.545, 9.887]"


# --- several paths


TWO_PATHS = """
import gradviz.engine as torch
x = torch.tensor(3.0, requires_grad=True)
y = x * 0.2
z = x + y * 3
z.backward()
s = x * x
s.backward()
"""


@pytest.fixture(scope="module")
def two_paths(tmp_path_factory: pytest.TempPathFactory) -> list[Stop]:
    """The stops of a program in which two paths lead to a leaf, in two passes."""
    return recorded(tmp_path_factory.mktemp("paths"), TWO_PATHS)


def recorded(folder: Path, program: str) -> list[Stop]:
    """The stops of a program."""
    source, path = folder / "p.py", folder / "p.gradviz"
    source.write_text(program)
    with gradviz.record(path):
        exec(compile(program, str(source), "exec"), {"__name__": "p"})
    words = Words(open_trace(path))
    return [Stop(words, k) for k in range(words.trace.count)]


def lines(stops: list[Stop], kind: type, label: str) -> list[str]:
    """The lines with a label at the stops of one kind."""
    told = [rows(stop) for stop in stops if isinstance(stop.event, kind)]
    return [row.text for shown in told for row in shown if row.label == label]


def test_one_of_two_paths_gives_a_contribution_not_the_derivative(two_paths: list[Stop]) -> None:
    given = lines(two_paths, Produced, "downstream")
    assert "contribution to ∂z/∂x: 1  → AccumulateGrad of x" in given
    assert "contribution to ∂z/∂x by way of y: 0.6  → AccumulateGrad of x" in given
    assert "∂z/∂y = 3  → MulBackward0" in given
    assert not [line for line in given if line.startswith("∂z/∂x")]


def test_both_factors_of_a_square_contribute(two_paths: list[Stop]) -> None:
    assert [line for line in lines(two_paths, Produced, "downstream") if "∂s/∂x" in line] == [
        "contribution to ∂s/∂x (1 of 2): 3  → AccumulateGrad of x",
        "contribution to ∂s/∂x (2 of 2): 3  → AccumulateGrad of x",
    ]


def test_the_sum_so_far_is_kept_until_the_last_path_has_come(two_paths: list[Stop]) -> None:
    waiting = lines(two_paths, Produced, "waiting")
    assert "∂z/∂x: 1 so far, 1 of 2 paths  at AccumulateGrad of x" in waiting
    assert "∂z/∂x: 1 + 0.6 = 1.6  at AccumulateGrad of x" in waiting


def test_accumulating_shows_the_sum_and_what_was_there_before(two_paths: list[Stop]) -> None:
    assert lines(two_paths, Accumulated, "upstream") == ["∂z/∂x = 1 + 0.6 = 1.6", "∂s/∂x = 3 + 3 = 6"]
    assert lines(two_paths, Accumulated, "after") == ["x.grad = 1.6", "x.grad = 1.6 (before) + 6 = 7.6"]


HOOKED = """
import gradviz.engine as torch
x = torch.tensor(3.0, requires_grad=True)
x.register_hook(lambda g: g * 2)
y = x * x
y.backward()
"""


def test_a_sum_that_a_hook_changed_is_not_shown_as_that_sum(tmp_path: Path) -> None:
    stops = recorded(tmp_path, HOOKED)
    assert lines(stops, Accumulated, "upstream") == ["∂y/∂x = 12"]
    at_leaf = [why(stop) for stop in stops if isinstance(stop.event, Received)][-1]
    assert "  3 + 3 = 6" in at_leaf
    assert "  it receives 12 instead" in at_leaf


UNBOUND = """
import gradviz.engine as torch
x = torch.tensor([1.0, 2.0], requires_grad=True)
a, b = x.unbind()
z = a * a * b
z.backward()
"""


def test_the_outputs_of_a_node_have_sums_of_their_own(tmp_path: Path) -> None:
    came = lines(recorded(tmp_path, UNBOUND), Received, "upstream")
    assert "∂z/∂a = 4 = 2 + 2  ← MulBackward0" in came
    assert "∂z/∂b = 1  ← MulBackward0" in came


@pytest.mark.slow
def test_of_an_op_with_very_many_inputs_the_first_derivatives_are_told(tmp_path: Path) -> None:
    path = tmp_path / "run.gradviz"
    with gradviz.record(path):
        torch.stack([torch.tensor(1.0, requires_grad=True) for _ in range(2000)])
    words = Words(open_trace(path))
    stop = next(stop for k in range(words.trace.count) if isinstance((stop := Stop(words, k)).event, OpRan))
    told = why(stop)
    assert "  … and 1,976 more" in told
    assert len(told) < 40


def test_a_derivative_is_of_the_output_that_has_a_gradient(tmp_path: Path) -> None:
    stops = _stops(tmp_path, "x = torch.tensor([[1.0, 5.0]], requires_grad=True)\nm, i = x.max(dim=1)\n", "m")
    [at] = [stop for stop in stops if isinstance(stop.event, Produced) and stop.node_name == "MaxBackward0"]
    assert [row.text for row in rows(at) if row.label == "local"] == ["∂m/∂x = 1 where chosen"]
    assert not [line for line in why(at) if "none came" in line]


def test_a_derivative_of_several_outputs_names_them(tmp_path: Path) -> None:
    stops = _stops(tmp_path, "x = torch.tensor([1.0, 5.0], requires_grad=True)\na, b = x.split(1)\n", "a * b")
    [at] = [stop for stop in stops if isinstance(stop.event, Produced) and stop.node_name == "SplitBackward0"]
    assert [row.text for row in rows(at) if row.label == "local"] == ["∂(a, b)/∂x = 1, joined"]


def test_nothing_is_summed_where_nothing_was_repeated(tmp_path: Path) -> None:
    stops = _stops(tmp_path, "x = torch.ones(2, 2, requires_grad=True)\ny = x.expand(2, 2)\n", "y.sum()")
    at = [stop for stop in stops if isinstance(stop.event, Produced) and stop.node_name == "ExpandBackward0"]
    assert [row.text for row in rows(at[0]) if row.label == "local"] == ["∂y/∂x = 1"]


def test_a_variable_that_a_loop_reuses_is_told_from_the_root_of_the_same_name(tmp_path: Path) -> None:
    program = "y = x = torch.tensor([1.0, 2.0], requires_grad=True)\nfor _ in range(2):\n    y = y * 2\n"
    stops = _stops(tmp_path, program + "y.backward(torch.ones(2))\n", "x.sum()")
    first = next(stop for stop in stops if isinstance(stop.event, Produced))
    [told] = [row.text for row in rows(first) if row.label == "downstream"]
    [by] = [row.text for row in rows(first) if row.label == "local"]
    inner = by.removeprefix("∂y/∂").removesuffix(" = 2")
    assert inner.startswith("y#")
    assert told.startswith(f"gradient of {inner} = [2, 2]")


def _stops(folder: Path, program: str, root: str) -> list[Stop]:
    """The stops of a program that ends with the backward of an expression."""
    source, path = folder / "p.py", folder / "p.gradviz"
    source.write_text(f"import gradviz.engine as torch\n{program}({root}).backward()\n")
    with gradviz.record(path):
        exec(compile(source.read_text(), str(source), "exec"), {"__name__": "p"})
    words = Words(open_trace(path))
    return [Stop(words, k) for k in range(words.trace.count)]


@pytest.mark.parametrize(
    ("value", "call", "expected"),
    [
        (0.0, "atan2", "w / (w² + w²); at (0, 0) PyTorch 2.13 defines 0"),
        (1.0, "atan2", "w / (w² + w²) = [0.5]"),
        (0.0, "hypot", "w / √(w² + w²)"),  # PyTorch's is NaN, as that of the formula
    ],
)
def test_a_derivative_that_pytorch_defines_is_not_called_equal_to_its_formula(
    tmp_path: Path, value: float, call: str, expected: str
) -> None:
    with gradviz.record(tmp_path / "point.gradviz", values="full"):
        w = torch.tensor([value], requires_grad=True)
        getattr(torch, call)(w, w).sum().backward()
    with open_trace(tmp_path / "point.gradviz") as trace:
        words = Words(trace)
        steps = [step for step in steps_of(words, 1) if words.query.tensors.op(step.made.op).op == call]
        assert local(words, steps[0]).partition(" = ")[2] == expected
