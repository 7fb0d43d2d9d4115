"""Data sets in batches, devices, generators: what a training script asks for around the gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradviz import engine
from gradviz.engine.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

SAMPLERS: dict[str, Any] = {
    "in order": lambda d, t: d.SequentialSampler(range(5)),
    "random": lambda d, t: d.RandomSampler(range(5)),
    "random, some": lambda d, t: d.RandomSampler(range(5), num_samples=3),
    "random, again": lambda d, t: d.RandomSampler(range(5), num_samples=12),
    "random, replaced": lambda d, t: d.RandomSampler(range(5), replacement=True, num_samples=70),
    "random, by a generator": lambda d, t: d.RandomSampler(range(9), generator=t.Generator().manual_seed(3)),
    "of a subset": lambda d, t: d.SubsetRandomSampler([7, 5, 3, 1]),
    "batches": lambda d, t: d.BatchSampler(d.SequentialSampler(range(7)), 3, False),
    "whole batches": lambda d, t: d.BatchSampler(d.RandomSampler(range(7)), 3, True),
}


class Squares(Dataset):
    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> tuple[int, dict[str, float]]:
        return index, {"square": float(index) ** 2}


def rows(n: int) -> TensorDataset:
    return TensorDataset(engine.arange(n), engine.arange(2 * n).reshape(n, 2).float())


def test_batches_come_in_order_and_the_last_is_what_is_left() -> None:
    batches = list(DataLoader(rows(5), batch_size=2))
    assert [numbers.tolist() for numbers, _ in batches] == [[0, 1], [2, 3], [4]]
    assert batches[0][1].tolist() == [[0, 1], [2, 3]]
    assert len(DataLoader(rows(5), batch_size=2)) == 3
    dropped = DataLoader(rows(5), batch_size=2, drop_last=True)
    assert len(dropped) == len(list(dropped)) == 2


def test_elements_of_any_make_are_put_together() -> None:
    (numbers, record), *_ = DataLoader(Squares(), batch_size=4)
    assert numbers.dtype == engine.int64
    assert record["square"].tolist() == [0, 1, 4, 9]
    assert record["square"].dtype == engine.float64
    with pytest.raises(TypeError, match="default_collate"):
        next(iter(DataLoader([object()])))


def test_parts_and_wholes_of_data_sets() -> None:
    whole = ConcatDataset([rows(3), Subset(rows(5), [4, 2])])
    assert [int(whole[i][0]) for i in range(len(whole))] == [0, 1, 2, 4, 2]
    assert int(whole[-1][0]) == 2
    with pytest.raises(IndexError, match="out of range"):
        whole[5]
    parts = random_split(rows(10), [0.75, 0.25])
    assert [len(part) for part in parts] == [8, 2]
    assert sorted(int(part[i][0]) for part in parts for i in range(len(part))) == list(range(10))
    with pytest.raises(ValueError, match="does not equal"):
        random_split(rows(3), [1, 1])


def test_a_stream_of_elements_is_cut_into_batches() -> None:
    class Count(IterableDataset):
        def __iter__(self) -> Any:
            return iter(range(5))

    assert [batch.tolist() for batch in DataLoader(Count(), batch_size=3)] == [[0, 1, 2], [3, 4]]


@pytest.mark.torch
@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_a_shuffled_loader_gives_pytorchs_batches(seed: int) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader as TheirLoader
    from torch.utils.data import TensorDataset as TheirSet

    def order(library: Any, loader: Any, data: Any) -> list:
        library.manual_seed(seed)
        batches = loader(data(library.arange(23)), batch_size=4, shuffle=True)
        epochs = [[batch.tolist() for (batch,) in batches] for _ in range(2)]
        return [epochs, library.rand(3).tolist()]

    assert order(engine, DataLoader, TensorDataset) == order(torch, TheirLoader, TheirSet)


@pytest.mark.torch
def test_a_generator_of_ones_own_draws_what_pytorchs_draws() -> None:
    torch = pytest.importorskip("torch")
    drawn = []
    for library in (engine, torch):
        generator = library.Generator().manual_seed(7)
        library.manual_seed(1)
        drawn.append([
            library.randn(3, generator=generator).tolist(),
            library.randperm(5, generator=generator).tolist(),
            library.randint(0, 9, (4,), generator=generator).tolist(),
            library.rand(2).tolist(),
            library.bernoulli(library.full((20,), 0.3)).tolist(),
            library.bernoulli(library.full((20,), 0.3, dtype=library.float64)).tolist(),
            library.normal(library.zeros(4), library.ones(4) * 2).tolist(),
            library.normal(0, 0.01, size=(2, 1), requires_grad=True).tolist(),
            library.normal(0.0, 1.0, (2,), dtype=library.float64).tolist(),
            library.empty(5).normal_(1, 2).tolist(),
            library.empty(5).uniform_(-1, 3).tolist(),
            library.empty(9).bernoulli_(0.4).tolist(),
        ])  # fmt: skip
    for ours, theirs in zip(*drawn, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_normal_numbers_of_a_size_may_be_a_leaf() -> None:
    w = engine.normal(0, 0.01, size=(2, 1), requires_grad=True)
    w.sum().backward()
    assert w.grad.tolist() == [[1.0], [1.0]]
    with pytest.raises(TypeError, match="only with a size"):
        engine.normal(engine.zeros(2), 1.0, requires_grad=True)


def test_draws_by_weight_and_none_of_weight_zero() -> None:
    engine.manual_seed(0)
    weights = engine.tensor([0.0, 1.0, 3.0])
    many = engine.multinomial(weights, 4000, replacement=True).numpy()
    assert set(many.tolist()) == {1, 2}
    assert (many == 2).mean() == pytest.approx(0.75, abs=0.03)
    assert sorted(engine.multinomial(weights, 2).tolist()) == [1, 2]
    with pytest.raises(RuntimeError, match="without replacement"):
        engine.multinomial(weights, 3)


def test_a_program_that_asks_for_a_gpu_gets_the_cpu_and_one_that_insists_is_told() -> None:
    device = engine.device("cuda" if engine.cuda.is_available() else "cpu")
    model = engine.nn.Linear(2, 1).to(device)
    assert model(engine.ones(1, 2, device=device)).device.type == "cpu"
    assert str(engine.device("cuda", 1)) == "cuda:1"
    assert not engine.backends.mps.is_available()
    for insist in (lambda: engine.ones(2, device="cuda"), lambda: model.to("cuda"), lambda: engine.ones(1).to("mps")):
        with pytest.raises(RuntimeError, match="computes on the CPU"):
            insist()
    with pytest.raises(RuntimeError, match="Expected one of"):
        engine.device("toaster")


@pytest.mark.torch
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_gives_the_indices_that_torchs_gives(name: str) -> None:
    torch = pytest.importorskip("torch")
    seen = []
    for library in (engine, torch):
        library.manual_seed(5)
        sampler = SAMPLERS[name](library.utils.data, library)
        seen.append((list(sampler), len(sampler)))
    assert seen[0] == seen[1]


def test_a_weighted_sampler_draws_by_the_weights() -> None:
    engine.manual_seed(0)
    sampler = WeightedRandomSampler([0, 1, 3], 4000)
    counts = np.bincount(list(sampler), minlength=3)
    assert counts[0] == 0
    assert 0.7 < counts[2] / 4000 < 0.8
    assert sorted(WeightedRandomSampler([1, 2, 3], 3, replacement=False)) == [0, 1, 2]
    loader = DataLoader(rows(3), batch_size=2, sampler=WeightedRandomSampler([0, 0, 1], 4))
    assert [numbers.tolist() for numbers, _ in loader] == [[2, 2], [2, 2]]
