"""Values of PyTorch tensors: read in place, without a trace in the graph."""

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import string_at
from functools import partial
from typing import Any

import numpy as np
import torch

from gradviz.events.handles import READERS, AtOnce, Form, Later, NumpyReader, device_of_part
from gradviz.events.values import packed_stats_of, packed_stats_of_each, stats_of
from gradviz.sources.torch_recorder.device_values import statistics_of, whole_of
from gradviz.sources.torch_recorder.fetching import FETCHER, OutOfMemory, current_stream, streams_of
from gradviz.sources.torch_recorder.memory import (
    WARY,
    array_of,
    bytes_of,
    bytes_type,
    check_room,
    dtype_name,
    flat_in_place,
    in_numpy,
    in_place,
    is_dense,
    is_stored,
    start_of,
)  # fmt: skip
from gradviz.sources.torch_recorder.pytorchs_own import (
    coalesce,
    data_ptr,
    detach,
    element_size,
    is_contiguous,
    is_inference,
    is_neg,
    no_grad,
    numel,
    shape_of,
    storage_offset,
    stored_values,
    to_cpu,
    to_dense,
    untyped_storage,
)

_MOST_RECENT = 8
_SPARSE = (torch.sparse_coo, torch.sparse_csr)
_LARGEST_DENSE = 1 << 24  # elements
_LARGE = 4096  # the statistics of smaller tensors are computed later, many at once
_numpy = NumpyReader()
# makes a Later without a Python call
_later: Callable[[tuple[Any, ...]], Later] = partial(tuple.__new__, Later)
_Plain = torch._C.DisableTorchFunction  # inside, no mode of the program sees our reads
_dispatch_modes = torch._C._len_torch_dispatch_stack
_profiling: Any = torch.autograd
_is_profiled = _profiling._profiler_enabled
_functorch = torch._C._functorch


@contextmanager
def unheard() -> Iterator[None]:
    """A context in which no dispatch mode of the program, and no profiler, sees our computations."""
    profiled = _is_profiled()
    if profiled:
        _profiling._enable_record_function(False)
    try:
        with torch._C._DisableTorchDispatch():
            yield
    finally:
        if profiled:
            _profiling._enable_record_function(True)


class Unseen:
    """A tensor inside an op, of which only shape, dtype and device are known."""

    __slots__ = ("form",)

    def __init__(self, shape: Sequence[int], dtype: Any, device: Any) -> None:
        self.form = Form(tuple(shape), dtype_name(dtype), str(device))


class UnseenReader:
    """Reads the forms of unseen tensors."""

    def at_once(self, value: Unseen) -> None:
        """None: there is no value."""

    def form(self, value: Unseen) -> Form:
        """The shape, dtype and device."""
        return value.form

    def size(self, value: Unseen) -> int:
        """The number of elements."""
        return int(np.prod(value.form.shape))

    def array(self, value: Unseen) -> None:
        """None: there are no elements."""

    def keep(self, value: Unseen, whole: bool) -> None:
        """None: there is no value."""

    def settle(self, waiting: Sequence[Later]) -> list[bytes | None]:
        """An empty list: no value waits."""
        return []


# For small tensors of one form: the form, the number of elements, the bytes, the bytes of an element, NumPy's dtype,
# and the ctypes function that reads them.
_Small = tuple[Form, int, int, int, np.dtype, Callable[[int], Any]]


