"""Which sample did it: the parts of a batch in the loss and in each gradient add up, and the worst comes first."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gradviz.query.query import Query  # noqa: E402
from gradviz.replay.plan import ReplayError  # noqa: E402
from gradviz.replay.samples import Samples, samples  # noqa: E402
from gradviz.sources.torch_replay import TorchRunner  # noqa: E402
from gradviz.tracefile import open_trace  # noqa: E402
from tests.invoked import invoked  # noqa: E402
from tests.replay.replayed_programs import recorded  # noqa: E402

pytestmark = pytest.mark.torch
F = torch.nn.functional


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.gradviz"


def told_apart(path: Path, program: Callable[[], object]) -> Samples:
    with open_trace(recorded(path, program)) as trace:
        return samples(Query(trace), TorchRunner())


def line(path: Path) -> Samples:
    def program() -> None:
        w = torch.tensor(2.0, requires_grad=True)
        x, y = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.5, 0.0])
        loss = ((w * x - y) ** 2).mean()
        loss.backward()

    return told_apart(path, program)


@pytest.mark.slow
def test_the_parts_are_those_that_are_known_by_hand(path: Path) -> None:
    found = line(path)
    assert [term.index for term in found.terms] == [2, 1, 0]
    assert [term.loss for term in found.terms] == pytest.approx([36 / 3, 0.25 / 3, 0])
    assert [term.norm for term in found.terms] == pytest.approx([2 * 6 * 3 / 3, 2 * 0.5 * 2 / 3, 0])
    assert found.mixing is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scale", "factor"),
    [
        (lambda loss: -loss, -1.0),
        (lambda loss: 3 * loss / 2, 1.5),
        (lambda loss: loss * torch.tensor(1024.0), 1024.0),
        (lambda loss: torch.neg(loss.div(4)), -0.25),
        (lambda loss: loss / torch.tensor([1.0, 3.0]).sum(), 0.25),
        (lambda loss: loss / loss.detach(), 3 / 10),
    ],
)
def test_the_parts_of_a_scaled_loss_are_scaled(
    path: Path, scale: Callable[[torch.Tensor], torch.Tensor], factor: float
) -> None:
    w, x = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([[1.0, 1.0], [3.0, 0.0], [0.0, 2.0]])
    found = told_apart(path, lambda: scale((x @ w).mean()).backward())
    assert {term.index: term.loss for term in found.terms} == pytest.approx({0: factor, 1: factor, 2: 4 * factor / 3})
    norms = {term.index: term.norm / abs(factor) * 3 for term in found.terms}
    assert norms == pytest.approx({0: 2**0.5, 1: 3, 2: 2})
    done = invoked(["what-if", str(path), "--without-sample", "2", "--json"])
    assert json.loads(done.stdout)["changes"][0]["after"] == pytest.approx(3 * factor)


@pytest.mark.slow
def test_the_parts_of_a_network_are_those_of_autograd(path: Path) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    x, y = torch.randn(5, 6), torch.randint(0, 3, (5,))
    found = told_apart(path, lambda: F.cross_entropy(net(x), y).backward())
    for term in found.terms:
        part = F.cross_entropy(net(x), y, reduction="none")[term.index] / 5
        gradients = torch.autograd.grad(part, list(net.parameters()))
        assert term.loss == pytest.approx(float(part))
        assert sorted(term.norms.values()) == pytest.approx(sorted(float(g.norm()) for g in gradients), rel=1e-5)


@pytest.mark.slow
def test_targets_that_are_ignored_have_no_part(path: Path) -> None:
    torch.manual_seed(0)
    w, y = torch.randn(4, 3, requires_grad=True), torch.tensor([0, -100, 2, 1])
    found = told_apart(path, lambda: F.cross_entropy(w, y, ignore_index=-100).backward())
    assert sum(term.loss for term in found.terms) == pytest.approx(float(F.cross_entropy(w, y).detach()))
    assert found.terms[-1].index == 1
    assert found.terms[-1].norm == 0


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(), (1,)])
def test_the_gradient_that_backward_was_given_counts(path: Path, shape: tuple[int, ...]) -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    found = told_apart(path, lambda: (w**2).sum(0, keepdim=bool(shape)).backward(torch.full(shape, 3.0)))
    assert [term.norm for term in found.terms] == [12.0, 6.0]


def test_a_leaf_that_is_written_to_in_between_has_one_gradient(path: Path) -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)

    def program() -> None:
        before = w * torch.tensor([3.0, 1.0])
        with torch.no_grad():
            w.add_(1)
        (before + w * torch.tensor([4.0, 1.0])).sum().backward()

    assert [term.norm for term in told_apart(path, program).terms] == [7.0, 2.0]


@pytest.mark.slow
@pytest.mark.parametrize("reduce", [lambda w: torch.sum(input=w), lambda w: w.sum(dim=None), lambda w: w.sum((0, 1))])
def test_a_sum_of_all_elements_is_one_however_it_is_written(
    path: Path, reduce: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    w = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    found = told_apart(path, lambda: reduce(w).backward())
    assert [(term.index, term.loss) for term in found.terms] == [(1, 7.0), (0, 3.0)]


@pytest.mark.slow
def test_a_sample_with_nan_comes_first(path: Path) -> None:
    w, x = torch.ones(3, requires_grad=True), torch.ones(4, 3)
    x[2, 1] = float("nan")
    found = told_apart(path, lambda: (w * x).sum(1).mean().backward())
    assert found.terms[0].index == 2
    assert [term.is_odd for term in found.terms] == [True, False, False, False]


@pytest.mark.slow
def test_samples_that_depend_on_one_another_are_said_to(path: Path) -> None:
    torch.manual_seed(0)
    norm, x = torch.nn.BatchNorm1d(3), torch.randn(4, 3)
    assert told_apart(path, lambda: (norm(x) ** 2).mean().backward()).mixing is not None
    norm.eval()
    assert told_apart(path, lambda: (norm(x) ** 2).mean().backward()).mixing is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "why"),
    [
        (lambda w: (w.mean() + w.pow(2).sum()).backward(), "no mean or sum over a batch"),
        (lambda w: (1 / w.exp().mean()).backward(), "no mean or sum over a batch"),
        (lambda w: (w.mean() * w.mean()).backward(), "no mean or sum over a batch"),
        (lambda w: F.cross_entropy(w, torch.tensor([0, 1]), weight=torch.tensor([1.0, 9.0])).backward(), "weights"),
        (
            lambda w: F.cross_entropy(
                w * torch.tensor([[1.0], [float("nan")]]), torch.tensor([0, 1]), weight=torch.tensor([1.0, 9.0])
            ).backward(),
            "weights",
        ),
        (
            lambda w: F.ctc_loss(
                w[:, None].log_softmax(2), torch.tensor([[1, 1]]), torch.tensor([2]), torch.tensor([2])
            ).backward(),
            "weights",
        ),
        (lambda w: torch.autograd.backward([w.sum(), w.mean()]), "begins at 2 tensors"),
        (lambda w: w[0, 0].mean().backward(), "there is no batch"),
        (lambda w: w.sum(0).backward(torch.ones(2)), "no mean or sum over a batch"),
    ],
)
def test_a_loss_that_has_no_parts_is_refused(path: Path, program: Callable[[object], object], why: str) -> None:
    w = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    with pytest.raises(ReplayError, match=why):
        told_apart(path, lambda: program(w))


def test_of_what_is_not_shown_only_the_number_is_said(path: Path) -> None:
    w = torch.ones(12, 2, requires_grad=True)
    told_apart(path, lambda: (w * 2).sum().backward())
    shown = invoked(["what-if", str(path), "--samples"]).stdout
    assert "the loss is a sum of 12 parts, one for each index of the first dimension" in shown
    assert shown.splitlines()[-1] == "and 2 more"


@pytest.mark.slow
def test_the_command_shows_the_worst_first(path: Path) -> None:
    line(path)
    shown = invoked(["what-if", str(path), "--samples"])
    assert shown.exit_code == 0
    first = next(row.split() for row in shown.stdout.splitlines() if row.startswith("2 "))
    assert first == ["2", "12", "12", "w"]
    told = json.loads(invoked(["what-if", str(path), "--samples", "--json"]).stdout)
    assert [term["index"] for term in told["samples"]] == [2, 1, 0]
    assert np.isclose(sum(term["loss"] for term in told["samples"]), 36.25 / 3)
    assert invoked(["what-if", str(path), "--samples", "--set", "w=1"]).exit_code == 2
