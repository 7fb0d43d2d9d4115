"""The norms of the gradients that an optimizer is about to use, of hundreds of parameters in a hundredth of a step."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from gradviz.sources.torch_recorder.pytorchs_own import TENSORS, is_complex, item, numel, reshape, tolist
from gradviz.sources.torch_recorder.tensor_values import PLAIN

_SMALL = 4096  # elements up to which tensors of one form are put together
_HALVES = (torch.float16, torch.bfloat16)


_QUIET = 64  # norms in a row that show nothing unusual, after which they are read one step less often
_FARTHEST = 8  # steps
_OF_CHANGES = 16  # steps, of which at most one has its changes read
_UNUSUAL = 4  # so many times the last loss or norm that was read


class Spacing:
    """Decides at which steps norms are read: at each of the first 64, then ever fewer, at last at one of eight, and
    again at each from where a loss or a norm is not finite, or more than four times what was read last. How much a step
    changes the parameters takes three times as long: it is read at one of sixteen steps at most, where norms are."""

    def __init__(self) -> None:
        self.quiet = 0
        self.since = 0  # the steps since norms were read
        self.since_changes = _OF_CHANGES - 1  # ...and since changes were
        self.are_changes_due = False  # whether the change of the present step is read
        self.loss = self.norm = math.inf  # what was read last

    def is_due(self, loss: float | None) -> bool:
        """Whether norms are read at a step behind a pass with this loss, which is None where it is not known yet."""
        self.came(loss)
        self.since += 1
        is_due = self.since > min(self.quiet // _QUIET, _FARTHEST - 1)
        self.since_changes += 1
        self.are_changes_due = is_due and self.since_changes >= _OF_CHANGES
        if is_due:
            self.since = 0
        if self.are_changes_due:
            self.since_changes = 0
        return is_due

    def came(self, loss: float | None) -> None:
        """Note a loss that is known now."""
        if loss is not None and not abs(loss) <= _UNUSUAL * self.loss:
            self.quiet = 0

    def read(self, loss: float | None, norm: float) -> None:
        """Note the norm of all gradients that was read, and the loss of the pass."""
        self.came(loss)
        self.quiet = self.quiet + 1 if norm <= _UNUSUAL * self.norm else 0
        self.norm = norm
        if loss is not None:
            self.loss = abs(loss)


class NormsNow:
    """How the norms of the gradients of some parameters are computed. On a CPU PyTorch takes each tensor by itself,
    which costs more than the elements of small tensors: those of one form are put together first."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self.of_parameters = list(map(id, parameters))
        devices = {parameter.device for parameter in parameters}
        self.device = devices.pop() if len(devices) == 1 else None
        self.together: list[list[int]] = []
        self.alone: defaultdict[torch.dtype, list[int]] = defaultdict(list)
        if self.device is None or any(is_complex(parameter) for parameter in parameters):
            self.device = None
            return
        forms: defaultdict[Any, list[int]] = defaultdict(list)
        for at, parameter in enumerate(parameters):
            is_small = self.device.type == "cpu" and numel(parameter) <= _SMALL
            form = (parameter.shape, parameter.dtype) if is_small else at
            forms[form].append(at)
        for places in forms.values():
            if len(places) > 1:
                self.together.append(places)
            else:
                self.alone[parameters[places[0]].dtype].append(places[0])

    def are_of(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Whether these are the parameters."""
        return self.of_parameters == list(map(id, parameters))

    def read(self, gradients: Sequence[torch.Tensor]) -> list[float] | torch.Tensor | None:
        """The norm of each gradient, read, or as one tensor on their device. None if a gradient has no elements that
        can be read: it is sparse, or of a class of its own."""
        if self.device is None or self.device.type == "meta" or not PLAIN.issuperset(map(type, gradients)):
            return None
        if {gradient.layout for gradient in gradients} != {torch.strided}:
            return None
        if self.device.type == "cpu":
            return self._on_cpu(gradients)
        # a sum of squares may be too large for float32 where no element is
        wide = torch.float32 if self.device.type == "mps" else torch.float64
        return torch.stack(
            [TENSORS.to(norm, wide) for norm in torch._foreach_norm(list(gradients), 2, dtype=wide)]
        )

    def _on_cpu(self, gradients: Sequence[torch.Tensor]) -> list[float]:
        norms = [0.0] * len(gradients)
        for places in self.together:
            rows = reshape(torch.stack([gradients[at] for at in places]), (len(places), -1))
            wide = torch.float32 if rows.dtype in _HALVES else None
            found = tolist(torch.linalg.vector_norm(rows, 2, dim=1, dtype=wide))
            for at, norm in zip(places, found, strict=True):
                norms[at] = norm
        for dtype, places in self.alone.items():
            wide = torch.float32 if dtype in _HALVES else None
            each = torch._foreach_norm([gradients[at] for at in places], 2, dtype=wide)
            for at, one in zip(places, each, strict=True):
                norms[at] = item(one)
        for at, norm in enumerate(norms):
            if norm == torch.inf:  # of finite elements the sum of squares may be too large for float32
                norms[at] = item(torch.linalg.vector_norm(gradients[at], 2, dtype=torch.float64))
        return norms
