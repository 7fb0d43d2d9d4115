"""Stepping through a trace: the session, the sentences and the plain text."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from rich.cells import cell_len

import gradviz.engine as torch
from gradviz.events import kinds as k
from gradviz.sources.record import record
from gradviz.step.plain import commands, script
from gradviz.step.screen import Screen
from gradviz.step.showing import WIDTH, describe
from gradviz.step.state import CommandError, Session
from gradviz.step.terminal import Keys
from gradviz.step.verbs import BY_KEY, GROUPS, LESSON, RANKS, VERBS, obey
from gradviz.tracefile import Trace, open_trace
from gradviz.words.sentences import SENTENCES, sentence
from tests.invoked import invoked
from tests.warm import python

CUBE = """\
x = torch.tensor(5.0, requires_grad=True)
y = x ** 3
z = torch.log(y)
z.backward(retain_graph=True)
z.backward()
"""

LOOP = """\
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(8, 3)
for epoch in range(3):
    loss = (model(x) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

EVERYTHING = """\
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        return grad * 2

def halve(grad):
    return grad / 2

x = torch.tensor([1.0, 2.0], requires_grad=True)
frozen = torch.tensor([3.0, 4.0])
y = Double.apply(x * frozen)
y.retain_grad()
y.register_hook(halve)
total = (y + x).sum()
total.backward(create_graph=True)
(second,) = torch.autograd.grad(total, x)
x.grad = None
d = y.detach()
d.requires_grad_()
with torch.no_grad():
    x.add_(1.0)
x.data = x.data * 2
from gradviz.engine.autograd import forward_ad
with forward_ad.dual_level():
    dual = forward_ad.make_dual(torch.tensor(2.0), torch.tensor(1.0))
    out = torch.sin(dual) * dual
w = torch.tensor(2.0, requires_grad=True)
once = torch.exp(w)
once.backward()
try:
    once.backward()
except RuntimeError:
    pass
"""


def lesson(directory: Path, text: str, name: str = "lesson.py", values: str = "stats") -> Path:
    """The trace of a program."""
    source = directory / name
    source.write_text(text, encoding="utf-8")
    with record(directory / "run.gradviz", values=values):
        exec(compile(text, str(source), "exec"), {"torch": torch, "__name__": "__main__"})
    return directory / "run.gradviz"


@pytest.fixture
def cube(tmp_path: Path) -> Any:
    with open_trace(lesson(tmp_path, CUBE)) as trace:
        yield trace


def sentences(trace: Trace) -> list[str]:
    session = Session(trace)
    told = []
    for position in range(trace.count):
        session.go(position)
        told.append(sentence(session.stop))
    return told


# --- what is said


def test_a_lesson_is_told_in_plain_sentences(cube: Trace) -> None:
    assert sentences(cube)[:14] == [
        "torch.tensor(5.0, requires_grad=True) made x, a leaf that requires grad",
        "x ** 3 made y (PowBackward0)",
        "PowBackward0 is now the grad_fn of y, and leads to AccumulateGrad of x",
        "torch.log(y) made z (LogBackward0)",
        "LogBackward0 is now the grad_fn of z, and leads to PowBackward0",
        "the gradient that backward starts with is made: 1",
        "backward pass 1 begins at z, with gradient 1; will keep the graph (retain_graph)",
        "LogBackward0 receives 1 as the gradient of z",
        "LogBackward0 gives 0.008 to y: 1 × 0.008",
        "PowBackward0 receives 0.008 as the gradient of y",
        "PowBackward0 gives 0.6 to x: 0.008 × 75",
        "AccumulateGrad of x receives 0.6 as the gradient of x",
        "x.grad is now 0.6 (was None)",
        "backward pass 1 ends; the graph is kept (retain_graph)",
    ]
    assert "x.grad accumulates: 0.6 (before) + 0.6 = 1.2" in sentences(cube)


def test_every_kind_of_event_has_its_sentence(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, EVERYTHING)) as trace:
        told = sentences(trace)
        kinds = {type(event) for event in trace}
    for expected in (
        "enters the forward of Double",
        "Double(x * frozen) made y (DoubleBackward)",
        "y retains its gradient, as retain_grad() asked: y.grad is now [0.5, 0.5]",
        "hook halve changes the gradient of y: [1, 1] → [0.5, 0.5]",
        "y.detach() made d (cut off from the graph)",
        "d now requires grad",
        "x.add_(1.0) changes x in place: [1, 2] → [2, 3], version 1 (no node: grad mode is off)",
        "data changes x in place: [2, 3] → [4, 6], version 1",
        "dual becomes a dual number: value 2, tangent 1",
        "the JVP of sin gives torch.sin(dual) the tangent -0.416147: -0.416147 × 1",
        "the error ends backward pass 4",
    ):
        assert expected in told
    assert any(line.startswith("RuntimeError at ExpBackward0: Trying to backward through") for line in told)
    assert any(line.startswith("x.grad is set to None (was [") for line in told)
    with open_trace(lesson(tmp_path, LOOP)) as trace:
        told = sentences(trace)
        kinds |= {type(event) for event in trace}
    # told in tests of their own
    elsewhere = {
        k.Scheduled,
        k.GradRead,
        k.NumberRead,
        k.GradsClipped,
        k.CollectiveCalled,
        k.ValueKept,
        k.CallMade,
        k.GraphsAlive,
        k.KernelRan,
        k.OpMeasured,
        k.StorageSaved,
        k.ElementsBinned,
        k.PassSummed,
        k.StepSummed,
        k.FunctionCompared,
    }
    assert set(SENTENCES) - kinds == elsewhere
    assert "enters module model (Sequential)" in told
    assert "enters module model.0 (Linear)" in told
    gradients = "gradients of model.0.weight, model.0.bias, model.2.weight and model.2.bias"
    assert f"SGD.zero_grad() sets the {gradients} to None" in told
    assert any(line.startswith("SGD steps: 4 parameters will change (lr=0.1") for line in told)
    assert any(line.startswith("SGD changes model.0.weight in place: (2×3) rms") for line in told)


