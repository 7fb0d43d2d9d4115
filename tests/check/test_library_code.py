"""Programs whose ops run in the code of a library: the line of the program is one, the ops are many."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gradviz.diagnose.case import Case
from gradviz.diagnose.norms import gains
from gradviz.tracefile import open_trace

Run = Callable[..., subprocess.CompletedProcess[str]]

LIBRARY = """
import torch


def regularised(fit, w):
    penalty = (w * w).sum()
    matches = (w == w.detach().clone()).to(w.dtype).log().sum()
    return fit + 0.1 * penalty + matches
"""
PROGRAM = """
import torch
from calm import regularised

w = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
for step in range(3):
    fit = (w - 1).pow(2).sum()
    loss = regularised(fit, w)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture(params=["numpy", "torch"])
def traced(request: pytest.FixtureRequest, gradviz: Run, tmp_path: Path) -> Callable[[str, str], Path]:
    """Record a program that imports a library `calm`; the trace."""
    if request.param == "torch":
        pytest.importorskip("torch")
    folder = tmp_path / "site-packages"
    folder.mkdir()

    def trace(library: str, program: str) -> Path:
        (folder / "calm.py").write_text(library)
        script = tmp_path / "program.py"
        script.write_text(f"import sys\nsys.path.append({str(folder)!r})\n{program}")
        done = gradviz("trace", "--engine", request.param, "-o", tmp_path / "run.gradviz", script)
        assert done.returncode == 0, done.stderr
        return tmp_path / "run.gradviz"

    return trace


@pytest.mark.slow
def test_each_op_of_a_library_is_called_by_what_it_is(traced: Callable[[str, str], Path], gradviz: Run) -> None:
    trace = traced(LIBRARY, PROGRAM)
    told = gradviz("step", trace, "--commands", "search mul; search add; where").stdout
    assert "mul(w, w) ran (MulBackward0)" in told
    assert "regularised(fit, w) ran" not in told
    assert told.index("calm.py:8 in regularised") < told.index("program.py:11 in <module>")


@pytest.mark.slow
def test_an_op_that_is_all_that_a_library_does_is_called_as_it_is_written(
    traced: Callable[[str, str], Path], gradviz: Run
) -> None:
    trace = traced(LIBRARY.replace("+ 0.1 * penalty + matches", "* 2").replace("    penalty =", "    # ")
                   .replace("    matches =", "    # "), PROGRAM)  # fmt: skip
    assert "regularised(fit, w) made loss (MulBackward0)" in gradviz("step", trace, "--commands", "search mul").stdout


@pytest.mark.slow
def test_a_part_that_a_library_cuts_off_is_no_fault_of_the_program(
    traced: Callable[[str, str], Path], gradviz: Run
) -> None:
    found = gradviz("check", traced(LIBRARY, PROGRAM))
    assert "no findings" in found.stdout
    own = PROGRAM.replace("from calm import regularised", LIBRARY)
    assert "detached-path" in gradviz("check", traced(LIBRARY, own)).stdout


CACHING = """
def predicted(x, scale, noise):
    return x * scale + noise.detach()
"""
ASKING = """
import torch
from calm import predicted

x, scale, noise = (torch.tensor(value, requires_grad=True) for value in (1.0, 2.0, 3.0))
predicted(x, scale, noise).backward()
"""


@pytest.mark.slow
def test_a_parameter_that_a_library_cuts_off_and_nothing_trains_is_no_fault(
    traced: Callable[[str, str], Path], gradviz: Run
) -> None:
    assert "no findings" in gradviz("check", traced(CACHING, ASKING)).stdout
    own = ASKING.replace("from calm import predicted", CACHING)
    assert "detached-path" in gradviz("check", traced(CACHING, own)).stdout


DRY_RUN = """
import torch


def shape_of(net, rows):
    given = torch.empty(rows, 2, requires_grad=True)
    given.detach().numpy()[:] = 1e30  # as memory may be that nothing was written to
    out = net(given)
    torch.autograd.grad(out.sum(), given)
    return out.shape
"""
PROGRAM_WITH_DRY_RUN = """
import torch
from calm import shape_of

w = torch.tensor([[2e20], [1.0]], requires_grad=True)
shape_of(lambda x: x @ w, 3)
((torch.ones(3, 2) @ w) * 1e-20 - 1).pow(2).sum().backward()
"""


@pytest.mark.slow
def test_what_a_library_computes_with_memory_that_nothing_wrote_to_is_no_overflow(
    traced: Callable[[str, str], Path], gradviz: Run
) -> None:
    trace = traced(DRY_RUN, PROGRAM_WITH_DRY_RUN)
    assert "nonfinite-forward" not in gradviz("check", trace).stdout
    own = PROGRAM_WITH_DRY_RUN.replace("from calm import shape_of", DRY_RUN)
    assert "nonfinite-forward" in gradviz("check", traced(DRY_RUN, own)).stdout


