"""The aten level: PyTorch's own ops that run below an op of the program, in a node, and in an optimizer; and their
cost, which is time, memory and floating-point operations, for `--profile`."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter  # bound now: a program may replace it
from typing import Any

import torch
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from gradviz.sources.torch_recorder.arguments import call_text, outputs_of, tensors_in
from gradviz.sources.torch_recorder.saved import storage_of
from gradviz.sources.torch_recorder.shared import Source, safely
from gradviz.sources.torch_recorder.tensor_values import PLAIN

_IMPLICIT = torch._C.DispatchKey.CompositeImplicitAutograd
_WITHOUT_CLOCK = {"cpu", "meta"}  # an op on these devices has ended when its call returns


_modes: Any = _python_dispatch
UNTOLD = {"profiler"}  # namespaces of ops that compute nothing


class BelowAutograd(TorchDispatchMode):
    """A mode that sees the ops that reach the dispatcher below autograd, on the threads where it is on."""

    def __init__(self, source: Source) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.source = source

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, so that PyTorch does not load Dynamo and put frames of its own around ours."""
        return False

    def running_node(self) -> tuple[bool, int]:
        """Whether a node runs on this thread, and the node's number; 0 for a node that is not recorded."""
        fn: Any = torch._C._current_autograd_node()
        record = None if fn is None else fn.metadata.get(self.source.identity.key)
        return fn is not None, 0 if record is None else record.number

    @contextmanager
    def on(self) -> Iterator[None]:
        """A context in which the mode is on."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    @safely
    def _enter(self) -> None:
        self.__enter__()  # type: ignore[no-untyped-call]

    @safely
    def _leave(self) -> None:
        self.leave()

    def leave(self) -> None:
        """Switch the mode off, also below modes that the program has not left."""
        above: list[Any] = []
        while (mode := _modes._get_current_dispatch_mode()) is not None and mode is not self:
            above.append(_modes._pop_mode())
        if mode is not None:
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for mode in reversed(above):
            _modes._push_mode(mode)


class Kernels(BelowAutograd):  # type: ignore[no-untyped-call]
    """Emits these ops to a source's listener, after they have run. Tensors that an op allocates inside have no
    number: they are not the program's."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # the call of an aten op is not the program's
            result = call_of(func)(*args, **(kwargs or {}))
        if not self.source.is_off and self.source.is_detailed:
            self._tell(func, args, kwargs or {}, result, sys._getframe(1))
        return result

    @safely
    def _tell(self, func: Any, args: Any, kwargs: Any, result: Any, frame: Any) -> None:
        if func.namespace in UNTOLD:
            return
        is_in_node, node = self.running_node()
        known = [self.source.identity.known.get(id(tensor)) for tensor in tensors_in(args, kwargs)]
        self.source.listener.kernel(
            None if is_in_node else frame, name_of(func), call_text(args, kwargs), call_text((result,), {}),
            self.source.in_pass, node, [0 if one is None else one.number for one in known],
        )  # fmt: skip


def name_of(func: Any) -> str:
    """The name of an op as PyTorch writes it, without default parts: `addmm`, `sum.dim_IntList`."""
    name = str(func).removeprefix("aten.")
    return name.removesuffix(".default")


def call_of(func: Any) -> Any:
    """The callable of an op that adds no frame to the traceback of an error."""
    return func._op if type(func) is torch._ops.OpOverload else func


class Measured(BelowAutograd):  # type: ignore[no-untyped-call]
    """Emits the cost of each op below autograd to a source's listener.

    The time is that of PyTorch's own call, without our own work if this mode is the lowest. An op on a device is waited
    for. The memory is that of the storages of the results; memory that an op needs only while it runs is not seen."""

    def __init__(self, source: Source) -> None:
        from torch.utils.flop_counter import flop_registry  # it imports Triton where that is installed: half a second

        super().__init__(source)
        self.counts: dict[Any, Any] = flop_registry

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
        if type(func) is not torch._ops.OpOverload or func._overloadpacket in self.counts:
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
        with torch._C.DisableTorchFunction():
            sizes = dict(filter(None, map(storage_of, outputs_of(result))))
            for known in filter(None, map(storage_of, tensors_in(args, kwargs) if sizes else ())):
                sizes.pop(known[0], None)
            made = sum(sizes.values())
            flops = self._flops(func, args, kwargs, result)
        source.listener.measured(
            None if is_in_node else frame, name_of(func), seconds, made, flops, source.in_pass, node,
            step is not None and not step.is_in_closure,
        )  # fmt: skip

    def _flops(self, func: Any, args: Any, kwargs: Any, result: Any) -> int:
        """The floating-point operations of an op by PyTorch's own count; 0 if PyTorch has no count."""
        count = self.counts.get(func._overloadpacket) if type(func) is torch._ops.OpOverload else None
        try:
            return int(count(*args, **kwargs, out_val=result)) if count is not None else 0
        # raised for shapes that it cannot count
        except (AssertionError, NotImplementedError, RuntimeError, TypeError, ValueError):
            return 0
