"""The cost of ops: time, memory and floating-point operations of each op below autograd, for `--profile`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from time import perf_counter  # bound now: a program may replace it
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from gradviz.sources.torch_recorder.arguments import outputs_of, tensors_in
from gradviz.sources.torch_recorder.kernels import UNTOLD, BelowAutograd, call_of, name_of
from gradviz.sources.torch_recorder.pytorchs_own import untyped_storage
from gradviz.sources.torch_recorder.shared import safely
from gradviz.sources.torch_recorder.tensor_values import PLAIN

_IMPLICIT = torch._C.DispatchKey.CompositeImplicitAutograd
_WITHOUT_CLOCK = {"cpu", "meta"}  # an op on these devices has ended when its call returns


class Measured(BelowAutograd):  # type: ignore[no-untyped-call]
    """Emits the cost of each op below autograd to a source's listener.

    The time is that of PyTorch's own call, without our own work if this mode is the lowest. An op on a device is
    waited for. The memory is that of the storages of the results; memory that an op needs only while it runs is not
    seen."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if self.source.is_off or not self.source.is_detailed:
            with torch._C.DisableTorchFunction():
                return call_of(func)(*args, **named)
        if self._is_composite(func, args, named):  # under inference_mode it is not decomposed before
            with self:
                return func._op_dk(_IMPLICIT, *args, **named)
        result, seconds = self._called(func, args, named)
        self._tell(func, args, named, result, seconds, sys._getframe(1))
        return result

    def _called(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, float]:
        """The result of an op, and the seconds that it took."""
        call = call_of(func)
        with torch._C.DisableTorchFunction():  # the call of an aten op is not the program's
            devices = self._devices(args, kwargs) or ()
            self._wait_for(devices)
            began = perf_counter()
            result = call(*args, **kwargs)
            self._wait_for(devices)
            return result, perf_counter() - began

    @safely
    def _is_composite(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Whether an op of plain tensors is composed of other ops, as PyTorch says, so that it may be decomposed as
        PyTorch does."""
        if type(func) is not torch._ops.OpOverload or func._overloadpacket in flop_registry:
            return False
        op: Any = func
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), _IMPLICIT)) and all(
            type(tensor) in PLAIN and tensor.layout is torch.strided and not tensor.is_nested
            for tensor in tensors_in(args, kwargs)
        )

    @safely
    def _devices(self, args: Any, kwargs: Any) -> set[torch.device]:
        """The devices of tensors on which an op may still run when its call returns."""
        devices = {tensor.device for tensor in tensors_in(args, kwargs)}
        if kwargs.get("device") is not None:
            devices.add(torch.device(kwargs["device"]))
        return {device for device in devices if device.type not in _WITHOUT_CLOCK}

    @safely
    def _wait_for(self, devices: Iterable[torch.device]) -> None:
        for device in devices:
            if device.type == "cuda":
                if not torch.cuda.is_current_stream_capturing():  # a captured graph runs later
                    torch.cuda.synchronize(device)
            elif (wait := getattr(getattr(torch, device.type, None), "synchronize", None)) is not None:
                wait()

    @safely
    def _tell(self, func: Any, args: Any, kwargs: Any, result: Any, seconds: float, frame: Any) -> None:
        if func.namespace in UNTOLD:
            return
        is_in_node, node = self.running_node()
        source = self.source
        step = source.thread.stepping
        listener: Any = source.listener
        with torch._C.DisableTorchFunction():
            made = _bytes_made(tensors_in(args, kwargs), outputs_of(result))
            flops = _flops(func, args, kwargs, result)
        listener.measured(
            None if is_in_node else frame, name_of(func), seconds, made, flops, source.in_pass, node,
            step is not None and not step.is_in_closure,
        )  # fmt: skip


def _bytes_made(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> int:
    """The total bytes of the storages that outputs have and inputs do not have."""
    sizes = dict(filter(None, map(_storage_of, outputs)))
    for known in filter(None, map(_storage_of, inputs if sizes else ())):
        sizes.pop(known[0], None)
    return sum(sizes.values())


def _storage_of(tensor: torch.Tensor) -> tuple[int, int] | None:
    """The identity and the size in bytes of a tensor's storage; None if it has none."""
    try:
        storage = untyped_storage(tensor)
        return storage._cdata, storage.nbytes()
    except (NotImplementedError, RuntimeError):  # it is sparse, or wraps other tensors
        return None


def _flops(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """The floating-point operations of an op by PyTorch's own count; 0 if PyTorch has no count."""
    count = flop_registry.get(func._overloadpacket) if type(func) is torch._ops.OpOverload else None
    try:
        return int(count(*args, **kwargs, out_val=result)) if count is not None else 0
    except (
        AssertionError,
        NotImplementedError,
        RuntimeError,
        TypeError,
        ValueError,
    ):  # raised for shapes that it cannot count
        return 0
