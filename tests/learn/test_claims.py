"""What the lessons claim can be seen: each claim has a command that shows it.

`python -m tests.learn.test_claims` writes the table of docs/lessons/claims.md.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "lessons" / "claims.md"
HEAD = """# What can be seen, and by which command

Each row is a claim about autograd, a command that shows it, and what to look for in what the command prints or draws.
`gradviz trace examples/NAME.py` comes first. A test runs every row
(`tests/learn/test_claims.py`), and makes this table.

| claim | command | to be seen |
|-|-|-|
"""


class Claim(NamedTuple):
    """A claim, the example that it is about, the command after `gradviz`, and what is to be seen."""

    claim: str
    example: str
    command: str
    seen: str

    @property
    def row(self) -> str:
        command = self.command.replace("|", "\\|")
        return f"| {self.claim} | `gradviz {command}` | {self.seen} |\n"


CLAIMS = [
    Claim(
        "a tensor that the program makes is a leaf, a result is none",
        "leaves",
        'step leaves.gradviz --commands "last; info w; info product"',
        "is_leaf=False, requires_grad=True",
    ),
    Claim(
        "a result requires grad if one of its inputs does",
        "leaves",
        "graph leaves.gradviz -o leaves.dot",
        "non-leaf · requires_grad",
    ),
    Claim(
        "only a leaf that requires grad gets a .grad",
        "leaves",
        'step leaves.gradviz --commands "last; why product.grad"',
        "product is a non-leaf: an op made it",
    ),
    Claim(
        "a result has a grad_fn, which leads to those of its inputs",
        "quickstart",
        "step quickstart.gradviz --commands \"until kind == 'node' and grad_fn == 'LogBackward0'\"",
        "LogBackward0 → PowBackward0",
    ),
    Claim(
        "backward begins at the root with the gradient 1",
        "quickstart",
        "step quickstart.gradviz --commands \"until kind == 'pass_began'\"",
        "backward pass 1 begins at z, with gradient 1",
    ),
    Claim(
        "the picture says which tensor is the root",
        "quickstart",
        "graph quickstart.gradviz -o quickstart.dot",
        "requires_grad · root",
    ),
    Claim(
        "upstream × local = downstream",
        "quickstart",
        "step quickstart.gradviz --commands \"until kind == 'produced' and grad_fn == 'PowBackward0'\"",
        "PowBackward0 gives 0.6 to x: 0.008 × 75",
    ),
    Claim(
        "the local derivative stands at each gate",
        "quickstart",
        "graph quickstart.gradviz --style textbook -o quickstart.dot",
        "∂y/∂x = 3 · x² = 75",
    ),
    Claim(
        "the gradients of several paths are summed",
        "many_paths",
        "step many_paths.gradviz --commands \"until kind == 'accumulated'\"",
        "∂z/∂x = 1 + 0.6 = 1.6",
    ),
    Claim(
        "backward() adds to .grad: two amounts in the stepper",
        "accumulation",
        "step accumulation.gradviz --commands \"until kind == 'accumulated' and pass == 2\"",
        "x.grad accumulates: 0.6 (before) + 0.6 = 1.2",
    ),
    Claim(
        "... and in the picture",
        "accumulation",
        "graph accumulation.gradviz --pass 2 -o accumulation.dot",
        "= 0.6 (before) + 0.6",
    ),
    Claim(
        "a gradient that is set to 0 in between begins anew",
        "accumulation",
        'step accumulation.gradviz --commands "last; why x.grad"',
        "x.grad.zero_() changes x.grad in place: 1.2 → 0",
    ),
    Claim(
        "a second backward needs retain_graph=True",
        "accumulation",
        'step accumulation.gradviz --commands "nan"',
        "RuntimeError at LogBackward0: Trying to backward through the graph a second time",
    ),
    Claim(
        "retain_grad() keeps the gradient of a non-leaf",
        "retain_grad",
        "graph retain_grad.gradviz -o retain_grad.dot",
        "retains grad",
    ),
    Claim("detach() cuts the graph", "detach", "graph detach.gradviz -o detach.dot", "gradient stops here"),
    Claim(
        "three ways to freeze: requires_grad=False",
        "freezing",
        'step freezing.gradviz --commands "last; why frozen.grad"',
        "frozen.grad is None: frozen does not require grad",
    ),
    Claim(
        "... no_grad",
        "freezing",
        'step freezing.gradviz --commands "last; why unrecorded.grad"',
        "unrecorded.grad is None: unrecorded does not require grad",
    ),
    Claim(
        "... detach",
        "freezing",
        'step freezing.gradviz --commands "last; why cut.grad"',
        "cut.grad is None: cut does not require grad",
    ),
    Claim(
        "... and the three side by side",
        "freezing",
        'step freezing.gradviz --commands "last; variables"',
        "unrecorded [3, 8] False True None None cut [2, 4] False True None None",
    ),
    Claim(
        "create_graph=True makes the gradient differentiable",
        "double_backward",
        "step double_backward.gradviz --commands \"until kind == 'pass_began' and pass == 2\"",
        "backward pass 2 begins at first, with gradient 1, for x",
    ),
    Claim(
        "forward and reverse accumulation give the same derivative",
        "forward_and_reverse",
        'step forward_and_reverse.gradviz --commands "last; compare"',
        "the sum of tangent × gradient over the inputs equals tangent × gradient of the output: 2 and 2",
    ),
    Claim(
        "a custom backward is a node like any other",
        "custom_function",
        "graph custom_function.gradviz -o custom_function.dot",
        "grad_fn=PowerBackward",
    ),
    Claim(
        "broadcasting in forward is a sum in backward",
        "broadcasting",
        "step broadcasting.gradviz --commands \"until kind == 'produced' and grad_fn == 'AddBackward0'; why\"",
        "summed over dim 0 = [4, 4, 4]",
    ),
    Claim(
        "zero_grad() sets .grad to None",
        "zero_grad",
        "step zero_grad.gradviz --commands \"until kind == 'grads_cleared'\"",
        "SGD.zero_grad() sets the gradient of w to None",
    ),
    Claim(
        "an optimizer step is w − lr · grad",
        "optimizer_step",
        "step optimizer_step.gradviz --commands \"until kind == 'mutated'\"",
        "w − lr · w.grad = 3 − 0.1 · 6 = 2.4",
    ),
    Claim(
        "... with momentum a part of the steps before is added",
        "optimizer_step",
        "step optimizer_step.gradviz --commands \"until kind == 'mutated'; until kind == 'mutated'\"",
        "w − lr · (momentum · buffer + w.grad) = 2.4 − 0.1 · (0.5 · 6 + 4.8) = 1.62",
    ),
    Claim(
        "a saved tensor that is changed in place is noticed",
        "in_place",
        'step in_place.gradviz --commands "nan; why"',
        "it saved y at version 0",
    ),
    Claim(
        "0 × ∞ is NaN",
        "nan",
        'step nan.gradviz --commands "nan; why"',
        "NaN in gradient of w first appears here: no input has one",
    ),
    Claim("each iteration makes its own graph", "control_flow", "info control_flow.gradviz", "passes 2, of 2 shapes"),
    Claim(
        "... side by side in one picture",
        "control_flow",
        "graph control_flow.gradviz --pass 1 --pass 2 -o control_flow.dot",
        "control_flow.py · passes 1 and 2 of 2",
    ),
    Claim(
        "... and what differs in words",
        "control_flow",
        "diff control_flow.gradviz --pass 1 --pass 2",
        "− control_flow.py:9 add in x + 1",
    ),
]


def table() -> str:
    """The page."""
    return HEAD + "".join(claim.row for claim in CLAIMS)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.claim)
def test_a_claim_is_seen_where_the_table_says(
    claim: Claim, gradviz_here: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    gradviz_here("trace", "--engine", "numpy", str(ROOT / "examples" / f"{claim.example}.py"))
    words = shlex.split(claim.command)
    shown = gradviz_here(*words).stdout
    if "-o" in words:
        shown = (tmp_path / words[words.index("-o") + 1]).read_text(encoding="utf-8")
    assert claim.seen in " ".join(shown.split()), shown


def test_the_page_has_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == table()


if __name__ == "__main__":
    PAGE.write_text(table(), encoding="utf-8")