class TorchReader:
    """Reads PyTorch tensors. Tensors on the CPU are read in place: after an op that has filled the processor's caches,
    a call of NumPy takes several times as long, so the statistics of small tensors are computed later, many at once.
    For other tensors statistics are computed on their device, and fetched later, with one copy for all on a device.

    A tensor without readable elements (meta, nested, quantized, one of `vmap`) has no value."""

    def __init__(self) -> None:
        self.small: dict[tuple[Any, ...], _Small | None] = {}
        self.forms: dict[tuple[Any, ...], Form] = {}
        # for a place in memory: the tensor, its version, its statistics
        self.recent: dict[tuple[Any, ...], tuple[Any, int, bytes]] = {}

    def at_once(self, value: torch.Tensor) -> AtOnce | None:
        """The results of `form`, `size` and `keep` together, for a small tensor that lies contiguously on the CPU;
        None for any other. It takes half the time of the three."""
        if type(value) not in PLAIN:
            return None
        try:
            with _Plain():
                if _dispatch_modes() or _is_profiled():
                    return None
                key = (value.shape, value.dtype, value.device)
                known = self.small.get(key, value)
                if known is value:
                    known = self.small[key] = self._small(value)
                if known is None or not is_contiguous(value) or is_neg(value):
                    return None
                form, count, size, each, dtype, bytes_at = known
                offset = storage_offset(value) * each  # as `bytes_of`, without a call
                start = data_ptr(value)
                if start == offset:
                    return None
                if WARY.passes:
                    if not is_stored(value, offset + size):
                        return None
                elif offset + size > untyped_storage(value).nbytes():
                    return None
                return form, count, bytes_at(start).raw, dtype
        except (RuntimeError, TypeError, NotImplementedError, ValueError):
            return None  # `keep` finds out whether the tensor can be read

    def _small(self, value: torch.Tensor) -> _Small | None:
        """The data that small tensors of a form have in common; None if tensors of this form are not read at once."""
        if is_distant(value) or value.dtype not in _IN_NUMPY or not 0 < numel(value) <= _LARGE:
            return None
        size, each = value.nbytes, element_size(value)
        return (self.form(value), numel(value), size, each, in_numpy(value.dtype), bytes_type(size).from_address)

    def form(self, value: torch.Tensor) -> Form:
        """The shape, dtype and device of a tensor."""
        if type(value) not in PLAIN and is_sharded(value):
            form, local = _form_of(value), local_part(value)
            here = numel(local) if local is not None else 0
            return form._replace(device=device_of_part(form.device, here, numel(value)))
        try:
            shape = shape_of(value)  # not what a class of the program's says for a tensor that it stands for
            key = (shape, value.dtype, value.device)
            found = self.forms.get(key)
        except (RuntimeError, TypeError):  # it has no shape, or a symbolic one
            return _form_of(value)
        if found is None:
            found = _form_of(value)
            if len(found.shape) == len(shape):
                self.forms[key] = found
        return found

    def size(self, value: torch.Tensor) -> int:
        """The number of elements of a tensor."""
        if type(value) not in PLAIN and is_sharded(value):
            return sys.maxsize  # its elements are not all here
        try:
            return numel(value)
        except RuntimeError:
            return 0

    def array(self, value: torch.Tensor) -> np.ndarray | None:
        """The elements of a tensor, read in place if it is on the CPU; None if they cannot be read."""
        if type(value) not in PLAIN and is_sharded(value):
            return None
        try:
            with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), no_grad():
                value = _dense(value) if value.layout in _SPARSE else value
                return array_of(value if value.is_cpu else to_cpu(value))
        except (RuntimeError, TypeError, NotImplementedError, ValueError):
            inner = innermost(value)
            return None if inner is None or inner is value else self.array(inner)

    def keep(self, value: torch.Tensor, whole: bool) -> bytes | Later | None:
        """The elements or statistics of a tensor, or what they are computed from later; None if it has no value."""
        if type(value) not in PLAIN:
            local = local_part(value)
            return None if local is None else self.keep(local, whole)
        try:
            with _Plain():
                if _dispatch_modes() or _is_profiled():
                    with unheard():
                        return self._keep(value, whole)
                return self._keep(value, whole)
        except (RuntimeError, TypeError, NotImplementedError, ValueError):
            inner = innermost(value)
            return None if inner is None or inner is value else self.keep(inner, whole)

    def _keep(self, value: torch.Tensor, whole: bool) -> bytes | Later | None:
        if value.is_meta or value.is_nested:
            return None
        if value.layout in _SPARSE and value.is_cpu:
            return bytes_of(_dense(detach(value))) if whole else _stats_of_sparse(detach(value))
        if is_distant(value):
            return self._keep_distant(detach(value), whole)
        if _is_plain_memory(value):
            return bytes_of(value) if whole else self._keep_dense(value)
        if value.dtype not in _IN_NUMPY or is_neg(value):
            return _numpy.keep(array_of(value, whole), whole)
        if whole or not is_dense(value):
            return _numpy.keep(in_place(value), whole)
        return self._keep_dense(value)

    def _keep_dense(self, value: torch.Tensor) -> bytes | Later:
        """The statistics of a dense tensor. A large tensor reuses the recent statistics of a tensor on the same
        memory, if that tensor is alive and has not been written to since."""
        start, size, dtype = start_of(value), value.nbytes, value.dtype
        if numel(value) <= _LARGE:
            return _later(((string_at(start, size), in_numpy(dtype)), False, size, False))
        elements = flat_in_place(value, start)
        if is_inference(value):  # it counts no versions
            return packed_stats_of(elements)
        key, version = (start, size, dtype), value._version
        known = self.recent.get(key)
        if known is not None and known[0]() is not None and known[1] == version:
            return known[2]
        stats = packed_stats_of(elements)
        if len(self.recent) >= _MOST_RECENT:
            del self.recent[next(iter(self.recent))]
        self.recent[key] = (weakref.ref(value), version, stats)
        return stats

    def _keep_distant(self, value: torch.Tensor, whole: bool) -> Later | None:
        if value.layout is not torch.strided:
            return None
        streams = streams_of(value.device)
        if streams is not None and streams.is_current_stream_capturing():
            return None  # a kernel launched now would run at every replay
        check_room(value)
        try:
            kept = whole_of(value) if whole else statistics_of(value, FETCHER.room(value.device))
        except OutOfMemory:
            FETCHER.left_out += 1
            return None
        if streams is not None:
            kept.stream = current_stream(streams, value.device)
        return Later(kept, whole, kept.held, is_distant=True)

    def settle(self, waiting: Sequence[Later]) -> list[bytes | None]:
        """The bytes of waiting values. Values on one device are fetched together."""
        by_device: dict[Any, list[int]] = {}
        for at, later in enumerate(waiting):
            by_device.setdefault(getattr(later.kept, "device", None), []).append(at)
        values: list[bytes | None] = [b""] * len(waiting)
        for device, there in by_device.items():
            settled: Any = packed_stats_of_each if device is None else FETCHER.fetch
            for at, data in zip(there, settled([waiting[at].kept for at in there]), strict=True):
                values[at] = data
        return values


