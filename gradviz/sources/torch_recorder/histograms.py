"""Histograms of leaves and of their gradients, which an ordinary recording with statistics has, at a few passes and a
last time at the end; and histograms of activations, parameters and gradients, for `--histograms`.

The tensors of one dtype are read together, and those of one size are counted together: 400 small tensors take a
millisecond, and would take 25 one by one. Of a large tensor a limited number of elements is counted. With
`--histograms` passes 1, 2, 4, 8 and so on are counted, and in each one or two calls of every innermost module.

A program that trains in a function frees its network before the recording ends. While a module is freed its parameters
still live: they are counted then. What lies on a device is only copied there, beside the program's own work, and read
when the recording ends."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from gradviz.events.counted_leaves import MOST_LEAVES, CountedPasses, histograms_of, step_of, stretches
from gradviz.events.listener import LeafHistogram
from gradviz.events.values import SMALL, counts_between
from gradviz.sources.torch_recorder.arguments import outputs_of
from gradviz.sources.torch_recorder.known_things import Known
from gradviz.sources.torch_recorder.memory import check_room, is_dense
from gradviz.sources.torch_recorder.pytorchs_own import (
    TENSORS,
    as_strided,
    detach,
    is_floating_point,
    no_grad,
    numel,
    reshape,
    to_numpy,
)
from gradviz.sources.torch_recorder.shared import Source, in_transform, is_capturing, safely
from gradviz.sources.torch_recorder.tensor_values import PLAIN, unheard

_MOST_ELEMENTS = 1 << 14  # of a tensor
_MOST_TENSORS = 512  # activations of a pass, and also leaves


class Binning:
    """Counts elements for a source's listener, at some passes."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.passes = 0  # the number of passes that have ended
        self.seen: dict[str, bool] = {}  # the modules of the present forward, with whether grad was enabled

    @safely
    def called(self, module: torch.nn.Module, path: str, result: Any) -> None:
        """Count the result of a module. A result without grad, as in an evaluation, counts only until the module is
        called with grad."""
        if next(module.children(), None) is not None or not self._is_chosen():
            return
        with_grad = torch.is_grad_enabled()
        if self.seen.get(path, False) or (path in self.seen and not with_grad):
            return
        if torch._C._current_autograd_node() is not None:  # a checkpoint recomputes it
            return
        first = next(iter(outputs_of(result)), None)
        if first is None or (len(self.seen) >= _MOST_TENSORS and path not in self.seen):
            return
        self.seen[path] = with_grad
        self._tell(first, first, "activation", path)

    @safely
    def ended(self, number: int, leaves: set[int]) -> None:
        """Count the `leaves` that have accumulated a gradient in a backward pass that is about to end."""
        if self._is_chosen():
            known = list(self.source.identity.known.values())
            tensors = [one() for one in known if one.number in leaves][:_MOST_TENSORS]
            for leaf in [tensor for tensor in tensors if tensor is not None]:
                self._tell(leaf, leaf, "parameter", "", number)
                if leaf.grad is not None:
                    self._tell(leaf, leaf.grad, "gradient", "", number)
        self.passes += 1
        self.seen.clear()

    def _is_chosen(self) -> bool:
        """Whether the present or next pass is counted."""
        following = self.passes + 1
        is_power_of_two = not following & (following - 1)
        return is_power_of_two and not self.source.is_off and self.source.is_detailed

    def _tell(self, tensor: torch.Tensor, value: torch.Tensor, what: str, module: str, in_pass: int = 0) -> None:
        with torch._C.DisableTorchFunction(), unheard(), no_grad():
            elements = None if in_transform() else _finite_elements(value)
        if elements is None or not len(elements):
            return
        low, high = float(elements.min()), float(elements.max())
        counts = counts_between(elements, low, high)
        if counts is None:
            return
        number = self.source.identity.number_of(tensor)
        self.source.listener.binned(number, what, module, low, high, counts.tolist(), in_pass)


def _finite_elements(tensor: torch.Tensor) -> np.ndarray | None:
    """Some finite elements of a tensor; None if they cannot be read, for example because its memory was freed."""
    try:
        check_room(tensor)
        return _some_elements(tensor)
    except (RuntimeError, NotImplementedError):
        return None


def _some_elements(tensor: torch.Tensor) -> np.ndarray | None:
    """The finite elements of a tensor, for a large tensor an evenly spaced sample; None for a tensor that is not
    plain."""
    is_read = type(tensor) in PLAIN and tensor.layout is torch.strided and not tensor.is_meta
    if not is_read or not is_floating_point(tensor):
        return None
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return None  # a kernel launched now would run at every replay
    plain = detach(tensor)
    flat = as_strided(plain, (numel(plain),), (1,)) if is_dense(plain) else reshape(plain, -1)
    step = step_of(numel(flat), _MOST_ELEMENTS)
    elements: np.ndarray = to_numpy(TENSORS.to(TENSORS.to(flat[::step], "cpu", copy=True), torch.float64))
    return elements[np.isfinite(elements)]


_DTYPES = frozenset((torch.float32, torch.float64, torch.float16, torch.bfloat16))