def test_a_scheduler_and_a_first_zero_grad_are_told(tmp_path: Path) -> None:
    text = (
        "w = torch.nn.Parameter(torch.ones(3))\n"
        "optimizer = torch.optim.SGD([w], lr=0.1)\n"
        "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)\n"
        "optimizer.zero_grad()\n"
        "w.sum().backward()\n"
        "optimizer.step()\n"
        "scheduler.step()\n"
    )
    with open_trace(lesson(tmp_path, text)) as trace:
        told = sentences(trace)
    assert "SGD.zero_grad() finds no gradient to clear" in told
    assert "StepLR at its beginning sets the learning rate to 0.1" in told
    assert "StepLR in step 1 sets the learning rate to 0.01" in told


def test_a_gradient_that_is_a_sum_says_of_what(tmp_path: Path) -> None:
    text = "x = torch.tensor(5.0, requires_grad=True)\nz = torch.log(x ** 3) + torch.sqrt(x ** 2)\nz.backward()\n"
    with open_trace(lesson(tmp_path, text)) as trace:
        assert "AccumulateGrad of x receives 1.6 as the gradient of x: 1 + 0.6" in sentences(trace)


def test_a_backward_event_shows_the_source_of_the_forward_op(cube: Trace) -> None:
    session = Session(cube, 10)
    text = describe(session.stop)
    assert "lesson.py:2 · where PowBackward0 was made" in text
    assert "  ▶2  y = x ** 3\n          ^^^^^^\n" in text
    assert "upstream   ∂z/∂y = 0.008  ← LogBackward0" in text
    assert "local      ∂y/∂x = 3 · x² = 75" in text
    assert "downstream ∂z/∂x = 0.6  → AccumulateGrad of x" in text


def test_what_changed_among_the_leaves_is_marked(cube: Trace) -> None:
    accumulated = cube.indices(k.Kind.ACCUMULATED).tolist()
    session = Session(cube, accumulated[0])
    assert "● x  leaf      5       .grad None → 0.6" in describe(session.stop)
    session.go(accumulated[0] + 1)
    assert "  x  leaf      5       .grad 0.6" in describe(session.stop)


