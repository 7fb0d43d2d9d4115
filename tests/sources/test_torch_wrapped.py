"""Programs that wrap functions of PyTorch: the wrapper runs once for each call, and all results are equal to the last
bit, whether the function was wrapped before the recording or inside it."""

from __future__ import annotations

import functools
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

import gradviz
from gradviz.tracefile import open_trace

torch = pytest.importorskip("torch")
originals = pytest.importorskip("gradviz.sources.torch_recorder.forward")
F: Any = pytest.importorskip("torch.nn.functional")

pytestmark = pytest.mark.torch


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * 2 * ctx.saved_tensors[0]


def twice(result: Any) -> Any:
    """What a wrapper makes of a result."""
    if result is None:
        return None
    return tuple(map(twice, result)) if isinstance(result, tuple) else torch.add(result, result)


# Where the function is, its name, and what calls it.
PLACES: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "a method in Python": (torch.Tensor, "norm", lambda x: x.norm()),
    "backward": (torch.Tensor, "backward", lambda x: (x * 3).sum().backward()),
    "autograd.backward": (torch.autograd, "backward", lambda x: (x * 3).sum().backward()),
    "autograd.grad": (torch.autograd, "grad", lambda x: torch.autograd.grad((x * 3).sum(), [x])),
    "a method in C": (torch.Tensor, "mul", lambda x: x.mul(3)),
    "an operator": (torch.Tensor, "__mul__", lambda x: x * 3),
    "an operator, wrapped in Python": (torch.Tensor, "__rpow__", lambda x: 2**x),
    "another of its code": (torch.Tensor, "__rsub__", lambda x: 2 - x),
    "a function in C": (torch, "exp", lambda x: torch.exp(x)),
    "a function in Python": (torch, "einsum", lambda x: torch.einsum("i,i->i", x, x)),
    "nn.functional": (F, "softmax", lambda x: F.softmax(x, 0)),
    "nn.functional in a module": (F, "relu", lambda x: torch.nn.ReLU()(x)),
    "nn.functional with two ways": (F, "max_pool1d", lambda x: F.max_pool1d(x[None, None], 2)),
    "the call of all modules": (torch.nn.Module, "__call__", lambda x: torch.nn.ReLU()(x)),
    "forward of a class": (torch.nn.Tanh, "forward", lambda x: torch.nn.Tanh()(x)),
    "apply of a Function": (Square, "apply", lambda x: Square.apply(x)),
}


@dataclass(eq=True)
class Unhashable:
    """A wrapper that is an instance, and cannot be hashed."""

    wrapped: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return twice(self.wrapped(*args, **kwargs))


def by_assignment(wrapped: Any) -> Any:
    return lambda *args, **kwargs: twice(wrapped(*args, **kwargs))


WAYS: dict[str, Callable[[Any], Any]] = {
    "assignment": by_assignment,
    "functools.wraps": lambda wrapped: functools.wraps(wrapped)(by_assignment(wrapped)),
    "mock": lambda wrapped: mock.Mock(side_effect=by_assignment(wrapped)),
    "an instance": Unhashable,
}
ON_A_CLASS = ("assignment", "functools.wraps")  # other callables do not become methods


