"""What the stepper's screen is made of: the drawn graph, the line of time, the bars, the first lines."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from gradviz.cli.export_moment import export_moment
from gradviz.events.kinds import Kind, NodeMade
from gradviz.pictures.render import DrawError
from gradviz.query.curves import Trend
from gradviz.step import CommandError
from gradviz.step.neighbourhood import HERE, drawn, neighbourhood
from gradviz.step.screen import Screen, has_more
from gradviz.step.state import Session
from gradviz.step.timeline import legend, pass_line, timeline
from gradviz.step.verbs import obey
from gradviz.tracefile import open_trace
from gradviz.words.numbers import bars
from tests.step.test_step import EVERYTHING, LOOP, lesson

PATHS = """\
x = torch.tensor(5.0, requires_grad=True)
cube = x ** 3
square = x ** 2
z = torch.log(cube) + torch.sqrt(square)
z.backward()
"""
BAD = """\
x = torch.tensor([1.0, 0.0], requires_grad=True)
y = x * 2
z = torch.log(y).sum()
z.backward()
with torch.no_grad():
    x.add_(1.0)
"""
FIT = """\
w = torch.tensor(1.0, requires_grad=True)
for _ in range(6):
    loss = w * w
    loss.backward()
    with torch.no_grad():
        w -= 0.25 * w.grad
    w.grad = None
