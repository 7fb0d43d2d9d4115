"""A budget records all passes of a short run, and of a long one as many as there is time for."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from gradviz.diagnose import check
from gradviz.events.kinds import Kind
from gradviz.sources.record import record
from gradviz.tracefile import Budget, open_trace
from gradviz.tracefile import chosen as module
from gradviz.tracefile.chosen import is_regular
from tests.cli.test_trace import Run


class Clock:
    """The seconds of the program's thread, as a test sets them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(module, "thread_time", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def detailed(budget: Budget, clock: Clock, passes: int, seconds: float, times: float) -> list[int]:
    """The passes in detail of a run whose passes take so many seconds, and so many times as long in detail."""
    found = []
    is_long = False
    for number in range(1, passes + 1):
        is_detailed = not is_long or number in budget
        clock.now += seconds * (times if is_detailed else 1)
        found += [number] * is_detailed
        if is_long:
            budget.timed(number, is_detailed)
        else:
            is_long = budget.is_over(number)
    return found


def test_a_run_is_short_up_to_a_hundred_passes_and_up_to_ten_seconds(clock: Clock) -> None:
    assert detailed(Budget(), clock, 99, seconds=1, times=3) == [*range(1, 100)]
    assert detailed(Budget(), clock, 3000, seconds=0.001, times=3) == [*range(1, 3001)]


def test_the_seconds_of_each_thread_that_ends_passes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, now = [0.0, 1000.0], 0
    monkeypatch.setattr(module, "thread_time", lambda: seconds[now])
    monkeypatch.setattr(module, "get_ident", lambda: now, raising=False)
    budget, over = Budget(), []
    for number in range(1, 131):
        now = number % 2
        seconds[now] += 0.095
        over += [number] * budget.is_over(number)
    assert over[0] == 108  # 106 periods are 10.07 s


def test_behind_it_as_many_passes_are_in_detail_as_there_is_time_for(clock: Clock) -> None:
    found = detailed(Budget(0.1), clock, 5000, seconds=0.1, times=1.9)
    assert found[:101] == [*range(1, 102)]  # the next pass shows how nodes come to be
    behind = [number for number in found if number > 101]
    # one of ten takes less than a tenth: before 1,000 one of ten, and one of a hundred from there on
    assert behind == [*range(110, 1001, 10), *range(1100, 5001, 100)]
    dear = detailed(Budget(0.1), clock, 5000, seconds=0.1, times=8)
    assert [number for number in dear if number > 101][:11] == [*range(200, 1001, 100), 1100, 1200]


def test_the_cost_stays_within_the_share(clock: Clock) -> None:
    for times in (1.5, 3, 10):
        budget, began = Budget(0.1), clock.now
        found = detailed(budget, clock, 20_000, seconds=0.01, times=times)
        short = budget.first
        of_details = sum(number > short for number in found) * (times - 1) * 0.01
        assert of_details <= 0.1 * (20_000 - short) * 0.01
        assert clock.now > began


def test_a_sample_has_few_digits() -> None:
    assert [number for number in range(95, 131) if is_regular(number, 2)] == [*range(95, 101), 110, 120, 130]


