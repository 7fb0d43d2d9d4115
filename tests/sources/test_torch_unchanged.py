"""A PyTorch program does not notice that it is recorded: what it prints, warns, raises and leaves behind."""

from __future__ import annotations

import ast
import gc
import importlib
import re
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.events.kinds import ErrorRaised, NodeMade, OpRan  # noqa: E402
from gradviz.tracefile import Trace  # noqa: E402
from tests.invoked import invoked  # noqa: E402
from tests.warm import python  # noqa: E402

pytestmark = pytest.mark.torch
Record = Callable[..., Trace]


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """The trace of a function that is called with PyTorch recorded."""

    def run(function: Callable[[], object], values: str = "full") -> Trace:
        path = tmp_path / "run.gradviz"
        with gradviz.record(path, values=values):
            function()
        return gradviz.open(path)

    return run


PROGRAM = """
import traceback, warnings
import torch
from torch import nn

x = torch.ones(3, requires_grad=True)


class Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a * 2

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("no gradient today")


def attempt(run):
    try:
        run()
    except Exception:
        traceback.print_exc()
        traceback.print_exc(limit=-3)


def root():
    with torch.autograd.detect_anomaly():
        (torch.zeros(2, requires_grad=True).sqrt() * 0).sum().backward()


hooked = nn.Linear(2, 2)
hooked.register_full_backward_hook(lambda *_: warnings.warn("of a caller's caller", stacklevel=6))
for times in (1, 2):
    hooked(torch.ones(1, 2)).sum().backward()
    hooked(torch.ones(1, 2)).sum().backward()
attempt(root)
attempt(lambda: nn.functional.cross_entropy(torch.ones(2, 3), torch.tensor([5, 1])))
attempt(lambda: torch.ones(2) + torch.ones(3))
attempt(lambda: Bad.apply(x).sum().backward())
y = x * 2
z = (y**2).sum()
y.add_(1)
attempt(z.backward)
attempt(lambda: nn.Linear(2, 3)(torch.ones(1, 5)))
for _ in range(2):
    nn.functional.softmax(torch.ones(3))
(x * 2).grad
float(x.sum())
warnings.warn("of the program itself")
print(torch.rand(2), torch.initial_seed() is not None)
torch.ones(2) @ torch.ones(3)
"""