"""


def graph(session: Session, height: int = 16, width: int = 78) -> str:
    return "\n".join(line.plain.rstrip() for line in drawn(session.stop, width, height))


def test_a_small_graph_is_drawn_with_the_present_edges_heavy(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, PATHS)) as trace:
        session = Session(trace)
        obey(session, 'until kind == "produced"')
        assert graph(session) == (
            "  ◉━┓  AddBackward0         ∂z/∂z = 1\n"
            "  ┃ ┃  ↓ 1,  1\n"
            "  ○ ┃  LogBackward0         waiting: ∂z/∂(torch.log(cube)) = 1\n"
            "  ○ ┃  PowBackward0         cube\n"
            "  │ ○  SqrtBackward0        waiting: ∂z/∂(torch.sqrt(square)) = 1\n"
            "  │ ○  PowBackward0         square\n"
            "  ○─╯  AccumulateGrad of x"
        )
        obey(session, 'until kind == "accumulated"')
        assert graph(session).splitlines()[-2:] == ["  ┃ ┃  ↓ 0.6 + 1", "  ◉━┛  AccumulateGrad of x  ∂z/∂x = 1.6"]


def test_a_forward_op_is_drawn_below_what_led_to_it(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, PATHS)) as trace:
        session = Session(trace)
        obey(session, 'until op == "add"')
        assert graph(session) == (
            "  ●─╮  leaf           x = 5\n"
            "  ● │  PowBackward0   cube = 125\n"
            "  ● │  LogBackward0   torch.log(cube) = 4.82831\n"
            "  ┃ ●  PowBackward0   square = 25\n"
            "  ┃ ●  SqrtBackward0  torch.sqrt(square) = 5\n"
            "  ◉━┛  AddBackward0   z = 9.82831"
        )


@pytest.mark.parametrize("text", [PATHS, LOOP, EVERYTHING, BAD], ids=["paths", "loop", "everything", "bad"])
def test_every_graph_fits_and_its_edges_lead_down(tmp_path: Path, text: str) -> None:
    with open_trace(lesson(tmp_path, text)) as trace:
        session = Session(trace)
        seen = 0
        for k, most in itertools.product(range(trace.count), (2, 4, 7, 16)):
            session.go(k)
            near = neighbourhood(session.stop, most)
            lines = drawn(session.stop, 60, most)
            assert len(lines) <= most
            assert all(cell_len(line.plain) <= 60 for line in lines)
            if near is None:
                continue
            seen += 1
            place = {spot.key: row for row, spot in enumerate(near.spots)}
            assert len(place) == len(near.spots) <= most
            assert all(place[source] < place[target] for source, target in near.edges)
            assert set(near.current) <= set(near.edges)
            assert [spot.state for spot in near.spots].count(HERE) == 1
        assert seen > trace.count


def test_what_stands_beside_a_graph_is_one_column_in_korean_too(tmp_path: Path) -> None:
    text = "y = torch.tensor([2.0], requires_grad=True) * 3\nw = y.detach()\n"
    with open_trace(lesson(tmp_path, text)) as trace:
        session = Session(trace)
        session.words.speak("ko")
        session.go(trace.count - 1)
        lines = graph(session).splitlines()
        assert "없음" in lines[-1]
        columns = [
            cell_len(line[: line.index(f"{name} = ")]) for line in lines for name in ("y", "w") if f" {name} = " in line
        ]
        assert len(columns) == 2
        assert len(set(columns)) == 1


def test_the_edges_of_a_graph_are_those_of_the_nodes(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, EVERYTHING)) as trace:
        made = [event for event in trace if isinstance(event, NodeMade)]
        targets = {event.node: {edge.node for edge in event.edges} for event in made}
        session = Session(trace)
        for k in trace.indices(Kind.RECEIVED, Kind.PRODUCED).tolist():
            session.go(k)
            near = neighbourhood(session.stop, 12)
            assert near is not None
            keys = {spot.key for spot in near.spots}
            assert set(near.edges) == {(n, t) for n in keys for t in targets.get(n, ()) if t in keys}


def test_the_line_of_time_has_signs_for_what_is_to_be_found(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, BAD)) as trace:
        session = Session(trace)
        assert "!" in timeline(session, 120).plain
        assert "~" in timeline(session, 120).plain
        assert legend(session).plain.split() == "! NaN or inf ~ write in place".split()
        obey(session, "break op mul")
        obey(session, "mark here")
        obey(session, "next")
        plain = timeline(session, 120).plain
        assert "◆" in plain
        assert "*" in plain
        assert "bookmark" in legend(session).plain


def test_a_sign_stands_where_its_event_is(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, BAD)) as trace:
        session = Session(trace)
        obey(session, "break op mul")
        obey(session, "continue")
        line = timeline(session, 200)
        bar = re.search(r"[━─●◆!~]{9,}", line.plain)
        assert bar is not None
        assert bar[0].index("◆") == session.position * len(bar[0]) // trace.count


def test_the_second_line_of_time_is_of_the_present_pass(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, FIT)) as trace:
        session = Session(trace)
        for run in trace.passes:
            session.go(run.first)
            length = run.last - run.first + 1
            assert pass_line(session, 100).plain.startswith(f" 1 of {length} ●")
        session.go(0)
        assert pass_line(session, 100).plain.startswith(f" 1 of {trace.passes[0].first} ●")


def test_a_leaf_shows_how_large_its_gradient_was_pass_by_pass(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, FIT)) as trace:
        session = Session(trace)
        trend = session.words.trend(next(iter(session.stop.moment.leaves)))
        assert trend is not None
        assert trend.norms == [2.0 / 2**n for n in range(6)]
        assert bars(trend, 10) == "█▅▃▂▁▁"
        obey(session, 'until kind == "accumulated"')
        shown = "\n".join(line.plain for line in Screen(session).lines(80, 24))
        assert "█▅▃▂▁▁  norm 2 → 0.0625 in 6 passes" in shown


def test_bars_are_of_the_logarithm_where_sizes_are_far_apart() -> None:
    assert bars(Trend([], [1e-6, 1e-3, 1.0], 3), 9) == "▁▅█"
    assert bars(Trend([], [1.0, 0.5, 0.0], 3), 9) == "█▅▁"
    assert bars(Trend([], [1.0, math.nan, 0.5], 3), 9) == "█!▅"
    assert len(bars(Trend([], [1.0] * 50, 50), 9)) == 9


def test_no_trend_is_told_of_less_than_three_passes(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, PATHS)) as trace:
        session = Session(trace)
        assert session.words.trend(session.stop.moment.leaves[0]) is None


def test_a_wide_screen_explains_without_being_asked(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, PATHS)) as trace:
        session = Session(trace)
        obey(session, 'until kind == "produced" and grad_fn == "PowBackward0"')
        shown = "\n".join(line.plain for line in Screen(session).lines(200, 60))
        for part in ("── graph ", "── why ", "── leaves ", "the chain rule for x ** 2", "events of this pass"):
            assert part in shown


def test_the_first_screen_says_how_to_begin(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, EVERYTHING)) as trace:
        session = Session(trace)
        shown = "\n".join(line.plain for line in Screen(session).lines(80, 24))
        assert "backward passes, 1 error, the last at event" in shown
        assert "why y.grad" in shown
        assert "the first event with NaN or inf" in shown


def test_a_long_message_is_told_in_full(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, PATHS)) as trace:
        session = Session(trace)
        session.message = "word " * 30 + "end"
        lines = Screen(session).lines(80, 24)
        assert len(lines) == 24
        assert lines[-1].plain.rstrip().endswith("end")


def test_a_moment_is_exported_as_a_picture(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, PATHS)) as trace:
        session = Session(trace, exporter=export_moment)
        obey(session, "goto 4")
        obey(session, f"export {tmp_path / 'early.svg'}")
        obey(session, "last")
        obey(session, f"export {tmp_path / 'late.svg'}")
        early, late = ((tmp_path / name).read_text() for name in ("early.svg", "late.svg"))
        assert "square" in early
        assert "LogBackward0" not in early
        assert "LogBackward0" in late
        with pytest.raises(CommandError, match="replays the whole run"):
            obey(session, "export page.html")
        with pytest.raises(DrawError, match=r"\.foo"):
            obey(session, "export picture.foo")


def test_the_formulas_of_an_affine_layer_belong_to_its_inputs(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, LOOP)) as trace:
        session = Session(trace)
        obey(session, 'until kind == "produced" and grad_fn == "AddmmBackward0"')
        obey(session, "why")
        told = "\n".join(session.page)
        assert re.search(r"∂\S+/∂model\.2\.bias = 1\n", told)
        assert re.search(r"summed over dim 0 = ", told)
        assert "model.2.bias = upstream" not in told


def test_a_long_page_is_read_in_parts(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, PATHS)) as trace:
        session = Session(trace)
        obey(session, "help fields")
        seen: list[str] = []
        while True:
            lines = [line.plain.rstrip() for line in Screen(session).lines(80, 24)]
            assert len(lines) == 24
            seen += [line.strip() for line in lines[2:-5]]
            if not has_more(session, 80, 24):
                break
            session.scrolled += 1
        assert session.scrolled >= 1
        wanted = [" ".join(line.split()) for line in session.page]
        assert " ".join(" ".join(seen).split()).startswith(" ".join(wanted)[:400])
        assert wanted[-1].split()[0] in " ".join(seen)
        obey(session, "why")
        assert session.scrolled == 0
        assert not has_more(session, 80, 24)


def test_a_long_run_has_a_line_of_time_for_the_present_pass_too(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, FIT)) as trace:
        session = Session(trace)
        assert trace.count > 40
        lines = [line.plain for line in Screen(session).lines(80, 24)]
        assert "events of this forward part" in lines[-3]
        assert "event 1 of" in lines[-2]
        assert "events of this" not in "".join(line.plain for line in Screen(session).lines(80, 19))
        assert "events of this" not in "".join(line.plain for line in Screen(session).lines(160, 24))


LONG_NAMES = """
model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(2, 2))))
model.encoder_of_the_first_stage = torch.nn.Linear(2, 2)
model(torch.ones(1, 2)).sum().backward()
"""


def test_a_long_name_is_cut_from_the_left(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, LONG_NAMES)) as trace:
        session = Session(trace)
        obey(session, "last")
        lines = [line.plain for line in Screen(session).lines(80, 24)]
        assert any(re.search(r"…\S*stage\.weight", line) for line in lines), lines
        assert any(re.search(r"…\S*stage\.bias", line) for line in lines)