class _Sample(NamedTuple):
    """Elements of several leaves, or of their gradients, as the rows of one tensor on their device."""

    what: str
    leaves: tuple[int, ...]
    rows: torch.Tensor


class LeafHistograms:
    """Counts the elements of leaves for a source's listener: at the end of some passes, unless `binning` does that,
    and a last time."""

    def __init__(self, source: Source, binning: Binning | None) -> None:
        self.source, self.binning = source, binning
        self.passes = CountedPasses()
        self.late: list[tuple[int, _Sample]] = []  # what was sampled on a device, each with the passes before

    @safely
    def ended(self, number: int, leaves: set[int]) -> None:
        """Count the `leaves` that have accumulated a gradient in a backward pass that is about to end."""
        if self.binning is not None:
            self.binning.ended(number, leaves)
        listener = self.source.listener
        if listener is None or not listener.wants_histograms or not leaves or not self.source.is_detailed:
            return
        if self.passes.takes(leaves) and self.binning is None and _may_read():
            with torch._C.DisableTorchFunction(), unheard(), no_grad():
                first = sorted(leaves)[:MOST_LEAVES]
                listener.leaves_counted(number, [*_counted(self._samples(first))])

    @safely
    def freed(self, leaves: Collection[int]) -> None:
        """Count the `leaves` of a module that is being freed."""
        listener = self.source.listener
        if listener is None or self.source.is_off or not _may_read():
            return
        if not (own := self.passes.takes_freed(leaves)):
            return
        after = listener.passes_begun
        with torch._C.DisableTorchFunction(), unheard(), no_grad():
            samples = [*self._samples(own)]
            listener.leaves_counted(after, [*_counted(filter(_is_here, samples))], is_last=True)
        self.late += [(after, sample) for sample in samples if not _is_here(sample)]

    @safely
    def recording_ends(self) -> None:
        """Count the leaves that still live, and what was sampled before."""
        listener = self.source.listener
        if listener is None or not _may_read():
            return
        with torch._C.DisableTorchFunction(), unheard(), no_grad():
            for after, sample in self.late:
                listener.leaves_counted(after, [*_counted([sample])], is_last=True)
            self.late.clear()
            if self.passes.followed:
                last = [*_counted(self._samples(self.passes.followed))]
                listener.leaves_counted(listener.passes_begun, last, is_last=True)

    def _samples(self, leaves: Collection[int]) -> Iterator[_Sample]:
        """Samples of leaves that live, and of their gradients."""
        known = sorted(
            (one for one in list(self.source.identity.known.values()) if one.number in leaves),
            key=lambda one: one.number,
        )
        living = [(one, tensor) for one in known if (tensor := one()) is not None]
        gradients = [(one, tensor.grad) for one, tensor in living if tensor.grad is not None]
        yield from _sampled("parameter", living)
        yield from _sampled("gradient", gradients)


def _is_here(sample: _Sample) -> bool:
    """Whether a sample can be read without waiting for a device."""
    return bool(sample.rows.is_cpu)


def _may_read() -> bool:
    return not (in_transform() or is_capturing())


def _sampled(what: str, tensors: Iterable[tuple[Known, torch.Tensor]]) -> Iterator[_Sample]:
    """Samples of tensors, each of which stands for a leaf."""
    alike: defaultdict[tuple[int, torch.dtype, torch.device], list[tuple[int, torch.Tensor]]] = defaultdict(list)
    for one, tensor in tensors:
        if (elements := _elements_to_read(tensor)) is not None:
            alike[numel(elements), elements.dtype, elements.device].append((one.number, elements))
    for (size, *_), group in alike.items():
        for part in stretches(len(group), size):
            numbers, parts = zip(*group[part], strict=True)
            try:
                rows = torch.cat(parts)
            except (RuntimeError, MemoryError):  # there is no memory for it
                continue
            yield _Sample(what, numbers, rows)


def _counted(samples: Iterable[_Sample]) -> Iterator[LeafHistogram]:
    """The histograms of samples."""
    for sample in samples:
        try:
            wide = TENSORS.to(TENSORS.to(sample.rows, "cpu"), torch.float64)
        except (RuntimeError, MemoryError):  # there is no memory for it
            continue
        yield from histograms_of(sample.what, sample.leaves, to_numpy(wide).reshape(len(sample.leaves), -1))


def _elements_to_read(tensor: torch.Tensor) -> torch.Tensor | None:
    """The elements of a tensor as a flat tensor, of a large one some that lie evenly in it. None for a small tensor,
    whose elements are recorded anyway, and for one that is not plain."""
    size = numel(tensor)
    is_read = type(tensor) in PLAIN and tensor.layout is torch.strided and not tensor.is_meta
    if not is_read or size <= SMALL or tensor.dtype not in _DTYPES:
        return None
    try:
        check_room(tensor)
    except RuntimeError:  # its memory was freed
        return None
    if not is_dense(tensor):
        return None
    flat = as_strided(detach(tensor), (size,), (1,))
    step = step_of(size)
    return flat if step == 1 else flat[::step]