TRAINING = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, {steps} + 1):
    x = torch.randn(8, 4)
    if step == {bad}:
        x[3, 1] = float("inf")
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
"""


def trained(path: Path, passes: Budget | None, steps: int, bad: int = 0) -> None:
    """Record a training."""
    with record(path, passes=passes):
        exec(compile(TRAINING.format(steps=steps, bad=bad), "train.py", "exec"), {})


@pytest.mark.torch
def test_a_short_run_is_recorded_as_with_all_passes(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="pip install torch==2.13.0")
    for name, passes in (("all", None), ("budget", Budget())):
        trained(tmp_path / f"{name}.gradviz", passes, steps=5)
    with open_trace(tmp_path / "all.gradviz") as whole, open_trace(tmp_path / "budget.gradviz") as found:
        assert "passes" not in found.meta
        assert [type(event) for event in found] == [type(event) for event in whole]
        assert not len(found.table(Kind.SUMMED))


@pytest.mark.torch
def test_of_a_long_run_the_pass_with_the_trouble_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="pip install torch==2.13.0")
    ticks = count()
    monkeypatch.setattr(module, "thread_time", lambda: next(ticks))  # each pass takes a second
    path = tmp_path / "run.gradviz"
    trained(path, Budget(), steps=140, bad=127)
    with open_trace(path) as trace:
        assert trace.meta["passes"] == "1-101,budget"
        in_detail = [one.number for one in trace.passes if one.is_in_detail]
        assert in_detail == [*range(1, 102), 110, 120, *range(127, 131), 140]
        report = check(trace)
        first = next(finding for finding in report.findings if finding.rule == "nonfinite-forward")
        assert first.number == 127
        how = "they were left out: gradviz trace --passes N SCRIPT records pass N"
        assert ("details of 32 passes", how) in report.not_checked


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "ten", "-3%", "0", "nan", "inf"])
def test_what_is_no_share_is_refused(text: str, gradviz: Run, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("print(1)")
    done = gradviz("trace", "--budget", text, tmp_path / "program.py")
    assert done.returncode == 2
    assert f"{text!r} is not of the form 10%" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("options", "is_said"), [(["--passes", "all"], True), (["--last", "9"], True), ([], False)])
def test_a_budget_beside_options_that_choose_the_passes_has_no_effect(
    gradviz: Run, tmp_path: Path, options: list[str], is_said: bool
) -> None:
    (tmp_path / "program.py").write_text("print(1)")
    done = gradviz("trace", "--budget", "5%", *options, tmp_path / "program.py")
    assert ("--budget has no effect here: other options choose the passes" in done.stderr) == is_said
    assert "no effect" not in gradviz("trace", *options, tmp_path / "program.py").stderr


@pytest.mark.slow
def test_the_summary_of_a_long_run_says_how_to_record_each_pass(
    gradviz_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SHORT_SECONDS", 0)
    program = "import gradviz.engine as torch\nw = torch.ones(2, requires_grad=True)\n"
    (tmp_path / "program.py").write_text(f"{program}for _ in range(130):\n    w.sum().backward()\n")
    told = gradviz_here("trace", tmp_path / "program.py").stderr
    assert "130 backward passes" in told
    assert "(--passes N records pass N)" in told
    how = f"gradviz trace --passes N {tmp_path / 'program.py'} records pass N"
    assert f"left out    {how}; --passes all records each" in gradviz_here("info").stdout
    gradviz_here("graph", "-o", tmp_path / "page.html")
    assert json.dumps(how) in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "(--passes N" not in gradviz_here("trace", "--passes", "all", tmp_path / "program.py").stderr
    assert "left out" not in gradviz_here("info").stdout


def checked(tmp_path: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """The rules, lines and messages of what `check` finds in a program recorded by default, whose passes take a
    second each."""
    pytest.importorskip("torch", reason="pip install torch==2.13.0")
    ticks = count()
    monkeypatch.setattr(module, "thread_time", lambda: next(ticks))
    (tmp_path / "train.py").write_text(program)
    with suppress(RuntimeError), record(tmp_path / "run.gradviz", passes=Budget()):
        exec(compile(program, str(tmp_path / "train.py"), "exec"), {"__name__": "__main__"})
    lines = program.splitlines()
    with open_trace(tmp_path / "run.gradviz") as trace:
        return [(one.rule, lines[one.line - 1].strip(), one.message) for one in check(trace).at_least("warning")]


LOOP = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2, dtype=torch.{dtype})
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(1, 401):
    x = torch.randn(8, 4, dtype=torch.{dtype})
    {clear}
    loss = model(x).sub(1).square().mean()
    loss.backward()
    {step}
"""


@pytest.mark.torch
@pytest.mark.parametrize("until", [160, 401])
def test_a_clearing_that_stops_late_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: int) -> None:
    clear = f"optimizer.zero_grad() if step < {until} else None"
    program = LOOP.format(clear=clear, step="optimizer.step()", dtype="float32")
    found = checked(tmp_path, program, monkeypatch)
    assert [one[:2] for one in found] == ([("stale-gradient", "loss.backward()")] if until == 160 else [])


@pytest.mark.torch
@pytest.mark.parametrize("until", [237, 231])
def test_gradients_that_are_not_cleared_between_samples_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: int
) -> None:
    clear = f"optimizer.zero_grad(set_to_none=step % 2 > 0) if step not in range(231, {until}) else None"
    found = checked(tmp_path, LOOP.format(clear=clear, step="optimizer.step()", dtype="float32"), monkeypatch)
    assert [one[:2] for one in found] == [("stale-gradient", "loss.backward()")] * (until == 237)
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert ({232, 233} <= set(trace.in_detail)) == (until == 237)


