"""The curves of modules are those of the run, at every pass and step; and the table of its modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradviz as package
import gradviz.engine as torch
from gradviz.events.values import BINS
from gradviz.query import Query
from gradviz.query.curves import (
    changes_of_modules,
    distributions,
    gradients_of_modules,
    gradients_relative,
    layers_of,
    learning_rates,
    losses,
    modules_of,
    partition,
)
from gradviz.query.overview import model_summary
from gradviz.tracefile import open_trace

STEPS = 5


class Net(torch.nn.Module):
    """Two layers of more elements than are kept, the second one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(10, 12)
        self.rest = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(12, 12), torch.nn.Linear(12, 1))

    def forward(self, x: Any) -> Any:
        return self.rest(self.first(x))


def norm(tensors: list[Any]) -> float:
    return float(np.sqrt(sum(float((tensor.detach() ** 2).sum()) for tensor in tensors)))


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, dict[str, list[Any]]]:
    """A run whose weights are written through `.data` first, and what it measured itself."""
    torch.manual_seed(0)
    truth: dict[str, list[Any]] = {"loss": [], "rate": [], "gradients": [], "relative": [], "changes": []}
    with package.record(tmp_path / "run.gradviz"):
        net = Net()
        for parameter in net.parameters():
            parameter.data.mul_(1.5)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        parts = [list(net.first.parameters()), list(net.rest.parameters())]
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = net(torch.ones(4, 10)).pow(2).mean()
            loss.backward()
            truth["loss"].append(float(loss))
            truth["rate"].append(optimizer.param_groups[0]["lr"])
            gradients = [norm([p.grad for p in part]) for part in parts]
            sizes = [norm(part) for part in parts]
            truth["gradients"].append(gradients)
            truth["relative"].append([g / s for g, s in zip(gradients, sizes, strict=True)])
            truth["changes"].append([truth["rate"][-1] * ratio for ratio in truth["relative"][-1]])
            optimizer.step()
            scheduler.step()
    return tmp_path / "run.gradviz", truth


def test_curves_of_modules_are_those_of_the_run(run: tuple[Path, dict[str, list[Any]]]) -> None:
    path, truth = run
    with open_trace(path) as trace:
        query = Query(trace)
        module_of = modules_of(query, 2)
        for measure, name in (
            (gradients_of_modules, "gradients"),
            (gradients_relative, "relative"),
            (changes_of_modules, "changes"),
        ):
            curves = measure(query, module_of)
            assert [curve.name for curve in curves] == ["net.first", "net.rest"]
            assert [curve.at.tolist() for curve in curves] == [list(range(1, STEPS + 1))] * 2
            assert np.allclose([curve.values for curve in curves], np.array(truth[name]).T, rtol=1e-4), name