TRAINER = """
import torch


def train(steps):
    torch.manual_seed(0)
    layers = [[torch.nn.Linear(8, 8) for part in range(3)] for _ in range(2)]
    for step in range(steps):
        h = torch.randn(4, 6, 8)
        for ask, answer, give in layers:
            h = h + torch.nn.functional.scaled_dot_product_attention(ask(h), answer(h), give(h))
        h.pow(2).mean().backward()
"""


@pytest.mark.parametrize("traced", ["torch"], indirect=True)
def test_a_line_that_trains_a_whole_model_is_not_one_line_of_it(traced: Callable[[str, str], Path]) -> None:
    with open_trace(traced(TRAINER, "from calm import train\n\ntrain(3)\n")) as trace:
        found = gains(Case(trace), 1)
        assert len(found) == 2
        assert max(gain.rounds for gain in found) == 6  # three linear layers in each of two rounds


FITTING = """
import torch


def fit(w, x, y):
    optimizer = torch.optim.LBFGS([w], max_iter=4, line_search_fn="strong_wolfe")
    for step in range(3):
        def closure():
            optimizer.zero_grad()
            loss = (torch.tanh(x @ w) - y).pow(2).mean()
            loss.backward()
            return loss
        optimizer.step(closure)
"""
FITTED = """
import torch
from calm import fit

torch.manual_seed(0)
w = (torch.randn(3, 2) * 0.01).requires_grad_()
fit(w, torch.randn(20, 3), torch.randn(20, 2))
"""


@pytest.mark.slow
@pytest.mark.parametrize("traced", ["torch"], indirect=True)
def test_the_passes_of_a_closure_are_known_where_a_library_steps(
    traced: Callable[[str, str], Path], gradviz: Run
) -> None:
    assert gradviz("check", traced(FITTING, FITTED)).stdout.startswith("no findings")


ADAPTED = """
from contextlib import contextmanager

import torch


class Adapted(torch.nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.adapter, self.is_on = base.requires_grad_(False), torch.nn.Linear(4, 1), True

    def forward(self, x):
        return self.base(x) + self.adapter(x) if self.is_on else self.base(x)

    @contextmanager
    def disabled(self):
        self.is_on = False
        yield
        self.is_on = True


def logged(store, value):
    store["aux"] = value.detach()
"""
WITHOUT_ADAPTER = """
import torch
from calm import Adapted

model = Adapted(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
x = torch.randn(5, 4)
try:
    with model.disabled():
        out = model(x)
    loss = out.pow(2).mean()
    loss.backward()
finally:
    optimizer.step()
"""
LOGGED = """
import torch
from calm import logged

net, head = torch.nn.Linear(4, 3), torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)
store = {}
for step in range(3):
    h = net(torch.randn(5, 4))
    aux = head(h).pow(2).mean()
    logged(store, aux)
    loss = h.pow(2).mean() + store["aux"]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def findings(gradviz: Run, trace: Path) -> list[str]:
    lines = gradviz("check", trace, "--format", "short").stdout.splitlines()
    return [line.rpartition("/")[2] for line in lines if "program.py:" in line]


@pytest.mark.torch
@pytest.mark.slow
def test_a_call_that_reads_no_parameter_of_the_optimizer_is_named_and_not_the_library_that_froze_the_rest(
    gradviz: Run, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="the library is of PyTorch's modules")
    (first, *_) = findings(gradviz, _traced_on_torch(gradviz, tmp_path, WITHOUT_ADAPTER))
    assert first.startswith("program.py:12:")
    assert "frozen-parameter" in first


@pytest.mark.torch
@pytest.mark.slow
def test_a_loss_of_a_logged_value_is_named_where_the_value_is_computed(gradviz: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the library is of PyTorch's modules")
    (first, *_) = findings(gradviz, _traced_on_torch(gradviz, tmp_path, LOGGED))
    assert "off-loss-path" in first
    assert "aux" in first


def _traced_on_torch(gradviz: Run, folder: Path, program: str) -> Path:
    library = folder / "site-packages"
    library.mkdir()
    (library / "calm.py").write_text(ADAPTED)
    script = folder / "program.py"
    script.write_text(f"import sys\nsys.path.append({str(library)!r})\n{program}")
    gradviz("trace", "--engine", "torch", "-o", folder / "run.gradviz", script)
    return folder / "run.gradviz"
