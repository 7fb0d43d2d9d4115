"""`what-if --compiled`: a recorded pass under torch.compile, compared beyond rounding."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gradviz.compare.compiled import Compiled, compiled  # noqa: E402
from gradviz.replay.plan import ReplayError  # noqa: E402
from gradviz.sources.compiled_replay import compiling_runner_of  # noqa: E402
from gradviz.sources.torch_replay import runner_of  # noqa: E402
from gradviz.tracefile import open_trace  # noqa: E402
from gradviz.words.words import Words  # noqa: E402
from tests.invoked import invoked  # noqa: E402
from tests.replay.replayed_programs import recorded  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]  # PyTorch compiles
F = torch.nn.functional
Backend = Callable[[Any, list[Any]], Callable[..., Any]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.gradviz"


@pytest.fixture
def backend() -> Iterator[Callable[[Backend], str]]:
    """Registers a backend of torch.compile, for one test."""
    from torch._dynamo.backends import registry

    names: list[str] = []

    def register(compiler: Backend) -> str:
        names.append(f"of_a_test_{len(names)}")
        registry.register_backend(compiler, names[-1])
        return names[-1]

    yield register
    for name in names:
        for known in (registry._BACKENDS, registry._COMPILER_FNS):
            known.pop(name, None)


def asked(path: Path, backend: str = "aot_eager", number: int | None = None) -> Compiled:
    with open_trace(path) as trace:
        words = Words(trace)
        compiling = compiling_runner_of(words.query, backend, words.at_line)
        return compiled(words, runner_of(words.query, words.at_line), compiling, backend, number)


def trained(path: Path, act: Callable[[Any], Any] = torch.tanh) -> None:
    """Record two steps of a small network."""

    def program() -> None:
        torch.manual_seed(0)
        first, second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
        x, y = torch.randn(5, 3), torch.randn(5, 1)
        for _ in range(2):
            loss = F.mse_loss(second(act(first(x))), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    recorded(path, program)


def names_beyond(found: Compiled) -> list[str]:
    return [pair.called for pair in found.pairs if pair.is_beyond]


def test_a_small_network_gives_the_same_compiled(path: Path) -> None:
    trained(path)
    found = asked(path)
    assert found.check.is_equal
    assert found.first is None
    assert len(found.pairs) == 5
    assert all(pair.apart is not None and pair.allowed is not None for pair in found.pairs)


def test_the_calls_are_what_the_backend_compiles(path: Path, backend: Callable[[Backend], str]) -> None:
    trained(path)
    seen: list[str] = []

    def noting(module: Any, inputs: list[Any]) -> Callable[..., Any]:
        seen.extend(str(node.target) for node in module.graph.nodes if node.op.startswith("call"))
        return module.forward

    assert asked(path, backend(noting)).first is None
    told = " ".join(seen)
    assert all(name in told for name in ("linear", "tanh", "mse_loss"))
    assert told.count("linear") == 2


def of_shape(shape: tuple[int, ...], factor: float) -> Backend:
    """A backend that is wrong: it scales the gradient of the inputs of a shape."""

    def compiler(module: Any, inputs: list[Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            turned = [one * 1.0 if tuple(one.shape) == shape and one.requires_grad else one for one in given]
            for one, own in zip(turned, given, strict=True):
                if one is not own:
                    one.register_hook(lambda gradient: gradient * factor)
            return module.forward(*turned)

        return run

    return compiler


def test_the_one_gradient_that_a_backend_gets_wrong_is_named_with_its_line(
    path: Path, backend: Callable[[Backend], str]
) -> None:
    trained(path)
    name = backend(of_shape((4, 3), 1.001))
    found = asked(path, name)
    assert len(names_beyond(found)) == 1
    assert found.first is not None
    assert found.first.called.endswith(".grad")
    assert found.first.eager is not None
    assert found.first.eager.shape == (4, 3)
    assert found.first.apart == pytest.approx(0.001, rel=0.02)
    told = invoked(["what-if", str(path), "--compiled", "--backend", name])
    assert told.exit_code == 0
    assert found.first.site is not None
    line = found.first.site.place.line
    assert f"line {line}" in told.stdout.split("the first gradient that differs when compiled: ")[1].replace("\n", " ")
    data = json.loads(invoked(["what-if", str(path), "--compiled", "--backend", name, "--json"]).stdout)
    assert data["same"] is False
    assert data["first"]["line"] == line
    assert [one["how"] for one in data["values"]].count("beyond rounding") == 1


def test_a_difference_of_the_last_place_is_rounding(path: Path, backend: Callable[[Backend], str]) -> None:
    trained(path)
    found = asked(path, backend(of_shape((4, 3), 1 + 2**-23)))
    assert found.first is None
    assert any(not pair.is_equal for pair in found.pairs)


def test_the_first_that_differs_is_the_first_that_came(path: Path, backend: Callable[[Backend], str]) -> None:
    trained(path)

    def scaled(module: Any, inputs: list[Any]) -> Callable[..., Any]:
        return lambda *given: tuple(one * 1.01 for one in module.forward(*given))

    found = asked(path, backend(scaled))
    assert len(names_beyond(found)) == 5  # the loss and all gradients
    assert found.first is not None
    assert found.first.eager is not None
    assert found.first.eager.shape in ((1,), (1, 4))  # of the last layer, whose gradient comes first


def test_calls_in_place_and_without_grad_and_of_several_results_are_compiled(path: Path) -> None:
    def program() -> None:
        torch.manual_seed(0)
        x = torch.randn(3, 4, requires_grad=True)
        with torch.no_grad():
            scale = x.abs().max(1, keepdim=True).values
        y = x.T.clone()
        y.mul_(2)
        y[0] = x.detach()[:, 1]
        values, _ = (y / scale.T).sort(0)
        out, (hidden, _) = torch.nn.LSTM(3, 2)(y[:, None, :])
        (values[1:].sum() + out.sum() + hidden.prod()).backward()

    recorded(path, program)
    found = asked(path)
    assert found.check.is_equal
    assert found.first is None
    assert len(found.pairs) == 6


def test_layers_and_operators_whose_functions_have_other_names_are_compiled(path: Path) -> None:
    def program() -> None:
        torch.manual_seed(0)
        image = torch.randn(2, 1, 6, 6)
        folded, normal = torch.nn.Conv2d(1, 3, 3), torch.nn.BatchNorm2d(3)
        h = F.max_pool2d(F.gelu(normal(folded(image))), 2).flatten(1)
        words = torch.nn.Embedding(4, 3)(torch.tensor([[0, 1], [2, 3]]))
        mixed, _ = torch.nn.MultiheadAttention(3, 1, batch_first=True)(words, words, words)
        z = torch.einsum("ij,ij->i", h[:, :3], mixed[:, 0])
        z = torch.where(z > 0, 1 / (3 + z**2), 2 - z)
        (F.huber_loss(z[..., None], torch.ones(2, 1)) + torch.linalg.norm(z) + z.logsumexp(0)).backward()

    recorded(path, program)
    found = asked(path)
    assert found.check.is_equal
    assert found.first is None
    assert len(found.pairs) == 10


def test_a_leaf_without_a_gradient_has_none_compiled_either(path: Path) -> None:
    def cut() -> None:
        x = torch.tensor(2.0, requires_grad=True)
        w = torch.tensor(3.0, requires_grad=True)
        (w * torch.relu(x).detach()).backward()

    recorded(path, cut)
    assert {pair.called: pair.compiled is None for pair in asked(path).pairs if pair.is_gradient} == {
        "w.grad": False,
        "x.grad": True,
    }
    assert "none in either" in invoked(["what-if", str(path), "--compiled"]).stdout


def test_autocast_is_compiled(path: Path) -> None:
    def program() -> None:
        torch.manual_seed(0)
        layer = torch.nn.Linear(8, 8)
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(torch.randn(4, 8))
        y.float().square().mean().backward()

    recorded(path, program)
    found = asked(path)
    assert found.dtype == "bfloat16"
    assert found.first is None


def test_a_dropout_is_refused_and_one_that_drops_nothing_is_not(path: Path, tmp_path: Path) -> None:
    trained(path, lambda x: F.dropout(x, 0.5))
    with pytest.raises(ReplayError, match=r"dropout.*draws random numbers"):
        asked(path)
    other = tmp_path / "other.gradviz"
    trained(other, lambda x: F.dropout(x, 0.5, training=False))
    assert asked(other).first is None


def test_what_cannot_be_compiled_gets_one_line(path: Path, backend: Callable[[Backend], str]) -> None:
    trained(path)

    def broken(module: Any, inputs: list[Any]) -> Callable[..., Any]:
        raise NotImplementedError("no tanh here")

    done = invoked(["what-if", str(path), "--compiled", "--backend", backend(broken)])
    assert done.exit_code != 0
    assert "PyTorch cannot compile this pass with of_a_test_0" in done.stderr
    assert "no tanh here" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compiled", "--backend", "inductr"], "torch.compile has no backend of that name"),
        (["--compiled", "--dtype", "float64"], "--compiled shows the pass as it was"),
        (["--backend", "inductor"], "--backend says what compiles with --compiled"),
    ],
)
def test_options_that_do_not_fit_get_one_line(path: Path, arguments: list[str], message: str) -> None:
    trained(path)
    done = invoked(["what-if", str(path), *arguments])
    assert done.exit_code != 0
    assert message in done.stderr


def test_a_run_of_the_own_engine_is_refused(path: Path) -> None:
    from gradviz import engine as own
    from gradviz import record

    with record(path, values="inputs", with_torch=False):
        x = own.tensor(2.0, requires_grad=True)
        (x * x).backward()
    with pytest.raises(ReplayError, match="only a run of PyTorch's can be compiled"):
        asked(path)
