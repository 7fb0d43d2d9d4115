"""A pass of which only the graph was at hand, as nothing was watched when its forward ran, is recorded all the same."""

from __future__ import annotations

import contextlib
import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.events.kinds import ErrorRaised, Named, NodeMade, OpRan, ScopeEntered  # noqa: E402
from gradviz.events.values import Stat  # noqa: E402
from gradviz.tracefile import Trace, open_trace  # noqa: E402

pytestmark = pytest.mark.torch


def recorded(folder: Path, program: Callable[[], object]) -> Trace:
    """The trace of a program, of which the first ten passes are watched, and some behind them."""
    path = folder / "run.gradviz"
    with gradviz.record(path, passes="auto"):
        program()
    return open_trace(path)


def in_detail(trace: Trace) -> list[int]:
    return [one.number for one in trace.passes if one.recorded]


class Guilty(torch.nn.Module):
    """A network whose loss is infinite in one pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def train(guilty: int, x: torch.Tensor, y: torch.Tensor) -> None:
    torch.manual_seed(0)
    model = Guilty()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 41):
        wanted = torch.log(y if step == guilty else y + 1)
        score = model(x) * wanted
        loss = (score**2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def of_pass(trace: Trace, number: int) -> list[Any]:
    """The ops with a node, the nodes and the scopes of a pass, with their lines, and without the numbers of tensors."""
    began = trace.passes[number - 2].last
    with_nodes = {event.op for event in trace if isinstance(event, NodeMade)}
    names = {event.tensor: event.name for event in trace if isinstance(event, Named)}
    told: list[Any] = []
    until = trace.passes[number - 1].first if number <= len(trace.passes) else trace.count
    for event in map(trace.event, range(began, until)):
        if isinstance(event, OpRan) and event.index in with_nodes:
            told.append((event.op, event.args, event.site, [names.get(tensor) for tensor in event.inputs]))
        elif isinstance(event, NodeMade):
            told.append((event.grad_fn, event.site, event.rule, [names.get(edge.tensor) for edge in event.edges]))
        elif isinstance(event, ScopeEntered):
            told.append((event.name, event.type, event.site))
    return told


def test_a_pass_that_begins_from_a_bad_loss_is_recorded_from_its_graph(tmp_path: Path) -> None:
    x, y = torch.randn(4, 8), torch.tensor([[0.5], [0.0], [1.0], [2.0]])
    with recorded(tmp_path, lambda: train(25, x, y)) as trace:
        assert 25 in in_detail(trace)
        assert of_pass(trace, 25) == of_pass(trace, 20)
        assert len(of_pass(trace, 25)) > 10
    (found,) = gradviz.check(tmp_path / "run.gradviz").at_least("error")
    assert "wanted, which this line gave, has an infinity here in pass 25" in found.message
    line = int(found.place.rpartition(":")[2])
    assert "wanted = torch.log(y if step == guilty else y + 1)" in linecache.getline(__file__, line)


class Scored(torch.nn.Module):
    """A network whose last operation takes the score with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Guilty()

    def forward(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        score = self.network(x)
        return (score * weights).mean()


def ends_in_forward() -> None:
    torch.manual_seed(0)
    model = Scored()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 41):
        loss = model(torch.randn(4, 8), torch.ones(3 if step == 25 else 4, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_the_forward_that_an_exception_ends_is_recorded_from_what_it_used(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="must match"):
        recorded(tmp_path, ends_in_forward)
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert 25 not in in_detail(trace)
        assert trace.meta["operands"] == "score (4, 1) float32, weights (3, 1) float32"
        told, usual = of_pass(trace, 25), of_pass(trace, 20)
        names = [one[0] for one in usual]
        assert len(told) > 8
        assert told == usual[: names.index("mul")]


def test_operands_are_looked_up_without_code_of_the_program(tmp_path: Path) -> None:
    class Careful(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.ones(3, 2))

        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return super().__getattr__(name)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.embedding(rows, self.table)

    asked: list[str] = []
    model, before = Careful(), 0

    def program() -> None:
        nonlocal before
        try:
            model(torch.tensor([0, 3]))
        finally:
            before = len(asked)

    with pytest.raises(IndexError):
        recorded(tmp_path, program)
    assert len(asked) == before
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert trace.meta["operands"] == "rows (2,) int64 from 0 to 3, self.table (3, 2) float32"
        assert not [event for event in trace if isinstance(event, OpRan) and event.op in ("min", "max")]


def test_the_range_of_an_operand_is_left_out_where_no_values_are_kept(tmp_path: Path) -> None:
    counts = torch.arange(3)
    with pytest.raises(RuntimeError), gradviz.record(tmp_path / "run.gradviz", values="none"):
        counts + torch.ones(2)
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert trace.meta["operands"] == "counts (3,) int64"


def bound_twice() -> None:
    layer = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    x = torch.zeros(3, 4)
    for step in range(1, 31):
        x = torch.log(torch.full((3, 4), -1.0 if step == 25 else 2.0))
        loss = layer(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def written_to() -> None:
    layer = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for step in range(1, 31):
        x = torch.zeros(3, 4)
        if step == 25:
            x[0, 0] = float("nan")
        loss = layer(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("program", [bound_twice, written_to])
def test_no_line_is_named_for_data_that_another_line_may_have_changed(
    tmp_path: Path, program: Callable[[], None]
) -> None:
    recorded(tmp_path, program).close()
    (found,) = gradviz.check(tmp_path / "run.gradviz").at_least("error")
    assert "has NaN here in pass 25" in found.message
    line = int(found.place.rpartition(":")[2])
    assert "loss = layer(x).square().mean()" in linecache.getline(__file__, line)


def test_a_pass_whose_graph_is_new_is_recorded_a_few_times(tmp_path: Path) -> None:
    def program() -> None:
        layer = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.001)
        for step in range(1, 31):
            loss = layer(torch.ones(3, 4)).square().mean()
            for digit in f"{step:05b}" if step > 12 else "":
                loss = loss * 1.01 if digit == "1" else -loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    with recorded(tmp_path, program) as trace:
        assert in_detail(trace) == [*range(1, 11), *range(13, 22), 30]  # 20 in any case


def test_what_is_between_the_nodes_of_a_graph_is_what_the_program_had(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    x, seen = torch.randn(5, 3), {}

    def program() -> None:
        for step in range(1, 16):
            h = layer(x)
            shifted = h * 2 - h.mean()
            flat = torch.softmax(shifted, 1).reshape(-1)
            loss = (flat.abs() + torch.log1p(flat)).sum() * (1000 if step == 15 else 1)
            seen.update(addmm=h, sub=shifted, mean=h.mean(), reshape=flat)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    with recorded(tmp_path, program) as trace:
        assert 15 in in_detail(trace)
        for event in map(trace.event, range(trace.passes[13].last, trace.passes[14].first)):
            if isinstance(event, OpRan) and event.op in seen:
                row = trace.states.valued(event.outputs[0], event.index)
                assert trace.states.stats[row, Stat.MEAN] == pytest.approx(seen.pop(event.op).mean().item(), abs=1e-6)
        assert not seen


def test_a_pass_from_a_graph_changes_nothing_of_the_program(tmp_path: Path) -> None:
    def results(folder: Path | None) -> list[Any]:
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
        found: list[Any] = []

        def program() -> None:
            for step in range(1, 31):
                loss = layer(torch.randn(3, 4)).square().sum() * (1000 if step == 25 else 1)
                optimizer.zero_grad()
                loss.backward(retain_graph=True)
                loss.backward()  # the graph is as it was
                found.extend((layer.weight.grad.clone(), torch.rand(1)))
                optimizer.step()

        program() if folder is None else recorded(folder, program).close()
        return found

    assert all(map(torch.equal, results(None), results(tmp_path)))


def test_the_factors_of_a_product_with_a_sum_count(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    x, seen = torch.randn(5, 3), {}

    def program() -> None:
        for step in range(1, 16):
            mixed = torch.addmm(layer.bias, x, layer.weight.t(), beta=0.5, alpha=2.0)
            seen["addmm"] = mixed
            loss = mixed.sum(dim=None, keepdim=True).sum() * (1000 if step == 15 else 1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    with recorded(tmp_path, program) as trace:
        assert 15 in in_detail(trace)
        events = map(trace.event, range(trace.passes[13].last, trace.passes[14].first))
        (event,) = (event for event in events if isinstance(event, OpRan) and event.op == "addmm")
        row = trace.states.valued(event.outputs[0], event.index)
        assert trace.states.stats[row, Stat.MEAN] == pytest.approx(seen["addmm"].mean().item(), abs=1e-6)


def test_no_line_is_named_for_data_that_several_lines_make(tmp_path: Path) -> None:
    def program() -> None:
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
        x = torch.randn(3, 4)
        for step in range(1, 31):
            zero_or_one = torch.tensor(0.0 if step == 25 else 1.0)
            one = zero_or_one.log()
            other = torch.tensor(1.0).exp()
            first, second = [(layer(x) * factor).square().mean() for factor in (one, other)]
            loss = first + second
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    recorded(tmp_path, program).close()
    (found,) = gradviz.check(tmp_path / "run.gradviz").at_least("error")
    assert "an infinity here in pass 25" in found.message
    assert "gave in the passes that were watched" not in found.message


def descend(loss_of: Callable[[Any, torch.Tensor], torch.Tensor], bad: tuple[int, ...], steps: int = 40) -> list[Any]:
    """Train a layer on rows of ones, in the `bad` steps with a row of zeros. Returns its gradients."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 3, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.001)
    found = []
    for step in range(1, steps + 1):
        x = torch.rand(5, 4) + 0.5
        if step in bad:
            x[2] = 0
        optimizer.zero_grad()
        loss_of(layer, x).backward()
        found.append(layer.weight.grad.clone())
        optimizer.step()
    return found


def of_root(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return layer(x).square().sum(1).sqrt().sub(1).abs().mean()


def of_masked_log(layer: Any, x: torch.Tensor) -> torch.Tensor:
    sizes = layer(x).square().sum(1)
    return torch.where(sizes > 0, sizes.log(), 0.0).mean()


def of_hidden_root(layer: Any, x: torch.Tensor) -> torch.Tensor:
    shifted = layer(x).square().sum(1) - 1e-9
    return torch.where(shifted > 0, shifted.sqrt(), 0.0).mean()


def of_deep_root(layer: Any, x: torch.Tensor) -> torch.Tensor:
    root = layer(x).square().sum(1).sqrt()
    for _ in range(600):
        root = root * 0.999 + 0.001
    return root.mean()


def of_harmless_root(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return layer(x).square().sum(1).relu().sqrt().mean()


@pytest.mark.parametrize(
    ("loss_of", "rule"),
    [
        (of_root, "singular-derivative"),
        (of_deep_root, "singular-derivative"),
        (of_masked_log, "masked-nan"),
        (of_hidden_root, "masked-nan"),
    ],
)
def test_a_pass_whose_gradient_is_bad_behind_a_finite_loss_is_recorded_from_its_graph(
    tmp_path: Path, loss_of: Any, rule: str
) -> None:
    with recorded(tmp_path, lambda: descend(loss_of, bad=(25,))) as trace:
        assert in_detail(trace) == [*range(1, 11), 20, 25, 26, 27, 28, 30, 40]
    found = gradviz.check(tmp_path / "run.gradviz").at_least("error")[0]
    assert (found.rule, found.number) == (rule, 25)
    line = linecache.getline(__file__, int(found.place.rpartition(":")[2]))
    assert ("sizes.log()" if loss_of is of_masked_log else ".sqrt()") in line


def test_singular_points_that_do_no_harm_wake_the_recorder_a_few_times(tmp_path: Path) -> None:
    bad = range(21, 40)
    with recorded(tmp_path, lambda: descend(of_harmless_root, bad=(*bad,))) as trace:
        assert in_detail(trace) == [*range(1, 11), 20, *range(21, 29), 30, 40]


def test_a_look_at_singular_points_changes_nothing(tmp_path: Path) -> None:
    plain, seen = descend(of_root, (25,)), []
    recorded(tmp_path, lambda: seen.extend(descend(of_root, (25,)))).close()
    assert all(torch.equal(one, other) or one.isnan().any() for one, other in zip(plain, seen, strict=True))
    assert [bool(one.isnan().any()) for one in plain] == [bool(one.isnan().any()) for one in seen]


class Rows(torch.autograd.Function):
    """The sum of rows; its backward gives 16 rows to any number of them."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.sum(0, keepdim=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0].expand(16, 16)  # guilty: of 15 rows


def fail(why: str, at: int = 25, caught: bool = False) -> list[Any]:
    """Train two layers, in whose pass `at` an exception is raised. Returns the parameters, and what was raised."""
    torch.manual_seed(0)
    first, second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.001)
    told: list[Any] = []
    for step in range(1, 31):
        h = torch.tanh(first(torch.randn(15 if why == "rows" and step == at else 16, 8)))
        out = second(Rows.apply(h) if why == "rows" else h)
        if why == "written" and step == at:
            h.mul_(2)
        loss = out.square().mean()
        optimizer.zero_grad()
        try:
            loss.backward()
            if why == "twice" and step == at:
                loss.backward()  # guilty: twice
        except RuntimeError as error:
            told.append(str(error))
            if not caught:
                raise
            continue
        optimizer.step()
    return [*first.parameters(), *second.parameters(), torch.rand(1), *told]


@pytest.mark.parametrize("caught", [False, True])
@pytest.mark.parametrize(
    ("why", "at", "rule", "line"),
    [
        ("written", 25, "inplace-modified", "h.mul_(2)"),
        ("twice", 26, "backward-twice", "# guilty: twice"),
        ("rows", 25, "custom-backward-signature", "# guilty: of 15 rows"),
    ],
)
def test_a_pass_that_fails_is_recorded_from_its_graph(
    tmp_path: Path, why: str, at: int, rule: str, line: str, caught: bool
) -> None:
    with contextlib.nullcontext() if caught else pytest.raises(RuntimeError):
        recorded(tmp_path, lambda: fail(why, caught=caught)).close()
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert at in in_detail(trace)
        if why == "written":
            assert of_pass(trace, 25) == of_pass(trace, 20)
        (error,) = (event for event in trace if isinstance(event, ErrorRaised))
        assert (error.in_pass, bool(error.node)) == (at, why == "rows")
    found = gradviz.check(tmp_path / "run.gradviz").findings[0]
    assert (found.rule, found.number, found.severity) == (rule, at, "note" if caught else "error")
    assert linecache.getline(__file__, int(found.place.rpartition(":")[2])).strip().endswith(line)


@pytest.mark.parametrize("why", ["written", "twice", "rows"])
def test_a_pass_that_fails_changes_nothing_of_the_program(tmp_path: Path, why: str) -> None:
    plain: list[Any] = fail(why, caught=True)
    seen: list[Any] = []
    recorded(tmp_path, lambda: seen.extend(fail(why, caught=True))).close()
    assert plain[5:] == seen[5:]
    assert all(map(torch.equal, plain[:5], seen[:5]))


def test_of_a_root_without_a_graph_that_was_not_watched_no_other_is_named(tmp_path: Path) -> None:
    def program() -> None:
        layer = torch.nn.Linear(8, 1)
        for step in range(1, 31):
            loss = layer(torch.randn(4, 8)).square().mean()
            (loss.detach() if step == 25 else loss).backward()

    with pytest.raises(RuntimeError):
        recorded(tmp_path, program)
    (found,) = gradviz.check(tmp_path / "run.gradviz").at_least("error")
    assert found.rule == "no-graph"
    assert "randn" not in found.message
