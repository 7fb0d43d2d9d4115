"""Cures of ops at the edge of their domain: the expression of the program, with an input for which it is finite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.zoo_programs import Program, checked

LEAF = "import torch\nx = torch.tensor([0.5, 1.0], requires_grad=True)\n"
ZERO = LEAF.replace("0.5, 1.0", "0.0, 1.0")
ROWS = LEAF.replace("[0.5, 1.0]", "[[0.5, 1.0], [2.0, 3.0]]")
OF_ONE = ": of a single element the unbiased estimate is 0 / 0"
OF_NONE = ": in a row of -inf alone, softmax is 0 / 0"


@pytest.mark.parametrize(
    ("program", "cure"),
    [
        (
            LEAF + "y = torch.acos(x)\ny.sum().backward()\n",
            "torch.acos(x.clamp(-1 + 1e-6, 1 - 1e-6))  # in place of torch.acos(x)",
        ),
        (
            LEAF + "y = (x * 1).clamp(-1, 1).asin()\ny.sum().backward()\n",
            "(x * 1).clamp(-1 + 1e-6, 1 - 1e-6).asin()  # in place of (x * 1).clamp(-1, 1).asin()",
        ),
        (ZERO + "y = x.sqrt()\ny.sum().backward()\n", "(x + 1e-12).sqrt()  # in place of x.sqrt()"),
        (ZERO + "y = x ** 0.5\ny.sum().backward()\n", "(x + 1e-12) ** 0.5  # in place of x ** 0.5"),
        (
            ZERO + "y = torch.pow(x, 0.5)\ny.sum().backward()\n",
            "torch.pow(x + 1e-12, 0.5)  # in place of torch.pow(x, 0.5)",
        ),
    ],
)
def test_a_singular_point_has_an_input_beside_it_as_its_cure(program: str, cure: str, tmp_path: Path) -> None:
    assert the_only_cure(program, "singular-derivative", tmp_path) == cure


@pytest.mark.parametrize(
    ("program", "cure"),
    [
        (
            LEAF + "y = x[:1] / (x[:1].std() + 1)\ny.sum().backward()\n",
            f"x[:1].std(unbiased=False)  # in place of x[:1].std(){OF_ONE}",
        ),
        (ZERO + "y = torch.log(x)\ny.sum().backward()\n", "torch.log(x.clamp(min=1e-8))  # in place of torch.log(x)"),
        (ZERO + "y = 1 / x\ny.sum().backward()\n", "1 / x.clamp(min=1e-8)  # in place of 1 / x"),
        (
            LEAF + "y = torch.acos(x + 0.1)\ny.sum().backward()\n",
            "torch.acos((x + 0.1).clamp(-1 + 1e-6, 1 - 1e-6))  # in place of torch.acos(x + 0.1)",
        ),
        (
            ROWS
            + "hidden = torch.tensor([[True, True], [False, False]])\n"
            + "y = x.masked_fill(hidden, float('-inf'))\n"
            + "torch.softmax(y, dim=1)[:, 0].sum().backward()\n",
            "x.masked_fill(hidden, torch.finfo(torch.float32).min)  # in place of "
            + "x.masked_fill(hidden, float('-inf')), line 4"
            + OF_NONE,
        ),
        (
            ROWS
            + "shown = torch.tensor([[True, False], [True, True]])\n"
            + "y = torch.where(shown, x * 2, float('-inf'))\n"
            + "(y - torch.where(shown, x, -torch.inf)).sum().backward()\n",
            "torch.where(shown, x * 2, torch.finfo(torch.float32).min)  # in place of "
            + "torch.where(shown, x * 2, float('-inf')), line 4, "
            + "and torch.where(shown, x, torch.finfo(torch.float32).min) in place of "
            + "torch.where(shown, x, -torch.inf), line 5: with -inf there, sub gives NaN",
        ),
    ],
)
def test_an_op_outside_of_its_domain_has_an_input_inside_as_its_cure(program: str, cure: str, tmp_path: Path) -> None:
    assert the_only_cure(program, "nonfinite-forward", tmp_path) == cure


def test_a_mask_whose_number_has_a_name_has_advice_alone(tmp_path: Path) -> None:
    program = (
        ROWS
        + "none = -torch.inf\ny = torch.where(x > 1, none, x)\n(y - torch.where(x > 2, none, x)).sum().backward()\n"
    )
    assert "in place of" not in cure_in(program, "nonfinite-forward", tmp_path)


def test_a_spread_that_says_by_what_it_divides_has_advice_alone(tmp_path: Path) -> None:
    program = LEAF + "y = x[:1].std(unbiased=True)\ny.backward()\n"
    assert "in place of" not in cure_in(program, "nonfinite-forward", tmp_path)


def test_a_batch_whose_targets_are_all_ignored_is_to_be_skipped(tmp_path: Path) -> None:
    program = "import torch\nx = torch.ones(2, 3, requires_grad=True)\ny = torch.full((2,), -100)\n"
    program += "loss = torch.nn.functional.cross_entropy(x, y)\nloss.backward()\n"
    found = checked(Program("ignored", "broken", program), tmp_path)
    cures = [finding.fix for finding in found if finding.rule == "nonfinite-forward"]
    assert cures == ["skip this batch: all of y is ignored, and the mean of no loss is 0 / 0"]


def the_only_cure(program: str, rule: str, folder: Path) -> str:
    """The cure of the only finding of a program, which has none with the cure applied."""
    finding = checked_finding(program, rule, folder)
    assert finding.patch is not None
    assert list(checked(Program("cured", "cured", finding.patch.after), folder)) == []
    return finding.fix


def cure_in(program: str, rule: str, folder: Path) -> str:
    return checked_finding(program, rule, folder).fix


def checked_finding(program: str, rule: str, folder: Path):  # type: ignore[no-untyped-def]
    (finding,) = checked(Program(rule, "broken", program), folder)
    assert finding.rule == rule
    return finding