def test_the_upstream_gradient_is_written_as_a_derivative_only_where_it_is_one(tmp_path: Path) -> None:
    text = "x = torch.ones(2, requires_grad=True)\ny = x * 3\ny.backward(torch.tensor([1.0, 2.0]))\n"
    with open_trace(lesson(tmp_path, text)) as trace:
        session = Session(trace, trace.count - 1)
        told = "".join(script(session, ["first", *["next"] * (trace.count - 1)]))
    assert "gradient of y = [1, 2]" in told
    assert "∂y/∂y" not in told


def test_forward_mode_shows_the_tangents_and_the_local_derivatives(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, EVERYTHING)) as trace:
        pushed = [e.index for e in trace if isinstance(e, k.TangentPushed) and e.how == "mul"]
        told = describe(Session(trace, pushed[0]).stop)
    assert "gives out the tangent 0.0770038: 2 × -0.416147 + 0.909297 × 1" in told
    assert "input      dual            = 2          tangent 1" in told
    assert "∂out/∂dual = torch.sin(dual) = 0.909297" in told
    assert "output     out             = 1.81859    tangent 0.0770038" in told


def test_two_tensors_of_one_name_are_told_apart(tmp_path: Path) -> None:
    text = "y = torch.tensor(1.0, requires_grad=True)\nfor _ in range(2):\n    y = y * 3\ny.backward()\n"
    with open_trace(lesson(tmp_path, text)) as trace:
        told = "".join(script(Session(trace), ["next"] * (trace.count - 1)))
    assert "∂y/∂y = 1" in told  # the root itself
    assert "∂y/∂y#" in told


# --- time travel


@pytest.mark.slow
@pytest.mark.parametrize("text", [CUBE, LOOP, EVERYTHING], ids=["cube", "loop", "everything"])
def test_every_event_is_the_same_forwards_and_backwards(tmp_path: Path, text: str) -> None:
    path = lesson(tmp_path, text)
    with open_trace(path) as trace, open_trace(path) as again:
        there, back = Session(trace), Session(again, again.count - 1)
        forwards, backwards = [describe(there.stop)], [describe(back.stop)]
        for _ in range(trace.count - 1):
            obey(there, "next")
            forwards.append(describe(there.stop))
            obey(back, "back")
            backwards.append(describe(back.stop))
        assert there.position == trace.count - 1
        assert back.position == 0
        assert forwards == backwards[::-1]
        assert all(len(line) <= WIDTH for told in forwards for line in told.splitlines()[2:])


def test_verbs_move_and_stay_within_the_trace(cube: Trace) -> None:
    session = Session(cube)
    obey(session, "back")
    assert (session.position, session.message) == (0, "this is the first event")
    obey(session, "next 3")
    assert (session.position, session.message) == (3, "")
    obey(session, "last")
    assert session.position == cube.count - 1
    obey(session, "next")
    assert (session.position, session.message) == (cube.count - 1, "this is the last event")
    obey(session, "goto 5")
    assert session.position == 4
    obey(session, "7")
    assert session.position == 6
    obey(session, "first")
    assert session.position == 0


def test_next_backward_and_next_forward_find_the_ends_of_passes(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, LOOP)) as trace:
        session = Session(trace)
        begins = trace.indices(k.Kind.PASS_BEGAN).tolist()
        for begin in begins:
            obey(session, "next-backward")
            assert session.position == begin
        obey(session, "next-backward")
        assert (session.position, session.message) == (begins[-1], "no backward pass begins after this event")
        session.go(begins[0])
        obey(session, "next-forward")
        assert session.stop.moment.pass_info is None
        assert isinstance(session.stop.event, k.OpRan)
        session.go(begins[-1])
        obey(session, "next-forward")
        assert session.message == "no forward op runs after this event"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nxt", "unknown command 'nxt': did you mean 'next'?"),
        ("xyzzy", "unknown command 'xyzzy': the commands are next, back"),
        ("goto", "goto needs an argument: goto N"),
        ("goto x", "not a number: x"),
        ("goto 99", "there is no event 99: the trace has 23, from 1"),
        ("goto 0", "there is no event 0: the trace has 23, from 1"),
        ("first 3", "first takes no argument: 3"),
        ("next \x1b[2J", r"not a number: \x1b[2J"),
    ],
)
def test_a_wrong_command_is_told_in_one_line(cube: Trace, line: str, message: str) -> None:
    session = Session(cube)
    with pytest.raises(CommandError) as told:
        obey(session, line)
    assert str(told.value).startswith(message)
    assert session.position == 0


