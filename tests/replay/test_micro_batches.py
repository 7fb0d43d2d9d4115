"""One batch beside its micro-batches: what gradient accumulation changes, and by which call."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from gradviz.replay.across_samples import AcrossSamples, across_samples  # noqa: E402
from gradviz.replay.micro_batches import COUNTS, MEAN, OTHER, SIZES, SUM, MicroBatches, joined, split  # noqa: E402
from gradviz.replay.plan import ReplayError  # noqa: E402
from gradviz.sources.torch_replay import TorchRunner  # noqa: E402
from gradviz.tracefile import open_trace  # noqa: E402
from gradviz.words.words import Words  # noqa: E402
from tests.invoked import invoked  # noqa: E402
from tests.replay.replayed_programs import recorded  # noqa: E402

pytestmark = pytest.mark.torch
F = torch.nn.functional


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.gradviz"


def parted(path: Path, program: Callable[[], object], count: int = 4) -> MicroBatches:
    with open_trace(recorded(path, program)) as trace:
        return split(Words(trace), TorchRunner(), None, count)


def put_together(path: Path, program: Callable[[], object]) -> MicroBatches:
    with open_trace(recorded(path, program)) as trace:
        return joined(Words(trace), TorchRunner(), None)


def layers(*between: torch.nn.Module) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 12), *between, torch.nn.Linear(12, 3))


def classified(net: torch.nn.Module, size: int = 12) -> Callable[[], object]:
    def program() -> None:
        x, y = torch.randn(size, 4), torch.randint(0, 3, (size,))
        F.cross_entropy(net(x), y).backward()

    return program


@pytest.mark.parametrize("between", [torch.nn.Tanh, lambda: torch.nn.Dropout(0.4), lambda: torch.nn.LayerNorm(12)])
def test_a_mean_over_equal_parts_is_the_gradient_of_the_batch(
    path: Path, between: Callable[[], torch.nn.Module]
) -> None:
    found = parted(path, classified(layers(between())))
    assert found.is_equal
    assert found.sizes == (3, 3, 3, 3)
    assert all(one.ratio == pytest.approx(1) for one in found.leaves)


def test_statistics_over_the_batch_are_named(path: Path) -> None:
    found = parted(path, classified(layers(torch.nn.BatchNorm1d(12))))
    assert (found.relation, found.first and found.first.function) == (OTHER, "F.batch_norm")


def test_a_loss_between_samples_is_named(path: Path) -> None:
    def program() -> None:
        net = layers()
        alike = net(torch.randn(8, 4)) @ net(torch.randn(8, 4)).T
        F.cross_entropy(alike, torch.arange(8)).backward()

    found = parted(path, program, 2)
    assert (found.relation, found.first and found.first.op) == (OTHER, "matmul")


def test_a_sum_adds_up_without_a_division(path: Path) -> None:
    def program() -> None:
        w = torch.randn(3, requires_grad=True)
        ((torch.randn(8, 3) @ w - torch.randn(8)) ** 2).sum().backward()

    found = parted(path, program)
    assert (found.relation, found.times) == (SUM, pytest.approx(0.25))


def test_parts_of_other_sizes_are_weighted_by_their_sizes(path: Path) -> None:
    found = parted(path, classified(layers(), 11), 3)
    assert (found.relation, found.sizes) == (SIZES, (4, 4, 3))


def test_means_over_the_targets_that_count_are_weighted_by_their_counts(path: Path) -> None:
    def program() -> None:
        y = torch.tensor([0, -100, -100, -100, 1, 2, 0, -100])
        F.cross_entropy(layers()(torch.randn(8, 4)), y).backward()

    found = parted(path, program, 2)
    assert (found.relation, found.counts) == (COUNTS, (1.0, 3.0))
    assert found.uneven is not None
    assert found.uneven.function == "F.cross_entropy"


def test_a_mean_over_a_mask_is_weighted_by_its_counts(path: Path) -> None:
    def program() -> None:
        mask = torch.tensor([1.0, 1, 1, 0, 0, 0, 1, 1])[:, None].expand(8, 3)
        error = (layers()(torch.randn(8, 4)) - torch.randn(8, 3)) ** 2 * mask
        (error.sum() / mask.sum()).backward()

    found = parted(path, program, 2)
    assert (found.relation, found.counts, found.uneven and found.uneven.op) == (COUNTS, (9.0, 6.0), "div")


def test_attention_over_a_time_as_long_as_the_batch_is_split_by_samples(path: Path) -> None:
    def program() -> None:
        torch.manual_seed(0)
        token, place, head = torch.nn.Embedding(9, 8), torch.nn.Embedding(6, 8), torch.nn.Linear(8, 9)
        ids = torch.randint(0, 9, (6, 7))
        x = token(ids[:, :-1]) + place(torch.arange(6))
        q = x.view(6, 6, 2, 4).transpose(1, 2)
        weights = (q @ q.transpose(-2, -1)).masked_fill(torch.tril(torch.ones(6, 6)) == 0, -1e9).softmax(-1)
        y = (F.dropout(weights, 0.2) @ q).transpose(1, 2).reshape(6, 6, 8)
        F.cross_entropy(head(y).view(6 * 6, -1), ids[:, 1:].reshape(-1)).backward()

    assert parted(path, program, 3).is_equal


def accumulated(path: Path, scale: Callable[[torch.Tensor, int], torch.Tensor]) -> MicroBatches:
    """20 samples in three passes of 8, 8 and 4, twice."""

    def program() -> None:
        net = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        data, targets = torch.randn(20, 4), torch.randn(20, 2)
        for _ in range(2):
            for at in range(0, 20, 8):
                x, y = data[at : at + 8], targets[at : at + 8]
                scale(F.mse_loss(net(x), y), len(x)).backward()
            optimizer.step()
            optimizer.zero_grad()

    return put_together(path, program)


def test_losses_weighted_by_their_samples_accumulate_the_gradient_of_one_batch(path: Path) -> None:
    found = accumulated(path, lambda loss, size: loss * (size / 20))
    assert found.is_equal
    assert (found.passes, found.sizes) == ((4, 5, 6), (8, 8, 4))


def test_a_smaller_last_micro_batch_counts_too_much(path: Path) -> None:
    found = accumulated(path, lambda loss, size: loss / 3)
    assert (found.relation, found.sizes) == (SIZES, (8, 8, 4))
    assert found.uneven is not None
    assert found.uneven.function == "F.mse_loss"


def test_losses_that_are_not_divided_accumulate_a_multiple(path: Path) -> None:
    def program() -> None:
        net = torch.nn.Linear(4, 2)
        for _ in range(3):
            F.mse_loss(net(torch.randn(6, 4)), torch.randn(6, 2)).backward()

    found = put_together(path, program)
    assert (found.relation, found.times) == (MEAN, pytest.approx(3))


def test_passes_of_tokens_are_weighted_by_the_targets_that_count(path: Path) -> None:
    def program() -> None:
        torch.manual_seed(0)
        token, head = torch.nn.Embedding(9, 5), torch.nn.Linear(5, 9)
        for lengths in ([6, 6, 5], [2, 3, 2]):
            ids = torch.randint(0, 9, (3, 6))
            for at, length in enumerate(lengths):
                ids[at, length:] = -100
            logits = head(token(ids[:, :-1].clamp(min=0)))
            (F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()) / 2).backward()

    found = put_together(path, program)
    assert (found.relation, found.counts) == (COUNTS, (14.0, 4.0))


def test_the_joined_gradient_is_that_of_pytorch(path: Path) -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 2)
    data, targets = torch.randn(12, 4), torch.randn(12, 2)

    def program() -> None:
        for at in (0, 6):
            F.mse_loss(net(data[at : at + 6]), targets[at : at + 6]).backward()

    found = put_together(path, program)
    gradients = torch.autograd.grad(F.mse_loss(net(data), targets), list(net.parameters()))
    for one, gradient in zip(found.leaves, gradients, strict=True):
        np.testing.assert_allclose(one.batch, gradient.numpy(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("count", "said"), [(1, "has a batch of 12"), (13, "has a batch of 12")], ids=["one", "too many"]
)
def test_a_batch_is_split_into_as_many_parts_as_it_has_samples(path: Path, count: int, said: str) -> None:
    with pytest.raises(ReplayError, match=said):
        parted(path, classified(layers()), count)


def test_a_pass_alone_has_nothing_to_be_joined_with(path: Path) -> None:
    with pytest.raises(ReplayError, match="alone between two changes"):
        put_together(path, classified(layers()))


def test_the_command_says_what_to_do(path: Path) -> None:
    accumulated(path, lambda loss, size: loss / 3)
    said = " ".join(invoked(["what-if", str(path), "--join"]).output.split())
    assert "each micro-batch is a mean of its own, by F.mse_loss" in said
    assert "cure sum the loss in each micro-batch, and divide it by the count of all, 20" in said
    data = json.loads(invoked(["what-if", str(path), "--join", "--json"]).output)
    assert (data["relation"], data["sizes"], data["passes"]) == ("sizes", [8, 8, 4], [4, 5, 6])
    assert "leave out what else" in invoked(["what-if", str(path), "--join", "--split", "2"]).stderr


# Which samples depend on which.


def across(path: Path, program: Callable[[], object]) -> AcrossSamples:
    with open_trace(recorded(path, program)) as trace:
        return across_samples(Words(trace), TorchRunner(), None)


@pytest.mark.parametrize("between", [torch.nn.ReLU, lambda: torch.nn.Dropout(0.4), lambda: torch.nn.LayerNorm(12)])
def test_samples_that_are_computed_alone_do_not_depend_on_others(
    path: Path, between: Callable[[], torch.nn.Module]
) -> None:
    found = across(path, classified(layers(between())))
    assert (found.size, found.pairs) == (12, [])
    assert (np.diagonal(found.norms) > 0).all()


def test_batch_norm_makes_each_sample_depend_on_each(path: Path) -> None:
    found = across(path, classified(layers(torch.nn.BatchNorm1d(12))))
    assert len(found.pairs) == 12 * 11
    assert found.first is not None
    assert found.first.function == "F.batch_norm"


def test_the_running_statistics_of_a_normalization_are_no_batch(path: Path) -> None:
    def program() -> None:
        net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 1))
        net(torch.randn(4, 3)).pow(2).mean().backward()

    found = across(path, program)
    assert (found.size, len(found.pairs)) == (4, 4 * 3)


def test_a_reshape_that_mixes_samples_is_seen(path: Path) -> None:
    def program() -> None:
        h = layers()(torch.randn(6, 4))
        F.mse_loss(h.T.reshape(6, 3), torch.randn(6, 3)).backward()

    found = across(path, program)
    assert found.pairs
    assert found.first is not None
    assert found.first.op == "reshape"
    assert "by Tensor.reshape, line" in invoked(["why", str(path), "--across", "batch"]).output


def test_a_time_before_the_samples_is_no_mixture(path: Path) -> None:
    def program() -> None:
        rnn, head = torch.nn.RNN(4, 5), torch.nn.Linear(5, 3)
        out, _ = rnn(torch.randn(7, 6, 4), torch.zeros(1, 6, 5))
        F.cross_entropy(head(out.reshape(7 * 6, 5)).view(7, 6, 3)[-1], torch.randint(0, 3, (6,))).backward()

    assert parted(path, program, 2).is_equal
    assert across(path, program).pairs == []


def test_the_norms_are_those_of_pytorch(path: Path) -> None:
    torch.manual_seed(0)
    net, x, y = layers(torch.nn.BatchNorm1d(12)), torch.randn(5, 4), torch.randint(0, 3, (5,))
    found = across(path, lambda: F.cross_entropy(net(x), y).backward())
    own = x.clone().requires_grad_()
    for sample, loss in enumerate(F.cross_entropy(net(own), y, reduction="none")):
        (gradient,) = torch.autograd.grad(loss, own, retain_graph=True)
        np.testing.assert_allclose(found.norms[sample], gradient.norm(dim=1).numpy(), rtol=1e-4, atol=1e-6)


def test_tokens_of_a_causal_model_depend_on_their_own_sequence_alone(path: Path) -> None:
    def program() -> None:
        torch.manual_seed(0)
        token, place, head = torch.nn.Embedding(9, 8), torch.nn.Embedding(6, 8), torch.nn.Linear(8, 9)
        ids = torch.randint(0, 9, (6, 7))
        x = token(ids[:, :-1]) + place(torch.arange(6))
        weights = (x @ x.transpose(-2, -1)).masked_fill(torch.tril(torch.ones(6, 6)) == 0, -1e9).softmax(-1)
        F.cross_entropy(head(weights @ x).view(6 * 6, -1), ids[:, 1:].reshape(-1)).backward()

    assert across(path, program).pairs == []


def test_of_gradients_that_are_not_finite_nothing_is_said(path: Path) -> None:
    def program() -> None:
        w, x = torch.ones(3, requires_grad=True), torch.zeros(4, 3)
        ((x * w).sum(1).sqrt() * 0).mean().backward()

    with pytest.raises(ReplayError, match="not finite"):
        across(path, program)


def test_across_takes_no_tensor(path: Path) -> None:
    assert "takes no TENSOR" in invoked(["why", "run.gradviz", "x", "--across", "batch"]).stderr
    assert "why needs a TENSOR" in invoked(["why"]).stderr