def test_what_a_module_holds_itself_is_not_called_as_the_whole_module(tmp_path: Path) -> None:
    class Tower(torch.nn.Module):
        def __init__(self, *own: str) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)
            for name in own:
                setattr(self, name, torch.nn.Parameter(torch.ones(2)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) + sum(vars(self)["_parameters"].values())

    with package.record(tmp_path / "run.gradviz"):
        one, two = Tower("scale"), Tower("token", "place")
        (one(torch.ones(1, 2)) + two(torch.ones(1, 2))).sum().backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        query = Query(trace)
        for module_of in (layers_of(query, 10), modules_of(query, 10)):
            names = [curve.name for curve in gradients_of_modules(query, module_of)]
            assert sorted(names) == ["one.layer", "one.scale", "two (own)", "two.layer"]
        assert {curve.name for curve in gradients_of_modules(query, modules_of(query, 2))} == {"one", "two"}


def test_losses_and_rates_are_those_of_the_run(run: tuple[Path, dict[str, list[Any]]]) -> None:
    path, truth = run
    with open_trace(path) as trace:
        (loss,), (rate,) = losses(Query(trace)), learning_rates(Query(trace))
    assert loss.name.startswith("loss (line ")
    assert np.allclose(loss.values, truth["loss"], rtol=1e-5)
    assert (rate.name, rate.values.tolist()) == ("SGD", truth["rate"])


def test_a_change_is_left_out_where_that_of_one_parameter_is_not_known(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz", values="inputs"):  # keeps no norms of changes
        net = torch.nn.ModuleDict({"large": torch.nn.Linear(10, 12), "small": torch.nn.Linear(12, 2)})
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        net["small"](net["large"](torch.ones(1, 10))).sum().backward()
        optimizer.step()
    with open_trace(tmp_path / "run.gradviz") as trace:
        query = Query(trace)
        curves = changes_of_modules(query, modules_of(query, 10))
    assert [curve.name for curve in curves] == ["net.small"]  # the bias of the other one is known, its weight is not


def test_passes_that_begin_at_two_lines_have_two_losses(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        w = torch.tensor([1.0, 2.0], requires_grad=True)
        for _ in range(2):
            loss = w.sum()
            loss.backward()
            penalty = (w**2).sum()
            penalty.backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        found = losses(Query(trace))
    assert [(curve.name.partition(" ")[0], curve.at.tolist(), curve.values.tolist()) for curve in found] == [
        ("loss", [1, 3], [3.0, 3.0]),
        ("penalty", [2, 4], [5.0, 5.0]),
    ]


def test_what_autograd_grad_differentiates_is_no_loss_beside_a_backward(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        x = torch.tensor(2.0, requires_grad=True)
        u = x**3
        (slope,) = torch.autograd.grad(u, x, create_graph=True)
        loss = slope**2
        loss.backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert [(curve.at.tolist(), curve.values.tolist()) for curve in losses(Query(trace))] == [([2], [144.0])]
    with package.record(tmp_path / "grad.gradviz"):
        x = torch.tensor(2.0, requires_grad=True)
        torch.autograd.grad(x**3, x)
    with open_trace(tmp_path / "grad.gradviz") as trace:
        assert [curve.values.tolist() for curve in losses(Query(trace))] == [[8.0]]


def test_there_is_no_relation_to_a_parameter_that_is_zero(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        w = torch.zeros(2, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.5)
        for _ in range(2):
            optimizer.zero_grad()
            w.sum().backward()
            optimizer.step()
    with open_trace(tmp_path / "run.gradviz") as trace:
        for measure, value in ((gradients_relative, 2.0), (changes_of_modules, 1.0)):
            ((at, values),) = [(c.at.tolist(), c.values.tolist()) for c in measure(Query(trace), lambda leaf: "w")]
            assert (at, values) == ([2], [pytest.approx(value)])


def test_groups_of_different_rates_have_a_curve_each(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        a, b, c = (torch.ones(2, requires_grad=True) for _ in range(3))
        groups = [{"params": [a]}, {"params": [b], "lr": 0.5}, {"params": [c]}]
        optimizer = torch.optim.SGD(groups, lr=0.1)
        (a + b + c).sum().backward()
        optimizer.step()
    with open_trace(tmp_path / "run.gradviz") as trace:
        found = {curve.name: curve.values.tolist() for curve in learning_rates(Query(trace))}
    assert found == {"SGD, group 0, 2": [0.1], "SGD, group 1": [0.5]}


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (1, {"net"}),
        (3, {"net.wte", "net.h", "net.head"}),
        (5, {"net.wte", "net.h.0", "net.h.1", "net.head"}),
        (6, {"net.wte", "net.h.0.attn", "net.h.0.mlp", "net.h.1.attn", "net.h.1.mlp", "net.head"}),
    ],
)
def test_modules_are_as_deep_as_their_number_allows(most: int, expected: set[str]) -> None:
    layers = [f"net.h.{layer}.{part}.{name}" for layer in (0, 1) for part in ("attn", "mlp") for name in "wb"]
    names = ["net.wte.weight", *layers, "net.head.weight"]
    found = partition(names, most)
    assert set(found.values()) == expected
    assert all(name.startswith(f"{module}.") for name, module in found.items())
    assert list(found) == names


def test_the_summary_has_each_module_with_its_own_parameters(run: tuple[Path, dict[str, list[Any]]]) -> None:
    path, _ = run
    with open_trace(path) as trace:
        rows = model_summary(Query(trace))
    assert [(row.path, row.type, row.depth, row.own) for row in rows] == [
        ("net", "Net", 0, 0),
        ("net.first", "Linear", 1, 132),
        ("net.rest", "Sequential", 1, 0),
        ("net.rest.0", "Tanh", 2, 0),
        ("net.rest.1", "Linear", 2, 156),
        ("net.rest.2", "Linear", 2, 13),
    ]
    assert rows[1].shapes == (("weight", (12, 10)), ("bias", (12,)))
    ops = [row.ops or 0 for row in rows]
    assert min(ops) > 0
    assert (ops[0], ops[2]) == (ops[1] + ops[2], sum(ops[3:]))  # with those of modules inside


def test_equal_modules_of_a_deep_network_share_a_row(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        net = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(45)))
        net(torch.ones(1, 2)).sum().backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        rows = model_summary(Query(trace))
    assert [(row.path, row.count, row.own) for row in rows] == [("net", 1, 0), ("net.*", 45, 6)]


def test_a_frozen_network_that_was_never_called_is_one_row(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        net, average = (
            torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)) for _ in range(2)
        )
        average.requires_grad_(False)
        net(torch.ones(1, 2)).sum().backward()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), net.parameters(), strict=True):
                slow.mul_(0.9).add_(0.1 * fast)
    with open_trace(tmp_path / "run.gradviz") as trace:
        rows = model_summary(Query(trace))
    assert [row.path for row in rows] == ["net", "net.0", "net.1", "net.2", "average"]
    assert (rows[-1].type, rows[-1].own, rows[-1].modules) == ("2 modules, not called", 13, 2)


