"""Histograms of activations, parameters and gradients, for `--histograms`.

The cost is bounded. Only passes 1, 2, 4, 8 and so on are counted. In each, one or two calls of every innermost module
are counted, and a limited number of elements of each tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from gradviz.events.counted_leaves import step_of
from gradviz.events.values import counts_between
from gradviz.sources.torch_recorder.arguments import outputs_of
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
from gradviz.sources.torch_recorder.shared import Source, in_transform, safely
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
            self._tell_leaves(number, [tensor for tensor in tensors if tensor is not None])
        self.passes += 1
        self.seen.clear()

    def _tell_leaves(self, number: int, leaves: Iterable[torch.Tensor]) -> None:
        for leaf in leaves:
            self._tell(leaf, leaf, "parameter", "", number)
            if leaf.grad is not None:
                self._tell(leaf, leaf.grad, "gradient", "", number)

    def _is_chosen(self) -> bool:
        """Whether the present or next pass is counted."""
        following = self.passes + 1
        is_power_of_two = not following & (following - 1)
        return is_power_of_two and not self.source.is_off and self.source.is_detailed

    def _tell(
        self, tensor: torch.Tensor, value: torch.Tensor, what: str, module: str, in_pass: int = 0
    ) -> None:
        with torch._C.DisableTorchFunction(), unheard(), no_grad():
            elements = None if in_transform() else _elements_to_read(value)
        if elements is None or not len(elements):
            return
        low, high = float(elements.min()), float(elements.max())
        counts = counts_between(elements, low, high)
        if counts is None:
            return
        listener: Any = self.source.listener
        number = self.source.identity.number_of(tensor)
        listener.binned(number, what, module, low, high, counts.tolist(), in_pass)


def _elements_to_read(tensor: torch.Tensor) -> np.ndarray | None:
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
