"""How much a step of an optimizer changes each parameter: a copy before the step, a difference after it, and its norm.

Small parameters on a CPU are put one after the other, which takes a third of the time that PyTorch needs for each by
itself. On a device the norms are computed there."""

import math
import weakref
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from gradviz.events.handles import Later
from gradviz.events.values import SMALL
from gradviz.sources.torch_recorder import tensor_values
from gradviz.sources.torch_recorder.device_values import COPIES, OnDevice, elements_in
from gradviz.sources.torch_recorder.fetching import current_stream, streams_of
from gradviz.sources.torch_recorder.memory import check_room, is_dense
from gradviz.sources.torch_recorder.pytorchs_own import as_strided, data_ptr, detach, item, no_grad, numel, to_numpy
from gradviz.sources.torch_recorder.shared import is_capturing

_FEW = 4096  # elements up to which parameters on a CPU are put together
_MOST_BYTES = 1 << 30  # of the copies of an optimizer's large parameters on a CPU
_LEAST = 1e-15  # the squares of smaller changes may vanish in float32
_WIDE = {
    torch.float32: torch.float32, torch.float64: torch.float64, torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}  # fmt: skip
Parameters = Sequence[torch.Tensor]


class StepChanges:
    """Measures the changes of steps, and keeps the memory for the copies from one step of an optimizer to its next."""

    def __init__(self) -> None:
        self.kept: weakref.WeakKeyDictionary[Any, Copies] = weakref.WeakKeyDictionary()

    def before(self, optimizer: Any, parameters: Parameters, is_summed: bool = False) -> "Copies | None":
        """Copies of parameters before a step; None if they cannot be copied. Those with few elements are left out,
        because their elements are recorded, unless a sum over all parameters is wanted."""
        copies = self.kept.pop(optimizer, None)  # another thread may step with the same optimizer meanwhile
        if is_capturing():
            return None
        with tensor_values.unheard(), no_grad():
            try:
                if copies is None or copies.is_summed != is_summed or not copies.are_of(parameters):
                    copies = Copies(parameters, is_summed)
                copies.copy(parameters)
            except (RuntimeError, MemoryError):  # no memory, or a parameter whose memory was freed
                return None
        return copies

    def after(self, optimizer: Any, parameters: Parameters, copies: "Copies") -> list["Change"]:
        """The changes since `before`, as far as they are known."""
        if not copies.are_of(parameters) or is_capturing():
            return []
        with tensor_values.unheard(), no_grad():
            try:
                changes = copies.changes(parameters)
            except (RuntimeError, MemoryError):
                return []
        self.kept[optimizer] = copies
        return changes


class Change(NamedTuple):
    """The change of the parameter at a place among several: its Euclidean norm, and that of the parameter before (0
    where no sum is wanted). Both are tensors where they wait on a device."""

    place: int
    norm: float | torch.Tensor
    size: float | torch.Tensor


class Copies:
    """Copies of parameters. Those with few elements are left out unless a sum is wanted, and those whose elements
    cannot be read."""

    def __init__(self, parameters: Parameters, is_summed: bool) -> None:
        self.is_summed = is_summed
        least = 1 if is_summed else SMALL + 1
        self.identities = list(map(id, parameters))
        self.addresses = _addresses(parameters)
        together: defaultdict[torch.dtype, list[int]] = defaultdict(list)
        apart: defaultdict[tuple[torch.device, bool], list[int]] = defaultdict(list)
        rooms: dict[torch.device, int] = {}
        for place, parameter in enumerate(parameters):
            if numel(parameter) < least or not _is_comparable(parameter):
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
            _OnDevice(places) if is_distant else _Apart(places, parameters) for (_, is_distant), places in apart.items()
        ]

    def are_of(self, parameters: Parameters) -> bool:
        """Whether these are the parameters, at the same places in memory."""
        return self.identities == list(map(id, parameters)) and self.addresses == _addresses(parameters)

    def copy(self, parameters: Parameters) -> None:
        """Copy the parameters as they are now."""
        for part in self.parts:
            part.copy([parameters[place] for place in part.places])

    def changes(self, parameters: Parameters) -> list[Change]:
        """The changes since `copy`."""
        found: list[Change] = []
        for part in self.parts:
            sizes = part.sizes() if self.is_summed else [0.0] * len(part.places)
            norms = part.norms([parameters[place] for place in part.places])
            found += list(map(Change, part.places, norms, sizes))
        return found


