"""A recorder that cannot begin, or that fails at any point, says so in one line, and the program does not notice."""

from __future__ import annotations

import copy
import importlib
import inspect
import pkgutil
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.optim import optimizer as hooks_of_optimizers  # noqa: E402

import gradviz  # noqa: E402
import gradviz.sources.torch_recorder as recorder_package  # noqa: E402
from gradviz.events.listener import Listener  # noqa: E402
from gradviz.sources import torch_needs  # noqa: E402
from gradviz.sources.torch_recorder.watching import Replaced  # noqa: E402

pytestmark = pytest.mark.torch
nn = torch.nn


# --- a program that reaches every part of the recorder


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return 2 * gradient * ctx.saved_tensors[0]


class Marked(torch.Tensor):
    pass


def train() -> list[Any]:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    losses = []
    for clears in (True, False):
        optimizer.zero_grad(set_to_none=clears)
        loss = Square.apply(net(torch.randn(8, 3))).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    net.zero_grad()
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    return [*losses, *(parameter.detach().clone() for parameter in net.parameters())]


def search() -> list[Any]:
    w = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.LBFGS([w], max_iter=3)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (w**2).sum()
        loss.backward()
        return loss

    return [optimizer.step(closure).item(), w.detach().clone()]


def differentiate() -> list[Any]:
    x = torch.ones(3, requires_grad=True)
    y = (x.exp() * x).requires_grad_()
    y.retain_grad()
    y.register_hook(lambda gradient: gradient * 2)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True, retain_graph=True)
    first.sum().backward(retain_graph=True)
    (y + y * 2).sum().backward()
    x.data = x.data * 2
    x.grad = None
    z = torch.ones(2, 2)
    z[0] = 5
    z.add_(1)
    view = z.view(4)
    view.mul_(2)
    array = torch.from_numpy(torch.ones(2).numpy())
    torch.nn.init.uniform_(array)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(2), torch.ones(2))
        tangent = torch.autograd.forward_ad.unpack_dual(dual * dual).tangent
    marked = torch.ones(2)
    if not torch.__version__.startswith("2.5."):  # where no dispatch mode, as `aten` needs one, lets a class be changed
        marked = marked.as_subclass(Marked) * 2
    mapped = torch.func.vmap(torch.sin)(z)
    return [y.grad, first, z, array, tangent, marked, mapped, copy.deepcopy(z), x.grad]


def err() -> list[Any]:
    said = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("the program's", stacklevel=1)
    x = torch.ones(2, requires_grad=True)
    for wrong in (lambda: torch.ones(2) @ torch.ones(3), lambda: x.sum().backward(torch.ones(5))):
        try:
            wrong()
        except RuntimeError as error:
            said.append(str(error))
            said += [(frame.name, frame.lineno) for frame in traceback.TracebackException.from_exception(error).stack]
    with torch.autograd.detect_anomaly(check_nan=False):
        x.exp().sum().backward()
    return [*said, *((str(one.message), one.filename) for one in caught), x.grad]


def in_thread() -> list[Any]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(differentiate()))
    thread.start()
    thread.join()
    return found


def compile_one() -> list[Any]:
    double = torch.compile(lambda x: x.sin() * 2, backend="eager")
    layer = nn.Linear(2, 1)
    layer.compile(backend="eager")
    x = torch.ones(2, requires_grad=True)
    (double(x).sum() + layer(x).sum()).backward()
    return [x.grad]


def collect() -> list[Any]:
    if not torch.distributed.is_available():
        return []
    x = torch.ones(2)
    hook = sys.excepthook  # which PyTorch replaces for good
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        torch.distributed.all_reduce(x)
    finally:
        torch.distributed.destroy_process_group()
        sys.excepthook = hook
    return [x]


def program() -> list[Any]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = (train, search, differentiate, err, compile_one, collect, in_thread)
        return [*(value for part in parts for value in part()), torch.rand(1)]


def text(values: list[Any]) -> list[str]:
    """Values, to the last bit."""
    return [repr(v.double().tolist()) if isinstance(v, torch.Tensor) else repr(v) for v in values]