def _dense(value: torch.Tensor) -> torch.Tensor:
    """A sparse tensor with its zeros. Raises ValueError if they take too much memory."""
    if numel(value) > _LARGEST_DENSE:
        raise ValueError("too large")
    return to_dense(value)


def _stats_of_sparse(value: torch.Tensor) -> bytes:
    """The statistics of a sparse tensor on the CPU, as `packed_stats_of` has them."""
    stored = array_of(stored_values(coalesce(value) if value.layout is torch.sparse_coo else value))
    left_out = numel(value) - stored.size
    if not left_out:
        return packed_stats_of(stored)
    stats = stats_of(np.append(stored, stored.dtype.type(0)))  # one for all zeros that are not stored
    finite = stored.size - stats.nan - stats.inf
    share = (finite + 1) / (finite + left_out)
    numbers = stats.min, stats.max, stats.mean * share, stats.rms * share**0.5
    return np.array([*numbers, stats.nan, stats.inf, stats.zeros - 1 + left_out], np.float64).tobytes()


def innermost(value: torch.Tensor) -> torch.Tensor | None:
    """The tensor of the same elements inside the wrappers by which transforms of torch.func differentiate; None under
    `vmap`, where a tensor stands for many."""
    while _functorch.is_gradtrackingtensor(value):
        value = _functorch.get_unwrapped(value)
    return None if _functorch.is_functorch_wrapped_tensor(value) else value


def local_part(value: torch.Tensor) -> torch.Tensor | None:
    """The part here of a tensor that lies on several ranks; None for any other tensor, or if its value is a sum over
    ranks that is not yet computed."""
    local = getattr(value, "_local_tensor", None)
    if type(local) not in PLAIN or any(place.is_partial() for place in _placements(value)):
        return None
    return local


def is_sharded(value: torch.Tensor) -> bool:
    """Whether some elements of a tensor lie on other ranks."""
    return local_part(value) is not None and not all(place.is_replicate() for place in _placements(value))


def _placements(value: Any) -> Sequence[Any]:
    """The placements of a tensor on the dimensions of a mesh of ranks."""
    return getattr(value, "placements", ())


def _form_of(value: torch.Tensor) -> Form:
    try:
        shape = tuple(map(int, shape_of(value)))
    except (RuntimeError, AttributeError):  # a nested tensor has no shape, or a symbolic length
        shape = ()
    return Form(shape, dtype_name(value.dtype), str(value.device))


def _is_plain_memory(value: torch.Tensor) -> bool:
    """Whether a tensor lies contiguously on the CPU, with elements as NumPy has them. Raises RuntimeError if it has
    no strides."""
    return (
        not is_distant(value)
        and value.dtype in _IN_NUMPY
        and not value.is_nested
        and is_contiguous(value)
        and not is_neg(value)
    )


def is_distant(value: torch.Tensor) -> bool:
    """Whether a tensor lies on a device, so that reading it would wait for the device."""
    return not value.is_cpu


# Read as they lie in memory, unless reading has to change a float's sign.
_IN_NUMPY = {
    torch.float32, torch.float64, torch.float16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
}  # fmt: skip
PLAIN: set[type] = {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer}
READER = TorchReader()


def is_plain_parameter(kind: type[torch.Tensor]) -> bool:
    """Whether a class is that of parameters, or a subclass that computes as it does: then it is PLAIN from now on."""
    parameter: Any = torch.nn.Parameter
    is_one = parameter in kind.__mro__ and kind.__torch_function__ == parameter.__torch_function__
    if is_one and kind not in PLAIN:
        PLAIN.add(kind)
        READERS[kind] = READER
    return is_one


def register() -> None:
    """Make recorders read PyTorch's tensors."""
    READERS[torch.Tensor] = READERS[torch.nn.Parameter] = READER
    READERS[Unseen] = UnseenReader()
