"""A cure can be typed: it names an expression of the program, never a number of gradviz's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.zoo_programs import Program, checked


def training_that_keeps(keeps: str) -> str:
    """A program that keeps its state by a line, and loads it at the end."""
    return f"""
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 1:
        {keeps}
net.load_state_dict(kept)
"""


CURES = {
    "detach() at the end of a call": (
        """
torch.manual_seed(0)
encoder, head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
for step in range(3):
    features = encoder(torch.randn(8, 4)).detach()
    optimizer.zero_grad()
    head(features).pow(2).mean().backward()
    optimizer.step()
""",
        "encoder(torch.randn(8, 4))  # without .detach()",
    ),
    "a state that is carried from step to step": (
        """
torch.manual_seed(0)
cell = torch.nn.Linear(4, 4)
memory = torch.zeros(2, 4)
for step in range(2):
    memory = torch.tanh(cell(memory) + torch.randn(2, 4))
    memory.pow(2).mean().backward()
""",
        "memory = memory.detach()  # between two rounds, or compute it again in each iteration",
    ),
    "a result of the same iteration, in two losses": (
        """
torch.manual_seed(0)
actor, weight = torch.nn.Linear(4, 1), torch.ones(1, requires_grad=True)
for step in range(2):
    chance = torch.tanh(actor(torch.randn(8, 4)))
    chance.mean().backward()
    loss = (weight * (chance - 1.0)).mean()
    loss.backward()
""",
        "chance = chance.detach()  # before line 8, or compute it again in each iteration",
    ),
    "a sum of losses that keeps their graphs": (
        """
torch.manual_seed(0)
net, seen = torch.nn.Linear(4, 1), 0.0
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    loss = net(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    seen += loss
""",
        "seen += loss.item()  # or loss.detach()",
    ),
    "an average of losses that keeps their graphs": (
        """
torch.manual_seed(0)
net, mean = torch.nn.Linear(4, 1), torch.zeros(1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    loss = net(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    mean = 0.9 * mean + 0.1 * loss
""",
        "mean = (0.9 * mean + 0.1 * loss).detach()",
    ),
    "a state that shares the memory of its model": (
        training_that_keeps("kept = net.state_dict()"),
        "kept = copy.deepcopy(net.state_dict())  # or {k: v.clone() for k, v in net.state_dict().items()}",
    ),
    "a state that is kept beside a number": (
        training_that_keeps("lowest, kept = loss.item(), net.state_dict()"),
        "copy.deepcopy(net.state_dict())  # or {k: v.clone() for k, v in net.state_dict().items()}",
    ),
    "a state that has another maker": (
        training_that_keeps("kept = {key: value.detach() for key, value in net.named_parameters()}"),
        "value.detach().clone()",
    ),
    "a rounding of what has no name": (
        """
w = torch.tensor([2.0, 3.0], requires_grad=True)
(w * 3).round().sum().backward()
""",
        "(w * 3) + ((w * 3).round() - (w * 3)).detach()  # a straight-through estimator",
    ),
    "a second pass": (
        """
x = torch.tensor([2.0, 3.0], requires_grad=True)
y = x ** 2
y.backward(torch.ones(2))
y.backward(torch.ones(2))
""",
        "y.backward(torch.ones(2), retain_graph=True)  # at line 5, if both passes are meant",
    ),
    "a vector as a root": (
        """
x = torch.tensor([2.0, 3.0], requires_grad=True)
y = x ** 2
y.backward()
""",
        "y.sum().backward()  # or .mean()",
    ),
    "a gradient of another shape": (
        """
x = torch.tensor([2.0, 3.0], requires_grad=True)
y = x ** 2
y.backward(torch.ones(3))
""",
        "y.backward(torch.ones_like(y))  # or with other weights of its shape",
    ),
    "a gradient of another shape given to grad()": (
        """
x = torch.tensor([2.0, 3.0], requires_grad=True)
y = x ** 2
torch.autograd.grad(y, x, torch.ones(3))
""",
        "give a gradient of the shape [2]",
    ),
    "a leaf that is updated in place": (
        """
w = torch.tensor([2.0, 3.0], requires_grad=True)
(w ** 2).sum().backward()
w -= 0.1 * w.grad
""",
        "with torch.no_grad(): w -= 0.1 * w.grad",
    ),
    "a leaf whose result in place is needed": (
        """
w = torch.tensor([2.0, 3.0], requires_grad=True)
y = w.mul_(2)
y.sum().backward()
""",
        "w.mul(2)  # a new tensor, not w.mul_(2)",
    ),
    "a rounded weight": (
        """
w = torch.tensor([1.3, 2.7], requires_grad=True)
y = (w.round() * 3).sum()
y.backward()
""",
        "w + (w.round() - w).detach()  # a straight-through estimator",
    ),
    "the data of a tensor": (
        """
torch.manual_seed(0)
first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    second(first(torch.randn(8, 4)).data).pow(2).mean().backward()
    optimizer.step()
""",
        "use the tensor itself, without .data",
    ),
}


@pytest.mark.parametrize(("text", "cure"), CURES.values(), ids=CURES)
def test_a_cure_names_what_the_program_calls_it(text: str, cure: str, tmp_path: Path) -> None:
    report = checked(Program("cure", "broken", f"import torch\n{text}"), tmp_path)
    assert report.findings[0].fix == cure