@contextmanager
def wrapped(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """The function of that name is wrapped."""
    before = vars(owner).get(name)
    setattr(owner, name, wrap(getattr(owner, name)))
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def results(place: str, way: str, path: Path | None = None, first: bool = True) -> list[Any]:
    """What a call gives, and the gradient then: recorded, if there is a path, where the function was wrapped first, or
    is wrapped inside the recording."""
    owner, name, call = PLACES[place]
    recording = nullcontext() if path is None else gradviz.record(path)
    outer, inner = recording, wrapped(owner, name, WAYS[way])
    if first:
        outer, inner = inner, outer
    x = torch.tensor([0.5, -1.25, 2.0], requires_grad=True)
    with outer, inner:
        made = call(x)
        if isinstance(made, torch.Tensor) and made.requires_grad:
            made.sum().backward()
    return [made, x.grad]


def equal(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return bool(torch.equal(first, second))
    if isinstance(first, list | tuple):
        return all(map(equal, first, second))
    return first is second is None


CASES = [
    pytest.param(place, way, first, id=f"{place}, by {way}, {'before' if first else 'during'}")
    for place, (owner, _, _) in PLACES.items()
    for way in (ON_A_CLASS if isinstance(owner, type) else WAYS)
    for first in (True, False)
]


@pytest.mark.parametrize(("place", "way", "first"), CASES)
def test_a_wrapped_function_gives_what_it_gives_unrecorded(
    place: str, way: str, first: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = results(place, way)
    path = tmp_path / "run.gradviz"
    assert equal(expected, results(place, way, path, first))
    assert capfd.readouterr().err == ""
    with gradviz.open(path) as trace:
        assert trace.meta["ended"] == "ok"
        assert len(trace) > 0


IN_PYTHON = (
    "a method in Python",
    "backward",
    "an operator, wrapped in Python",
    "another of its code",
    "a function in Python",
    "nn.functional",
    "nn.functional with two ways",
)


@pytest.mark.parametrize(
    ("place", "way"),
    [(place, way) for place in IN_PYTHON for way in (ON_A_CLASS if isinstance(PLACES[place][0], type) else WAYS)],
)
def test_what_a_wrapper_wraps_is_found_where_objects_are_frozen(place: str, way: str, tmp_path: Path) -> None:
    expected = results(place, way)
    originals._known.clear()
    gc.freeze()  # as `gradviz trace` does when PyTorch is imported
    try:
        assert equal(expected, results(place, way, tmp_path / "run.gradviz"))
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("name", ["T", "real", "grad", "data"])
@pytest.mark.parametrize("first", [True, False])
def test_a_wrapped_attribute_gives_what_it_gives_unrecorded(name: str, first: bool, tmp_path: Path) -> None:
    def read(path: Path | None) -> list[Any]:
        original = getattr(torch.Tensor, name)
        recording = nullcontext() if path is None else gradviz.record(path)
        wrapper = property(lambda self: twice(original.__get__(self)), lambda self, new: original.__set__(self, new))
        outer, inner = recording, wrapped(torch.Tensor, name, lambda _: wrapper)
        if first:
            outer, inner = inner, outer
        x = torch.arange(6.0).reshape(2, 3).requires_grad_()
        with outer, inner:
            (x * x).sum().backward()
            return [getattr(x, name), x.grad]

    assert equal(read(None), read(tmp_path / "run.gradviz"))


def test_a_wrapper_runs_once_for_each_call(tmp_path: Path) -> None:
    calls = []

    def count(original: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            return original(*args, **kwargs)

        return run

    with gradviz.record(tmp_path / "run.gradviz"), wrapped(F, "relu", count):
        for _ in range(3):
            F.relu(torch.ones(2, requires_grad=True))
    assert len(calls) == 3


@pytest.mark.slow
@pytest.mark.parametrize("passes", [None, "auto"])
def test_reads_of_the_recorder_do_not_run_what_a_program_put_in_place_of_methods(
    passes: str | None, tmp_path: Path
) -> None:
    methods = [
        "as_strided", "clone", "cpu", "data_ptr", "detach", "element_size", "is_complex", "is_conj", "is_contiguous",
        "is_floating_point", "is_inference", "is_neg", "item", "numel", "numpy", "reshape", "storage_offset", "stride",
        "t", "tolist", "untyped_storage",
    ]  # fmt: skip

    def calls(path: Path | None) -> Counter[str]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 100), torch.nn.BatchNorm1d(100), torch.nn.Linear(100, 1))
        optimizer = torch.optim.Adam(net.parameters())
        called: Counter[str] = Counter()

        def counting(name: str) -> Callable[[Any], Any]:
            return lambda original: lambda *args, **named: (called.update([name]), original(*args, **named))[1]

        with nullcontext() if path is None else gradviz.record(path, passes=passes), ExitStack() as stack:
            for name in methods:
                stack.enter_context(wrapped(torch.Tensor, name, counting(name)))
            for _ in range(12):
                optimizer.zero_grad()
                net(torch.ones(80, 4)).t()[:, ::2].expand(3, -1).square().mean().backward()
                optimizer.step()
        return called

    assert calls(tmp_path / "run.gradviz") == calls(None)


def test_reads_of_the_recorder_do_not_run_a_program_s_no_grad(tmp_path: Path) -> None:
    def calls(path: Path | None) -> int:
        torch.manual_seed(0)
        net = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        recording = nullcontext() if path is None else gradviz.record(path)
        counted = mock.Mock(side_effect=torch.no_grad)
        with recording, wrapped(torch, "no_grad", lambda _: lambda *args: counted(*args)):
            net(torch.ones(4, 3)).sum().backward()
            optimizer.step()
        return int(counted.call_count)

    assert calls(tmp_path / "run.gradviz") == calls(None)


def test_a_subclass_that_calls_what_it_overrides_gives_what_it_gives_unrecorded(tmp_path: Path) -> None:
    class Doubling(torch.Tensor):
        def backward(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
            super().backward(torch.tensor(2.0))

    def run() -> Any:
        x = torch.ones(2).requires_grad_()
        (x * 3).sum().as_subclass(Doubling).backward()
        return x.grad

    expected = run()
    with gradviz.record(tmp_path / "run.gradviz"):
        assert equal(run(), expected)


class Quantised(NamedTuple):
    """Stands for a tensor, is none, and answers as one: to PyTorch's functions it gives its like."""

    value: Any
    scale: Any

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [arg.value * arg.scale if isinstance(arg, cls) else arg for arg in args]
        return cls(func(*plain, **(kwargs or {})), torch.tensor(1.0))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)


@pytest.mark.parametrize("values", ["none", "stats", "inputs"])
def test_what_is_no_tensor_and_answers_as_one_does_not_end_the_recording(
    values: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> Any:
        weight, bias, x = (torch.ones(shape, requires_grad=True) for shape in ((2, 3), (2,), (4, 3)))
        image, kernel = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 2, 2, requires_grad=True)
        for _ in range(3):  # the later ones by what was learned from the first
            half = torch.tensor(0.5)
            out = F.linear(x, Quantised(weight, half), Quantised(bias, half))
            out = F.linear(out.value, Quantised(weight.mT, half), None)
            conv = F.conv2d(image, Quantised(kernel, half))
            (out.value.mean() + torch.relu(Quantised(weight, half)).value.sum() + conv.value.sum()).backward()
        return [tensor.grad for tensor in (weight, bias, x, kernel)]

    expected = run()
    with gradviz.record(tmp_path / "run.gradviz", values=values):
        assert all(map(equal, run(), expected))
    assert capsys.readouterr().err == ""
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert len(trace.passes) == 3
