"""PyTorch in the comparison of custom Functions with finite differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from gradviz.sources.functions import Call, Functions
from gradviz.sources.torch_recorder.arguments import outputs_of
from gradviz.sources.torch_recorder.known_things import NodeRecord
from gradviz.sources.torch_recorder.memory import check_room
from gradviz.sources.torch_recorder.pytorchs_own import (
    TENSORS,
    detach,
    element_size,
    is_floating_point,
    no_grad,
    to_cpu,
    to_numpy,
)
from gradviz.sources.torch_recorder.shared import Source, in_transform


class TorchFunctions:
    """PyTorch as an `Engine` of `gradviz.sources.functions`."""

    tensor = torch.Tensor

    def __init__(self, source: Source) -> None:
        self.source = source

    def array(self, tensor: torch.Tensor) -> np.ndarray:
        """A copy of the elements; short dtypes become float32."""
        with torch._C.DisableTorchFunction(), no_grad():
            check_room(tensor)
            plain = TENSORS.resolve_neg(TENSORS.resolve_conj(to_cpu(detach(tensor))))
            if is_floating_point(plain) and element_size(plain) < 4:
                plain = TENSORS.float(plain)
            return to_numpy(plain).copy()

    def itemsize(self, tensor: torch.Tensor) -> int:
        """The size of an element in bytes; 0 if the elements are not real numbers."""
        return element_size(tensor) if is_floating_point(tensor) else 0

    def form(self, tensor: torch.Tensor) -> Any:
        """The shape, dtype and device."""
        return tuple(tensor.shape), tensor.dtype, tensor.device

    def tensor_of(self, array: np.ndarray, like: Any, in_double: bool) -> torch.Tensor:
        """A new tensor with these elements, in the dtype of another tensor or in float64."""
        _, dtype, device = like
        dtype = torch.float64 if in_double and dtype.is_floating_point else dtype
        return torch.from_numpy(np.array(array)).to(device, dtype)

    def is_asked_for(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor requires a gradient."""
        return tensor.requires_grad

    def is_on(self) -> bool:
        """Whether the graph is recorded."""
        return torch.is_grad_enabled() and torch.autograd.forward_ad._current_level < 0

    def refusal(self) -> str:
        """A reason if the program runs in several processes: the others would wait for a collective that only this
        process runs again."""
        several = torch.distributed.is_available() and torch.distributed.is_initialized()
        return "the program runs in several processes" if several else ""

    def random_state(self) -> Any:
        """The random state of the CPU, and of the GPUs if they are in use."""
        cuda: Any = torch.cuda
        others = cuda.get_rng_state_all() if cuda.is_initialized() else []
        return torch.get_rng_state(), others

    def set_random_state(self, state: Any) -> None:
        """Set the random state."""
        torch.set_rng_state(state[0])
        if state[1]:
            torch.cuda.set_rng_state_all(state[1])

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A context in which no mode and no listener sees this thread."""
        with self.source.quiet(), torch._C.DisableTorchFunction(), _disable_current_modes(), no_grad():
            yield

    def apply(self, function: Any, arguments: Sequence[Any]) -> Any:
        """Run a Function."""
        return function.apply(*arguments)  # not recorded: the thread is muted


class ComparedFunctions:
    """Compares custom Functions of the program; the recorder reports each call."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.functions = Functions(
            TorchFunctions(source), lambda: None if source.listener is None else source.listener.compared
        )
        source.ran_backward = self._ran_backward

    def kept(self, function: Any, arguments: Sequence[Any]) -> Call | None:
        """A copy of a call that is about to run; None if the call is not compared. PyTorch's own Functions are not
        compared."""
        if in_transform() or function.__module__.startswith("torch."):
            return None
        with torch._C.DisableTorchFunction():
            return self.functions.kept(function, arguments)

    def made(self, call: Call, result: Any) -> None:
        """Keep the results of a call that has run, and attach it to its node."""
        with torch._C.DisableTorchFunction():
            nodes = (tensor.grad_fn for tensor in outputs_of(result))
            node: Any = next((fn for fn in nodes if isinstance(fn, torch._C._FunctionBase)), None)
            if node is not None and self.source.listener is not None:
                call.made(result)
                self.source.identity.record_of(node).call = call

    def _ran_backward(
        self, record: NodeRecord, in_pass: int, received: Sequence[Any], produced: Sequence[Any]
    ) -> None:
        call: Call = record.call
        record.call = None
        arriving = iter(produced)  # PyTorch's hooks see only the gradients of tensor arguments
        gradients = [None if form is None else next(arriving, None) for form in call.forms]
        self.functions.ran_backward(call, record.number, in_pass, received, gradients)