PLACES = [
    (torch.autograd, "_engine_run_backward"), (torch.autograd.graph, "_engine_run_backward"),
    (torch.autograd.Function, "apply"), (torch, "from_numpy"), (torch, "compile"), (nn.Module, "__call__"),
    (nn.Module, "zero_grad"), (torch.optim.Optimizer, "__init__"), (threading.Thread, "_bootstrap_inner"),
    (torch.optim.lr_scheduler.StepLR, "step"), 
    (traceback.StackSummary, "_extract_from_extended_frame_gen"),
]  # fmt: skip


def state() -> list[Any]:
    """What a recorder may leave behind in PyTorch."""
    return [
        *(vars(owner).get(name) for owner, name in PLACES),
        len(hooks_of_optimizers._global_optimizer_pre_hooks), len(hooks_of_optimizers._global_optimizer_post_hooks),
        torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack(),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return text(program())


@pytest.fixture(scope="module", autouse=True)
def _forget_what_was_compiled() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        # Whenever a process group begins, PyTorch forgets what it traces how. To know it again takes two thirds of all.
        patch.setattr("torch._dynamo.trace_rules.clear_lru_cache", lambda: None)
        yield
    torch._dynamo.reset()  # it compiles a function only so many times


def run_recorded(folder: Path, expected: list[str], **settings: Any) -> list[str]:
    """What a recording says of its end, of a program that does what it does without."""
    lines: list[str] = []
    before = state()
    with gradviz.record(folder / "run.gradviz", say=lines.append, aten=True, check_functions=True, **settings):
        found = text(program())
    assert found == expected
    assert state() == before
    assert all(line.startswith("gradviz: ") and "\n" not in line for line in lines)
    return lines


# --- a PyTorch that lacks something


@pytest.mark.slow
@pytest.mark.parametrize("name", torch_needs.NEEDED)
def test_a_pytorch_that_lacks_a_name_is_not_recorded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[str]
) -> None:
    found = torch_needs.optional
    monkeypatch.setattr(torch_needs, "optional", lambda torch, path: None if path == name else found(torch, path))
    (line,) = run_recorded(tmp_path, expected)
    assert f"has no torch.{name}, without which it cannot be recorded" in line
    assert "the program runs on unrecorded" in line
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        assert trace.meta["stopped"].endswith("complete up to event 0")


@pytest.mark.slow
@pytest.mark.parametrize("at", range(0, 43, 7))
def test_what_was_replaced_is_put_back_where_the_rest_cannot_be(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[str]
) -> None:
    put, count = Replaced.put, iter(range(1000))

    def failing(self: Replaced, owner: Any, name: str, new: Any) -> None:
        if next(count) == at:
            raise AttributeError(f"a fault at {name}")
        put(self, owner, name, new)

    monkeypatch.setattr(Replaced, "put", failing)
    (line,) = run_recorded(tmp_path, expected)
    assert "cannot be recorded, by a fault of gradviz's at test_torch_failing.py" in line


# --- a recorder that fails

# What consists of calls that cannot fail: it hands the program's own calls on.
HAND_ON = {
    "forward.Forward.__torch_function__", "forward.Forward._tell_of", "kernels.BelowAutograd._should_skip_dynamo",
    "kernels.BelowAutograd.on", "known_things.NodeRecord.__call__", "kernels.Kernels.__torch_dispatch__",
    "kernels.call_of", "measuring.Measured.__torch_dispatch__", "measuring.Measured._called",
    "engine.Refusals.making_gradients", "recording.TorchRecorder._as_before", "recording.TorchRecorder._as_one_op",
    "recording.TorchRecorder.opaque", "watching.Replaced.put_back_for_now", "shared.Source.gave_up",
    "shared.Source.quiet", "shared.Source.recover", "shared.safely", "watching.Watching.on",
    "watching.Watching.paused", "engine._begun", "backward._in_hook", "shared.Source.is_off",
    "shared.Source.is_silent", "shared.Source.is_detailed",
}  # fmt: skip
# What switches off: where it fails, something of the recorder stays, and is silent.
SWITCH_OFF = {
    "kernels.BelowAutograd.leave", "recording.Places.end", "recording.TorchRecorder.end",
    "watching.Replaced.put_back", "optimizers.Training.end", "watching.Watching.take_out",
    "watching.Watching._take_out_safely",
}  # fmt: skip
SHOWN = {"recording.Places.without_ours"}  # without it, tracebacks have frames of gradviz's


