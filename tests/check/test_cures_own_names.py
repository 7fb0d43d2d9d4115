"""What a finding says of a program is true, and its cure has the program's own names."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.zoo_programs import ALL, Program, checked

BROKEN = [program for program in ALL if program.state == "broken" and not program.needs_torch]

PLAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(4):
    cost = model(torch.randn(5, 3)).pow(2).mean()
    cost.backward()
    opt.step()
"""


def told(text: str, folder: Path) -> dict[str, tuple[str, str]]:
    """The message and the cure of each rule that reports something of a program."""
    report = checked(Program("a program", "broken", text), folder)
    return {finding.rule: (finding.message, finding.fix) for finding in report}


def test_relu_of_negative_weights_is_flat_there_and_not_everywhere(tmp_path: Path) -> None:
    text = (
        "import torch\nw = torch.tensor([-1.0, -4.0], requires_grad=True)\n"
        "b = torch.tensor(1.0, requires_grad=True)\nopt = torch.optim.SGD([w, b], lr=0.1)\n"
        "for i in range(4):\n    opt.zero_grad()\n    ((torch.relu(w).sum() - b) ** 2).backward()\n    opt.step()\n"
    )
    message, cure = told(text, tmp_path)["zero-gradient"]
    assert "all elements of w are below 0, where torch.relu(w) is flat" in message
    assert cure == "start w above 0, or use torch.nn.functional.leaky_relu(w)"


@pytest.mark.parametrize("loop", ["sum(math.sqrt(v) for v in w)", "[math.sqrt(v) for v in w][0]"])
def test_elements_that_are_read_as_numbers_are_no_unused_leaf(loop: str, tmp_path: Path) -> None:
    text = (
        "import math\nimport torch\nw = torch.tensor([1.0, 4.0], requires_grad=True)\n"
        "b = torch.tensor(1.0, requires_grad=True)\nopt = torch.optim.SGD([w, b], lr=0.1)\n"
        f"for i in range(4):\n    opt.zero_grad()\n    ((b - {loop}) ** 2).backward()\n    opt.step()\n"
    )
    message, cure = told(text, tmp_path)["detached-path"]
    assert message.startswith("w never gets a gradient: math.sqrt(v) is a plain number")
    assert cure == "torch.sqrt(v)  # not math.sqrt(v)"


def test_the_cure_has_the_name_of_the_optimizer(tmp_path: Path) -> None:
    assert told(PLAIN, tmp_path)["stale-gradient"][1] == "opt.zero_grad()  # before backward()"


def test_the_cure_has_the_name_of_an_attribute_that_holds_the_optimizer(tmp_path: Path) -> None:
    text = PLAIN.replace("opt = ", "class Trainer: pass\nself = Trainer()\nself.opt = ").replace(
        "opt.step", "self.opt.step"
    )
    assert told(text, tmp_path)["stale-gradient"][1] == "self.opt.zero_grad()  # before backward()"


def test_without_a_name_for_one_of_two_optimizers_the_module_clears_its_gradients(tmp_path: Path) -> None:
    text = (
        "import torch\ntorch.manual_seed(0)\nbody, head = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)\n"
        "first, last = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (body, head))\nfor i in range(4):\n"
        "    loss = head(body(torch.randn(8, 3))).pow(2).mean()\n    first.zero_grad()\n    loss.backward()\n"
        "    first.step()\n    last.step()\n"
    )
    assert told(text, tmp_path)["stale-gradient"][1] == "head.zero_grad()  # before backward()"


NUMBER = re.compile(r"\bt\d+\b")  # of a tensor, which is gradviz's own
PLACEHOLDER = re.compile(r"(?<!\[)\.\.\.(?!\])")


@pytest.mark.parametrize("program", BROKEN, ids=lambda program: program.name)
def test_a_cure_names_only_what_the_program_has_and_no_fault_is_told_twice(program: Program, tmp_path: Path) -> None:
    report = checked(program, tmp_path)
    told = [(finding.rule, finding.line, finding.fix) for finding in report if finding.line]
    assert len(told) == len(set(told))
    for finding in report:
        assert not NUMBER.search(finding.fix), finding.fix
        for role in re.findall(r"(?<![\w.])(optimizer|scheduler|scaler|mask|loss)(?=\.\w|\))", finding.fix):
            assert re.search(rf"\b{role}\b", program.text), finding.fix
        assert not PLACEHOLDER.search(finding.fix), finding.fix


