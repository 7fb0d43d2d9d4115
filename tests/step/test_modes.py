"""Forward and reverse accumulation of one function, told side by side."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradviz.query import Query
from gradviz.query.moment import Modes
from gradviz.step.screen import Screen
from gradviz.step.showing import describe
from gradviz.step.state import Session
from gradviz.step.verbs import obey
from gradviz.tracefile import open_trace
from gradviz.words.forward_mode import NothingToCompare
from tests.step.test_step import CUBE, lesson

BOTH = """\
from gradviz.engine.autograd import forward_ad

def f(x, y):
    return x * y + torch.sin(x)

x = torch.tensor(2.0, requires_grad=True)
y = torch.tensor(3.0, requires_grad=True)
f(x, y).backward()
for seed_x, seed_y in ((1.0, 0.0), (0.0, 1.0)):
    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.tensor(2.0), torch.tensor(seed_x))
        y = forward_ad.make_dual(torch.tensor(3.0), torch.tensor(seed_y))
        out = f(x, y)
"""


def test_values_tangents_and_gradients_stand_in_one_table(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, BOTH)) as trace:
        session = Session(trace)
        obey(session, 'until kind == "tangent" and how == "mul"')
        obey(session, "compare")
        assert [line.split() for line in session.page[1:7]] == [
            "value ↓ tangent ↑ gradient".split(),
            "x 2 1 2.58385".split(),
            "y 3 0 2".split(),
            "▶ x * y 6 3 1".split(),
            "torch.sin(x) 0.909297 -0.416147 1".split(),
            "out 6.9093 2.58385 1".split(),
        ]
        assert session.page[-1].split() == ["2.5839", "and", "2.5839"]
        obey(session, 'until kind == "tangent" and how == "mul"')
        obey(session, "compare")
        assert "forward sweep 2 of 2" in session.page[0]
        assert session.page[4].split() == "▶ x * y 6 2 1".split()


def test_each_mode_tells_what_the_other_has_at_its_place(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, BOTH)) as trace:
        session = Session(trace)
        obey(session, 'until kind == "tangent" and how == "mul"')
        assert "reverse    the gradient of x * y is 1 (event " in describe(session.stop)
        obey(session, "first")
        obey(session, 'until kind == "received" and grad_fn == "SinBackward0"')
        assert "forward    the tangent of torch.sin(x) is -0.416147, 0" in describe(session.stop)
        obey(session, 'until kind == "accumulated"')
        assert "forward    the tangent of x is 1, 0" in describe(session.stop)


def test_a_trace_of_one_mode_has_nothing_to_compare(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, CUBE)) as trace:
        session = Session(trace)
        with pytest.raises(NothingToCompare, match="no tangents here"):
            obey(session, "compare")
        assert "forward  " not in describe(Session(trace, 8).stop)


def test_tangents_without_a_pass_have_nothing_beside_them(tmp_path: Path) -> None:
    text = "from gradviz.engine import func\nfunc.jvp(torch.sin, (torch.tensor(1.0),), (torch.tensor(1.0),))\n"
    with open_trace(lesson(tmp_path, text)) as trace, pytest.raises(NothingToCompare, match="no backward pass went"):
        obey(Session(trace), "compare")


OPS = ("h * x", "torch.sin(h)", "h + x", "torch.tanh(h) * h", "torch.exp(-h * h)", "h - x * x")


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(OPS), min_size=1, max_size=5), st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=2)
)
def test_tangent_times_gradient_is_the_same_at_both_ends(
    tmp_path_factory: pytest.TempPathFactory, ops: list[str], direction: list[float]
) -> None:
    directory = tmp_path_factory.mktemp("law")
    body = "".join(f"    h = {op}\n" for op in ops)
    text = (
        "from gradviz.engine import func\n"
        f"def f(x):\n    h = x + x\n{body}    return h\n"
        "x = torch.tensor([0.5, -0.25], requires_grad=True)\n"
        "f(x).sum().backward()\n"
        f"func.jvp(f, (x.detach(),), (torch.tensor({direction}),))\n"
    )
    with open_trace(lesson(directory, text)) as trace:
        modes = Modes(Query(trace))
        sweep = modes.sweeps[0]
        position = modes.pass_of(sweep, 0)
        assert position == 0
        pairs = modes.pairs(sweep, position)
        inputs = [pair for pair in pairs if pair.tensor in sweep.seeds]
        assert len(inputs) == 1
        at_inputs, at_output = modes.product(sweep, inputs), modes.product(sweep, pairs[-1:])
        assert at_inputs == pytest.approx(at_output, rel=1e-4, abs=1e-5)


def test_a_wide_screen_has_both_modes_side_by_side(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, BOTH)) as trace:
        session = Session(trace)
        obey(session, 'until kind == "tangent" and how == "sin"')
        lines = [line.plain for line in Screen(session).lines(200, 60)]
        assert any("── forward and reverse ──" in line for line in lines)
        assert any("▶  torch.sin(x)  0.909297  -0.416147  1" in line for line in lines)
        obey(session, "first")
        assert not any("forward and reverse" in line.plain for line in Screen(session).lines(200, 60))