def functions_of(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """The functions and methods of a module, the innermost of those that are decorated."""
    owners = [module, *(c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__)]
    for owner in owners:
        for name, value in vars(owner).items():
            value = value.fget if isinstance(value, property) else value
            found = inspect.unwrap(value) if callable(value) else None
            if isinstance(found, types.FunctionType) and found.__module__ == module.__name__:
                stem = module.__name__.rpartition(".")[2]
                yield f"{stem}.{name}" if owner is module else f"{stem}.{owner.__name__}.{name}", found


FUNCTIONS = {
    name: function
    for info in pkgutil.iter_modules(recorder_package.__path__)
    for name, function in functions_of(importlib.import_module(f"{recorder_package.__name__}.{info.name}"))
    if name not in HAND_ON | SWITCH_OFF | SHOWN and not function.__code__.co_freevars
}


def fault(*_: Any, **__: Any) -> Any:
    raise LookupError("a fault")


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The functions of the recorder that run in that program."""
    codes = {function.__code__: name for name, function in FUNCTIONS.items()}
    ran: set[str] = set()

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in codes:
            ran.add(codes[frame.f_code])

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        with gradviz.record(tmp_path_factory.mktemp("reached") / "run.gradviz", aten=True, check_functions=True):
            program()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return ran


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_program_does_not_notice_a_function_of_the_recorder_that_fails(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[str], reached: set[str]
) -> None:
    if name not in reached:
        pytest.skip("the program does not reach this function of the recorder")
    monkeypatch.setattr(FUNCTIONS[name], "__code__", fault.__code__)
    lines = run_recorded(tmp_path, expected)
    assert len(lines) <= 1
    assert all("a fault of gradviz's at test_torch_failing.py" in line for line in lines)
    if lines:
        with gradviz.open(tmp_path / "run.gradviz") as trace:
            assert "a fault of gradviz's" in trace.meta["stopped"]


@pytest.mark.slow
def test_most_functions_of_the_recorder_run_in_that_program(reached: set[str]) -> None:
    assert len(reached) > 150


EVENTS = [name for name, value in vars(Listener).items() if inspect.isfunction(value) and name[0] != "_"]


class Failing:
    """A listener that fails at one sort of event."""

    def __init__(self, listener: Any, event: str) -> None:
        self.listener, self.event = listener, event

    def __getattr__(self, name: str) -> Any:
        return fault if name == self.event else getattr(self.listener, name)


@pytest.mark.parametrize("event", EVENTS)
def test_the_program_does_not_notice_a_listener_that_fails(event: str, tmp_path: Path, expected: list[str]) -> None:
    through: Callable[[Any], Any] = lambda recorder: Failing(recorder, event)
    assert len(run_recorded(tmp_path, expected, through=through)) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "fails",
    ["forward.Forward._tell", "recording.prepare_dynamo", "backward.Pass._watch", "module_scopes.Scopes._name_all"],
)
def test_a_script_whose_recorder_fails_ends_as_without(fails: str, tmp_path: Path, gradviz: Callable[..., Any]) -> None:
    program = f"""
import sys, torch
from gradviz.sources.torch_recorder import backward, forward, module_scopes, recording

def fault(*_):
    raise LookupError("a fault")

{fails} = fault
layer = torch.nn.Linear(2, 1)
double = torch.compile(lambda x: x * 2, backend="eager")
double(layer(torch.ones(1, 2))).sum().backward()
print(layer.weight.grad)
sys.exit(5)
"""
    (tmp_path / "script.py").write_text(program)
    done = gradviz("trace", "script.py")
    assert done.returncode == 5
    assert done.stdout == "tensor([[2., 2.]])\n"
    assert sum("a fault of gradviz's" in line for line in done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr
