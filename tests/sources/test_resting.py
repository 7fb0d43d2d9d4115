"""`--passes` on PyTorch: between the passes that are recorded nothing is watched, and a few numbers are kept."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.cli.info import info  # noqa: E402
from gradviz.cli.report import charts_of_run  # noqa: E402
from gradviz.events.kinds import (  # noqa: E402
    UNWATCHED,
    GradAssigned,
    Mutated,
    PassSummed,
    Received,
    RequiresGradChanged,
    Stepped,
    StepSummed,
)
from gradviz.query import Query  # noqa: E402
from gradviz.query.curves import changes_of_steps, learning_rates, losses, norms_of_steps, relative_changes  # noqa: E402
from gradviz.sources.torch_recorder import pass_numbers, tensor_values  # noqa: E402
from gradviz.sources.torch_recorder.pass_numbers import PassNumbers, Spacing, norms_of  # noqa: E402
from gradviz.step.state import Session  # noqa: E402
from gradviz.tracefile import Trace, open_trace, part  # noqa: E402
from gradviz.words.numbers import number  # noqa: E402
from gradviz.words.sentences import sentence  # noqa: E402

pytestmark = pytest.mark.torch
CHOSEN_OF_60 = [*range(1, 11), 20, 30, 40, 50, 60]


def recorded(folder: Path, program: Callable[[], object], **settings: Any) -> Trace:
    """The trace of a program, with `passes="auto"` unless other passes are chosen."""
    path = folder / "run.gradviz"
    with gradviz.record(path, **{"passes": "auto", **settings}):
        program()
    return open_trace(path)


def in_detail(trace: Trace) -> list[int]:
    return [one.number for one in trace.passes if one.recorded]


def of_kind(trace: Trace, kind: type) -> list[Any]:
    return [event for event in trace if isinstance(event, kind)]


class Loop:
    """A training loop that keeps its losses, the norms of its gradients and its weights as they were in each pass.
    `disturb` is called with the number of the pass, the loss and the network, and returns the loss to begin at."""

    def __init__(self, steps: int = 60, disturb: Callable[..., Any] | None = None, clears: bool = True) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.1),
            torch.nn.Linear(16, 1),
        )  # fmt: skip
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.steps, self.disturb, self.clears = steps, disturb, clears
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.weights: list[np.ndarray] = []

    def __call__(self) -> None:
        net, optimizer = self.net, self.optimizer
        for step in range(1, self.steps + 1):
            if self.clears:
                optimizer.zero_grad()
            self.weights.append(net[0].weight.detach().numpy().copy())
            loss = net(torch.randn(8, 4)).square().mean()
            if self.disturb is not None:
                loss = self.disturb(step, loss, net)
            loss.backward()
            self.losses.append(loss.item())
            self.norms.append(math.hypot(*[p.grad.norm().item() for p in net.parameters() if p.grad is not None]))
            optimizer.step()


@pytest.mark.slow
def test_the_program_computes_what_it_computes_alone(tmp_path: Path) -> None:
    alone, beside = Loop(), Loop()
    torch.manual_seed(1)
    alone()
    torch.manual_seed(1)
    recorded(tmp_path, beside).close()
    assert beside.losses == alone.losses
    for (name, one), (_, other) in zip(alone.net.state_dict().items(), beside.net.state_dict().items(), strict=True):
        assert torch.equal(one, other), name


def test_the_loss_and_the_norm_of_every_pass_are_kept(tmp_path: Path) -> None:
    loop = Loop()
    with recorded(tmp_path, loop) as trace:
        summed = of_kind(trace, PassSummed)
        assert in_detail(trace) == CHOSEN_OF_60
        assert [one.in_pass for one in summed] == [*range(1, 61)]
        assert [one.loss for one in summed] == loop.losses
        assert [one.norm for one in summed] == pytest.approx(loop.norms, rel=1e-5)
        assert {trace.parameters[one.tensor] for one in summed} <= set(trace.parameters.values())
        assert all(0 < one.largest <= one.norm for one in summed)


def test_norms_are_read_ever_less_often_while_nothing_is_unusual() -> None:
    changed: list[int] = []

    def read(losses: list[float], norm: float = 1.0) -> list[int]:
        """The steps of these losses at which norms are read."""
        due = []
        for step, loss in enumerate(losses):
            if spacing.is_due(loss):
                due.append(step)
                changed.extend([step] * spacing.are_changes_due)
                spacing.read(loss, norm)
        return due

    spacing = Spacing()
    assert read([1.0] * 70) == [*range(64), 65, 67, 69]
    assert changed == [0, 16, 32, 48, 65]
    assert np.diff(read([1.0] * 3000)).max() == 8
    assert read([1.0] * 4 + [5.0] * 4)[-4:] == [4, 5, 6, 7]
    assert np.diff(read([1.0] * 3000)).max() == 8
    assert read([1.0] * 4 + [math.nan] * 4)[-4:] == [4, 5, 6, 7]
    assert np.diff(read([1.0] * 3000)).max() == 8
    assert np.diff(read([1.0] * 20, norm=5.0))[-4:].tolist() == [1, 1, 1, 1]


def test_on_a_device_norms_are_read_by_the_numbers_that_have_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pass_numbers, "norms_of", lambda own: torch.tensor(norms_of(own)))
    monkeypatch.setattr(PassNumbers, "loss_of", staticmethod(lambda roots: roots[0].detach().clone()))

    def program() -> None:
        layer = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
        for step in range(1, 121):
            optimizer.zero_grad()
            (layer(torch.ones(1, 2)).sum() * (6 if step > 100 else 1)).backward()
            optimizer.step()

    with recorded(tmp_path, program) as trace:
        summed = of_kind(trace, PassSummed)
    assert [one.in_pass for one in summed] == [*range(1, 121)]
    read = [one.in_pass for one in summed if one.norm != -1]
    assert read[:64] == [*range(1, 65)]
    assert set(np.diff([number for number in read if 70 < number <= 100])) == {2}
    assert read[-10:] == [*range(111, 121)]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["here", "on a device"])
def test_one_step_of_sixteen_says_how_much_it_changes_all_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    if place != "here":
        monkeypatch.setattr(tensor_values, "is_distant", lambda value: True)
    torch.manual_seed(0)
    forms = ((), (0,), (9, 9), (100, 80), (3,))
    own = [torch.nn.Parameter(torch.randn(form)) for form in forms]
    own += [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.randn(70).double())]
    unused = torch.nn.Parameter(torch.ones(5))
    first, second = torch.optim.Adam(own[:4], lr=0.01), torch.optim.Adam([*own[4:], unused], lr=0.3)
    norms: dict[tuple[int, bool], list[float]] = {}

    def program() -> None:
        for in_pass in range(1, 41):
            sum((one**2).sum() + one.sum() for one in own).backward()
            for optimizer in (first, second):
                before = [one.detach().clone() for one in own]
                optimizer.step()
                changed = own[:4] if optimizer is first else own[4:]
                old = before[:4] if optimizer is first else before[4:]
                changes = [(one.detach() - was).norm().item() for one, was in zip(changed, old, strict=True)]
                sizes = [was.norm().item() for was in old]
                ratios = [change / size for change, size in zip(changes, sizes, strict=True) if size]
                norms[in_pass, optimizer is first] = [math.hypot(*changes), math.hypot(*sizes), max(ratios)]
                optimizer.zero_grad()

    with recorded(tmp_path, program) as trace:
        summed = of_kind(trace, StepSummed)
        fifth_pass = trace.passes[4].first
        (one, other), table = changes_of_steps(Query(trace)), relative_changes(Query(trace))
        titles = [chart.title for chart in charts_of_run(Query(trace))]
    assert [event.in_pass for event in summed] == [1, 1, 17, 17, 33, 33]
    is_late = summed[0].index > fifth_pass
    assert is_late == (place != "here")
    numbers = list(dict.fromkeys(event.optimizer for event in summed))
    for event in summed:
        found = [event.change, event.size, event.largest]
        assert found == pytest.approx(norms[event.in_pass, event.optimizer == numbers[0]], rel=1e-4)
    assert [one.name, other.name] == [f"Adam {number}" for number in numbers]
    assert one.at.tolist() == [*table] == [1, 17, 33]
    change, size, _ = norms[17, True]
    assert one.values[1] == pytest.approx(change / size, rel=1e-4)
    both = [math.hypot(*parts) for parts in zip(*(norms[17, is_first] for is_first in (True, False)), strict=True)]
    assert table[17] == pytest.approx(both[0] / both[1], rel=1e-4)
    assert "Change of all parameters relative to their size, by pass" in titles


def test_a_step_with_a_parameter_that_cannot_be_read_has_no_sum(tmp_path: Path) -> None:
    class Own(torch.Tensor):
        pass

    own = [torch.nn.Parameter(torch.ones(100)), torch.ones(100).as_subclass(Own).requires_grad_()]
    optimizer = torch.optim.SGD(own, lr=0.1)

    def program() -> None:
        for _ in range(20):
            sum(one.sum() for one in own).backward()
            optimizer.step()

    with recorded(tmp_path, program) as trace:
        assert len(of_kind(trace, Stepped)) == 20
        assert not of_kind(trace, StepSummed)


def test_a_chosen_pass_that_begins_inside_a_pass_is_recorded(tmp_path: Path) -> None:
    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x.detach().square()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                inner = x.detach().requires_grad_()
                inner.square().sum().backward()
            return inner.grad * gradient

    def program() -> None:
        layer = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            Again.apply(layer(torch.ones(1, 2))).sum().backward()
            optimizer.step()

    with recorded(tmp_path, program, passes="4") as trace:
        assert in_detail(trace) == [4]
        assert {event.in_pass for event in of_kind(trace, Received)} == {4}
        assert {one.in_pass for one in of_kind(trace, PassSummed)} == {1, 2, 3, 4, 5, 6}


@pytest.mark.slow
def test_nothing_is_called_for_an_op_of_a_pass_that_is_left_out(tmp_path: Path) -> None:
    def calls(layers: int) -> int:
        """The calls of our functions in pass 15."""
        net = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(layers)])
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        count = 0

        def note(frame: FrameType, event: str, _: Any) -> None:
            nonlocal count
            count += event == "call" and f"{Path(gradviz.__file__).parent}" in frame.f_code.co_filename

        def train() -> None:
            for step in range(1, 20):
                if step == 15:
                    sys.setprofile(note)
                optimizer.zero_grad()
                net(torch.ones(1, 3)).sum().backward()
                optimizer.step()
                sys.setprofile(None)

        recorded(tmp_path, train).close()
        return count

    assert 0 < calls(2) == calls(30)


def test_the_trace_has_the_weights_as_they_are_behind_passes_that_were_not_watched(tmp_path: Path) -> None:
    loop = Loop()
    with recorded(tmp_path, loop, values="full") as trace:
        query = Query(trace)
        weight = next(tensor for tensor, name in trace.parameters.items() if name.endswith("net.0.weight"))
        for number in (20, 30, 60):
            value = query.memory.value(weight, trace.passes[number - 1].first)
            assert value is not None
            assert np.array_equal(value.array, loop.weights[number - 1])


def test_auto_begins_with_as_many_passes_as_are_chosen(tmp_path: Path) -> None:
    recorded(tmp_path, Loop(32, jump_in_25), passes="1-12,auto").close()
    rows = gradviz.open(tmp_path / "run.gradviz").sql("SELECT pass, why FROM passes WHERE why IS NOT NULL")
    assert [*rows] == [*((number, "first") for number in range(1, 13)), (20, "sample"),
                       *((number, "jump") for number in range(25, 29)), (30, "sample")]  # fmt: skip


def test_what_has_changed_unseen_is_emitted_without_a_place(tmp_path: Path) -> None:
    with recorded(tmp_path, Loop()) as trace:
        unseen = [event for event in of_kind(trace, Mutated) if event.how == UNWATCHED]
        assert unseen
        assert {event.site for event in unseen} == {0}
        ends = [trace.passes[number - 2].last for number in (20, 30, 40, 50, 60)]
        assert {int(event.index) for event in unseen} & {end + 1 for end in ends} == {end + 1 for end in ends}
        assert [event for event in of_kind(trace, GradAssigned) if not event.site]


def nan_in_15(step: int, loss: Any, net: Any) -> Any:
    return loss * float("nan") if step == 15 else loss


def jump_in_25(step: int, loss: Any, net: Any) -> Any:
    return loss * 1000 if step == 25 else loss


@pytest.mark.slow
@pytest.mark.parametrize(
    ("disturb", "at", "why"), [(nan_in_15, 15, "nan"), (jump_in_25, 25, "jump")], ids=["nan", "jump"]
)
def test_a_pass_with_trouble_and_three_behind_it_are_recorded(tmp_path: Path, disturb: Any, at: int, why: str) -> None:
    with recorded(tmp_path, Loop(disturb=disturb)) as trace:
        assert set(in_detail(trace)) == {*CHOSEN_OF_60, at, at + 1, at + 2, at + 3}
        assert [(one.in_pass, one.why) for one in of_kind(trace, PassSummed) if one.why] == [(at, why)]


@pytest.mark.slow
def test_three_passes_behind_an_exception_are_recorded(tmp_path: Path) -> None:
    class Refusing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            raise ValueError("no gradient today")

    def program() -> None:
        layer = torch.nn.Linear(2, 1)
        for step in range(1, 31):
            out = layer(torch.ones(1, 2)).sum()
            if step == 26:
                time.sleep(0.5)  # the writer has written all, as on a slow machine
            if step != 15:
                out.backward()
                continue
            with pytest.raises(ValueError, match="no gradient today"):
                Refusing.apply(out).backward()

    with recorded(tmp_path, program) as trace:
        assert in_detail(trace) == [*range(1, 11), 15, 16, 17, 18, 20, 30]  # the graph of 15 has a form of its own
        assert [error.message for error in trace.errors] == ["no gradient today"]


@pytest.mark.slow
def test_a_nan_in_a_watched_pass_is_one_trouble_however_late_it_is_written(tmp_path: Path) -> None:
    def program() -> None:
        layer = torch.nn.Linear(2, 1)
        for step in range(1, 31):
            layer.zero_grad()
            out = layer(torch.ones(1, 2)).sum()
            if step == 26:
                time.sleep(0.5)
            nan_in_20 = out * float("nan") if step == 20 else out
            nan_in_20.backward()

    with recorded(tmp_path, program) as trace:
        assert in_detail(trace) == [*range(1, 11), 20, 21, 22, 23, 30]


@pytest.mark.parametrize("slow_before", ["nothing", "backward", "20", "24", "26"])
def test_a_nan_that_no_number_shows_has_the_same_passes_recorded_however_late_it_is_written(
    tmp_path: Path, slow_before: str
) -> None:
    def program() -> None:
        layer = torch.nn.Linear(2, 1)
        for step in range(1, 31):
            if slow_before == str(step):
                time.sleep(0.3)  # the writer has written all, as on a slow machine
            layer.zero_grad()
            out = layer(torch.ones(1, 2))
            if step == 20:
                hidden = torch.log(-out.detach().abs() - 1)
                out = torch.where(torch.isnan(hidden), out, hidden)
                if slow_before == "backward":
                    time.sleep(0.3)
            out.sum().backward()

    with recorded(tmp_path, program) as trace:
        assert in_detail(trace) == [*range(1, 11), 20, 21, 22, 23, 30]


@pytest.mark.slow
def test_of_an_op_that_no_other_pass_has_the_line_is_not_known(tmp_path: Path) -> None:
    recorded(tmp_path, Loop(disturb=nan_in_15)).close()
    (found,) = gradviz.check(tmp_path / "run.gradviz").at_least("error")
    assert found.rule == "nonfinite-forward"
    assert found.message == "what mul takes has NaN here in pass 15; the root of pass 15 is not finite"


@pytest.mark.slow
def test_a_nan_that_no_norm_has_shown_is_told_with_the_passes_that_show_it(tmp_path: Path) -> None:
    def program() -> None:
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
        x = torch.randn(8, 4)
        for step in range(1, 221):
            optimizer.zero_grad()
            out = net(x)
            loss = out.square().mean()
            if step == 202:  # the loss is finite
                out.register_hook(lambda gradient: gradient * float("nan"))
            loss.backward()
            optimizer.step()

    recorded(tmp_path, program).close()
    (found,) = gradviz.check(tmp_path / "run.gradviz").at_least("error")
    assert "NaN is seen first in net.bias, and pass 202 was not recorded in detail" in found.message
    assert "gradviz trace --passes 202 SCRIPT:" in found.fix
    recorded(tmp_path, program, passes="202").close()
    (found,) = gradviz.check(tmp_path / "run.gradviz").at_least("error")
    assert found.rule == "hook-changed-gradient"


@pytest.mark.slow
def test_the_numbers_of_a_pass_are_told_in_a_sentence(tmp_path: Path) -> None:
    with recorded(tmp_path, Loop(disturb=jump_in_25)) as trace:
        session = Session(trace)

        def told_at(event: int) -> str:
            session.go(event)
            return sentence(session.stop)

        told = [told_at(event.index) for event in of_kind(trace, PassSummed)]
        unseen = next(e.index for e in of_kind(trace, Mutated) if e.how == UNWATCHED)
        (step,) = [event for event in of_kind(trace, StepSummed) if event.in_pass == 17]
        ratio = number(step.change / step.size)
        expected = f"pass 17 changed all parameters together by {number(step.change)}, which is {ratio} of their norm, "
        assert expected in told_at(step.index)
        assert told_at(unseen).endswith("it was written to in passes that were not watched")
    assert told[11].startswith("pass 12: loss ")
    assert "norm of all gradients" in told[11]
    assert told[24].endswith("more than ten times the usual, so that the next passes are recorded")


@pytest.mark.slow
def test_the_curve_of_the_loss_has_every_pass(tmp_path: Path) -> None:
    loop = Loop()
    with recorded(tmp_path, loop) as trace:
        query = Query(trace)
        (curve,), (norms,) = losses(query), norms_of_steps(query)
        titles = [chart.title for chart in charts_of_run(query)]
    assert curve.at.tolist() == norms.at.tolist() == [*range(1, 61)]
    assert curve.values.tolist() == pytest.approx(loop.losses, rel=1e-6)
    assert norms.values.tolist() == pytest.approx(loop.norms, rel=1e-5)
    assert "Norm of all gradients at the step, by pass" in titles


def test_the_table_of_passes_says_why_a_pass_was_recorded(tmp_path: Path) -> None:
    loop = Loop(disturb=jump_in_25)
    recorded(tmp_path, loop).close()
    rows = gradviz.open(tmp_path / "run.gradviz").sql("SELECT pass, loss, norm, why FROM passes")
    why = {number: reason for number, *_, reason in rows if reason is not None}
    assert why == {
        **dict.fromkeys(range(1, 11), "first"),
        **dict.fromkeys((20, 30, 40, 50, 60), "sample"),
        **dict.fromkeys((25, 26, 27, 28), "jump"),
    }
    assert [norm for _, _, norm, _ in rows] == pytest.approx(loop.norms, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("long", [200_000, 100], ids=["short", "long"])
def test_info_shows_why_passes_were_recorded_and_the_course_of_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: int
) -> None:
    monkeypatch.setattr(part, "LONG", long)
    loop = Loop(disturb=jump_in_25)
    recorded(tmp_path, loop).close()
    told = " ".join(CliRunner().invoke(info, [str(tmp_path / "run.gradviz")]).output.split())
    assert "passes 60, 19 of them in detail" in told
    assert "recorded 10 first, 5 sample, 4 jump" in told
    assert f"loss {number(loop.losses[0])} in pass 1, {number(loop.losses[-1])} in pass 60" in told
    assert f"largest norm of all gradients {number(max(loop.norms))} in pass 25" in told


def test_every_step_and_its_rate_are_kept(tmp_path: Path) -> None:
    def program() -> None:
        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, 10)
        for step in range(1, 61):
            optimizer.zero_grad()
            (1e-3 * net(torch.randn(2, 4)).square().mean()).backward()
            optimizer.step()
            if step % 5 == 0:
                scheduler.step()

    with recorded(tmp_path, program) as trace:
        (curve,) = learning_rates(Query(trace))
        assert curve.at.tolist() == [*range(1, 61)]
        assert curve.values[:50].tolist() == pytest.approx([1 - (step // 5) / 20 for step in range(50)])
        session = Session(trace)
        unwatched = [event for event in of_kind(trace, Stepped) if not event.parameters]
        assert len(unwatched) == 60 - len(CHOSEN_OF_60) - 5  # a step before a pass that is wanted is recorded
        session.go(unwatched[0].index)
        assert sentence(session.stop) == "SGD steps, in a pass that was not watched"
    assert [str(found) for found in gradviz.check(tmp_path / "run.gradviz").at_least("warning")] == []


@pytest.mark.slow
def test_graphs_that_are_kept_are_found_although_passes_are_left_out(tmp_path: Path) -> None:
    class Meter:
        mean = torch.zeros(())

        def update(self, loss: Any) -> None:
            self.mean = self.mean * 0.9 + loss * 0.1

    def program() -> None:
        w, meter = torch.nn.Parameter(torch.ones(3)), Meter()
        optimizer = torch.optim.SGD([w], lr=0.1)
        for _ in range(60):
            loss = (w - 1.0).pow(2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            meter.update(loss)

    def found() -> set[tuple[str, int]]:
        return {(one.rule, one.line) for one in gradviz.check(tmp_path / "run.gradviz").at_least("warning")}

    recorded(tmp_path, program).close()
    left_out = found()
    with gradviz.record(tmp_path / "run.gradviz"):
        program()
    assert left_out == found()
    assert len(left_out) == 1  # the line that keeps them, not the call that hands it the loss


def thaw(step: int, loss: Any, net: Any) -> Any:
    for parameter in net[4].parameters():
        parameter.requires_grad_(step == 13)
    return loss + sum(parameter.sum() for parameter in net[4].parameters()) if step == 13 else loss


def accumulate(step: int, loss: Any, net: Any) -> Any:
    return loss / 4


@pytest.mark.slow
@pytest.mark.parametrize("disturb", [None, thaw], ids=["plain", "thawed unseen"])
def test_what_was_not_watched_is_no_fault(tmp_path: Path, disturb: Any) -> None:
    recorded(tmp_path, Loop(18, disturb)).close()
    assert [str(found) for found in gradviz.check(tmp_path / "run.gradviz").at_least("warning")] == []


@pytest.mark.slow
def test_gradients_that_are_summed_over_passes_are_no_fault(tmp_path: Path) -> None:
    def program() -> None:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for step in range(1, 131):
            (net(torch.randn(8, 4)).square().mean() / 16).backward()
            if step % 16 == 0:
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
        scheduler.step()

    recorded(tmp_path, program).close()
    assert [str(found) for found in gradviz.check(tmp_path / "run.gradviz").at_least("warning")] == []


@pytest.mark.slow
def test_passes_that_are_summed_are_counted_where_all_were_watched(tmp_path: Path) -> None:
    def program() -> None:
        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(1, 25):
            net(torch.randn(8, 4)).square().mean().backward()
            if step % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()

    def found(passes: str) -> list[str]:
        recorded(tmp_path, program, passes=passes).close()
        return [one.fix for one in gradviz.check(tmp_path / "run.gradviz").at_least("warning")]

    assert found("3-4,7-8,11-12,15-16,19-20,23-24") == []
    assert found("5-8,13-16") == ["(loss / 4).backward()"]


@pytest.mark.slow
def test_a_thawed_leaf_is_emitted(tmp_path: Path) -> None:
    def freeze_late(step: int, loss: Any, net: Any) -> Any:
        if step == 13:
            net[0].bias.requires_grad_(False)
        return loss

    with recorded(tmp_path, Loop(disturb=freeze_late)) as trace:
        (changed,) = of_kind(trace, RequiresGradChanged)
        assert trace.parameters[changed.tensor].endswith("net.0.bias")
        assert changed.site == 0


def test_a_step_with_a_closure_is_watched_and_computes_the_same(tmp_path: Path) -> None:
    def train() -> list[float]:
        torch.manual_seed(0)
        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4)
        x, y = torch.randn(8, 3), torch.randn(8, 1)
        losses = []

        def closure() -> Any:
            optimizer.zero_grad()
            loss = (net(x) - y).square().mean()
            loss.backward()
            losses.append(loss.item())
            return loss

        for _ in range(8):
            optimizer.step(closure)
        return losses

    beside: list[float] = []
    with recorded(tmp_path, lambda: beside.extend(train())) as trace:
        assert "stopped" not in trace.meta
        assert len(trace.passes) == len(beside) > 10
    assert beside == train()


def test_what_the_program_replaces_meanwhile_stays(tmp_path: Path) -> None:
    before = torch.nn.Module.zero_grad
    called = []

    def own(module: Any, *args: Any) -> None:
        called.append(module)
        before(module, *args)

    def program() -> None:
        net = torch.nn.Linear(2, 1)
        for step in range(1, 23):
            net.zero_grad()
            net(torch.ones(1, 2)).sum().backward()
            if step == 13:
                torch.nn.Module.zero_grad = own

    plain = vars(torch.nn.Module)["zero_grad"]
    try:
        recorded(tmp_path, program).close()
        assert vars(torch.nn.Module)["zero_grad"] is own
        assert len(called) == 9
    finally:
        torch.nn.Module.zero_grad = plain


@pytest.mark.slow
def test_a_pass_that_is_left_out_takes_less_than_200_bytes(tmp_path: Path) -> None:
    def train(steps: int) -> int:
        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.001)

        def program() -> None:
            for _ in range(steps):
                optimizer.zero_grad()
                net(torch.randn(2, 4)).sum().backward()
                optimizer.step()

        recorded(tmp_path, program).close()
        return (tmp_path / "run.gradviz").stat().st_size

    assert train(1999) - train(1001) < 200 * 998
