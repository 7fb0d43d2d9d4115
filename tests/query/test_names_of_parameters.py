"""Parameters of modules that nobody calls are named by their path in the variable that holds the module."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradviz
from gradviz.events.kinds import Kind, OpRan, PassBegan, ScopeEntered
from gradviz.query import Query
from gradviz.tracefile import open_trace


@pytest.fixture(params=["gradviz.engine", "torch"])
def torch(request: pytest.FixtureRequest) -> Any:
    found = pytest.importorskip(request.param)
    import_module(f"{request.param}.nn")
    return found


def free_of(torch: Any) -> Any:
    class Free(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.free = torch.nn.Parameter(torch.ones(2))
            self.layer = torch.nn.Linear(2, 2)

    return Free


def leaves(path: Path) -> set[str | None]:
    with open_trace(path) as trace:
        query = Query(trace)
        states = map(query.at(trace.count - 1).state, query.at(trace.count - 1).leaves)
        return {query.names.of(state.tensor) for state in states if state.requires_grad}


PATHS = {f"{name}.{path}" for name in ("one", "two") for path in ("free", "layer.weight", "layer.bias")}


def test_parameters_that_were_made_inside_the_recording(torch: Any, tmp_path: Path) -> None:
    Free = free_of(torch)
    with gradviz.record(tmp_path / "run.gradviz"):
        one, two = Free(), Free()
        (one.free * two.free).sum().backward()
    assert leaves(tmp_path / "run.gradviz") == PATHS


def test_parameters_that_were_made_before_it(torch: Any, tmp_path: Path) -> None:
    Free = free_of(torch)
    both = [Free(), Free()]
    with gradviz.record(tmp_path / "run.gradviz"):
        (both[0].free * both[1].free).sum().backward()
    assert leaves(tmp_path / "run.gradviz") == {"both.0.free", "both.1.free"}


def test_a_module_that_is_called_keeps_the_name_of_its_call(torch: Any, tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 1)
    other = torch.nn.Linear(2, 1)

    def run(model: Any) -> None:
        model(torch.ones(3, 2)).sum().backward()

    with gradviz.record(tmp_path / "run.gradviz"):
        run(net)
        run(other)
    assert leaves(tmp_path / "run.gradviz") == {"model.weight", "model.bias"}


class _Own:
    """An object of the program that is no module, and holds some."""

    def __init__(self, torch: Any) -> None:
        self.layers = [torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)]


def test_a_parameter_in_an_object_that_is_no_module_is_called_as_it_is_read(torch: Any, tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "run.gradviz"):
        own = _Own(torch)
        h = torch.ones(4, 3) @ own.layers[0].weight
        h = h + own.layers[0].bias
        (h.sum() * own.layers[1].bias).backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        query = Query(trace)
        moment = query.at(trace.count - 1)
        names = {query.labels.of(leaf): leaf for leaf in moment.leaves if moment.grad(leaf)}
        assert names.keys() == {"own.layers[0].weight", "own.layers[0].bias", "own.layers[1].bias"}
        for name, leaf in names.items():
            assert query.labels.tensor_called(name, trace.count - 1) == leaf


def names_of_leaves(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the leaves with a gradient, by what each is called."""
    with open_trace(path) as trace:
        query = Query(trace)
        moment = query.at(trace.count - 1)
        shapes = {leaf: trace.shape(leaf) for leaf in moment.leaves if moment.grad(leaf)}
        return {query.labels.of(leaf): shape[0] for leaf, shape in shapes.items() if shape is not None}


def test_what_a_function_of_several_ops_reads_is_called_as_its_argument(torch: Any, tmp_path: Path) -> None:
    linear = import_module(f"{torch.__name__}.nn.functional").linear
    with gradviz.record(tmp_path / "run.gradviz"):
        own = _Own(torch)
        h = linear(torch.ones(4, 3), own.layers[0].weight, own.layers[0].bias)
        linear(h.tanh(), bias=own.layers[1].bias, weight=own.layers[1].weight).sum().backward()
    assert names_of_leaves(tmp_path / "run.gradviz") == {
        "own.layers[0].weight": (3, 3),
        "own.layers[0].bias": (3,),
        "own.layers[1].weight": (1, 3),
        "own.layers[1].bias": (1,),
    }


