"""Histograms of leaves and of their gradients at a few passes, which an ordinary recording with statistics has.

The tensors of one dtype are read together, and those of one size are counted together: 400 small tensors take a
millisecond, and would take 25 one by one. Of a large tensor a limited number of elements is counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import torch

from gradviz.events.counted_leaves import MOST_LEAVES, CountedPasses, histograms_of, step_of, stretches
from gradviz.events.listener import LeafHistogram
from gradviz.events.values import SMALL
from gradviz.sources.torch_recorder.known_things import Known
from gradviz.sources.torch_recorder.memory import check_room, is_dense
from gradviz.sources.torch_recorder.pytorchs_own import TENSORS, as_strided, detach, no_grad, numel, to_numpy
from gradviz.sources.torch_recorder.shared import Source, in_transform, is_capturing, safely
from gradviz.sources.torch_recorder.tensor_values import PLAIN, unheard

_DTYPES = frozenset((torch.float32, torch.float64, torch.float16, torch.bfloat16))


class LeafHistograms:
    """Counts the elements of leaves for a source's listener, at the end of some passes."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.passes = CountedPasses()

    @safely
    def ended(self, number: int, leaves: set[int]) -> None:
        """Count the `leaves` that have accumulated a gradient in a backward pass that is about to end."""
        listener = self.source.listener
        if listener is None or not listener.wants_histograms or not leaves or not self.source.is_detailed:
            return
        if self.passes.takes(leaves) and not (in_transform() or is_capturing()):
            with torch._C.DisableTorchFunction(), unheard(), no_grad():
                listener.leaves_counted(number, self._counted(leaves))

    def _counted(self, leaves: set[int]) -> list[LeafHistogram]:
        known = sorted(
            (one for one in list(self.source.identity.known.values()) if one.number in leaves),
            key=lambda one: one.number,
        )[:MOST_LEAVES]
        living = [(one, tensor) for one in known if (tensor := one()) is not None]
        gradients = [(one, tensor.grad) for one, tensor in living if tensor.grad is not None]
        return [*_histograms("parameter", living), *_histograms("gradient", gradients)]


def _histograms(what: str, tensors: Iterable[tuple[Known, torch.Tensor]]) -> Iterator[LeafHistogram]:
    """The histograms of tensors, each of which stands for a leaf."""
    alike: defaultdict[tuple[int, torch.dtype, torch.device], list[tuple[int, torch.Tensor]]] = defaultdict(
        list
    )
    for one, tensor in tensors:
        if (elements := _elements_to_read(tensor)) is not None:
            alike[numel(elements), elements.dtype, elements.device].append((one.number, elements))
    for (size, *_), group in alike.items():
        for part in stretches(len(group), size):
            numbers, parts = zip(*group[part], strict=True)
            try:
                wide = TENSORS.to(TENSORS.to(torch.cat(parts), "cpu"), torch.float64)
                rows = to_numpy(wide).reshape(len(parts), size)
            except (RuntimeError, MemoryError):  # there is no memory for it
                continue
            yield from histograms_of(what, numbers, rows)


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
