"""The attributes and methods of tensors that change autograd: `.data`, `.grad`, `requires_grad`, `retain_grad` and
`register_hook`; and those that read numbers out of a tensor, where it ends."""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch

from gradviz.events.kinds import VIEW, WHOLE
from gradviz.sources.torch_recorder import calls
from gradviz.sources.torch_recorder.calls import Steps, Way
from gradviz.sources.torch_recorder.identity import name_of_hook, outside
from gradviz.sources.torch_recorder.shared import PYTORCH, Source, in_transform, is_pytorchs
from gradviz.sources.torch_recorder.tensor_values import READER


class Attributes:
    """Emits the program's uses of them to a source's listener."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.identity = source.identity

    def ways(self) -> dict[str, Way]:
        """The function that handles each sort of call."""
        return {
            calls.GET_GRAD: self._get_grad,
            calls.SET_DATA: self._set_data,
            calls.SET_GRAD: self._set_grad,
            calls.SET_REQUIRES_GRAD: self._require,
            calls.REQUIRE: self._require,
            calls.RETAIN: self._retain,
            calls.HOOK: self._hook,
            calls.READ: self._read,
        }

    def _set_data(self, func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
        tensor, value = args
        if value is tensor:  # for example `model.to("cpu")` on the CPU
            yield
            return
        number = self.identity.number_of(tensor, frame)
        yield
        source = self.identity.number_of(value, frame)
        READER.recent.clear()
        known = self.identity.known[id(tensor)]
        known.base, known.alias = source, VIEW | WHOLE
        listener: Any = self.source.listener
        state = self.identity.state_of(tensor)._replace(tensor=number)
        listener.mutated(frame, "data", state, source, self.source.in_pass)

    def _get_grad(self, func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
        result = yield
        tensor = args[0]
        if result is None and not tensor.is_leaf and not tensor.retains_grad and not is_pytorchs(frame):
            listener: Any = self.source.listener
            listener.grad_read(frame, self.identity.number_of(tensor, frame))

    def _read(self, func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
        """Handle a read of numbers: `item`, `float()`. PyTorch's own reads are none of the program's."""
        yield
        known = self.identity.known.get(id(args[0]))
        if known is None or not (args[0].requires_grad or known.depends) or not self.source.is_detailed:
            return
        reader = outside(frame, torch.overrides.__file__, f"{PYTORCH}_tensor.py")
        if reader is not None and not is_pytorchs(reader):
            listener: Any = self.source.listener
            listener.number_read(reader, known.number, calls.READS[name])

    def _set_grad(self, func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
        yield
        tensor, value = (*args, None)[:2]  # `del tensor.grad` has no value
        number = self.identity.number_of(tensor, frame)
        grad = 0 if value is None else self.identity.number_of(value, frame)
        listener: Any = self.source.listener
        listener.grad_assigned(frame, number, grad)

    def _require(self, func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
        """Handle `requires_grad_`, `detach_`, or an assignment to `requires_grad`."""
        tensor = args[0]
        if self.identity.pending and tensor.grad_fn is None:  # a leaf from before the change
            self.identity.tell_pending()
        before = tensor.requires_grad, tensor.is_leaf
        yield
        if (tensor.requires_grad, tensor.is_leaf) != before and not in_transform():
            self.identity.number_of(tensor, frame)
            listener: Any = self.source.listener
            listener.requires_grad_changed(frame, self.identity.state_of(tensor)._replace(value=None))

    def _retain(self, func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
        """Handle `retain_grad`: note which output of which node keeps its gradient."""
        yield
        tensor = args[0]
        if tensor.grad_fn is not None:
            self.identity.number_of(tensor, frame)
            record = self.identity.record_of(tensor.grad_fn)
            record.retained = record.retained or {}
            record.retained[tensor.output_nr] = self.identity.known[id(tensor)]

    def _hook(self, func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
        """Handle `register_hook`: note that the tensor has a hook."""
        yield
        tensor = args[0]
        self.identity.number_of(tensor, frame)
        self.identity.hooked[id(tensor)] = self.identity.known[id(tensor)]
        if tensor.grad_fn is not None:
            record = self.identity.record_of(tensor.grad_fn)
            record.hooks += (name_of_hook(args[1] if len(args) > 1 else kwargs["hook"]),)