def test_a_function_of_the_program_that_is_called_like_a_librarys_has_its_own_order(torch: Any, tmp_path: Path) -> None:
    def linear(x: Any, bias: Any, weight: Any) -> Any:
        return x @ weight.t() + bias

    with gradviz.record(tmp_path / "run.gradviz"):
        own = _Own(torch)
        linear(torch.ones(4, 3), own.layers[0].bias, own.layers[0].weight).sum().backward()
    assert names_of_leaves(tmp_path / "run.gradviz") == {"own.layers[0].weight": (3, 3), "own.layers[0].bias": (3,)}


def test_numbers_among_the_arguments_are_no_tensors(torch: Any, tmp_path: Path) -> None:
    functional = import_module(f"{torch.__name__}.nn.functional")
    with gradviz.record(tmp_path / "run.gradviz"):
        weights = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.zeros(3))]
        normed = functional.layer_norm(torch.randn(4, 3), (3,), weights[0], weights[1], eps=1e-6)
        (normed * torch.arange(3.0)).sum().backward()
    assert set(names_of_leaves(tmp_path / "run.gradviz")) == {"weights[0]", "weights[1]"}


def test_what_variable_makes_has_the_name_it_is_given(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with gradviz.record(tmp_path / "run.gradviz"):
        net = torch.nn.Linear(3, 1)
        batches = [(torch.ones(4, 3), torch.ones(4, 1))]
        for data, target in batches:
            data, target = torch.autograd.Variable(data), torch.autograd.Variable(target)
            (net(data) - target).abs().mean().backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        query = Query(trace)
        read = [query.labels.of(tensor) for event in trace if isinstance(event, OpRan) for tensor in event.inputs]
        assert {"data", "target"} <= set(read)
        assert not [name for name in read if name.startswith("t") and name[1:].isdigit()]


def test_a_variable_of_a_result_is_told_as_a_cut(gradviz_here: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "p.py").write_text(
        "import torch\n"
        "net, head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)\n"
        "opt = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)\n"
        "for _ in range(3):\n"
        "    opt.zero_grad()\n"
        "    h = torch.autograd.Variable(net(torch.ones(4, 2)))\n"
        "    head(h).pow(2).mean().backward()\n"
        "    opt.step()\n"
    )
    gradviz_here("trace", "p.py")
    found = gradviz_here("check", "p.gradviz").stdout
    assert re.search(r"detached-path +p\.py:6", found)
    assert "Variable makes a new leaf" in " ".join(found.split())


def test_what_is_from_before_the_recording_is_called_as_it_is_read(torch: Any, tmp_path: Path) -> None:
    x, w = torch.ones(3), torch.ones(3, requires_grad=True)
    pair = {"scale": torch.ones(3, requires_grad=True)}
    with gradviz.record(tmp_path / "run.gradviz"):
        loss = (x * w).sum()
        (loss + (pair["scale"] * 2).sum()).backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        query = Query(trace)
        first = next(event for event in trace if isinstance(event, OpRan))
        assert [query.labels.of(tensor) for tensor in first.inputs] == ["x", "w"]
    assert set(names_of_leaves(tmp_path / "run.gradviz")) == {"w", "pair['scale']"}


BATCHES = """
import torch
from torch.utils.data import DataLoader, TensorDataset
net, loss_of = torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss()
rows = TensorDataset(torch.randn(8, 4), torch.arange(8) % 2)
for data, target in DataLoader(rows, batch_size=4):
    {}
"""


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("loss_of(net(data), target).backward()", {"data", "target"}),
        ("loss_of(net(data.view(-1, 4)), target=target).backward()", {"data", "target"}),
        ("loss_of(net(*[data]), **{'target': target}).backward()", set()),
    ],
)
def test_what_a_loader_gives_has_the_variable_by_which_a_call_reads_it(
    line: str, names: set[str], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    program = tmp_path / "p.py"
    program.write_text(BATCHES.format(line))
    with gradviz.record(tmp_path / "run.gradviz"):
        exec(compile(program.read_text(), str(program), "exec"), {"__name__": "p"})
    with open_trace(tmp_path / "run.gradviz") as trace:
        query = Query(trace)
        stacked = [event.outputs[0] for event in trace if isinstance(event, OpRan) and event.op == "stack"]
        assert len(stacked) == 4
        called = {query.labels.of(tensor) for tensor in stacked}
        assert called == names if names else not called & {"data", "target"}


KEPT_IN_COLLECTIONS = """
import {torch} as torch

def make(n):
    return torch.randn(n, requires_grad=True)

a = [torch.ones(2, requires_grad=True), 1.5, make(3)]
w = {{"bias": torch.zeros(2, requires_grad=True), "ö": [torch.ones(1).requires_grad_()], 3: make(1)}}
layers = [make(2) for _ in range(3)]
first, last = torch.ones(2, requires_grad=True), make(2)
rest = [*layers, torch.zeros(1, requires_grad=True)]
def inside():
    return [make(4) for _ in range(2)]
together = [*a[::2], *w.values(), *layers, first, last, rest[-1], *inside()]
sum(one[0].sum() if isinstance(one, list) else one.sum() for one in together).backward()
"""


def test_a_tensor_that_a_collection_holds_is_called_by_its_place_there(torch: Any, tmp_path: Path) -> None:
    program = tmp_path / "p.py"
    program.write_text(KEPT_IN_COLLECTIONS.format(torch=torch.__name__), encoding="utf-8")
    with gradviz.record(tmp_path / "run.gradviz"):
        exec(compile(program.read_text(encoding="utf-8"), str(program), "exec"), {"__name__": "p"})
    held = {"a[0]", "a[2]", 'w["bias"]', 'w["ö"][0]', "w[3]", *(f"layers[{at}]" for at in range(3))}
    with open_trace(tmp_path / "run.gradviz") as trace:
        query = Query(trace)
        leaves = trace.table(Kind.ACCUMULATED)["tensor"].tolist()
        assert {query.names.of(leaf) for leaf in leaves} == {*held, "first", "last", None}
        assert {name: query.names.of(query.labels.tensor_called(name, trace.count - 1)) for name in held} == {
            name: name for name in held
        }
        codes = query.names.all.codes_of(np.array(leaves))
        assert [query.names.all.labels[code] or None for code in codes] == [*map(query.names.of, leaves)]


LIBRARY = """
import {torch} as torch

class Wrapped(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)

def solve(func, x):
    return func(x)

def solve_wrapped(func, x):
    func = Wrapped(func)
    return func(x)
"""
PROGRAM = """
import {torch} as torch

class Field(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x)

field = Field()
{solve}(field, torch.ones(3, 2)).sum().backward()
"""


def run_with_library(folder: Path, library: str, program: str, **parts: str) -> None:
    """Record a program that finds the names of a library's file, both with their parts filled in."""
    space: dict[str, Any] = {"__name__": "p"}
    (folder / "site-packages").mkdir()
    with gradviz.record(folder / "run.gradviz"):
        for file, text in (folder / "site-packages" / "lib.py", library), (folder / "p.py", program):
            file.write_text(text.format(**parts))
            exec(compile(file.read_text(), str(file), "exec"), space)


@pytest.mark.parametrize("solve", ["solve", "solve_wrapped"])
def test_the_variable_of_the_program_names_a_module_that_a_library_calls(
    torch: Any, solve: str, tmp_path: Path
) -> None:
    run_with_library(tmp_path, LIBRARY, PROGRAM, torch=torch.__name__, solve=solve)
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert {*trace.parameters.values()} == {"field.layer.weight", "field.layer.bias"}
        entered = [event.name for event in trace if isinstance(event, ScopeEntered)]
    assert entered[-2:] == ["field", "field.layer"]


CRITERION = """
import {torch} as torch

class Criterion(torch.nn.Module):
    def forward(self, x):
        squares = x * x
        {aside}
        result = squares.sum()
        result = result / 2
        {behind}
        return result
"""
USE = """
import {torch} as torch

w = torch.ones(3, requires_grad=True)
criterion = Criterion()
for _ in range(2):
    loss = criterion(w)
    loss.backward(){use}
"""


@pytest.mark.parametrize(
    ("aside", "behind", "use", "is_named"),
    [
        ("", "", "", True),
        ("self.rest = squares.exp()", "", "", True),  # nothing uses it
        ("self.rest = squares.exp()", "", "; criterion.rest.sum()", False),  # either may be the result
        ("", "self.penalty = x.abs().sum()", "; criterion.penalty + 1", False),  # the last op gave another
    ],
)
def test_what_a_librarys_module_gives_has_the_name_of_its_variable(
    torch: Any, aside: str, behind: str, use: str, is_named: bool, tmp_path: Path
) -> None:
    parts = {"aside": aside or "pass", "behind": behind or "pass", "use": use}
    run_with_library(tmp_path, CRITERION, USE, torch=torch.__name__, **parts)
    with open_trace(tmp_path / "run.gradviz") as trace:
        names = Query(trace).names
        roots = [event.roots[0].tensor for event in trace if isinstance(event, PassBegan)]
        assert [names.of(root) for root in roots] == (["loss"] * 2 if is_named else [None] * 2)
        assert [names.all.labels[code] for code in names.all.codes_of(np.array(roots))] == [
            names.of(t) or "" for t in roots
        ]
        assert names.tensor_called("loss", trace.count) == (roots[1] if is_named else 0)


class _Layer:
    """A layer of the program's own: `self.w` would be the name of the weight of each of its objects."""

    def __init__(self, torch: Any) -> None:
        self.w = torch.ones(3, 3).requires_grad_()


def test_what_an_optimizer_holds_has_its_path_in_the_variables(torch: Any, tmp_path: Path) -> None:
    SGD = import_module(f"{torch.__name__}.optim").SGD

    def made() -> tuple[Any, Any]:
        return torch.ones(3, 1).mul(2).requires_grad_(), torch.zeros(1).requires_grad_()

    with gradviz.record(tmp_path / "run.gradviz"):
        layers = [_Layer(torch), _Layer(torch)]
        heads = {"mean": made(), "scale": made()}
        flat = [layer.w for layer in layers]
        flat += [one for head in heads.values() for one in head]
        optimizer = SGD(flat, lr=0.1)
        for parameter in flat:  # the last would be called `parameter`
            parameter.sum().backward()
        optimizer.step()
    assert leaves(tmp_path / "run.gradviz") == {
        "layers[0].w",
        "layers[1].w",
        'heads["mean"][0]',
        'heads["mean"][1]',
        'heads["scale"][0]',
        'heads["scale"][1]',
    }


def test_the_program_is_not_run_to_find_the_paths(torch: Any, tmp_path: Path) -> None:
    class Odd:
        """Each of these would be called if the paths were asked for as a program does."""

        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

        def __repr__(self) -> str:
            raise AssertionError("the name of a key")

        def __hash__(self) -> int:
            return 1

    weight = [torch.ones(2).requires_grad_()]
    odd = {Odd(): weight, "itself": [Odd()]}
    odd["itself"].append(odd["itself"])
    with gradviz.record(tmp_path / "run.gradviz"):
        optimizer = import_module(f"{torch.__name__}.optim").SGD(weight, lr=0.1)
        weight[0].sum().backward()
        optimizer.step()
    assert len(odd) == 2
    assert leaves(tmp_path / "run.gradviz") == {"weight[0]"}


def test_the_stacked_parameters_of_an_ensemble_have_the_keys_of_their_dict(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    models = [torch.nn.Linear(3, 1) for _ in range(2)]
    with gradviz.record(tmp_path / "run.gradviz"):
        params, _ = torch.func.stack_module_state(models)
        optimizer = torch.optim.SGD(params.values(), lr=0.1)
        predictions = torch.func.vmap(lambda p: torch.ones(4, 3) @ p["weight"].t() + p["bias"])(params)
        predictions.sum().backward()
        optimizer.step()
    assert {'params["weight"]', 'params["bias"]'} <= leaves(tmp_path / "run.gradviz")


def test_a_librarys_wrapper_is_no_part_of_the_names_of_what_the_program_holds(torch: Any, tmp_path: Path) -> None:
    class Wrapper(torch.nn.Module):
        def __init__(self, module: Any) -> None:
            super().__init__()
            self.module, self.scale = module, torch.nn.Parameter(torch.ones(1))

        def forward(self, x: Any) -> Any:
            return self.module(x) * self.scale

    Wrapper.__module__ = "torch.nn.parallel.distributed" if torch.__name__ == "torch" else "numpy.linalg"
    net, alone = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1, bias=False)
    with gradviz.record(tmp_path / "run.gradviz"):
        wrapped = Wrapper(net)
        wrapped(torch.ones(1, 2)).sum().backward()
        inside_only = Wrapper(torch.nn.Linear(2, 1, bias=False))
        inside_only(torch.ones(1, 2)).sum().backward()
        torch.nn.Sequential(alone)(torch.ones(1, 2)).sum().backward()
    names = leaves(tmp_path / "run.gradviz")
    assert names == {
        "net.weight",
        "net.bias",
        "wrapped.scale",
        "inside_only.module.weight",
        "inside_only.scale",
        "Sequential.0.weight",
    }
