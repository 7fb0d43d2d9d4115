"""The cure of a finding, applied: by `check --try-cures` to a copy of a script, and to each program of the zoo."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from gradviz.diagnose.fix import Patch, SourceText
from tests.invoked import invoked
from tests.zoo_programs import ALL, Program, checked

BROKEN = [program for program in ALL if program.state == "broken" and not program.needs_torch]
ON_TORCH = [program for program in ALL if program.state == "broken" and program.needs_torch]
ADVISED_RULES = {
    "exploding-gradient", "lost-update", "nonfinite-gradient", "off-loss-path", "recreated-parameter",
    "saturated-activation", "update-ratio", "vanished-lr", "vanishing-gradient", "wrong-custom-gradient",
}  # fmt: skip
ADVISED = {
    "ascent: a move uphill that is never taken back",
    "stale-model: a target that is the net itself, and frozen",
    "stale-model: a teacher that stops following",
    "gradient-leak: an attack whose pass is not cleared",
    "broken-tie: an autoencoder with transposed weights",
    "clip-before-unscale: a scale by hand",
    "constant-output: cross_entropy of one class",
    "detached-path: a mask that is made to require grad",
    "discarded-gradient: a window in which no step runs",
    "discarded-gradient: the trunk is cleared for each of three tasks",
    "stale-optimizer: an adversary's optimizer that holds the decoder",
    "stale-optimizer: an optimizer of copies of tensors that are no Parameters",
    "stale-optimizer: the second of two optimizers holds what the first holds",
    "zero-gradient: all that learns is multiplied with 0",
    "detached-path: a distillation that compares the teacher with itself",
    "detached-path: a distillation that compares the student with itself, through a function",
    "detached-path: the divergence of a posterior from itself",
    "unused-scheduler: a schedule of the optimizer that another one has replaced",
    "detached-path: a mask behind a threshold that is made a new leaf",
    "detached-path: a scored pooling that uses only the indices of topk",
    "detached-path: a Function that returns no gradient for a parameter",
    "detached-path: accuracy as a loss",
    "detached-path: a scaling in NumPy",
    "detached-path: a choice by argmax and one_hot",
    "detached-path: the share of errors is minimised, and its gradients are clipped",
    "frozen-parameter: a discriminator that stays frozen",
    "frozen-parameter: adapters that begin with 0 are frozen",
    "frozen-parameter: the new head too",
    "inplace-modified: a call of PyTorch's that changes what it has saved itself",
    "inplace-modified: a step between two backwards",
    "late-clip: a clipping in a step that another function ends",
    "late-clip: clamped in a loop, before zero_grad",
    "missing-create-graph: a function whose backward makes no graph",
    "no-backward: never called",
    "inplace-modified: a version that is counted by hand, where no write is known",
    "inplace-modified: the weight of a batch norm, which keeps running statistics",
    "nonfinite-forward: the mean of a selection that is empty",
    "nonfinite-forward: NaN in the data",
    "nonfinite-forward: features that are divided by 0, outside of the graph",
    "none-grad: cleared before it is read",
    "none-grad: a step by hand makes a new tensor",
    "none-grad: what grad() returned is elsewhere",
    "nonscalar-backward: a gradient of another shape",
    "not-updated: a bias by hand",
    "not-updated: a condition that never holds",
    "not-updated: rates that are clamped and never stepped on",
    "not-updated: weights that each forward casts to their own dtype, without a step",
    "restricted-backward: autograd.grad of the first weights",
    "scheduler-order: in a trainer",
    "scheduler-order: a schedule stepped per micro-batch",
    "silent-write: an alias that was saved",
    "singular-derivative: a row of zeros that is normalised",
    "stale-graph: a scale that is derived once",
    "stale-graph: a closure that evaluates the loss of old values",
    "stale-graph: a closure that runs no pass",
    "stale-graph: prototypes of an encoder that is trained",
    "stale-optimizer: another head",
    "stale-optimizer: another head for a trainer that has its optimizer",
    "stale-optimizer: two optimizers that step with the same gradients",
    "unscaled-accumulation: the mean of a short last batch, summed with others",
    "unused-parameter: a bias",
    "unused-parameter: a layer that is initialised and never called",
    "stale-gradient: the norms of two losses are read without clearing between",
    "zero-gradient: a part of joined columns that no loss reads",
    "zero-gradient: outputs that are clamped away",
    "zero-gradient: a critic whose own loss is clamped away, and that its actor's loss goes through",
    "constant-start: adapters in which both factors begin as 0",
    "constant-start: matrices of zeros",
    "restarted-optimizer: a function that makes its optimizer",
    "restarted-optimizer: a model that is made for each batch",
    "detached-path: an array of NumPy in a function that is called without grad mode before",
    "unused-scheduler: a schedule of a trainer that it does not follow",
    "zero-gradient: bytes that are scaled to 0 by a division of integers",
    "wrong-mode: an average of the weights without statistics",
    "graph-leak: the rows of what was moved by its gradients",
    "wrong-mode: a part of a model without a forward that stays in evaluation mode",
    "not-updated: weights that learn by turns, where the wrong optimizer steps for one of them",
    "zero-gradient: the last state of one direction alone",
    "broadcast-surprise: a bias of each item that is a column",
    "discarded-gradient: a step behind the loop over batches whose gradients are clipped",
    "stale-model: a target network that is the network, and follows it by products",
    "stale-model: an average by mul_ and add_ in a dict that shares the memory of the weights",
    "stale-model: an average in tensors that share the memory of the weights",
    "stale-model: an average that is the model, by mul_ and add_",
    "not-updated: an optimizer of a table that a helper steps in the place of another",
}
TYPED = {
    "off-loss-path: the volume of the last layer of a flow alone",
    "off-loss-path: the balance of the last layer alone, kept as an attribute",
    "off-loss-path: a result that is thrown away",
    "off-loss-path: gradients that are scaled in new tensors",
    "off-loss-path: a sum of losses that the last term replaces",
    "off-loss-path: terms that an inner loop replaces",
    "off-loss-path: the balance of the last layer alone",
    "off-loss-path: an image that is to stay in its range",
    "off-loss-path: a bonus of each episode, of which the last is kept",
    "off-loss-path: a penalty of each turn, of which the last is kept",
    "off-loss-path: the loss of each task, of which the last is kept",
    "off-loss-path: an average in a dictionary that no line writes to",
    "off-loss-path: a loss that the next line replaces by its second term",
    "lost-update: some rows of a gradient, by a list",
    "lost-update: a pruned column of some rows",
    "lost-update: known vectors for some words",
    "lost-update: a mask that is written to",
}  # of the rules whose cures are advice
FORGOTTEN = """
import sys
import torch
torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
x = torch.randn(16, 3)
for i in range(int(sys.argv[1])):
    loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
    loss.backward()
    opt.step()
