"""`why` on traces of PyTorch whose passes can run again: each path contributes what autograd gives of it alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gradviz
from gradviz.explain.reason import Reason

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


def test_label_smoothing_contributes_what_autograd_gives(tmp_path: Path, head: torch.nn.Linear) -> None:
    x, labels = torch.randn(8, 20), torch.randint(10, (8,))
    with gradviz.record(tmp_path / "run.gradviz", values="inputs"):
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


def test_an_element_gets_from_each_path_what_autograd_gives(tmp_path: Path, head: torch.nn.Linear) -> None:
    x, mixed = torch.randn(8, 20), torch.randn(10, 10)
    with gradviz.record(tmp_path / "run.gradviz", values="inputs"):
        y = head(x)
        (y + y @ mixed).square().sum().backward()
    y = head(x)
    upstream = 2 * (y + y @ mixed).detach()
    direct, through = upstream.sum(0)[3].item(), (upstream @ mixed.T).sum(0)[3].item()
    reason = _reason(tmp_path / "run.gradviz", "head.bias[3]")
    values = sorted((float(value) for value in _values(reason)), key=abs, reverse=True)
    assert values == pytest.approx(sorted((direct, through), key=abs, reverse=True), rel=1e-4)


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


def test_a_pass_with_a_hook_keeps_the_shares_of_what_was_recorded(
    tmp_path: Path, head: torch.nn.Linear
) -> None:
    x, mixed = torch.randn(4, 20), torch.randn(10, 10)
    with gradviz.record(tmp_path / "run.gradviz", values="inputs"):
        y = head(x)
        y.register_hook(lambda gradient: gradient * 2)
        (y + y @ mixed).square().sum().backward()
    reason = _reason(tmp_path / "run.gradviz", "head.bias")
    assert not all(one.exact for one in reason.contributions)
