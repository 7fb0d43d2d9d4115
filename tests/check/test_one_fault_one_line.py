"""A fault is named once, on its line, and not on a line beside it that looks alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradviz import check
from gradviz.sources.script import Target, run
from tests.zoo_programs import ALL, checked

BEGIN = """\
import copy
import gradviz.engine as torch
from gradviz.engine import nn
torch.manual_seed(0)
x, y = torch.randn(8, 3), torch.randint(0, 3, (8,))
"""
MODEL = "model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))\n"
FROZEN_AFTER_A_PASS = f"""\
{MODEL}target = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = (model(x) - target(x)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.requires_grad_(False)  # <- frozen-parameter
"""
OPTIMIZER_OF_THE_AVERAGE = f"""\
{MODEL}average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.SGD(average.parameters(), lr=0.1)  # <- stale-optimizer
for step in range(4):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
TRAINED_AND_EVALUATED = f"""\
{MODEL}model.append(nn.Softmax(dim=1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = nn.functional.cross_entropy(model(x), y)  # <- wrong-loss-input
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        print(nn.functional.cross_entropy(model(x), y))
"""
LIST_OF_WHAT_A_FUNCTION_MAKES = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        def block(size):
            return nn.Sequential(nn.Linear(3, size), nn.ReLU(), nn.Linear(size, 3))
        self.blocks = [block(size) for size in (4, 5)]  # <- unregistered-parameter
        self.head = block(6)
    def forward(self, x):
        for one in self.blocks:
            x = x + one(x)
        return self.head(x)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
"""
FORCES_BESIDE_THEIR_TARGETS = """\
energy = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(energy.parameters(), lr=1e-4)
for step in range(3):
    points = torch.randn(8, 3, requires_grad=True)
    truth = points.pow(2).sum()
    force, = torch.autograd.grad(truth, points)
    made = (energy(points) + points.sum(1, keepdim=True)).sum()
    predicted, = torch.autograd.grad(made, points, retain_graph=True)  # <- missing-create-graph
    loss = (made - truth.detach()).pow(2) + (predicted - force).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
TWO_MODELS_OF_A_CLASS = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.weights = nn.Linear(3, 3), nn.Parameter(torch.zeros(3))
for weighted in (True, False):
    net = Net()
    chosen = net.parameters() if weighted else net.body.parameters()
    optimizer = torch.optim.SGD(chosen, lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        errors = nn.functional.cross_entropy(net.body(x), y) * (net.weights.exp().sum() if weighted else 1)
        errors.backward()
        optimizer.step()
"""
SEARCHED_WITHOUT_GRADIENTS = f"""\
{MODEL}searched = nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
for step in range(4):
    with torch.no_grad():
        for one in searched.parameters():
            one.add_(torch.randn(one.shape), alpha=0.1)
        print(nn.functional.cross_entropy(searched(x), y).item())
length = searched.weight.norm()
"""
WARM_UP_THAT_NOTHING_STEPS = f"""\
{MODEL}optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 4))  # <- unused-scheduler
for step in range(6):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
OPTIMIZER_OF_THE_PRETRAINED = f"""\
{MODEL}def train(net, optimizer):
    for step in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
train(model, torch.optim.SGD(model.parameters(), lr=0.1))
net = nn.Sequential(model, nn.Linear(3, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # <- stale-optimizer
model.requires_grad_(False)
train(net, optimizer)
"""
AVERAGE_OF_ITSELF = f"""\
{MODEL}average = model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        for mean, now in zip(average.parameters(), model.parameters()):
            mean.copy_(now.lerp(mean, 0.9))  # <- stale-model
"""
# So much memory comes fresh from the system, with zeros in it.
ZEROS_OF_EMPTY = """\
up = nn.Parameter(torch.empty(3, 1 << 16))  # <- uninitialised-parameter
down = nn.Parameter(torch.randn(1 << 16, 3) / 256)
optimizer = torch.optim.SGD([up, down], lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    nn.functional.cross_entropy(x @ up @ down.tanh(), y).backward()
    optimizer.step()
"""
# The biases of all layers are left out, those behind what learns and those before it.
BIASES_LEFT_OUT = """\
model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
decayed = [p for p in model.parameters() if p.ndim > 1]
rest = [p for p in model.parameters() if p.ndim <= 1]
optimizer = torch.optim.SGD([{"params": decayed, "weight_decay": 0.01}], lr=0.1)  # <- not-updated
for step in range(3):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
PART_OF_A_LIST_LEFT_OUT = """\
field, encoder, decoder = nn.Linear(4, 4), nn.Linear(3, 4), nn.Linear(4, 3)
noise = nn.Parameter(torch.zeros(()))
slow = torch.optim.SGD(field.parameters(), lr=0.01)
fast = torch.optim.SGD([*encoder.parameters(), noise], lr=0.1)  # <- not-updated
for step in range(3):
    loss = (decoder(torch.tanh(field(torch.tanh(encoder(x))))) - x).pow(2).mean() / noise.exp() + noise
    slow.zero_grad()
    fast.zero_grad()
    loss.backward()
    slow.step()
    fast.step()