def test_no_key_means_two_things() -> None:
    assert len(BY_KEY) == sum(len(verb.keys.split()) for verb in VERBS)


def test_keys_are_told_apart_also_when_they_come_in_pieces() -> None:
    keys = Keys()
    assert keys.feed("n\x1b[Cb") == ["n", "right", "b"]
    assert keys.feed("\x1b[") == []
    assert keys.feed("D\x1bOH") == ["left", "home"]
    assert keys.feed("\x1b") == ["escape"]
    assert keys.feed("가 \r") == ["가", "space", "enter"]


# --- the screen


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (160, 48), (110, 30), (40, 12), (12, 5), (3, 2), (1, 1)])
def test_the_screen_fills_the_terminal_exactly(tmp_path: Path, size: tuple[int, int]) -> None:
    width, height = size
    with open_trace(lesson(tmp_path, EVERYTHING + "한글 = x  # 긴 줄: " + "가나다 " * 60 + "\n한글 * 2\n")) as trace:
        session = Session(trace)
        for position in range(trace.count):
            session.go(position)
            lines = Screen(session).lines(width, height)
            assert [cell_len(line.plain) for line in lines] == [width] * height
        obey(session, "help")
        assert len(Screen(session, "goto 1").lines(width, height)) == height


def test_the_screen_shows_what_matters_at_80_by_24(cube: Trace) -> None:
    lines = [line.plain.rstrip() for line in Screen(Session(cube, 10)).lines(80, 24)]
    text = "\n".join(lines)
    for part in (
        "lesson.py:2",
        "▶2  y = x ** 3",
        "PowBackward0 gives 0.6 to x: 0.008 × 75",
        "upstream  ∂z/∂y = 0.008",
        "local  ∂y/∂x = 3 · x² = 75",
        "downstream  ∂z/∂x = 0.6",
        ".grad None",
        "event 11 of 23",
        "backward pass 1 of 2",
        "q quit",
    ):
        assert part in text


def test_a_long_line_is_moved_so_that_the_expression_is_seen(tmp_path: Path) -> None:
    text = "x = torch.tensor(1.0)\n" + "y = " + "x + " * 60 + "torch.exp(x)\n"
    with open_trace(lesson(tmp_path, text)) as trace:
        exp = next(event.index for event in trace if isinstance(event, k.OpRan) and event.op == "exp")
        shown = describe(Session(trace, exp).stop)
    (line, carets) = (line for line in shown.splitlines() if "▶" in line or "^^" in line)
    assert line[carets.index("^") : carets.rindex("^") + 1] == "torch.exp(x)"
    assert len(line) <= WIDTH


# --- hostile traces

HOSTILE = """\
# \x1b[2J\x07 [red]not markup[/red]
name = "\x1b]0;title\x07[bold]\x9b31m"
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        setattr(self, "\x1b[31mw", torch.nn.Parameter(torch.ones(1)))
Evil = type("\x1b[5mEvil", (torch.autograd.Function,), dict(
    forward=staticmethod(lambda ctx, x: x * 2), backward=staticmethod(lambda ctx, g: g * 2)))
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
w = next(iter(model.parameters()))
y = Evil.apply(w * 2)  # \x1b[2J
y.sum().backward()
"""


@pytest.mark.slow
def test_nothing_that_a_terminal_would_obey_passes_through(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, HOSTILE, "\x1b[7mevil[red].py")) as trace:
        session = Session(trace)
        told = "\n".join(script(session, ["next"] * (trace.count - 1)))
        for position in range(trace.count):
            session.go(position)
            for size in ((80, 24), (160, 48)):
                told += "\n".join(line.plain for line in Screen(session).lines(*size))
    assert all(character.isprintable() or character == "\n" for character in told)
    assert "\\x1b[5mEvilBackward" in told
    assert "[red]not markup[/red]" in told
    assert "\\x1b[7mevil[red].py" in told


# --- the command


