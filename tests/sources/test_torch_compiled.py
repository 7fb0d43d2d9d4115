"""`torch.compile` under the recorder: it compiles the program that it would compile without, and says the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.events.kinds import Kind, Mutated, NodeMade, OpRan  # noqa: E402
from gradviz.query import Query  # noqa: E402
from gradviz.sources.torch_recorder import compiling  # noqa: E402
from tests.warm import python  # noqa: E402

pytestmark = pytest.mark.torch

# Prints the graphs that Dynamo makes of each case, how often it gives up, and what comes out.
PROGRAM = """
import warnings
warnings.simplefilter("ignore")
import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

graphs = []

def backend(graph, inputs):
    calls = [node.target for node in graph.graph.nodes if node.op.startswith("call")]
    graphs.append(" ".join(str(getattr(call, "__name__", call)) for call in calls))
    return graph.forward

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]

cases = []
whole = torch.compile(backend=backend, fullgraph=True)
parts = torch.compile(backend=backend)

@cases.append
def a_module():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    torch.compile(net, backend=backend, fullgraph=True)(torch.randn(5, 3)).sum().backward()
    return net[0].weight.grad

@cases.append
def a_module_that_compiles_itself():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    net.compile(backend=backend)
    return net(torch.randn(5, 3))

@cases.append
def a_module_with_hooks():
    net = nn.Linear(3, 3)
    net.register_forward_hook(lambda module, inputs, output: output * 2)
    return torch.compile(net, backend=backend, fullgraph=True)(torch.randn(1, 3))

@cases.append
def the_fast_path_of_a_layer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).eval()
    with torch.no_grad():
        return torch.compile(layer, backend=backend, fullgraph=True)(torch.randn(2, 3, 8))

@cases.append
def a_function_of_ones_own():
    x = torch.randn(3, requires_grad=True)
    whole(lambda x: Square.apply(x).sum())(x).backward()
    return x.grad

@cases.append
def a_checkpoint():
    net, x = nn.Linear(3, 3), torch.randn(2, 3, requires_grad=True)
    whole(lambda x: checkpoint(net, x, use_reentrant=False).sum())(x).backward()
    return x.grad

@cases.append
def a_new_parameter():
    return parts(lambda x: (x * nn.Parameter(torch.ones(3))).sum())(torch.randn(3))

@cases.append
def gradients_that_are_clipped():
    net = nn.Linear(3, 3)
    net(torch.randn(1, 3)).sum().backward()
    whole(lambda: nn.utils.clip_grad_norm_(net.parameters(), 0.1))()
    whole(lambda: nn.utils.clip_grad_value_(net.parameters(), 0.01))()
    return net.weight.grad

@cases.append
def the_step_of_an_optimizer():
    net = nn.Linear(3, 3)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(1, 3)).sum().backward()
    parts(optimizer.step)()
    return net.weight

@cases.append
def a_training_step():
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    @parts
    def train(x):
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(3):
        loss = train(torch.randn(5, 4))
    return loss

@cases.append
def a_gradient_inside():
    return parts(lambda x: torch.autograd.grad((x * 2).exp().sum(), x)[0])(torch.randn(3, requires_grad=True))

@cases.append
def transforms():
    return whole(lambda x: torch.func.grad(lambda x: torch.vmap(torch.sin)(x).sum())(x))(torch.randn(3))

@cases.append
def an_array():
    return parts(lambda: torch.from_numpy(np.ones(3)) * 2)()

@cases.append
def a_break():
    def f(x):
        y = x * 2
        print("inside")
        return y.sum()
    return parts(f)(torch.randn(3))

@cases.append
def an_export():
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    exported = torch.export.export(net, (torch.randn(1, 3),), strict=True)
    return exported.module()(torch.randn(1, 3))