"""
COLUMN_IN_TRAINING_AND_EVALUATION = """\
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    with torch.no_grad():
        print((model(x) - x.sum(1)).abs().mean().item())
    loss = (model(x) - x.sum(1)).pow(2).mean()  # <- broadcast-surprise
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LIST_IN_A_MODEL_THAT_IS_COPIED = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(3, 3) for _ in range(2)]  # <- unregistered-parameter
        self.head = nn.Linear(3, 3)
    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)
net = Net()
average = copy.deepcopy(net).requires_grad_(False)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
with torch.no_grad():
    print(average(x).argmax(1))
"""
# The note on the scale explains no clipping that comes too late.
LATE_CLIP_BESIDE_A_NOTE = """\
scale_of, shift_of, head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
optimizer = torch.optim.SGD([*scale_of.parameters(), *shift_of.parameters(), *head.parameters()], lr=0.1)
for step in range(4):
    scale = torch.tanh(scale_of(x))
    z = head(torch.tanh(shift_of(x) * scale.detach().exp()))
    loss = (z - x).pow(2).mean() - 0.1 * scale.sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    nn.utils.clip_grad_norm_([*scale_of.parameters(), *shift_of.parameters()], 1.0)
"""
PROGRAMS = {
    "biases left out": BIASES_LEFT_OUT,
    "part of a list left out": PART_OF_A_LIST_LEFT_OUT,
    "column in training and evaluation": COLUMN_IN_TRAINING_AND_EVALUATION,
    "list in a model that is copied": LIST_IN_A_MODEL_THAT_IS_COPIED,
    "zeros of empty": ZEROS_OF_EMPTY,
    "average of itself": AVERAGE_OF_ITSELF,
    "optimizer of the pretrained": OPTIMIZER_OF_THE_PRETRAINED,
    "warm-up that nothing steps": WARM_UP_THAT_NOTHING_STEPS,
    "frozen after a pass": FROZEN_AFTER_A_PASS,
    "optimizer of an average": OPTIMIZER_OF_THE_AVERAGE,
    "trained and evaluated": TRAINED_AND_EVALUATED,
    "list of blocks": LIST_OF_WHAT_A_FUNCTION_MAKES,
    "forces beside their targets": FORCES_BESIDE_THEIR_TARGETS,
}


@pytest.mark.parametrize("lines", PROGRAMS.values(), ids=PROGRAMS)
def test_a_fault_is_named_once_and_on_its_line(tmp_path: Path, lines: str) -> None:
    script, trace = tmp_path / "program.py", tmp_path / "program.gradviz"
    script.write_text(BEGIN + lines, encoding="utf-8")
    run(Target(str(script), False, []), trace, engine="numpy")
    marked = next((n, line) for n, line in enumerate((BEGIN + lines).splitlines(), 1) if "<-" in line)
    expected = (marked[1].partition("<- ")[2], marked[0])
    assert [(finding.rule, finding.line) for finding in check(trace)] == [expected]


def test_what_was_frozen_after_a_pass_is_switched_on_by_the_same_call(tmp_path: Path) -> None:
    script, trace = tmp_path / "program.py", tmp_path / "program.gradviz"
    script.write_text(BEGIN + FROZEN_AFTER_A_PASS, encoding="utf-8")
    run(Target(str(script), False, []), trace, engine="numpy")
    (finding,) = check(trace)
    assert finding.message.startswith("after pass 1, requires_grad is switched off for model.0.weight, ")
    assert finding.fix.startswith("model.requires_grad_(True)")


def test_a_note_does_not_hide_an_error_on_the_same_parameters(tmp_path: Path) -> None:
    script, trace = tmp_path / "program.py", tmp_path / "program.gradviz"
    script.write_text(BEGIN + LATE_CLIP_BESIDE_A_NOTE, encoding="utf-8")
    run(Target(str(script), False, []), trace, engine="numpy")
    found = [(finding.rule, finding.severity) for finding in check(trace)]
    assert found == [("late-clip", "error"), ("detached-path", "note")]


AVERAGE_OF_A_COPY = AVERAGE_OF_ITSELF.replace("average = model", "average = copy.deepcopy(model)")


@pytest.mark.parametrize("lines", [TWO_MODELS_OF_A_CLASS, SEARCHED_WITHOUT_GRADIENTS, AVERAGE_OF_A_COPY])
def test_what_another_part_of_the_program_is_for_is_no_fault(tmp_path: Path, lines: str) -> None:
    script, trace = tmp_path / "program.py", tmp_path / "program.gradviz"
    script.write_text(BEGIN + lines, encoding="utf-8")
    assert run(Target(str(script), False, []), trace, engine="numpy").status == 0
    assert [(finding.rule, finding.line) for finding in check(trace)] == []


def test_adapters_that_begin_as_zeros_at_one_line_are_one_finding(tmp_path: Path) -> None:
    name = "constant-start: adapters in which both factors begin as 0"
    (program,) = (one for one in ALL if one.name == name and one.state == "broken")
    (finding,) = checked(program, tmp_path)
    assert "model.0.down, model.0.up, model.2.down and model.2.up begin as 0" in finding.message