@pytest.mark.torch
@pytest.mark.parametrize("until", [160, 401])
def test_what_stands_behind_a_step_is_seen_in_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: int
) -> None:
    clip = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    step = f"optimizer.step() if step >= {until} else None; {clip}; optimizer.step() if step < {until} else None"
    program = LOOP.format(clear="optimizer.zero_grad()", step=step, dtype="float32")
    found = [one[:2] for one in checked(tmp_path, program, monkeypatch)]
    assert found == ([("late-clip", step)] if until == 160 else [])


@pytest.mark.torch
@pytest.mark.parametrize("until", [160, 401])
def test_steps_that_are_lost_late_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: int) -> None:
    step = f"optimizer.param_groups[0]['lr'] = 0.01 if step < {until} else 1e-7; optimizer.step()"
    program = LOOP.format(clear="optimizer.zero_grad()", step=step, dtype="bfloat16")
    found = checked(tmp_path, program, monkeypatch)
    found = [one for one in found if one[0] == "lost-update"]
    assert len(found) == (until == 160)
    assert all(message.endswith("spacing of bfloat16") for _, _, message in found)


@pytest.mark.torch
def test_a_group_whose_rate_becomes_0_loses_no_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
import torch
torch.manual_seed(0)
body, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD([{"params": body.parameters()}, {"params": head.parameters()}], lr=0.001)
for step in range(1, 91):
    if step == 40:
        optimizer.param_groups[0]["lr"] = 0.0
    optimizer.zero_grad()
    head(body(torch.randn(8, 4)).tanh()).sub(1).square().mean().backward()
    optimizer.step()
"""
    assert [rule for rule, *_ in checked(tmp_path, program, monkeypatch)] == []


@pytest.mark.torch
def test_an_optimizer_that_is_made_anew_late_is_found_where_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clear = "optimizer = torch.optim.Adam(model.parameters()) if step > 160 else optimizer; optimizer.zero_grad()"
    program = LOOP.format(clear=clear, step="optimizer.step()", dtype="float32")
    [(rule, line, message)] = checked(tmp_path, program, monkeypatch)
    assert (rule, line) == ("restarted-optimizer", clear)
    assert "for each of at least" in message  # passes were left out, and steps with them


@pytest.mark.torch
def test_the_pass_that_a_late_write_in_place_ends_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
import torch
model, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
for step in range(1, 141):
    h = model(torch.randn(8, 4)).tanh()
    out = head(h)
    if step == 133:
        h.mul_(2)
    out.square().mean().backward()
"""
    assert checked(tmp_path, program, monkeypatch) == [
        (
            "inplace-modified",
            "h.mul_(2)",
            "h.mul_(2) changes h in place, but an op of this pass saved it for its backward (expected version 0)",
        )
    ]
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert trace.in_detail[-1] == 133


BREAKING = """
import torch
model, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
for step in range(1, 141):
    x = torch.randn(8, 4)
    h = model(x).tanh()
    loss = head(h).square().mean()
    if step == 133:
        {written}
        {other}
    loss.backward()
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    "written", ["(h if step else x).mul_(2)", "[h, x][0].mul_(2)", "h.mul_(2); h.mul_(1)", "also = h"]
)
def test_a_write_that_no_single_statement_explains_is_not_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    other = "h.mul_(2) if step < 0 else also.mul_(2)" if "also" in written else "pass"
    program = BREAKING.format(written=written, other=other)
    ((rule, line, message),) = checked(tmp_path, program, monkeypatch)
    assert (rule, line) == ("inplace-modified", "loss.backward()")
    assert message == (
        "a tensor that an op of this pass saved was changed in place before its backward; pass 133 was not watched "
        "from its beginning: gradviz trace --passes 133 SCRIPT records it"
    )


@pytest.mark.torch
@pytest.mark.parametrize(("taken", "known"), [("model(x) - goal", True), ("torch.cat((model(x), goal))", False)])
def test_nothing_first_appears_where_an_operand_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str, known: bool
) -> None:
    program = f"""
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
for step in range(1, 141):
    x = torch.randn(8, 4)
    goal = torch.log(x.abs().sum(1, keepdim=True) * (-1 if step == 133 else 1))
    loss = ({taken}).square().mean()
    loss.backward()