def stepped(*arguments: object) -> Result:
    return invoked(["step", *map(str, arguments)])


def test_commands_print_the_same_plain_text_every_time(tmp_path: Path) -> None:
    path = lesson(tmp_path, CUBE)
    first = stepped(path, "--commands", "next; next; goto 5; back; last")
    assert first.exit_code == 0
    assert [line for line in first.output.splitlines() if line.startswith("> ")] == [
        "> next", "> next", "> goto 5", "> back", "> last",
    ]  # fmt: skip
    assert [line.split(" ·")[0] for line in first.output.splitlines() if line.startswith("event ")] == [
        f"event {n} of 23" for n in (2, 3, 5, 4, 23)
    ]
    assert "\x1b" not in first.output
    assert stepped(path, "--commands", "next; next; goto 5; back; last").output == first.output


def test_stepping_begins_where_at_says(tmp_path: Path) -> None:
    path = lesson(tmp_path, CUBE)
    assert stepped(path, "--at", 11, "--commands", "").output.startswith("event 11 of 23 · backward pass 1 of 2\n")
    for at in (0, 24, -3):
        wrong = stepped(path, "--at", at, "--commands", "next")
        assert wrong.exit_code == 2
        assert wrong.stderr == f"gradviz: there is no event {at}: the trace has 23, from 1\n"


def test_an_unknown_command_is_told_before_anything_runs(tmp_path: Path) -> None:
    wrong = stepped(lesson(tmp_path, CUBE), "--commands", "next; bakc; last")
    assert wrong.exit_code == 2
    assert wrong.stdout == ""
    assert wrong.stderr == "gradviz: unknown command 'bakc': did you mean 'back'?\n"


def test_commands_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "commands.txt"
    file.write_text("next  # the cube\n\nlast; back\nquit\nfirst\n")
    assert commands(f"@{file}") == ["next", "last", "back", "quit", "first"]
    told = stepped(lesson(tmp_path, CUBE), "--commands", f"@{file}")
    assert [line for line in told.output.splitlines() if line.startswith("> ")] == [
        "> next", "> last", "> back", "> quit",
    ]  # fmt: skip
    assert stepped(lesson(tmp_path, CUBE), "--commands", "@none.txt").exit_code == 2


def test_help_lists_every_verb_that_is_of_use(tmp_path: Path) -> None:
    told = stepped(lesson(tmp_path, CUBE), "--commands", "help").output
    here = [verb for title, verbs in GROUPS.items() if title not in (LESSON, RANKS) for verb in verbs]
    assert len(here) > 40
    assert all(verb.usage in told and verb.help in told for verb in here)


def test_an_empty_trace_is_told_in_one_line(tmp_path: Path) -> None:
    told = stepped(lesson(tmp_path, "pass\n"), "--commands", "next")
    assert (told.exit_code, told.stdout) == (2, "")
    assert "has no events" in told.stderr
    assert told.stderr.count("\n") == 1


@pytest.mark.slow
def test_without_a_terminal_step_asks_for_commands(tmp_path: Path) -> None:
    path = lesson(tmp_path, CUBE)
    ran = subprocess.run(
        [python(), "-m", "gradviz", "step", path],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "--commands" in ran.stderr
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("made", "given"),
    [
        ("torch.tanh(x)", "to x: upstream × (1 − tanh²(x))"),
        ("x.sum(0)", "to x: upstream, spread"),
        ("torch.relu(x)", "to x: upstream × (x > 0)"),
        ("x.t()", "to x: upstream, transposed"),
        ("torch.tan(x)", "to x: upstream × (1 + tan²(x))"),
        ("x / c", "to x: upstream × 1 / c"),
        ("x @ c.t()", "to x: upstream"),
    ],
)
def test_the_chain_rule_is_told_as_a_formula_where_there_are_many_numbers(
    tmp_path: Path, made: str, given: str
) -> None:
    text = f"x = torch.rand(3, 4, requires_grad=True)\nc = torch.rand(3, 4) + 1\ny = {made}\ny.sum().backward()\n"
    with open_trace(lesson(tmp_path, text)) as trace:
        told = [line for line in sentences(trace) if " gives " in line]
    assert given in told[1]