def run_python(*arguments: str, cwd: Path, own: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([own or python(), *arguments], cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The program, and its run without the recorder."""
    script = tmp_path_factory.mktemp("plain") / "script.py"
    script.write_text("import torch\ntorch.manual_seed(3)\n" + PROGRAM)
    return script, run_python(str(script), cwd=script.parent, own=sys.executable)


@pytest.mark.parametrize("options", ["", "--aten", "--profile", "--histograms", "--passes 2-3", "--scope Linear"])
def test_output_warnings_tracebacks_and_status_are_those_of_python(
    tmp_path: Path, plain: tuple[Path, subprocess.CompletedProcess[str]], options: str
) -> None:
    script, plainly = plain
    started = sys.executable if options == "--profile" else ""  # it imports Triton, see warm_server.import_later
    traced = run_python("-m", "gradviz", "trace", *options.split(), str(script), cwd=tmp_path, own=started)
    own = [line for line in traced.stderr.splitlines(True) if not line.startswith("gradviz:")]
    assert "".join(own) == plainly.stderr
    assert traced.stdout == plainly.stdout
    assert (traced.returncode, plainly.returncode) == (1, 1)
    assert plainly.stderr.count("Traceback (") == 13  # the last of which ends it
    assert plainly.stderr.count("of a caller's caller") >= 2


MODULES = """
import sys
import torch
w = torch.ones(2, requires_grad=True)
(w * 2).sum().backward()
print(sorted(name for name in sys.modules if name.split(".")[0] in ("torch", "triton")))
"""


def test_a_program_imports_no_more_of_pytorch_than_it_does_alone(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(MODULES)
    plain = run_python("script.py", cwd=tmp_path, own=sys.executable)
    traced = run_python("-m", "gradviz", "trace", "script.py", cwd=tmp_path, own=sys.executable)
    assert traced.stdout == plain.stdout


@pytest.mark.slow
def test_a_script_that_imports_torch_by_way_of_a_module_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import torch\nx = torch.ones(2, requires_grad=True)\n")
    (tmp_path / "train.py").write_text("from model import x\n(x * 3).sum().backward()\nraise SystemExit(7)\n")
    done = run_python("-m", "gradviz", "trace", "train.py", cwd=tmp_path)
    assert done.returncode == 7, done.stderr
    with gradviz.open(tmp_path / "train.gradviz") as trace:
        assert trace.meta["engine"] == "torch"
        assert trace.meta["torch"] == torch.__version__
        assert [event.op for event in trace if isinstance(event, OpRan)] == ["mul", "sum"]
        assert len(trace.passes) == 1


@pytest.mark.slow
def test_a_script_without_torch_does_not_load_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import gradviz.engine as engine, sys\nx = engine.ones(2, requires_grad=True)\n(x * 2).sum().backward()\n"
        "print('torch' in sys.modules)\n"
    )
    done = run_python("-m", "gradviz", "trace", "script.py", cwd=tmp_path)
    assert done.stdout == "False\n"
    with gradviz.open(tmp_path / "script.gradviz") as trace:
        assert trace.meta["engine"] == "numpy"
        assert len(trace.passes) == 1


@pytest.mark.parametrize("command", ["trace", "debug"])
def test_without_pytorch_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from gradviz.cli import running

    monkeypatch.setattr(running, "is_installed", lambda: False)
    done = invoked([command, "--engine", "torch", str(tmp_path / "script.py")])
    assert done.exit_code == 2
    said = done.stderr + capsys.readouterr().err
    assert "PyTorch, which is not installed: pip install torch" in " ".join(said.split())


@pytest.mark.slow
def test_no_tensor_is_kept_alive_and_none_has_something_put_on_it(record: Record) -> None:
    alive: list[weakref.ref[object]] = []

    def program() -> None:
        x = torch.ones(200, requires_grad=True)
        y = torch.exp(x)
        alive.extend((weakref.ref(x), weakref.ref(y)))
        y.sum().backward()
        assert x.__dict__ == {}
        assert x.grad is not None
        assert x.grad.__dict__ == {}
        alive.append(weakref.ref(x.grad))
        del x, y
        gc.collect()
        assert [one() for one in alive] == [None, None, None]

    record(program).close()
    assert len(alive) == 3


class Heard(torch.overrides.TorchFunctionMode):
    """Keeps what functions PyTorch hands it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_program_hears_of_nothing_that_the_recorder_reads(tmp_path: Path) -> None:
    w = torch.ones(3, requires_grad=True)

    def run() -> None:
        for _ in range(3):  # the first at each place, and those that are like it
            h = torch.nn.functional.relu(w * 2)
            assert h.shape == (3,)
            h[0].exp().backward()

    with Heard() as alone:
        run()
    with Heard() as heard, gradviz.record(tmp_path / "run.gradviz", values="stats"):
        run()
    assert alone.names == heard.names != []


def test_nothing_stays_behind(record: Record) -> None:
    before = [
        torch.autograd.graph._engine_run_backward, torch.autograd.Function.apply, torch.overrides.has_torch_function,
        threading.Thread._bootstrap_inner, torch.optim.Optimizer.zero_grad, torch.nn.Module.zero_grad,
        torch.optim.lr_scheduler.LRScheduler.step,
    ]  # fmt: skip
    w = torch.ones(2, requires_grad=True)
    y = (w * 3).sum()
    record(lambda: y.backward(retain_graph=True)).close()
    after = [
        torch.autograd.graph._engine_run_backward, torch.autograd.Function.apply, torch.overrides.has_torch_function,
        threading.Thread._bootstrap_inner, torch.optim.Optimizer.zero_grad, torch.nn.Module.zero_grad,
        torch.optim.lr_scheduler.LRScheduler.step,
    ]  # fmt: skip
    assert after == before
    assert torch._C._len_torch_function_stack() == 0
    assert torch.nn.Parameter(torch.ones(2)).requires_grad
    assert "__call__" not in vars(type(torch.nn.Parameter))
    y.backward()  # no hook of ours is left on its nodes
    assert w.grad is not None
    assert w.grad.tolist() == [6, 6]


def test_the_fast_path_of_a_layer_is_still_taken(record: Record) -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(1, 3, 8)
    with torch.no_grad():
        plain = layer(x)
        results = []
        trace = record(lambda: results.append(layer(x)))
    assert torch.equal(results[0], plain)
    assert "_transformer_encoder_layer_fwd" in [event.op for event in trace if isinstance(event, OpRan)]


def test_the_node_at_fault_is_told(record: Record) -> None:
    def program() -> None:
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        z = (y * 2).sum()
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.backward()

    trace = record(program)
    (error,) = (event for event in trace if isinstance(event, ErrorRaised))
    made = {event.node: event.grad_fn for event in trace if isinstance(event, NodeMade)}
    assert made[error.node] == "ExpBackward0"
    assert error.in_pass == 1


def test_a_backward_in_another_thread_is_recorded(record: Record) -> None:
    def program() -> None:
        x = torch.ones(3, requires_grad=True)
        thread = threading.Thread(target=lambda: (x * 2).sum().backward())
        thread.start()
        thread.join()
        assert x.grad is not None

    trace = record(program)
    assert len(trace.passes) == 1
    ops = [event for event in trace if isinstance(event, OpRan)]
    assert [event.op for event in ops] == ["mul", "sum"]
    assert len({event.thread for event in trace}) == 2


def test_tensors_that_cannot_be_read_are_told_without_a_value(record: Record) -> None:
    def program() -> None:
        torch.ones(3, device="meta") * 2
        torch.func.vmap(lambda row: row * 2)(torch.ones(2, 3))
        with torch.inference_mode():
            (torch.ones(2) * 3).add_(1)
        torch.ones(3, dtype=torch.cfloat).conj() * 1j

    trace = record(program)
    snapshots = {
        event.outputs[0]: trace.snapshot(event.outputs[0], event.index) for event in trace if isinstance(event, OpRan)
    }
    unread = [one for one in snapshots.values() if one is not None and one.array is None and one.stats is None]
    assert sorted(one.device for one in unread) == ["cpu", "meta"]
    read = [one for one in snapshots.values() if one is not None and one.array is not None]
    assert any(re.match("complex64", one.dtype) for one in read)


def test_a_layer_that_packs_its_rows_is_told_without_their_values(record: Record) -> None:
    """The fast path of an encoder makes a nested tensor of rows of several lengths."""
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 1).eval()
    padding = torch.tensor([[False, False, True]] * 2)

    def program() -> None:
        with torch.inference_mode():
            encoder(torch.randn(2, 3, 8), src_key_padding_mask=padding)

    trace = record(program)
    assert "_nested_tensor_from_mask" in {event.op for event in trace if isinstance(event, OpRan)}


@pytest.mark.parametrize("values", ["stats", "full"])
def test_a_tensor_that_is_expanded_beyond_all_memory_has_statistics(record: Record, values: str) -> None:
    trace = record(lambda: torch.tensor([[0.0], [2.0]]).expand(2, 10**12), values)
    expanded = next(event for event in trace if isinstance(event, OpRan))
    snapshot = trace.snapshot(expanded.outputs[0], expanded.index)
    assert snapshot is not None
    assert snapshot.stats is not None
    assert (snapshot.stats.min, snapshot.stats.mean, snapshot.stats.zeros) == (0, 1, 10**12)


def test_large_tensors_of_inference_mode_have_statistics_though_no_versions(record: Record) -> None:
    def program() -> None:
        with torch.inference_mode():
            torch.full((100, 100), 2.0).mul(3)

    trace = record(program, values="stats")
    product = next(event for event in trace if isinstance(event, OpRan))
    snapshot = trace.snapshot(product.outputs[0], product.index)
    assert snapshot is not None
    assert snapshot.stats is not None
    assert (snapshot.stats.min, snapshot.stats.max, snapshot.stats.mean) == (6, 6, 6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool])
