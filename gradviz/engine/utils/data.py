"""Data sets and data loaders. See PyTorch's `torch.utils.data`.

With the same seed a shuffled `DataLoader` gives the same batches as PyTorch's. All data is loaded in the calling
thread; `num_workers` has no effect.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from gradviz.engine.basics.missing import says_what_is_missing
from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.rng import distributions
from gradviz.engine.rng.generator import Generator, drawing_from
from gradviz.engine.table import ops
from gradviz.engine.tensors.creation import tensor
from gradviz.engine.utils.samplers import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = [
    "BatchSampler",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "default_collate",
    "random_split",
]


class Dataset:
    """A data set with elements by index. A subclass defines `__getitem__` and `__len__`."""

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError("Subclasses of Dataset should implement __getitem__.")

    def __add__(self, other: Dataset) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset):
    """A data set that is iterated. A subclass defines `__iter__`."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError("Subclasses of IterableDataset should implement __iter__.")


class TensorDataset(Dataset):
    """A data set of the rows of several tensors. Raises AssertionError where their first sizes differ."""

    def __init__(self, *tensors: Tensor) -> None:
        if any(len(t.array) != len(tensors[0].array) for t in tensors):
            raise AssertionError("Size mismatch between tensors")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(t[index] for t in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0].array)


class Subset(Dataset):
    """The elements of a data set at the given indices."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset):
    """Several data sets, one after another."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise AssertionError("datasets should not be an empty iterable")
        self.cumulative_sizes = list(accumulate(len(each) for each in self.datasets))

    def __getitem__(self, index: int) -> Any:
        if index < -len(self) or index >= len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} elements")
        index %= len(self)
        which = bisect_right(self.cumulative_sizes, index)
        return self.datasets[which][index - (self.cumulative_sizes[which - 1] if which else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


def random_split(dataset: Any, lengths: Sequence[float], generator: Any = None) -> list[Subset]:
    """Split a data set at random into parts of the given lengths, or of the given fractions."""
    n = len(dataset)
    if all(isinstance(part, float) for part in lengths) and math.isclose(sum(lengths), 1):
        sizes = [math.floor(n * part) for part in lengths]
        for i in range(n - sum(sizes)):
            sizes[i % len(sizes)] += 1
    else:
        sizes = [int(part) for part in lengths]
    if sum(sizes) != n:
        raise ValueError("Sum of input lengths does not equal the length of the input dataset!")
    with drawing_from(generator):
        order = distributions.permutation(n).tolist()
    ends = list(accumulate(sizes))
    return [Subset(dataset, order[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def default_collate(batch: Sequence[Any]) -> Any:
    """A batch of elements: tensors, arrays and numbers are stacked, also inside tuples, lists and dicts."""
    first = batch[0]
    if isinstance(first, Tensor):
        return ops.stack(list(batch), 0)
    if isinstance(first, np.ndarray):
        return new_tensor(np.stack(batch))
    if isinstance(first, np.generic):
        return new_tensor(np.asarray(batch))
    if isinstance(first, float):
        return tensor(list(batch), dtype=np.float64)
    if isinstance(first, (int, bool)):
        return tensor(list(batch))
    if isinstance(first, (str, bytes)):
        return list(batch)
    if isinstance(first, Mapping):
        return {key: default_collate([each[key] for each in batch]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(default_collate(part) for part in zip(*batch, strict=True)))
    if isinstance(first, Sequence):
        return [default_collate(part) for part in zip(*batch, strict=True)]
    raise TypeError(f"default_collate: batch must contain tensors, numbers, dicts or lists; found {type(first)}")


class DataLoader:
    """Batches of the elements of a data set, in order or shuffled."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable | None = None,
        batch_sampler: Iterable | None = None,
        num_workers: int = 0,
        collate_fn: Callable | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable | None = None,
        generator: Any = None,
        **_: Any,
    ) -> None:
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_size is not None and batch_size <= 0:
            raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size}")
        self.dataset, self.batch_size, self.shuffle = dataset, batch_size, bool(shuffle)
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self.collate_fn = default_collate if collate_fn is None else collate_fn
        self.drop_last, self.generator = drop_last, generator

    def __len__(self) -> int:
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        n = len(self.dataset if self.sampler is None else self.sampler)  # type: ignore[arg-type]
        if self.batch_size is None:
            return n
        return n // self.batch_size if self.drop_last else math.ceil(n / self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        with drawing_from(self.generator):
            distributions.seed_of_a_stream()  # PyTorch draws a seed for its workers
        if isinstance(self.dataset, IterableDataset):
            for group in self._in_groups(self.dataset):
                yield group if self.batch_size is None else self.collate_fn(group)
            return
        if self.batch_size is None and self.batch_sampler is None:
            for index in self._order():
                yield self.dataset[index]
            return
        groups = self._in_groups(self._order()) if self.batch_sampler is None else self.batch_sampler
        for group in groups:
            yield self.collate_fn([self.dataset[index] for index in group])

    def _order(self) -> Iterable[int]:
        if self.sampler is not None:
            return self.sampler
        n = len(self.dataset)
        if not self.shuffle:
            return range(n)
        with drawing_from(self.generator or Generator().manual_seed(distributions.seed_of_a_stream())):
            return distributions.permutation(n).tolist()

    def _in_groups(self, elements: Iterable[Any]) -> Iterator[Any]:
        """The elements in lists of the batch size. Without a batch size: the elements."""
        if self.batch_size is None:
            yield from elements
            return
        group: list[Any] = []
        for element in elements:
            group.append(element)
            if len(group) == self.batch_size:
                yield group
                group = []
        if group and not self.drop_last:
            yield group


__getattr__ = says_what_is_missing(__name__, globals())
