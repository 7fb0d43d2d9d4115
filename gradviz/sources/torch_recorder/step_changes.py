"""How much a step of an optimizer changes each parameter: a copy before the step, a difference after it, and its norm.

Small parameters on a CPU are put one after the other, which takes a third of the time that PyTorch needs for each by
itself. On a device the norms are computed there, and are fetched with the values."""

from __future__ import annotations

import math
import weakref
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gradviz.events.handles import Later
from gradviz.events.values import SMALL
from gradviz.sources.torch_recorder import tensor_values
from gradviz.sources.torch_recorder.device_values import COPIES, OnDevice, elements_in
from gradviz.sources.torch_recorder.fetching import streams_of
from gradviz.sources.torch_recorder.memory import check_room, is_dense
from gradviz.sources.torch_recorder.pytorchs_own import (
    as_strided,
    data_ptr,
    detach,
    item,
    no_grad,
    numel,
    to_numpy,
)

_FEW = 4096  # elements up to which parameters on a CPU are put together
_MOST_BYTES = 1 << 30  # of the copies of an optimizer's large parameters on a CPU
_cuda: Any = torch.cuda
_LEAST = 1e-15  # the squares of smaller changes may vanish in float32
_WIDE = {
    torch.float32: torch.float32, torch.float64: torch.float64, torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}  # fmt: skip
Norm = float | Later
Parameters = Sequence[torch.Tensor]


class StepChanges:
    """Measures the changes of steps, and keeps the memory for the copies from one step of an optimizer to its next."""

    def __init__(self) -> None:
        self.kept: weakref.WeakKeyDictionary[Any, Copies] = weakref.WeakKeyDictionary()

    def before(self, optimizer: Any, parameters: Parameters) -> Copies | None:
        """Copies of parameters before a step; None if they cannot be copied."""
        copies = self.kept.pop(optimizer, None)  # another thread may step with the same optimizer meanwhile
        if _is_capturing():
            return None
        with tensor_values.unheard(), no_grad():
            try:
                if copies is None or not copies.are_of(parameters):
                    copies = Copies(parameters)
                copies.copy(parameters)
            except (RuntimeError, MemoryError):  # no memory, or a parameter whose memory was freed
                return None
        return copies

    def after(self, optimizer: Any, parameters: Parameters, copies: Copies) -> dict[int, Norm]:
        """The Euclidean norms of the changes since `before`, by the identities of the parameters, as far as they are
        known."""
        if not copies.are_of(parameters) or _is_capturing():
            return {}
        with tensor_values.unheard(), no_grad():
            try:
                norms = copies.norms(parameters)
            except (RuntimeError, MemoryError):
                return {}
        self.kept[optimizer] = copies
        return norms


class Copies:
    """Copies of parameters. Those with few elements are left out, because their elements are recorded, and those whose
    elements cannot be read."""

    def __init__(self, parameters: Parameters) -> None:
        self.identities = list(map(id, parameters))
        self.addresses = _addresses(parameters)
        together: defaultdict[torch.dtype, list[int]] = defaultdict(list)
        apart: defaultdict[tuple[torch.device, bool], list[int]] = defaultdict(list)
        rooms: dict[torch.device, int] = {}
        for place, parameter in enumerate(parameters):
            if not _is_comparable(parameter):
                continue
            check_room(parameter)
            device, is_distant = parameter.device, tensor_values.is_distant(parameter)
            if not is_distant and numel(parameter) <= _FEW:
                together[parameter.dtype].append(place)
                continue
            left = rooms.get(device)
            left = (_room_on(device) if left is None else left) - parameter.nbytes
            if left >= 0:
                rooms[device] = left
                apart[device, is_distant].append(place)
        self.parts: list[_Together | _Apart | _OnDevice] = [
            _Together(places, parameters) for places in together.values()
        ]
        self.parts += [
            _OnDevice(places) if is_distant else _Apart(places, parameters)
            for (_, is_distant), places in apart.items()
        ]

    def are_of(self, parameters: Parameters) -> bool:
        """Whether these are the parameters, at the same places in memory."""
        return self.identities == list(map(id, parameters)) and self.addresses == _addresses(parameters)

    def copy(self, parameters: Parameters) -> None:
        """Copy the parameters as they are now."""
        for part in self.parts:
            part.copy([parameters[place] for place in part.places])

    def norms(self, parameters: Parameters) -> dict[int, Norm]:
        """The norms of the changes since `copy`, by the identities of the parameters."""
        norms: dict[int, Norm] = {}
        for part in self.parts:
            found: Sequence[Norm] = part.norms([parameters[place] for place in part.places])
            norms.update(
                (self.identities[place], norm) for place, norm in zip(part.places, found, strict=True)
            )
        return norms


def _addresses(parameters: Parameters) -> list[int]:
    return list(map(data_ptr, parameters))