@pytest.mark.parametrize("values", ["stats", "full"])
@pytest.mark.parametrize("length", [5, 3000, 9000, 300_000])
def test_values_of_every_dtype_are_those_of_the_tensor(
    record: Record, dtype: torch.dtype, values: str, length: int
) -> None:
    torch.manual_seed(0)
    data = torch.randn(length).mul(3).to(dtype)
    if dtype.is_floating_point:
        data[0], data[1] = torch.nan, torch.inf
    made = []
    trace = record(lambda: made.append(data.clone()), values)
    (op,) = (event for event in trace if isinstance(event, OpRan))
    snapshot = trace.snapshot(op.outputs[0], op.index)
    assert snapshot is not None
    assert snapshot.dtype == str(dtype).removeprefix("torch.")
    if values == "full" or length <= 64:
        assert snapshot.array is not None
        expected = data.double().tolist()
        assert str([float(v) for v in snapshot.array.tolist()]) == str(expected)
    else:
        finite = data.double()[torch.isfinite(data)]
        stats = snapshot.stats
        assert stats is not None
        assert (stats.min, stats.max) == (finite.min().item(), finite.max().item())
        assert stats.mean == pytest.approx(finite.mean().item(), rel=1e-4, abs=1e-6)
        assert stats.rms == pytest.approx(finite.square().mean().sqrt().item(), rel=1e-4)
        assert (stats.nan, stats.inf) == ((1, 1) if dtype.is_floating_point else (0, 0))
        assert stats.zeros == int((data == 0).sum())