print("trained")
"""


def is_advice(program: Program) -> bool:
    return program.name not in TYPED and (program.rule in ADVISED_RULES or program.name in ADVISED)


def cure_in(program: Program, folder: Path, engine: str = "numpy") -> Patch | None:
    return checked(program, folder, engine=engine).findings[0].patch


@pytest.mark.parametrize("program", [p for p in BROKEN if not is_advice(p)], ids=lambda program: program.name)
def test_with_the_cure_of_a_broken_program_its_finding_is_gone_and_none_is_new(
    program: Program, tmp_path: Path
) -> None:
    before = checked(program, tmp_path)
    cure = before.findings[0].patch
    assert cure is not None
    cured = Program(program.name, "cured", cure.after)
    after = checked(cured, tmp_path)
    line = cure.line_after(before.findings[0].line)
    assert (program.rule, line) not in [(finding.rule, finding.line) for finding in after], cure.diff
    known = {(f.rule, cure.line_after(f.line)) for top in before for f in (top, *top.consequences)}
    assert [f.message for f in after.at_least("warning") if (f.rule, f.line) not in known] == [], cure.diff


def test_a_probability_becomes_its_logarithm_once(tmp_path: Path) -> None:
    text = "import torch\nF = torch.nn.functional\nx = torch.randn(3, 4, requires_grad=True)\n"
    text += "F.nll_loss(F.softmax(x, dim=1), torch.tensor([0, 1, 2])).backward()\n"
    cure = cure_in(Program("probabilities", "broken", text), tmp_path)
    assert cure is not None
    assert cure.after.splitlines()[-1] == ("F.nll_loss(F.log_softmax(x, dim=1), torch.tensor([0, 1, 2])).backward()")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="no PyTorch")
@pytest.mark.parametrize("program", [p for p in ON_TORCH if not is_advice(p)], ids=lambda p: p.name)
def test_with_the_cure_of_a_program_for_pytorch_there_is_no_finding(program: Program, tmp_path: Path) -> None:
    cure = cure_in(program, tmp_path, "torch")
    assert cure is not None
    after = checked(Program(program.name, "cured", cure.after), tmp_path, engine="torch")
    assert [f.message for f in after.at_least("warning")] == [], cure.diff


def test_the_programs_whose_cure_is_advice_are_there() -> None:
    assert {program.name for program in ALL} >= ADVISED
    assert {program.rule for program in ALL} >= ADVISED_RULES


@pytest.mark.parametrize("program", [p for p in BROKEN if is_advice(p)], ids=lambda program: program.name)
def test_a_cure_that_is_advice_is_no_edit(program: Program, tmp_path: Path) -> None:
    assert cure_in(program, tmp_path) is None


def test_the_first_cure_is_tried_on_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(FORGOTTEN)
    result = invoked(["check", "--engine", "numpy", "--try-cures", "--diff", "train.py", "20"])
    assert result.exit_code == 1
    assert "+    opt.zero_grad()\n     loss.backward()" in result.stdout
    last = result.stdout.splitlines()[-1]
    assert last.startswith("with the cure: net.weight.grad rms ")
    assert ", finding gone, loss " in last
    assert last.endswith(" in 20 steps")
    assert script.read_text() == FORGOTTEN
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.gradviz", "train.py"]


def test_the_edits_of_cures_are_shown_without_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(FORGOTTEN)
    invoked(["trace", "--engine", "numpy", "train.py", "3"])
    shown = invoked(["check", "--diff", "train.gradviz"]).stdout
    assert "--- a/train.py\n+++ b/train.py\n" in shown
    assert "+    opt.zero_grad()\n     loss.backward()" in shown
    (finding,) = json.loads(invoked(["check", "--format", "json", "train.gradviz"]).stdout)["findings"]
    assert finding["edits"] == [
        {
            "file": "train.py", "line": 10, "column": 5, "end_line": 10, "end_column": 5,
            "text": "opt.zero_grad()\n    ",
        }
    ]  # fmt: skip


@pytest.mark.slow
def test_what_became_of_a_cure_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(FORGOTTEN)
    arguments = ["check", "--engine", "numpy", "--try-cures", "--format", "json", "train.py", "20"]
    printed = invoked(arguments).stdout
    tried = json.loads(printed[printed.index("{") :])["tried"]
    first, last = tried.pop("loss")
    assert last < first
    assert "+    opt.zero_grad()" in tried.pop("patch")
    assert tried == {
        "rule": "stale-gradient", "line": 10, "applied": True, "problem": None, "gone": True, "new": [], "steps": 20,
    }  # fmt: skip


@pytest.mark.slow
def test_a_fault_in_a_module_beside_the_script_is_cured_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("")
    (tmp_path / "parts" / "loss.py").write_text("def loss_of(net, x):\n    return net(x).detach().pow(2).mean()\n")
    (tmp_path / "numbers.txt").write_text("3")
    (tmp_path / "train.py").write_text(
        "import torch\nfrom pathlib import Path\nfrom parts.loss import loss_of\n"
        "n = int((Path(__file__).parent / 'numbers.txt').read_text())\n"
        "net = torch.nn.Linear(n, 1)\nloss_of(net, torch.ones(2, n)).backward()\n"
    )
    result = invoked(["check", "--engine", "numpy", "--try-cures", "train.py"])
    assert "finding gone" in result.stdout.splitlines()[-1]
    assert ".detach()" in (tmp_path / "parts" / "loss.py").read_text()


def test_advice_is_not_tried_and_no_finding_has_no_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "argmax.py").write_text(
        "import torch\nnet = torch.nn.Linear(3, 2)\nloss = net(torch.ones(4, 3)).argmax(1).float().mean()\n"
        "loss.backward()\n"
    )
    (tmp_path / "sound.py").write_text(
        "import torch\nw = torch.ones(2, requires_grad=True)\n(w * w).sum().backward()\n"
    )
    advised = invoked(["check", "--engine", "numpy", "--try-cures", "argmax.py"])
    assert "not tried  the cure of detached-path: this cure is advice" in advised.stdout
    sound = invoked(["check", "--engine", "numpy", "--try-cures", "sound.py"])
    assert sound.stdout.splitlines()[-1] == "no finding, so there is no cure to be tried"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--try-cures", "run.gradviz"], "--try-cures runs the program again, so it needs SCRIPT"),
        (["--try-cures", "--format", "sarif", "train.py"], "--try-cures goes with --format text or json"),
        (["--try-cures", "-m", "train"], "--try-cures needs a SCRIPT"),
    ],
)
def test_cures_are_tried_of_a_script_only(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = invoked(["check", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr


def test_an_edit_of_a_program_leaves_its_other_lines_and_characters_as_they_are() -> None:
    text = "for é in 'a':\n    with no_grad():  # why\n        x = '가' + f(é)\n\n        y = 2  # two\nz = 3\n"
    source = SourceText(text)
    block = source.statement_at(2)
    edits = source.without_header(block)  # type: ignore[arg-type]
    assert source.edited(edits) == "for é in 'a':\n    x = '가' + f(é)\n\n    y = 2  # two\nz = 3\n"
