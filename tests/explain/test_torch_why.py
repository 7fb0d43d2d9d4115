"""`why` on traces of PyTorch whose passes can run again: each path contributes what autograd gives of it alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradviz
from gradviz.explain.by_norms import Reason

torch = pytest.importorskip("torch")
functional = torch.nn.functional


def _reason(path: Path, tensor: str) -> Reason:
    reason = gradviz.why(path, tensor)
    assert isinstance(reason, Reason)
    return reason


def _values(reason: Reason) -> list[np.ndarray]:
    return [contribution.value for contribution in reason.contributions]


@pytest.fixture
def head() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(20, 10)


@pytest.mark.slow
@pytest.mark.parametrize("values", ["inputs", "full"])
def test_label_smoothing_contributes_what_autograd_gives(tmp_path: Path, head: torch.nn.Linear, values: str) -> None:
    x, labels = torch.randn(8, 20), torch.randint(10, (8,))
    with gradviz.record(tmp_path / "run.gradviz", values=values):
        functional.cross_entropy(head(x), labels, label_smoothing=0.1).backward()
    scores = head(x).log_softmax(1)
    hard, smooth = -0.9 * scores[range(8), labels].mean(), -0.1 * scores.mean()
    for name, parameter in (("head.weight", head.weight), ("head.bias", head.bias)):
        expected = [torch.autograd.grad(part, parameter, retain_graph=True)[0] for part in (hard, smooth)]
        reason = _reason(tmp_path / "run.gradviz", name)
        assert [one.exact for one in reason.contributions] == [True, True]
        for value, gradient in zip(_values(reason), expected, strict=True):
            np.testing.assert_allclose(value, gradient.numpy(), rtol=1e-4, atol=1e-7)
        assert reason.adds_up


@pytest.mark.slow
@pytest.mark.parametrize("values", ["inputs", "full"])
def test_an_element_gets_from_each_path_what_autograd_gives(tmp_path: Path, head: torch.nn.Linear, values: str) -> None:
    x, mixed = torch.randn(8, 20), torch.randn(10, 10)
    with gradviz.record(tmp_path / "run.gradviz", values=values):
        y = head(x)
        (y + y @ mixed).square().sum().backward()
    y = head(x)
    upstream = 2 * (y + y @ mixed).detach()
    direct, through = upstream.sum(0)[3].item(), (upstream @ mixed.T).sum(0)[3].item()
    reason = _reason(tmp_path / "run.gradviz", "head.bias[3]")
    values = sorted((float(value) for value in _values(reason)), key=abs, reverse=True)
    assert values == pytest.approx(sorted((direct, through), key=abs, reverse=True), rel=1e-4)


@pytest.mark.slow
def test_the_paths_that_are_not_shown_are_the_rest(tmp_path: Path, head: torch.nn.Linear) -> None:
    x, mixed = torch.randn(8, 20), torch.randn(10, 10)
    with gradviz.record(tmp_path / "run.gradviz", values="inputs"):
        y = head(x)
        (y + y @ mixed).square().sum().backward()
    both = _reason(tmp_path / "run.gradviz", "head.bias")
    one = gradviz.why(tmp_path / "run.gradviz", "head.bias", most=1)
    assert isinstance(one, Reason)
    [shown] = _values(one)
    [other] = [value for value in _values(both) if not np.allclose(value, shown)]
    np.testing.assert_allclose(one.rest, other, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("values", ["inputs", "full"])
def test_a_pass_with_a_hook_keeps_the_shares_of_what_was_recorded(
    tmp_path: Path, head: torch.nn.Linear, values: str
) -> None:
    x, mixed = torch.randn(4, 20), torch.randn(10, 10)
    with gradviz.record(tmp_path / "run.gradviz", values=values):
        y = head(x)
        y.register_hook(lambda gradient: gradient * 2)
        (y + y @ mixed).square().sum().backward()
    reason = _reason(tmp_path / "run.gradviz", "head.bias")
    assert not all(one.exact for one in reason.contributions)


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def _attention(x: Any, w: Any) -> Any:
    network = torch.nn.MultiheadAttention(12, 2, batch_first=True, dropout=0.2)
    h = functional.layer_norm(x.view(2, 4, 12) @ w, (12,))
    return (x.view(2, 4, 12) + network(h, h, h, need_weights=False)[0]).flatten(0, 1)


def _residual(x: Any, w: Any) -> Any:
    for _ in range(3):
        x = x + functional.dropout(x @ w, 0.3).relu()
    return x


def _recurrent(x: Any, w: Any) -> Any:
    return torch.nn.LSTM(12, 12)((x @ w).view(4, 2, 12))[0].flatten(0, 1)


def _in_place(x: Any, w: Any) -> Any:
    y = x @ w
    y.mul_(1.5)
    y[:, 3:7] = y[:, :4].tanh()
    y += (x @ w).sigmoid_()
    return y


def _broadcast(x: Any, w: Any) -> Any:
    return x * (w * x[:1]).sum(0) + (x[0] - w).mean(1, keepdim=True).T.expand(8, 12).flip(1)


def _images(x: Any, w: Any) -> Any:
    y = functional.conv2d(x.view(2, 1, 6, 8), w.view(16, 1, 3, 3), padding=1)
    return functional.max_pool2d(functional.batch_norm(y, None, None, training=True), 2).reshape(-1, 12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "network", [_attention, _residual, _recurrent, _in_place, _broadcast, _images], ids=lambda one: one.__name__
)
def test_with_all_values_the_paths_of_each_term_bring_what_autograd_gives(
    tmp_path: Path, network: Callable[[Any, Any], Any]
) -> None:
    torch.manual_seed(0)
    x, w, mixed = torch.randn(8, 12), (torch.randn(12, 12) / 4).requires_grad_(), torch.randn(12, 12)

    def terms() -> tuple[Any, Any]:
        torch.manual_seed(1)
        y = network(x, w)
        return (y @ mixed).square().sum(), (y @ mixed.T).exp().mean()

    with gradviz.record(tmp_path / "run.gradviz", values="full"):
        first, second = terms()
        (first + second).backward()
    reason = gradviz.why(tmp_path / "run.gradviz", "w", most=2000)
    assert isinstance(reason, Reason)
    assert len(reason.contributions) == reason.paths
    assert all(one.exact for one in reason.contributions), reason.unknown
    for term, is_mean in zip(terms(), (False, True), strict=True):
        (expected,) = torch.autograd.grad(term, w, retain_graph=True)
        paths = [
            one.value
            for one in reason.contributions
            if any(hop.grad_fn == "MeanBackward0" and hop.local for hop in one.hops[:3]) == is_mean
        ]
        np.testing.assert_allclose(sum(paths), expected.numpy(), rtol=1e-3, atol=1e-4)


def test_it_is_said_which_function_hides_what_a_path_brings_alone(tmp_path: Path, head: torch.nn.Linear) -> None:
    x, mixed = torch.randn(8, 20), torch.randn(10, 10)
    with gradviz.record(tmp_path / "run.gradviz", values="full"):
        y = _Square.apply(head(x) @ mixed)
        (y + y @ mixed).square().sum().backward()
    reason = _reason(tmp_path / "run.gradviz", "head.bias")
    assert [one.exact for one in reason.contributions] == [False, False]
    assert reason.adds_up
    assert reason.unknown == "_SquareBackward was made by no call that can be made again"
