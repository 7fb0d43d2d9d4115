"""Questions of beginners that were answered wrongly once: the stepper's answers, on either engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from gradviz.errors import GradvizError
from gradviz.explain.origin import NoAnswer, why
from gradviz.graph.build import build
from gradviz.pictures.render import svg
from gradviz.sources.script import Target, run
from gradviz.step.screen import Screen
from gradviz.step.state import Session
from gradviz.step.timeline import timeline
from gradviz.step.verbs import obey
from gradviz.tracefile import open_trace
from gradviz.words import Stop, Words
from gradviz.words.sentences import sentence

BY_HAND = """\
import torch
w = torch.tensor([1.0, 2.0], requires_grad=True)
for _ in range(3):
    (w * w).sum().backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
    w.grad.zero_()
"""
NEVER_CHANGED = """\
import torch
w = torch.tensor([1.0, 2.0], requires_grad=True)
for _ in range(3):
    (w * w).sum().backward()
"""
REPLACED = """\
import torch
w = torch.tensor([1.0, 2.0], requires_grad=True)
(w * w).sum().backward()
w = w - 0.1 * w.grad
"""
CUT = """\
import torch
x = torch.tensor(2.0, requires_grad=True)
y = x * x
z = y.detach() * 3.0
z.sum().backward()
"""
MASKED = """\
import torch
x = torch.tensor([[1.0, 2.0]], requires_grad=True)
s = x.masked_fill(torch.tensor([[True, True]]), float("-inf"))
p = torch.softmax(s, -1)
p.sum().backward()
"""
NETWORKS = """\
import torch
G = torch.nn.Sequential(torch.nn.Linear(2, 2))
D = torch.nn.Sequential(torch.nn.Linear(2, 1))
D(G(torch.ones(1, 2))).sum().backward()
"""

NAMED_MID = """\
import torch
x = torch.ones(2)
mid = (2 * x).requires_grad_(True)
(mid**2).sum().backward()
"""
NAMED_INSIDE = """\
import torch
def made():
    mid = torch.tensor([1.0, 2.0], requires_grad=True)
    return mid
loss = (made() ** 2).sum()
loss.backward()
"""
WRONG_SHAPE = """\
import torch
w = torch.ones(2, 3, requires_grad=True)
h = w * 2.0
h @ torch.ones(2, 3)
"""
ARGUMENTS = """\
import torch
import torch.nn.functional as F
x = torch.tensor([[0.5, 0.2], [0.3, 0.9]], requires_grad=True)
rows = x[torch.tensor([1, 0])] + x[[0, 1]] + x.masked_fill(x > 0.4, 0.0)
loss = F.nll_loss(F.log_softmax(rows, -1), torch.tensor([0, 1]), weight=torch.tensor([1.0, 2.0]))
loss = loss + F.binary_cross_entropy(x, torch.ones(2, 2)) + F.max_pool2d(x[None, None], 2).sum()
loss.backward()
"""

CAUGHT = """\
import torch
x = torch.tensor([1.0, 2.0], requires_grad=True)
y_2 = x * 2
try:
    y_2.backward()
except RuntimeError:
    pass