def test_statistics_of_a_view_follow_what_is_written_over(record: Record) -> None:
    def program() -> None:
        x = torch.ones(100, 100)
        x.view(10000)
        x.mul_(3)
        x.view(10000)

    trace = record(program, "stats")
    views = [event for event in trace if isinstance(event, OpRan) and event.op == "view"]
    found = [trace.snapshot(event.outputs[0], event.index) for event in views]
    assert [one.stats.mean for one in found if one is not None and one.stats is not None] == [1, 3]


@pytest.mark.parametrize("grade", ["stats", "full"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2])
def test_memory_that_was_read_can_still_be_resized(tmp_path: Path, grade: str, dtype: Any) -> None:
    with gradviz.record(tmp_path / "run.gradviz", values=grade):
        for size in (10, 5000, 600_000):
            x = torch.ones(size).to(dtype)
            y = x.view(-1)[1:]
            y.untyped_storage().resize_(0)
            y.untyped_storage().resize_(4 * size)
            z = torch.zeros(size)
            z.resize_(2 * size)


def test_memory_that_was_freed_is_not_read(tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "run.gradviz", values="full"):
        x = torch.ones(5000)
        part = x[100:]
        x.untyped_storage().resize_(0)
        again = x.detach(), part.detach(), torch._efficientzerotensor((3,))
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        ops = [event for event in trace if type(event).__name__ == "OpRan" and event.op == "detach"]
        assert [trace.snapshot(event.outputs[0], event.index).array for event in ops] == [None, None]
    assert len(again) == 3


def test_a_view_whose_node_pytorch_does_not_say(tmp_path: Path) -> None:
    """Made without grad mode, of a base that is then written with it: to read its `grad_fn` or `is_leaf` raises."""
    with gradviz.record(tmp_path / "run.gradviz"):
        base, w = torch.ones(3, 2), torch.ones(2, requires_grad=True)
        with torch.no_grad():
            part = base[0]
        base.mul_(w)
        with torch.no_grad():
            copied = part + 1
        base.sum().backward()
    with pytest.raises(RuntimeError, match="A view was created in no_grad mode"):
        _ = part.grad_fn
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        ops = [event.op for event in trace if isinstance(event, OpRan)]
    assert ops == ["getitem", "mul_", "add", "sum"]
    assert copied.tolist() == [2, 2]


