"""Derivatives of functions, gradcheck, anomaly mode, `func`, saving."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradviz import engine
from gradviz.engine import func, nn
from gradviz.engine.autograd import functional, gradcheck, gradgradcheck


def bent(torch: Any) -> Callable:
    return lambda x, y: (torch.exp(x) * torch.tanh(y)).sum() + (torch.sigmoid(x * y) ** 2).sum()


def vector(torch: Any) -> Callable:
    return lambda x, y: torch.sin(x) * y + torch.softmax(x, 0)


def arguments(torch: Any) -> tuple:
    return torch.tensor([0.3, -0.4, 0.9]), torch.tensor([0.5, 0.7, -0.2])


def compared(ours: Any, theirs: Any) -> None:
    if isinstance(ours, tuple):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            compared(a, b)
        return
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


FUNCTIONAL: dict[str, Callable] = {
    "jacobian": lambda t: t.autograd.functional.jacobian(vector(t), arguments(t)),
    "jacobian of one": lambda t: t.autograd.functional.jacobian(lambda x: x**3, arguments(t)[0]),
    "hessian": lambda t: t.autograd.functional.hessian(bent(t), arguments(t)),
    "hessian of one": lambda t: t.autograd.functional.hessian(lambda x: (x**3).sum(), arguments(t)[0]),
    "vjp": lambda t: t.autograd.functional.vjp(vector(t), arguments(t), t.ones(3)),
    "jvp": lambda t: t.autograd.functional.jvp(vector(t), arguments(t), arguments(t)),
    "vhp": lambda t: t.autograd.functional.vhp(bent(t), arguments(t), arguments(t)),
    "hvp": lambda t: t.autograd.functional.hvp(bent(t), arguments(t), arguments(t)),
    "func.grad": lambda t: t.func.grad(bent(t), argnums=(0, 1))(*arguments(t)),
    "func.grad_and_value": lambda t: t.func.grad_and_value(bent(t))(*arguments(t)),
    "func.grad twice": lambda t: t.func.grad(t.func.grad(lambda x: t.sin(x) * x))(t.tensor(0.7)),
    "func.vjp": lambda t: (lambda value, pull: (value, *pull(t.ones(3))))(*t.func.vjp(vector(t), *arguments(t))),
    "func.jvp": lambda t: t.func.jvp(vector(t), arguments(t), arguments(t)),
    "func.jacrev": lambda t: t.func.jacrev(vector(t), argnums=(0, 1))(*arguments(t)),
    "func.jacfwd": lambda t: t.func.jacfwd(vector(t), argnums=(0, 1))(*arguments(t)),
    "func.hessian": lambda t: t.func.hessian(bent(t))(*arguments(t)),
    "func.jacfwd of jacrev": lambda t: t.func.jacfwd(t.func.jacrev(bent(t)))(*arguments(t)),
    "func.jacrev of jacfwd": lambda t: t.func.jacrev(t.func.jacfwd(bent(t)))(*arguments(t)),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", FUNCTIONAL)
def test_derivatives_of_functions_are_torchs(name: str) -> None:
    torch = pytest.importorskip("torch")
    compared(FUNCTIONAL[name](engine), FUNCTIONAL[name](torch))


def test_derivatives_by_hand() -> None:
    x = engine.tensor([1.0, 2.0])
    assert functional.jacobian(lambda x: x**2, x).tolist() == [[2.0, 0.0], [0.0, 4.0]]
    assert functional.hessian(lambda x: (x**3).sum(), x).tolist() == [[6.0, 0.0], [0.0, 12.0]]
    assert functional.hvp(lambda x: (x**3).sum(), x, engine.ones(2))[1].tolist() == [6.0, 12.0]
    assert func.hessian(lambda x: (x**3).sum())(x).tolist() == [[6.0, 0.0], [0.0, 12.0]]
    assert func.grad(lambda x: (x**2).sum())(x).tolist() == [2.0, 4.0]
    third = func.grad(func.grad(func.grad(lambda x: x**4)))
    assert third(engine.tensor(2.0)).item() == 48.0


def test_results_are_in_a_graph_only_where_one_is_asked_for() -> None:
    x, w = engine.tensor(3.0, requires_grad=True), engine.tensor(2.0, requires_grad=True)
    assert not functional.jacobian(lambda x: x**2, x).requires_grad
    assert functional.jacobian(lambda x: x**2, x, create_graph=True).requires_grad
    assert not func.grad(lambda x: x**2)(x.detach()).requires_grad
    func.grad(lambda x: x**2 * w)(x).backward()
    assert (x.grad.item(), w.grad.item()) == (4.0, 6.0)


def test_dicts_of_parameters_have_dicts_of_gradients() -> None:
    gradients = func.grad(lambda p: (p["w"] * p["b"]).sum())({"w": engine.ones(2), "b": engine.ones(2) * 3})
    assert {name: g.tolist() for name, g in gradients.items()} == {"w": [3.0, 3.0], "b": [1.0, 1.0]}


def test_strict_mode_refuses_what_does_not_depend() -> None:
    with pytest.raises(RuntimeError, match="independent of the input"):
        functional.jacobian(lambda x: engine.ones(2), engine.ones(2), strict=True)


# --- gradcheck


def double(*shape: int) -> engine.Tensor:
    return engine.randn(*shape, dtype=engine.float64, requires_grad=True)


@pytest.mark.parametrize(
    "layer",
    [
        lambda x: nn.functional.conv2d(x, engine.ones(2, 2, 2, 2, dtype=engine.float64), stride=2),
        lambda x: nn.functional.group_norm(x, 2),
        lambda x: nn.functional.gelu(x),
        lambda x: nn.functional.mse_loss(x, x * 0),
    ],
)
def test_gradcheck_passes_what_is_right(layer: Callable) -> None:
    engine.manual_seed(0)
    x = double(1, 2, 3, 3)
    assert gradcheck(layer, (x,), check_forward_ad=True)
    assert gradgradcheck(layer, (x,))


class Wrong(engine.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: engine.Tensor) -> engine.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: engine.Tensor) -> engine.Tensor:
        return g * 3


def test_gradcheck_finds_what_is_wrong() -> None:
    with pytest.raises(RuntimeError, match="Jacobian mismatch for output 0"):
        gradcheck(Wrong.apply, (double(2),))
    assert not gradcheck(Wrong.apply, (double(2),), raise_exception=False)
    with pytest.raises(ValueError, match="at least one input tensor to require gradient"):
        gradcheck(Wrong.apply, (engine.ones(1),))


# --- anomaly mode


def test_anomaly_mode_names_the_node_that_returned_nan() -> None:
    x = engine.zeros(1, requires_grad=True)
    with engine.autograd.detect_anomaly():
        loss = (engine.sqrt(x) * 0).sum()
        with pytest.raises(RuntimeError, match=r"Function 'SqrtBackward0' returned nan values in its 0th output\."):
            loss.backward()
    (engine.sqrt(x) * 0).sum().backward()
    assert np.isnan(x.grad.item())


def test_anomaly_mode_can_be_switched() -> None:
    x = engine.zeros(1, requires_grad=True)
    with engine.autograd.set_detect_anomaly(True, check_nan=False):
        (engine.sqrt(x) * 0).sum().backward()
    engine.autograd.set_detect_anomaly(True)
    try:
        with pytest.raises(RuntimeError, match="SqrtBackward0"):
            engine.autograd.grad((engine.sqrt(x) * 0).sum(), x, create_graph=True)
    finally:
        engine.autograd.set_detect_anomaly(False)


# --- saving


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    optimizer = engine.optim.Adam(net.parameters(), lr=0.1)
    net(engine.randn(4, 2)).sum().backward()
    optimizer.step()
    path = tmp_path / "checkpoint.pt"
    given = {
        "net": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "best": float("inf"),
        "note": "é",
    }
    engine.save(given, path)
    found = engine.load(path, weights_only=True)
    assert (found["epoch"], found["best"], found["note"]) == (3, float("inf"), "é")
    other = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    other.load_state_dict(found["net"])
    again = engine.optim.Adam(other.parameters())
    again.load_state_dict(found["optimizer"])
    assert again.param_groups[0]["betas"] == (0.9, 0.999)
    for a, b in zip(net.state_dict().values(), other.state_dict().values(), strict=True):
        assert a.tolist() == b.tolist()
        assert a.dtype == b.dtype


def test_a_file_in_memory_serves_too() -> None:
    file = io.BytesIO()
    engine.save([engine.ones(2, requires_grad=True), (1, None)], file)
    file.seek(0)
    tensor, rest = engine.load(file)
    assert tensor.requires_grad
    assert rest == (1, None)


def test_what_cannot_be_saved_is_refused_before_the_file_is_opened(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Save a module's state_dict"):
        engine.save(nn.Linear(1, 1), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def _archive(tree: Any, **arrays: Any) -> bytes:
    file = io.BytesIO()
    text = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    np.savez(file, tree=np.frombuffer(text, np.uint8), **arrays)
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not an archive",
        b"\x80\x04K\x01.",
        _archive({"format": 1, "saved": 1})[:-30],
        _archive(b"{"),
        _archive({"format": 2, "saved": 1}),
        _archive({"format": 1, "saved": {"tensor": "nowhere", "requires_grad": True}}),
        _archive({"format": 1, "saved": {"dict": 3}}),
        _archive({"format": 1, "saved": {"call": ["os.system"]}}),
        _archive([]),
        _archive(b'{"format": 1, "saved": ' + b'{"list": [' * 5000 + b"]}" * 5000 + b"}"),
        _archive({"format": 1, "saved": {"tensor": "t", "requires_grad": True}}, t=np.array(["text"])),
    ],
)
def test_a_file_from_a_stranger_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "strange"
    path.write_bytes(content)
    with pytest.raises(RuntimeError, match=r"is not a file that save wrote"):
        engine.load(path)
    with pytest.raises(FileNotFoundError):
        engine.load(tmp_path / "nowhere")


class Exponential(engine.autograd.Function):
    """Saves its output, and pushes tangents."""

    @staticmethod
    def forward(ctx: Any, x: engine.Tensor) -> engine.Tensor:
        out = engine.exp(x)
        ctx.save_for_backward(out)
        ctx.save_for_forward(out)
        return out

    @staticmethod
    def backward(ctx: Any, g: engine.Tensor) -> engine.Tensor:
        (out,) = ctx.saved_tensors
        return g * out

    @staticmethod
    def jvp(ctx: Any, tangent: engine.Tensor) -> engine.Tensor:
        (out,) = ctx.saved_tensors
        return tangent * out


@pytest.mark.parametrize("exponential", [engine.exp, Exponential.apply])
def test_forward_over_reverse_goes_through_saved_outputs(exponential: Callable) -> None:
    x = engine.tensor([0.5, -1.0])
    second = func.jacfwd(func.jacrev(lambda x: exponential(x).sum()))(x)
    np.testing.assert_allclose(second.numpy(), np.diag(np.exp(x.numpy())), rtol=1e-6)