def test_states_in_shared_memory_are_found_for_many_tensors_as_for_one(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz", values="full"):
        w = torch.ones(3, requires_grad=True)
        v = w.detach()
        for step in range(3):
            w.data.mul_(2.0)
            (w * w).sum().backward()
            w.grad.data.zero_()
            w.data = torch.full((3,), float(step))
            v.add_(1.0)
    with open_trace(tmp_path / "run.gradviz") as trace:
        query = Query(trace)
        tensors = np.repeat(np.unique(trace.states.tensors).astype(np.int64), trace.count)
        events = np.tile(np.arange(trace.count), len(tensors) // trace.count)
        born = trace.states.events[[trace.states.first(tensor) for tensor in tensors.tolist()]] <= events
        tensors, events = tensors[born], events[born]
        rows = query.memory.rows_of(tensors, events)
        for tensor, event, row in zip(tensors.tolist(), events.tolist(), rows.tolist(), strict=True):
            one = query.memory.value(tensor, event)
            assert (one is None) == (row < 0)
            if one is not None:
                many = trace.states.snapshot(row, row)
                assert np.array_equal(one.array.ravel(), many.array.ravel()), (tensor, event)
        assert len(query.memory.shared)


def test_distances_are_those_of_the_elements_that_were_kept(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        a, b = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 2.0, 7.0])
        c, d = torch.ones(100), torch.zeros(100)
        e = a + b + c.sum() + d.sum()
    with open_trace(tmp_path / "run.gradviz") as trace:
        rows = {name: Query(trace).names.tensor_called(name, trace.count - 1) for name in "abcd"}
        assert e is not None
        first = trace.states.rows_of(np.array([rows["a"], rows["c"], rows["a"]]), np.full(3, trace.count))
        second = trace.states.rows_of(np.array([rows["b"], rows["d"], rows["c"]]), np.full(3, trace.count))
        assert trace.states.distances(first, second).tolist() == [5.0, -1.0, -1.0]


def test_distributions_are_those_of_the_elements(tmp_path: Path) -> None:
    truth: list[tuple[np.ndarray, np.ndarray]] = []
    with package.record(tmp_path / "run.gradviz", values="full"):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(10, 12), torch.nn.Linear(12, 12))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            net(torch.randn(4, 10)).pow(2).sum().backward()
            parts = [np.concatenate([t.detach().numpy().ravel() for t in own]) for own in _of(net[1])]
            truth.append((parts[0].copy(), parts[1].copy()))
            optimizer.step()
    with open_trace(tmp_path / "run.gradviz") as trace:
        query = Query(trace)
        found = {(one.name, one.what): one.histograms for one in distributions(query, modules_of(query, 10))}
    assert {name for name, _ in found} == {"net.0", "net.1"}
    for side, of_passes in enumerate((found["net.1", "parameters"], found["net.1", "gradients"])):
        chosen = {number: truth[number - 1][side] for number in (1, 3, 5)}
        together = np.concatenate(list(chosen.values()))
        assert list(of_passes) == [1, 3, 5]
        for number, elements in chosen.items():
            low, high, counts = of_passes[number]
            assert (low, high) == pytest.approx((together.min(), together.max()))
            assert counts.tolist() == np.histogram(elements, BINS, (low, high))[0].tolist()


def _of(layer: Any) -> tuple[list[Any], list[Any]]:
    """The parameters of a layer, and their gradients."""
    parameters = [layer.weight, layer.bias]
    return parameters, [parameter.grad for parameter in parameters]


def test_a_module_has_no_distribution_where_elements_were_not_kept(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        net = torch.nn.Sequential(torch.nn.Linear(10, 12), torch.nn.Linear(12, 2))
        net(torch.ones(1, 10)).sum().backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        query = Query(trace)
        found = distributions(query, modules_of(query, 10))
    assert {one.name for one in found} == {"net.1"}  # of net.0 no elements are known


@pytest.mark.parametrize("ends", [(0.0, 5e-324), (-1.7e308, 1.7e308)])
def test_elements_that_no_parts_can_be_made_of_have_no_distribution(tmp_path: Path, ends: tuple[float, float]) -> None:
    with package.record(tmp_path / "run.gradviz"):
        w = torch.tensor(list(ends), dtype=torch.float64, requires_grad=True)
        (w * torch.tensor([1.0, 2.0], dtype=torch.float64)).sum().backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert distributions(Query(trace), lambda leaf: "w") == []