def test_grad_of_what_does_not_require_grad_is_not_called_backward(tmp_path: Path) -> None:
    text = "import torch\nx = torch.tensor(2.0)\ny = x ** 2\ntorch.autograd.grad(y, y)\n"
    findings = told(text, tmp_path)
    assert not any(message.startswith("backward()") for message, _ in findings.values())
    assert findings


LOSSES = """
import torch
import torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
x, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.soft = nn.Softmax(dim=1)
    def forward(self, x):
        return self.soft(self.fc(x))
own, listed, plain = Model(), nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1)), nn.Linear(4, 3)
out = plain(x)
LOSS.backward()
"""


@pytest.mark.parametrize(
    ("loss", "cure"),
    [
        (
            "nn.CrossEntropyLoss()(own(x), y)",
            "self.fc(x)  # in place of self.soft(self.fc(x)), line 12: softmax is part of cross_entropy",
        ),
        ("F.cross_entropy(listed(x), y)", "leave out listed[1] (Softmax): it is part of cross_entropy"),
        (
            "F.cross_entropy(F.softmax(out, dim=1), y)",
            "out  # in place of F.softmax(out, dim=1), line 15: softmax is part of cross_entropy",
        ),
        ("F.nll_loss(out.softmax(-1), y)", "torch.log_softmax(out, dim=-1)  # in place of out.softmax(-1), line 15"),
        ("F.nll_loss(listed(x), y)", "put torch.nn.LogSoftmax in the place of listed[1] (Softmax)"),
        ("F.nll_loss(out, y)", "F.nll_loss(torch.log_softmax(out, dim=1), y)"),
    ],
)
def test_what_a_loss_should_get_is_told_by_what_the_program_gives_it(loss: str, cure: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert told(LOSSES.replace("LOSS", loss), tmp_path)["wrong-loss-input"][1] == cure


def test_a_variable_called_as_a_tensor_without_a_name_keeps_its_name(tmp_path: Path) -> None:
    text = (
        "import torch\nt2 = torch.tensor([1.0, 2.0])\nt1 = torch.tensor([1.0, 2.0], requires_grad=True)\n"
        "t3 = t1 * 2\nt3.sum().backward()\nprint(t3.grad)\n"
    )
    message, cure = told(text, tmp_path)["nonleaf-grad-read"]
    assert message.startswith("t3.grad is read")
    assert cure.startswith("t3.retain_grad()")


def test_a_tensor_without_a_name_is_told_by_the_expression_that_made_it(tmp_path: Path) -> None:
    text = (
        "import torch\nw = torch.tensor([[1.0, 2.0], [0.5, 1.0]], requires_grad=True)\n"
        "b = torch.tensor(1.0, requires_grad=True)\nopt = torch.optim.SGD([w, b], lr=0.1)\nfor i in range(3):\n"
        "    opt.zero_grad()\n"
        "    loss = (torch.matmul(w, torch.zeros(2, 2, dtype=torch.float32)).sum() - b) ** 2\n"
        "    loss.backward()\n    opt.step()\n"
    )
    message, _ = told(text, tmp_path)["zero-gradient"]
    assert "multiplies it with torch.zeros(2, 2, dtype=torch.float32), which is 0" in message


def test_a_step_between_two_backwards_has_a_cure_that_mixes_no_gradients(tmp_path: Path) -> None:
    (program,) = (one for one in BROKEN if one.name == "inplace-modified: a step between two backwards")
    cure = told(program.text, tmp_path)["inplace-modified"][1]
    assert cure == "compute actor_loss below critic_optimizer.step(), with the changed parameters"


@pytest.mark.skipif(find_spec("torch") is None, reason="no PyTorch")
def test_dropout_that_is_always_on_has_its_own_arguments_in_the_cure(tmp_path: Path) -> None:
    text = (
        "import torch\ntorch.manual_seed(0)\nclass Net(torch.nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.fc, self.rate = torch.nn.Linear(4, 1), 0.3\n"
        "    def forward(self, x):\n"
        "        return torch.nn.functional.dropout(self.fc(x), self.rate, training=True)\n"
        "net = Net()\nopt = torch.optim.SGD(net.parameters(), lr=0.1)\nfor i in range(3):\n"
        "    net.train()\n    opt.zero_grad()\n    net(torch.randn(6, 4)).pow(2).mean().backward()\n    opt.step()\n"
        "    net.eval()\n    with torch.no_grad():\n        error = net(torch.randn(6, 4)).pow(2).mean()\n"
    )
    (finding,) = checked(Program("a program", "broken", text), tmp_path, engine="torch")
    cure = finding.fix.partition("  #")[0]
    assert cure == "torch.nn.functional.dropout(self.fc(x), self.rate, training=self.training)"


def test_a_loss_that_a_line_replaces_is_added_by_the_cure(tmp_path: Path) -> None:
    (program,) = (one for one in BROKEN if one.name == "off-loss-path: a sum of losses that the last term replaces")
    message, cure = told(program.text, tmp_path)["off-loss-path"]
    assert message.endswith("reaches no root: line 12 gives loss another value")
    assert cure.startswith("loss = loss + 2.0 * torch.nn.functional.mse_loss(box, corners)  # in place of loss = 2.0")


def test_a_variable_that_is_read_before_it_gets_another_value_is_not_replaced(tmp_path: Path) -> None:
    (program,) = (one for one in BROKEN if one.name == "off-loss-path: a sum of losses that the last term replaces")
    text = program.text.replace("    loss = 2.0", "    print(loss.item())\n    loss = 2.0")
    message, cure = told(text, tmp_path)["off-loss-path"]
    assert message.endswith("reaches no root")
    assert cure == "use loss in the loss, or do not compute it"


def test_a_copied_model_is_called_by_the_attribute_that_has_it_and_not_by_its_class(tmp_path: Path) -> None:
    text = (
        "import copy\nimport torch\n"
        "class Velocity(torch.nn.Linear):\n    pass\n"
        "class State:\n    def __init__(self, net):\n        self.net = net\n"
        "        self.opt = torch.optim.Adam(net.parameters(), lr=0.01)\n"
        "state = State(Velocity(3, 1))\nstate.net = copy.deepcopy(state.net)\n"
        "for i in range(4):\n    cost = state.net(torch.randn(5, 3)).pow(2).mean()\n"
        "    state.opt.zero_grad()\n    cost.backward()\n    state.opt.step()\n"
    )
    _, cure = told(text, tmp_path)["stale-optimizer"]
    assert cure.endswith("torch.optim.Adam(state.net.parameters(), lr=0.01)")


def test_a_gradient_that_was_copied_before_it_was_cleared_is_not_discarded(tmp_path: Path) -> None:
    text = (
        "import torch\ntorch.manual_seed(0)\n"
        "base, a, b = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)\n"
        "opt = torch.optim.SGD([*base.parameters(), *a.parameters(), *b.parameters()], lr=0.05)\n"
        "for i in range(6):\n    h = torch.tanh(base(torch.randn(16, 4)))\n    kept = []\n"
        "    for head in (a, b):\n        opt.zero_grad()\n"
        "        head(h).pow(2).mean().backward(retain_graph=True)\n"
        "        kept.append([p.grad.clone() for p in base.parameters()])\n"
        "    opt.zero_grad()\n"
        "    for p, one, other in zip(base.parameters(), *kept):\n        p.grad = one + other\n    opt.step()\n"
    )
    message, _ = told(text, tmp_path)["discarded-gradient"]
    assert "the gradients of pass 1 (a.weight and a.bias) are cleared before any step has used them" in message


def test_a_cure_names_nothing_that_its_line_cannot_see(tmp_path: Path) -> None:
    text = (
        "import torch\n"
        "def switch(nets, flag):\n    for net in nets:\n        for p in net.parameters():\n"
        "            p.requires_grad = flag\n"
        "def train():\n    maker, judge = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)\n"
        "    opt = torch.optim.SGD(judge.parameters(), lr=0.1)\n    switch([maker, judge], False)\n"
        "    for i in range(3):\n        opt.zero_grad()\n"
        "        judge(torch.randn(4, 3)).mean().backward()\n        opt.step()\n"
        "train()\n"
    )
    _, cure = told(text, tmp_path)["frozen-parameter"]
    assert cure == "requires_grad_(True)  # behind this line, as all that is to be trained"