for case in cases:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    graphs.clear()
    torch.manual_seed(0)
    found = case()
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    print(case.__name__, found.tolist(), breaks, *graphs, sep="\\n   ")
"""


def skip_if_pytorch_fails(plain: subprocess.CompletedProcess[str]) -> None:
    """Skip a program that another version of PyTorch does not run by itself."""
    if plain.returncode and not torch.__version__.startswith("2.13."):
        pytest.skip(f"PyTorch {torch.__version__} itself does not compile this: {plain.stderr.splitlines()[-1]}")
    assert plain.returncode == 0, plain.stderr


def run_python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python(), *arguments], cwd=cwd, capture_output=True, text=True, timeout=200)


@pytest.mark.slow
def test_what_is_compiled_is_the_program_alone(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    plain = run_python("program.py", cwd=tmp_path)
    skip_if_pytorch_fails(plain)
    traced = run_python("-m", "gradviz", "trace", "program.py", cwd=tmp_path)
    assert traced.stdout == plain.stdout, traced.stderr
    assert plain.stdout.count("linear") >= 4
    assert "an_export" in plain.stdout
    assert "fault of gradviz" not in traced.stderr


@pytest.mark.slow
def test_what_was_compiled_before_is_compiled_the_same_while_it_is_recorded(tmp_path: Path) -> None:
    graphs: list[list[str]] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return graph.forward

    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    x = torch.randn(2, 3)
    compiled = torch.compile(lambda x: net(x).sum(), backend=backend, fullgraph=True)
    before = compiled(x)
    with gradviz.record(tmp_path / "run.gradviz"):
        recorded = compiled(x)
        recorded.backward()
    assert torch.equal(recorded, before)
    assert torch.equal(compiled(x), before)
    assert len(graphs) <= 2
    assert all(graph == graphs[0] for graph in graphs)
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        assert "addmm" in {event.op for event in trace if isinstance(event, OpRan)}
        assert len(trace.passes) == 1


@pytest.mark.slow
def test_dynamo_looks_through_ours_though_its_caches_were_cleared(tmp_path: Path) -> None:
    from torch._dynamo import trace_rules

    net = torch.nn.Linear(3, 1)
    with gradviz.record(tmp_path / "run.gradviz"):
        trace_rules.clear_lru_cache()  # as `init_process_group` does
        compiled = torch.compile(lambda x: net(x).sum(), backend="eager", fullgraph=True)
        compiled(torch.ones(2, 3)).backward()
    assert net.bias.grad.item() == 2


@pytest.mark.slow
def test_a_layers_fast_path_is_compiled_after_a_recording(tmp_path: Path) -> None:
    """Dynamo knows the functions that a recorder replaces as they are, though it came while they were replaced."""
    program = """
import contextlib, gradviz, torch
layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).eval()
with gradviz.record("run.gradviz"):
    torch.compile(torch.nn.Linear(2, 2), backend="eager")(torch.ones(1, 2))
with torch.no_grad():
    print(torch.compile(layer, backend="eager", fullgraph=True)(torch.ones(2, 3, 8)).shape)
"""
    (tmp_path / "plain.py").write_text(program.replace("gradviz.record", "contextlib.nullcontext"))
    skip_if_pytorch_fails(run_python("plain.py", cwd=tmp_path))
    (tmp_path / "program.py").write_text(program)
    done = run_python("program.py", cwd=tmp_path)
    assert done.stdout == "torch.Size([2, 3, 8])\n", done.stderr


@pytest.mark.slow
def test_what_compiled_code_writes_over_is_told(tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    with gradviz.record(tmp_path / "run.gradviz"):

        @torch.compile(backend="eager")
        def train(x: Any) -> None:
            net(x).sum().backward()
            optimizer.step()

        for _ in range(2):
            train(torch.ones(1, 2))
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        written = [event for event in trace if isinstance(event, Mutated)]
        # On Python 3.14 PyTorch 2.13 compiles no optimizer.
        assert [event.how for event in written] == ["compiled" if sys.version_info < (3, 14) else "SGD"] * 4
        last = trace.snapshot(written[-2].tensor, at=len(trace))
        assert last is not None
        assert last.array is not None
        assert last.array.tolist() == net.weight.tolist()


COMPILED = """
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
module = torch.compile(net, backend="eager")
function = torch.compile(lambda x: (x * 2).sin(), backend="eager")
for _ in range(2):
    loss = function(module(torch.ones(2, 3))).pow(2).mean()
    net.zero_grad()
    loss.backward()
    print(loss.item(), net[0].weight.grad.sum().item())