def _addresses(parameters: Parameters) -> list[int]:
    return list(map(data_ptr, parameters))


def _room_on(device: torch.device) -> int:
    """How many bytes the copies of an optimizer's parameters may take on a device."""
    if device.type == "cpu":
        return _MOST_BYTES
    streams = streams_of(device)
    return COPIES if streams is None else streams.mem_get_info(device)[0] // 16


def _is_comparable(parameter: torch.Tensor) -> bool:
    """Whether the elements of a parameter can be read."""
    return (
        parameter.layout is torch.strided
        and not parameter.is_meta
        and not parameter.is_nested
        and parameter.dtype in _WIDE
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
        self.values, self.changes = _by_size(self.before, counts), _by_size(self.after, counts)

    def copy(self, parameters: Parameters) -> None:
        """Copy the parameters."""
        torch.cat(self.views, out=self.before)

    def sizes(self) -> list[float]:
        """The norms of the copies."""
        return _norms_of_all(self.values)

    def norms(self, parameters: Parameters) -> list[float]:
        """The norms of the changes."""
        torch.cat(self.views, out=self.after)
        self.after.sub_(self.before)
        return _norms_of_all(self.changes)


def _by_size(elements: torch.Tensor, counts: Counter[int]) -> list[np.ndarray]:
    """For each size, with its count, a matrix with that many of the elements in a row."""
    ends = np.cumsum([size * count for size, count in counts.items()])
    stretches = np.split(to_numpy(elements), ends[:-1])
    return [stretch.reshape(count, size) for stretch, (size, count) in zip(stretches, counts.items(), strict=True)]


@np.errstate(all="ignore")
def _norms_of_all(matrices: list[np.ndarray]) -> list[float]:
    each = ((np.sqrt(np.einsum("ij,ij->i", changes, changes)).tolist(), changes) for changes in matrices)
    return [_norm(norm, change) for norms, changes in each for norm, change in zip(norms, changes, strict=True)]


class _Apart:
    """Large parameters on a CPU, each with a copy of its own."""

    def __init__(self, places: list[int], parameters: Parameters) -> None:
        self.places = places
        self.copies = [torch.empty_like(one, dtype=_WIDE[one.dtype]) for one in map(parameters.__getitem__, places)]

    def copy(self, parameters: Parameters) -> None:
        """Copy the parameters."""
        for copy, parameter in zip(self.copies, parameters, strict=True):
            copy.copy_(parameter)

    def norms(self, parameters: Parameters) -> list[float]:
        """The norms of the changes."""
        for copy, parameter in zip(self.copies, parameters, strict=True):
            copy.sub_(parameter)
        return self.sizes()

    def sizes(self) -> list[float]:
        """The norms of the copies."""
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

    def sizes(self) -> Sequence[torch.Tensor]:
        """The norms of the copies, which wait on the device."""
        return _norms_on_device(list(self.copies))

    def norms(self, parameters: Parameters) -> Sequence[torch.Tensor]:
        """The norms of the changes, which wait on the device."""
        copies, self.copies = list(self.copies), ()
        torch._foreach_sub_(copies, list(parameters))
        return _norms_on_device(copies)


def _norms_on_device(tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    # a sum of squares may be too large for float32 where no element is
    wide = torch.float32 if tensors[0].device.type == "mps" else torch.float64
    return torch._foreach_norm(tensors, 2, dtype=wide)


def later(norm: float | torch.Tensor) -> float | Later:
    """A norm; if it waits on a device, to be fetched from there as the bytes of a double."""
    if not isinstance(norm, torch.Tensor):
        return norm
    streams, dtype = streams_of(norm.device), norm.dtype
    kept = OnDevice([norm], lambda parts: elements_in(parts[0], dtype).astype(np.float64).tobytes())
    kept.stream = None if streams is None else current_stream(streams, norm.device)
    return Later(kept, True, kept.held, is_distant=True)


def _norm(norm: float, change: np.ndarray) -> float:
    """The norm of a change, from the norm in the change's own precision, in which squares may vanish or overflow."""
    if _LEAST < norm < math.inf or math.isnan(norm):
        return norm
    if not change.any():
        return 0.0
    wide = change.astype(np.float64).ravel(order="K")
    return math.sqrt(wide.dot(wide))