@pytest.mark.slow
def test_calls_too_deep_to_record_are_told_in_one_line(tmp_path: Path) -> None:
    program = """
import torch
x = torch.ones(2, requires_grad=True)
(x * 2).sum().backward()

def step():
    return (x * 2).sum().item()

def deep(n):
    return step() if n == 0 else deep(n - 1)

for n in range(900, 999):
    try:
        found = deep(n)
    except RecursionError:
        break
print(found)
"""
    (tmp_path / "script.py").write_text(program)
    done = run_python("-m", "gradviz", "trace", "script.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "4.0\n"), done.stderr
    stopped = [line for line in done.stderr.splitlines() if "stopped" in line]
    assert len(stopped) == 1
    assert "sys.setrecursionlimit gives it some" in stopped[0]
    with gradviz.open(tmp_path / "script.gradviz") as trace:
        assert len(trace.passes) == 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a stack grows on Linux only")
@pytest.mark.parametrize("options", [(), ("--passes", "2")])
def test_a_graph_of_many_operations_one_after_another_is_freed(options: tuple[str, ...], tmp_path: Path) -> None:
    program = """
import torch
x = torch.ones(3, requires_grad=True)
y = x
for _ in range(30_000):
    y = y * 0.9999 + 0.0001
y.sum().backward()
del y
print("freed")
"""
    (tmp_path / "script.py").write_text(program)
    done = run_python("-m", "gradviz", "trace", *options, "script.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "freed\n"), done.stderr


@contextmanager
def _patched_engine() -> Iterator[None]:
    """As `torch.compiler._patch_engine_backward` of 2.13 patches the way into the engine."""
    before = torch.autograd.graph._engine_run_backward

    def patched(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        return before(outputs, *args, **kwargs)

    torch.autograd.graph._engine_run_backward = torch.autograd._engine_run_backward = patched
    try:
        yield
    finally:
        torch.autograd.graph._engine_run_backward = torch.autograd._engine_run_backward = before


@pytest.mark.parametrize("order", ["inside", "around", "begins first", "ends first"])
def test_another_patch_of_the_engine_is_neither_lost_nor_left(order: str, tmp_path: Path) -> None:
    own = torch.autograd.graph._engine_run_backward
    patch, recording = _patched_engine(), gradviz.record(tmp_path / "run.gradviz")
    first, second = (recording, patch) if order in ("inside", "ends first") else (patch, recording)
    x = torch.ones(2, requires_grad=True)
    first.__enter__()
    second.__enter__()
    (x * 2).sum().backward()
    closes = (second, first) if order in ("inside", "around") else (first, second)
    for one in closes:
        one.__exit__(None, None, None)
    (x * 2).sum().backward()
    assert x.grad.tolist() == [4, 4]
    if order != "ends first":  # there the other puts back what it found: ours, which hands the call on
        assert torch.autograd.graph._engine_run_backward is torch.autograd._engine_run_backward is own
    torch.autograd.graph._engine_run_backward = torch.autograd._engine_run_backward = own
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        assert len(trace.passes) == 1


def test_what_pytorch_computes_as_it_is_imported_is_not_the_programs(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2.8 computes with tensors in a module of Dynamo's, which it imports for the first optimizer."""
    (tmp_path / "late.py").write_text("import torch\nmade = torch.ones(3) * 2\n")
    monkeypatch.setattr(torch, "__path__", [*torch.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torch.late", raising=False)

    def program() -> None:
        x = torch.ones(2)
        importlib.import_module("torch.late")
        x.exp()

    trace = record(program)
    assert [event.op for event in trace if isinstance(event, OpRan)] == ["exp"]
    assert not [one for one in sys.meta_path if type(one).__module__.startswith("gradviz")]


def test_a_pytorch_that_lacks_a_hook_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(torch.autograd.graph, "_get_grad_fn_or_grad_acc")
    with gradviz.record(tmp_path / "run.gradviz"):
        x = torch.ones(2, requires_grad=True)
        (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"gradviz: PyTorch {torch.__version__} has no torch.autograd.graph._get_grad_fn_or_grad_acc")
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        assert not trace.count


def test_what_the_recorder_needs_is_there() -> None:
    from gradviz.sources.torch_needs import missing

    assert missing(torch) == ""


def _private_paths(text: str) -> set[str]:
    """What a file takes of PyTorch by names that are not public."""
    known = {"torch": "torch"}
    found = set()

    def path_of(node: ast.AST) -> str:
        if isinstance(node, ast.Name):
            return known.get(node.id, "")
        if isinstance(node, ast.Attribute) and (owner := path_of(node.value)):
            return f"{owner}.{node.attr}"
        return ""

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            known.update({name.asname or name.name: f"{node.module}.{name.name}" for name in node.names})
            found.update(f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name) and (path := path_of(node.value)):
                known[target.id] = path
        elif path := path_of(node):
            found.add(path)
    whole = {one for one in found if not any(other.startswith(f"{one}.") for other in found)}
    return {one for one in whole if any(p.startswith("_") and p[1] != "_" for p in one.split("."))}


def _attributes(text: str) -> set[str]:
    """The attributes that are not public of things that are neither modules nor the file's own."""
    private = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute) and node.attr[0] == "_"]
    return {node.attr for node in private if node.attr[1] != "_" and ast.unparse(node.value) not in ("self", "sys")}


@pytest.mark.slow
def test_what_the_recorder_takes_of_pytorch_that_is_not_public_is_named_as_needed() -> None:
    from gradviz.sources.torch_needs import NEEDED

    texts = [file.read_text() for file in (Path(gradviz.__file__).parent / "sources/torch_recorder").glob("*.py")]
    taken = set().union(*map(_private_paths, texts))
    assert taken - {f"torch.{path}" for path in NEEDED} == set()
    assert len(taken) > 20
    own = {node.name for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    pythons = {"_bootstrap_inner", "_replace", "_showwarnmsg"}  # of Python's own classes and modules
    dynamos = {"_recompile_re"}  # which is asked for where it is used
    attributes = set().union(*map(_attributes, texts)) - own - pythons - dynamos
    assert attributes - {part for path in NEEDED for part in path.split(".")} == set()
    assert {"_base", "_sequence_nr", "_input_metadata"} <= attributes


def test_a_function_whose_apply_is_written_in_c_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written_in_c = torch._C._FunctionBase.__dict__["apply"]  # PyTorch's own from 2.14 on
    monkeypatch.setattr(torch.autograd.Function, "apply", written_in_c)

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    x = torch.ones(2, requires_grad=True)
    with gradviz.record(tmp_path / "run.gradviz"):
        Double.apply(x).sum().backward()
    assert x.grad.tolist() == [2, 2]
    assert torch.autograd.Function.__dict__["apply"] is written_in_c
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        assert "Double" in [event.op for event in trace if isinstance(event, OpRan)]


def test_a_step_with_a_closure_keeps_no_loss_alive(record: Record) -> None:
    """The recorder's object for a step leads to PyTorch's frame, and that frame to the closure that leads to the
    object."""
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=2)
    losses = []

    def step() -> None:
        loss = (weight - 3).pow(2).sum()
        loss.backward()
        losses.append(weakref.ref(loss))
        optimizer.step(lambda: loss)

    def program() -> None:
        gc.disable()
        try:
            for _ in range(3):
                step()
            assert [reference() for reference in losses] == [None, None, None]
        finally:
            gc.enable()

    record(program)
    assert len(losses) == 3


def test_pytorch_still_warns_of_a_generator_without_parameters_to_clip(record: Record) -> None:
    weight = torch.ones(2, requires_grad=True)
    weight.grad = torch.ones(2)

    def clip_nothing() -> None:
        torch.nn.utils.clip_grad_norm_((one for one in ()), 1.0)

    with warnings.catch_warnings(record=True, action="always") as expected:
        clip_nothing()
    with warnings.catch_warnings(record=True, action="always") as warned:
        record(clip_nothing)
    assert [str(one.message) for one in warned] == [str(one.message) for one in expected]  # none before 2.8
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record(lambda: torch.nn.utils.clip_grad_norm_((one for one in [weight]), 1.0))
    assert weight.grad.norm().item() == pytest.approx(1.0)