"""


def test_a_compiled_model_is_one_op_and_computes_the_same(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(COMPILED)
    plain = run_python(str(script), cwd=tmp_path)
    traced = run_python("-m", "gradviz", "trace", str(script), cwd=tmp_path)
    assert traced.stdout == plain.stdout
    assert "stopped" not in traced.stderr
    with gradviz.open(tmp_path / "script.gradviz") as trace:
        ops = [event.op for event in trace if isinstance(event, OpRan)]
        assert ops == ["compiled", "compiled", "pow", "mean", "sum"] * 2
        assert len(trace.passes) == 2


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)

    def forward(self, x: Any) -> Any:
        return self.last(self.first(x).tanh())


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "inside", "in place"])
def test_a_compiled_model_is_one_op_of_its_inputs_and_parameters(tmp_path: Path, when: str) -> None:
    """Its backward is compiled when it first runs: nothing of that is told, and nothing of what it runs."""
    torch._dynamo.reset()
    net = Net()
    compiled = torch.compile(net, backend="aot_eager") if when == "before" else None
    x = torch.randn(5, 3)
    with gradviz.record(tmp_path / "run.gradviz"):
        if when == "in place":
            net.compile(backend="aot_eager")
            compiled = net
        if compiled is None:
            compiled = torch.compile(net, backend="aot_eager")
        for _ in range(2):
            compiled(x).sum().backward()
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        ops = [event for event in trace if isinstance(event, OpRan)]
        assert [op.op for op in ops] == ["compiled", "sum"] * 2
        shapes = [trace.shape(tensor)[0] for tensor in ops[0].inputs]
        assert sorted(shapes) == sorted([(5, 3), (4, 3), (4,), (1, 4), (1,)])
        assert len(trace.passes) == 2
        nodes = [event.grad_fn for event in trace if isinstance(event, NodeMade)]
        assert nodes == ["CompiledFunctionBackward", "SumBackward0"] * 2


@pytest.mark.slow
def test_what_follows_a_step_in_compiled_code_is_not_seen_either(tmp_path: Path) -> None:
    torch._dynamo.reset()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    @torch.compiler.disable
    def step() -> None:
        optimizer.step()

    def train(x: Any) -> Any:
        net(x).sum().backward()
        step()
        return net(x)

    with gradviz.record(tmp_path / "run.gradviz"):
        torch.compile(train, backend="eager")(torch.ones(2, 3))
        torch.ones(1) * 2
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        assert [event.op for event in trace if isinstance(event, OpRan)] == ["compiled", "mul"]
        assert len(trace.passes) == 1
        assert len(trace.table(Kind.STEPPED)) == 1


def test_what_dynamo_looks_through_is_there() -> None:
    folder = Path(compiling.__file__).parent
    assert [name for name in compiling._REPLACING if not (folder / f"{name}.py").exists()] == []


def test_what_compiled_code_takes_from_around_it_is_not_called_unused(tmp_path: Path) -> None:
    w, bias = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = torch.optim.SGD([w, bias], lr=0.1)
    with gradviz.record(tmp_path / "run.gradviz"):
        for _ in range(3):
            fixed = bias.detach()
            shifted = torch.compile(lambda x, fixed=fixed: x + fixed, backend="eager")
            with torch.no_grad():
                prior = shifted(torch.ones(2))
            optimizer.zero_grad()
            (w * prior).square().sum().backward()
            optimizer.step()
    assert [finding.rule for finding in gradviz.check(tmp_path / "run.gradviz").findings] == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_module_of_torchscript_is_one_op_with_its_nodes(tmp_path: Path) -> None:
    traced = torch.jit.trace(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh()), torch.ones(1, 2))
    head = torch.nn.Linear(2, 1)
    with gradviz.record(tmp_path / "run.gradviz"):
        head(traced(torch.ones(3, 2))).sum().backward()
    trace = gradviz.open(tmp_path / "run.gradviz")
    (op,) = [event for event in trace if isinstance(event, OpRan) and event.op == "compiled"]
    nodes = [event.grad_fn for event in trace if isinstance(event, NodeMade) and event.op == op.index]
    assert nodes == ["TBackward0", "AddmmBackward0", "TanhBackward0"]
    assert [event.grad_fn for event in trace if isinstance(event, NodeMade) and event.op == -1] == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_function_of_torchscript_is_one_op_with_its_nodes(tmp_path: Path) -> None:
    @torch.jit.script
    def bent(x, factor: float):  # type: ignore[no-untyped-def]
        return (x * factor).sin()

    @torch.jit.script
    def product(x, w):  # type: ignore[no-untyped-def]
        return bent(x, 2.0) @ w.cos()

    call = torch.jit.ScriptFunction.__call__
    with gradviz.record(tmp_path / "run.gradviz"):
        x, w = torch.ones(4, 3), torch.ones(3, 1, requires_grad=True)
        for _ in range(3):  # the second call makes other nodes, of the function as it was optimized
            h = product(x, w)
            h.sum().backward()
    assert torch.jit.ScriptFunction.__call__ is call
    trace = gradviz.open(tmp_path / "run.gradviz")
    calls, names = [event for event in trace if isinstance(event, OpRan) and event.op == "compiled"], Query(trace).names
    assert [[names.of(tensor) for tensor in (*call.inputs, *call.outputs)] for call in calls] == [["x", "w", "h"]] * 3
    nodes = [event.grad_fn for event in trace if isinstance(event, NodeMade)]
    assert "DifferentiableGraphBackward" in nodes
    assert not [name for name in nodes if "::" in name]


def test_a_compiled_module_keeps_the_name_that_it_had_before(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 1))
    fast = torch.compile(net, backend="eager")
    model = torch.nn.Sequential(torch.compile(torch.nn.Linear(2, 1), backend="eager"))
    model = torch.compile(model, backend="eager")
    with gradviz.record(tmp_path / "run.gradviz"):
        (fast(torch.ones(3, 2)) + model(torch.ones(3, 2))).sum().backward()
    parameters = set(gradviz.open(tmp_path / "run.gradviz").parameters.values())
    assert parameters == {"net.0.weight", "net.0.bias", "model.0.weight", "model.0.bias"}