def _room_on(device: torch.device) -> int:
    """How many bytes the copies of an optimizer's parameters may take on a device."""
    if device.type == "cpu":
        return _MOST_BYTES
    streams = streams_of(device)
    return COPIES if streams is None else streams.mem_get_info(device)[0] // 16


def _is_comparable(parameter: torch.Tensor) -> bool:
    """Whether the elements of a parameter can be read, and are not all recorded anyway."""
    return (
        parameter.layout is torch.strided
        and not parameter.is_meta
        and not parameter.is_nested
        and parameter.dtype in _WIDE
        and numel(parameter) > SMALL
        and is_dense(parameter)
    )


class _Together:
    """Small parameters of one dtype on a CPU, one after the other in two arrays: before and after the step. Those of
    one size are neighbours, so that their changes are the rows of a matrix."""

    def __init__(self, places: list[int], parameters: Parameters) -> None:
        self.places = sorted(places, key=lambda place: numel(parameters[place]))
        own = [parameters[place] for place in self.places]
        self.views = [as_strided(detach(parameter), (numel(parameter),), (1,)) for parameter in own]
        counts = Counter(numel(parameter) for parameter in own)
        total = sum(size * count for size, count in counts.items())
        wide = _WIDE[own[0].dtype]
        self.before, self.after = (torch.empty(total, dtype=wide, device="cpu") for _ in range(2))
        ends = np.cumsum([size * count for size, count in counts.items()])
        stretches = np.split(to_numpy(self.after), ends[:-1])
        self.changes = [
            stretch.reshape(count, size)
            for stretch, (size, count) in zip(stretches, counts.items(), strict=True)
        ]

    def copy(self, parameters: Parameters) -> None:
        """Copy the parameters."""
        torch.cat(self.views, out=self.before)

    def norms(self, parameters: Parameters) -> list[float]:
        """The norms of the changes."""
        torch.cat(self.views, out=self.after)
        self.after.sub_(self.before)
        with np.errstate(all="ignore"):
            return [norm for changes in self.changes for norm in _norms_of_rows(changes)]


def _norms_of_rows(changes: np.ndarray) -> list[float]:
    norms = np.sqrt(np.einsum("ij,ij->i", changes, changes)).tolist()
    return [_norm(norm, change) for norm, change in zip(norms, changes, strict=True)]


class _Apart:
    """Large parameters on a CPU, each with a copy of its own."""

    def __init__(self, places: list[int], parameters: Parameters) -> None:
        self.places = places
        self.copies = [
            torch.empty_like(one, dtype=_WIDE[one.dtype]) for one in map(parameters.__getitem__, places)
        ]

    def copy(self, parameters: Parameters) -> None:
        """Copy the parameters."""
        for copy, parameter in zip(self.copies, parameters, strict=True):
            copy.copy_(parameter)

    def norms(self, parameters: Parameters) -> list[float]:
        """The norms of the changes."""
        for copy, parameter in zip(self.copies, parameters, strict=True):
            copy.sub_(parameter)
        norms = [item(norm) for norm in torch._foreach_norm(self.copies, 2)]
        return [_norm(norm, to_numpy(copy)) for norm, copy in zip(norms, self.copies, strict=True)]


class _OnDevice:
    """Parameters on one device. Its memory is scarce: the copies are freed after each step."""

    def __init__(self, places: list[int]) -> None:
        self.places = places
        self.copies: Sequence[torch.Tensor] = ()

    def copy(self, parameters: Parameters) -> None:
        """Copy the parameters."""
        self.copies = torch._foreach_mul(list(parameters), 1)  # in fewer launches than copies one by one

    def norms(self, parameters: Parameters) -> list[Later]:
        """The norms of the changes, which wait on the device."""
        copies, self.copies = list(self.copies), ()
        torch._foreach_sub_(copies, list(parameters))
        device = parameters[0].device
        # a sum of squares may be too large for float32 where no element is
        wide = torch.float32 if device.type == "mps" else torch.float64
        streams = streams_of(device)
        stream = None if streams is None else streams.current_stream(device)
        return [_later(norm, stream) for norm in torch._foreach_norm(copies, 2, dtype=wide)]


def _later(norm: torch.Tensor, stream: Any) -> Later:
    """A norm that waits on a device, as the bytes of a double."""
    dtype = norm.dtype
    kept = OnDevice([norm], lambda parts, fetch: elements_in(parts[0], dtype).astype(np.float64).tobytes())
    kept.stream = stream
    return Later(kept, True, kept.held, is_distant=True)


def _norm(norm: float, change: np.ndarray) -> float:
    """The norm of a change, from the norm in the change's own precision, in which squares may vanish or overflow."""
    if _LEAST < norm < math.inf or math.isnan(norm):
        return norm
    if not change.any():
        return 0.0
    wide = change.astype(np.float64).ravel(order="K")
    return math.sqrt(wide.dot(wide))


def _is_capturing() -> bool:
    """Whether a stream of CUDA is being captured: a kernel launched now would run at every replay."""
    return _cuda.is_initialized() and _cuda.is_current_stream_capturing()