y_2.sum().backward()
"""
REFUSED = "backward on y_2 was refused: grad can be implicitly created only for scalar outputs"
Answer = Callable[[str, str], str]


@pytest.fixture(
    params=["numpy", pytest.param("torch", marks=pytest.mark.skipif(not find_spec("torch"), reason="no PyTorch"))]
)
def traced(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Path]:
    """The trace of a program."""

    def trace(program: str) -> Path:
        script = tmp_path / "lesson.py"
        script.write_text(program)
        run(Target(str(script), False, ()), tmp_path / "run.gradviz", engine=request.param)
        return tmp_path / "run.gradviz"

    return trace


@pytest.fixture
def answer(traced: Callable[[str], Path]) -> Answer:
    """What the stepper answers at the end of a program."""

    def ask(program: str, command: str) -> str:
        with open_trace(traced(program)) as trace:
            session = Session(trace)
            obey(session, "last")
            for part in command.split("; "):
                obey(session, part)
            return "\n".join([*session.page, session.message])

    return ask


def test_a_leaf_that_is_updated_without_grad_mode_requires_grad_and_is_one(answer: Answer) -> None:
    assert "w.grad is 0: it was set to 0 at event" in answer(BY_HAND, "why w.grad")
    assert answer(BY_HAND, "leaves").count("\n  w ") == 1


@pytest.mark.parametrize("command", ["nan", "until error"])
def test_a_backward_that_was_refused_is_an_event(traced: Callable[[str], Path], command: str) -> None:
    with open_trace(traced(CAUGHT)) as trace:
        session = Session(trace)
        obey(session, command)
        assert sentence(session.stop) == REFUSED
        assert len(trace.errors) == 1


def test_a_refused_backward_that_ends_the_script_is_told_once(traced: Callable[[str], Path]) -> None:
    uncaught = CAUGHT.replace("try:\n    ", "").replace("except RuntimeError:\n    pass\n", "")
    with open_trace(traced(uncaught)) as trace:
        session = Session(trace)
        obey(session, "nan")
        assert sentence(session.stop) == f"{REFUSED} (it ends the script)"
        assert len(trace.errors) == 1


def test_a_refused_backward_is_no_reason_to_draw_the_pass_after_it(traced: Callable[[str], Path]) -> None:
    with open_trace(traced(CAUGHT + "x.grad = None\n(x * 3).exp().sum().backward()\n")) as trace:
        assert build(trace).pass_number == 2


def test_a_change_of_the_gradient_is_none_of_the_leaf(answer: Answer) -> None:
    told = answer(NEVER_CHANGED, "info w").splitlines()
    assert [line.split()[2:] for line in told if line.strip().startswith("changed at")] == [["event", "1"]]


def test_a_leaf_that_was_replaced_is_to_be_updated_in_place(answer: Answer) -> None:
    told = answer(REPLACED, "why w.grad")
    assert "w is a non-leaf since event" in told
    assert "with torch.no_grad(): w -= 0.1 * w.grad" in told
    assert "retain_grad" not in told


def test_what_cuts_a_leaf_off_is_named(answer: Answer) -> None:
    told = answer(CUT, "why x.grad")
    assert "cut at event" in told
    assert "line 4: y.detach()" in told


def test_the_nan_is_found_before_the_infinities_and_born_where_no_input_has_one(answer: Answer) -> None:
    told = answer(MASKED, "nan; why")
    assert "NaN in p first appears here: no input has one, but s contains infinities" in told


def test_two_networks_have_names_of_their_own(answer: Answer) -> None:
    told = answer(NETWORKS, "leaves")
    assert all(f"\n  {name}" in told for name in ("G.0.weight", "G.0.bias", "D.0.weight", "D.0.bias"))


@pytest.mark.parametrize("program", [NAMED_MID, NAMED_INSIDE])
def test_a_tensor_is_found_by_its_name_wherever_it_was_named(program: str, answer: Answer) -> None:
    told = answer(program, "info mid")
    assert told.startswith("mid (tensor ")
    assert "did you mean" not in told
    told = answer(program, "first; until mutation or backward; info mid")
    assert told.startswith("mid (tensor ")


def test_before_a_tensor_is_there_its_name_is_known(answer: Answer) -> None:
    assert answer(NAMED_MID, "first; info mid") == "mid does not exist yet at event 1: event 2 makes it\n"


def test_a_name_that_is_not_there_is_answered_with_one_that_is_near(answer: Answer) -> None:
    with pytest.raises(GradvizError, match="no tensor is called mdi: did you mean mid\\?"):
        answer(NAMED_MID, "info mdi")


@pytest.mark.parametrize(("program", "error"), [(CUT, "does not require grad"), (WRONG_SHAPE, "mat1 and mat2")])
def test_the_time_line_ends_with_the_error_that_ended_the_script(
    program: str, error: str, traced: Callable[[str], Path]
) -> None:
    with open_trace(traced(program)) as trace:
        session = Session(trace)
        assert re.fullmatch(r" event 1 of \d ●─+✗─* forward", timeline(session, 78).plain)
        obey(session, "nan")  # the first NaN, or the first error
        assert session.position == session.last
        screen = "\n".join(line.plain for line in Screen(session).lines(80, 24))
        assert "RuntimeError" in screen
        assert error in " ".join(screen.split())


def test_why_at_that_error_names_what_cut_the_graph(answer: Answer) -> None:
    told = answer(CUT, "nan; why")
    assert "does not require grad" in told
    assert "x.grad is None: the path from it to" in told
    assert "line 4: y.detach()" in told


@pytest.mark.slow
def test_the_arguments_in_a_picture_are_those_of_the_program(traced: Callable[[str], Path]) -> None:
    with open_trace(traced(ARGUMENTS)) as trace:
        graph = build(trace, whole=True)
        shown = [node.args for node in graph.nodes.values()] + [svg(graph)]
        shown += [sentence(Stop(Words(trace), k)) for k in range(trace.count)]
    assert any("masked_fill" in text for text in shown)
    inside = re.compile(r"np\.|array\(|array of s|<[a-z_.]+ object at|dtype=")
    assert [text[:200] for text in shown if inside.search(text)] == []


def test_why_names_the_backward_that_returned_none_and_no_pass_as_one_with_a_gradient(tmp_path: Path) -> None:
    script, trace = tmp_path / "none.py", tmp_path / "none.gradviz"
    script.write_text(
        "import torch\nclass Scaled(torch.autograd.Function):\n    @staticmethod\n"
        "    def forward(ctx, x, s):\n        ctx.save_for_backward(s)\n        return x * s\n    @staticmethod\n"
        "    def backward(ctx, grad):\n        (s,) = ctx.saved_tensors\n        return grad * s, None\n"
        "x, s = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)\n"
        "Scaled.apply(x, s).sum().backward()\n",
        encoding="utf-8",
    )
    assert run(Target(str(script), False, ()), trace, engine="numpy").status == 0
    with pytest.raises(NoAnswer) as answer:
        why(str(trace), "s")
    said = r"s\.grad is None: the backward of Scaled returned None on the way to it at event \d+, line 10$"
    assert re.search(said, str(answer.value))