"""
    ((rule, line, message),) = checked(tmp_path, program, monkeypatch)
    assert (rule, line) == ("nonfinite-forward", f"loss = ({taken}).square().mean()")
    end = "; the root of pass 133 is not finite" if known else ", and not all values of pass 133 were recorded"
    of_data = "goal, which line 7 gave in the passes that were watched, has NaN here in pass 133"
    assert message == (of_data if known else f"NaN is seen first in {taken}") + end


@pytest.mark.torch
def test_an_operand_inside_a_module_is_not_called_as_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 1))
x = torch.full((1, 4), 3e38)
torch.nn.init.constant_(model[0].weight, 2.0)
loss = model(x).sum()
loss.backward()
"""
    ((rule, _, message),) = checked(tmp_path, program, monkeypatch)
    assert rule == "nonfinite-forward"
    assert ", t(model.0.weight) = [[2], [2], [2], [2]]; " in message


def test_on_gradviz_s_engine_a_loss_that_jumps_has_the_passes_behind_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = """
import gradviz.engine as torch
w = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.001)
losses = []
for step in range(1, 141):
    optimizer.zero_grad()
    loss = (w * (1e20 if step > 132 else 1) - 1).square().sum() + 0.1
    loss.backward()
    losses.append(loss.item())
    optimizer.step()
"""
    monkeypatch.setattr(module, "_SHORT_SECONDS", 0)
    (tmp_path / "train.py").write_text(program)
    names = {"__name__": "__main__"}
    with record(tmp_path / "run.gradviz", passes=Budget()):
        exec(compile(program, str(tmp_path / "train.py"), "exec"), names)
    with open_trace(tmp_path / "run.gradviz") as trace:
        summed = trace.table(Kind.SUMMED)
        assert summed["in_pass"].tolist() == [*range(101, 141)]
        assert [*map(repr, summed["loss"].tolist())] == [*map(repr, names["losses"][100:])]
        assert {133, 134, 135, 136} <= set(trace.in_detail)
        first = check(trace).findings[0]
    assert (first.rule, first.number) == ("nonfinite-forward", 133)
    assert first.message.startswith("an infinity first appears in (w * (1e20 if step > 132 else 1) - 1).square(): ")


@pytest.mark.torch
@pytest.mark.parametrize("engine", ["gradviz.engine", "torch"])
def test_of_a_graph_that_an_unknown_pass_freed_no_cure_is_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    program = f"""
import {engine} as torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(1, 141):
    optimizer.zero_grad()
    if step != 133:
        loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
"""
    ((rule, line, message),) = checked(tmp_path, program, monkeypatch)
    assert (rule, line) == ("backward-twice", "loss.backward()")
    assert message == "pass 133 reaches a part of the graph whose saved tensors are freed"
    with open_trace(tmp_path / "run.gradviz") as trace:
        (found,) = check(trace).at_least("error")
    assert found.fix == "gradviz trace --passes 1-133 SCRIPT records the pass that freed them"


@pytest.mark.torch
@pytest.mark.parametrize("anew", [10_000, 30])
def test_a_sum_that_keeps_graphs_is_found_between_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anew: int
) -> None:
    add = f"total = total + loss if step % {anew} and step > 110 else loss.detach()"
    program = LOOP.format(clear="optimizer.zero_grad()", step=f"optimizer.step(); {add}", dtype="float32")
    found = [one[:2] for one in checked(tmp_path, program, monkeypatch)]
    assert found == ([("graph-leak", f"optimizer.step(); {add}")] if anew == 10_000 else [])


@pytest.mark.torch
@pytest.mark.parametrize("engine", ["gradviz.engine", "torch"])
@pytest.mark.parametrize("until", [180, 160])
def test_passes_in_a_row_that_no_step_follows_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, until: int
) -> None:
    step = f"optimizer.step() if step not in range(155, {until}) else None"
    program = LOOP.format(clear="optimizer.zero_grad()", step=step, dtype="float32").replace("401", "230")
    found = checked(tmp_path, program.replace("import torch", f"import {engine} as torch"), monkeypatch)
    assert [one[:2] for one in found] == ([("discarded-gradient", step)] if until == 180 else [])
    assert all(one[2].startswith("no step uses the gradients of passes 155 to 17") for one in found)


@pytest.mark.torch
def test_passes_in_a_row_whose_gradients_are_read_are_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = "optimizer.step() if step not in range(155, 200) else norms.append(float(model.weight.grad.norm()))"
    program = LOOP.format(clear="optimizer.zero_grad()", step=step, dtype="float32").replace(
        "for step", "norms = []\nfor step"
    )
    assert checked(tmp_path, program, monkeypatch) == []


FOLLOWING = """
import copy
import torch
torch.manual_seed(0)
student = torch.nn.Linear(4, 2)
teacher = copy.deepcopy(student)
optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
for step in range(1, 231):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    with torch.no_grad():
        goal = teacher(x)
    (student(x) - goal - 0.1).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        for one, other in zip(teacher.parameters(), student.parameters()):
            if {when}:
                one.mul_(0.9).add_(other, alpha=0.1)
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("when", "found"),
    [
        ("step <= 130", "until pass 130, and behind none of these from pass 134 on"),
        ("step <= 133", "until pass 130, and behind none of these from pass 136 on"),
        ("step <= 225", ""),
        ("step % 5", ""),
        ("step", ""),
    ],
)
def test_an_average_that_stops_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, found: str) -> None:
    program = FOLLOWING.format(when=when)
    said = checked(tmp_path, program, monkeypatch)
    assert [one[:2] for one in said] == ([("stale-model", "one.mul_(0.9).add_(other, alpha=0.1)")] if found else [])
    assert all(f"behind each pass in detail {found}, although" in message for _, _, message in said)


SIGNS = """
import torch
torch.manual_seed(0)
model, other, average = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2), torch.zeros(2)
optimizers = [torch.optim.SGD(one.parameters(), lr=0.001) for one in (model, other)]
kept = []
for step in range(1, 291):
    for at, (one, optimizer) in enumerate(zip((model, other), optimizers)):
        if not (step >= {late} and at == {uncleared}):
            optimizer.zero_grad()
        loss = one(torch.randn(8, 4)).sub(1).square().mean()
        loss.backward()
        if not (step >= {late} and at == {unstepped}):
            optimizer.step()
    if step >= {late}:
        {what}
"""


def in_detail_between_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> list[int]:
    """The passes in detail, without the first and the samples, of a program whose passes take a second each, and four
    in detail."""
    pytest.importorskip("torch", reason="pip install torch==2.13.0")
    now = count(0, 100)
    monkeypatch.setattr(module, "thread_time", lambda: next(now))
    monkeypatch.setattr(Budget, "timed", lambda *_: None)
    with record(tmp_path / "run.gradviz", passes=Budget()):
        exec(compile(program, "train.py", "exec"), {})
    with open_trace(tmp_path / "run.gradviz") as trace:
        return [number for number in trace.in_detail if number > 110 and number % 100]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("uncleared", "unstepped", "what"),
    [
        (0, 2, "pass"),
        (1, 2, "pass"),
        (2, 0, "pass"),
        (2, 1, "pass"),
        (2, 2, "model.weight.requires_grad_(False)"),
        (2, 2, "model.weight.data = model.weight.data.clone()"),
        (2, 2, "average.add_(1)"),
        (2, 2, "kept.append(loss)"),
    ],
)
def test_passes_are_recorded_where_what_is_seen_of_a_rest_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uncleared: int, unstepped: int, what: str
) -> None:
    program = SIGNS.format(late=121, uncleared=uncleared, unstepped=unstepped, what=what)
    numbers = in_detail_between_samples(tmp_path, monkeypatch, program)
    assert numbers
    assert numbers[0] in range(242, 261)  # step 121 has passes 241 and 242; not each step reads all parameters
    assert len(numbers) in range(3, 40)


@pytest.mark.torch
def test_what_is_seen_again_and_again_has_few_passes_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    what = "average.add_(1) if step % 5 else [average.add_(1) for _ in range(step)]"
    program = SIGNS.format(late=121, uncleared=2, unstepped=2, what=what)
    assert len(in_detail_between_samples(tmp_path, monkeypatch, program)) <= 24
    always = SIGNS.format(late=1, uncleared=2, unstepped=2, what="kept.append(loss)")
    assert in_detail_between_samples(tmp_path, monkeypatch, always) == []
