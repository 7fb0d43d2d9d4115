"""Custom Functions: their backward without hooks behind it, and their comparison with finite differences.

From 2.15 on a backward may read `ctx.input_grad_buffers`, add its gradient to those that have already arrived, and
return None. PyTorch refuses that on a node that has, or ever had, a hook behind it. With `boxed_grads_call` a backward
frees gradients while it runs, which a hook behind it would keep. So the method that PyTorch calls the backward by is
replaced, and the gradients are taken from what it returns.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd import function
from torch.utils._python_dispatch import _disable_current_modes

from gradviz.sources.functions import Call, Functions
from gradviz.sources.torch_recorder.arguments import outputs_of
from gradviz.sources.torch_recorder.known_things import NodeRecord, version_of
from gradviz.sources.torch_recorder.memory import check_room
from gradviz.sources.torch_recorder.pytorchs_own import (
    TENSORS,
    detach,
    element_size,
    is_floating_point,
    no_grad,
    numel,
    to_cpu,
    to_numpy,
)
from gradviz.sources.torch_recorder.shared import Source, in_transform, safely
from gradviz.sources.torch_recorder.tensor_values import Unseen

_BUFFERS = "input_grad_buffers"
HAS_GRAD_BUFFERS = hasattr(function.FunctionCtx, _BUFFERS)
_MOST_COPIED = 1 << 20  # elements: of a larger buffer no copy is kept, and what was added to it has no value


def takes_no_hook_behind(fn: Any) -> bool:
    """Whether the node of a custom Function is recorded without a hook behind it."""
    return HAS_GRAD_BUFFERS or getattr(getattr(fn, "_forward_cls", None), "boxed_grads_call", False)


class _Buffer(NamedTuple):
    """A gradient that a backward may add to, and a copy of its elements before; None for a large one."""

    tensor: torch.Tensor
    version: int
    before: torch.Tensor | None


class RunningFunction:
    """A custom Function whose backward runs in a recorded pass."""

    def __init__(self, backward_pass: Any, record: NodeRecord, targets: Sequence[int]) -> None:
        self.source: Source = backward_pass.source
        self.backward_pass, self.record, self.targets = backward_pass, record, targets
        self.buffers: dict[int, _Buffer] = {}  # by the number of the argument

    @safely
    def is_of(self, ctx: Any) -> bool:
        """Whether it is the Function of this context."""
        return ctx.metadata.get(self.source.identity.key) is self.record

    @safely
    def show(self, buffers: Sequence[torch.Tensor | None], frame: FrameType) -> None:
        """Note the buffers that the backward has asked for in `frame`, one for each argument."""
        for at, buffer in enumerate(buffers):
            if buffer is not None and at not in self.buffers:
                with torch._C.DisableTorchFunction():
                    self.source.identity.number_of(buffer, frame, "gradient")
                with _alone(self.source):
                    before = buffer.detach().clone() if numel(buffer) <= _MOST_COPIED else None
                self.buffers[at] = _Buffer(buffer, version_of(buffer), before)

    @safely
    def ended(self, ctx: Any, returned: Any, received: Sequence[Any]) -> None:
        """Emit the gradients that the backward has returned, unless PyTorch is about to refuse them."""
        gradients = returned if isinstance(returned, tuple) else (returned,)
        needed = ctx.needs_input_grad
        if any(gradient is not None for gradient in gradients[len(needed) :]) or len(gradients) < len(needed):
            return
        edges = ctx.next_functions
        arguments: Sequence[int] = range(len(needed))
        if len(edges) < len(needed):  # without those that are no tensors
            with_edge = iter([at for at in arguments if needed[at]])
            arguments = [-1 if target is None else next(with_edge) for target, _ in edges]
        produced: list[Any] = []
        added: list[Any] = []
        for (target, nr), at in zip(edges, arguments, strict=True):
            gradient = None if at < 0 else gradients[at]
            if gradient is not None and target is not None:
                gradient = self._fitted(gradient, target, target._input_metadata[nr])
                if gradient is None:
                    return
            produced.append(gradient)
            added.append(self._added(at) if gradient is None else None)
        self.buffers.clear()
        self.backward_pass._after(self.record, self.targets, produced, received, added)

    def _fitted(self, gradient: Any, target: Any, form: Any) -> torch.Tensor | None:
        """A gradient in the form that PyTorch gives it before it hands it on; None if it cannot."""
        if not isinstance(gradient, torch.Tensor):
            return None
        if gradient.shape == form.shape and gradient.dtype == form.dtype:
            return gradient
        self.backward_pass.flowing.fitted.add(target.metadata[self.source.identity.key].number)
        try:
            with _alone(self.source):
                fitted = gradient.sum_to_size(form.shape)
                if fitted.is_complex() and not form.dtype.is_complex:
                    fitted = fitted.real
                return fitted.to(form.dtype)
        except RuntimeError:
            return None

    def _added(self, at: int) -> Any:
        """The gradient that was added in place to the gradient of an argument; None if none was."""
        buffer = self.buffers.get(at)
        if buffer is None:
            return None
        tensor = buffer.tensor
        if buffer.before is None:
            self.record.call = None  # its gradients cannot be compared
            return Unseen(tensor.shape, tensor.dtype, tensor.device)
        with _alone(self.source):
            difference = tensor.detach() - buffer.before
            if version_of(tensor) == buffer.version and not difference.any():
                return None
            return difference


@contextmanager
def _alone(source: Source) -> Iterator[None]:
    """A context in which no mode and no listener sees this thread, for what only the recorder computes."""
    with source.quiet(), torch._C.DisableTorchFunction(), _disable_current_modes(), no_grad():
        yield


def replacements(source: Source) -> Iterator[tuple[Any, str, Any]]:
    """The replacements of PyTorch's functions, each with its owner and its name."""
    if HAS_GRAD_BUFFERS:
        own = vars(function.FunctionCtx)[_BUFFERS]
        yield function.FunctionCtx, _BUFFERS, property(_reading(source, own.fget), doc=own.__doc__)
    for name in ("apply", "apply_boxed") if HAS_GRAD_BUFFERS else ("apply_boxed",):
        if (call := vars(function.BackwardCFunction).get(name)) is not None:
            yield function.BackwardCFunction, name, _running(source, call, name == "apply_boxed")


def _reading(source: Source, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The replacement of the function that reads `ctx.input_grad_buffers`."""

    @wraps(read)
    def run(ctx: Any) -> Any:
        buffers = read(ctx)
        running = source.thread.running_function
        if running is not None and running.is_of(ctx):
            running.show(buffers, sys._getframe(1))
        return buffers

    return run


def _running(source: Source, call: Callable[..., Any], is_boxed: bool) -> Callable[..., Any]:
    """The replacement of the method by which PyTorch calls a Function's backward, with its gradients as arguments or,
    boxed, in a list that the backward may empty."""

    @wraps(call)
    def run(ctx: Any, *arguments: Any) -> Any:
        thread = source.thread
        started, thread.function = thread.function, None
        if started is None or not started.is_of(ctx):
            return call(ctx, *arguments)
        around, thread.running_function = thread.running_function, started
        received = arguments
        if is_boxed:  # the list is kept only where the gradients are used again
            kept = started.backward_pass.create_graph or started.record.call is not None
            received = tuple(arguments[0]) if kept else ()
        try:
            returned = call(ctx, *arguments)
        finally:
            thread.running_function = around
        started.ended(ctx, returned, received)
        return returned

    return run


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
        return element_size(tensor) if is_floating_point(tensor) else 0

    def form(self, tensor: torch.Tensor) -> Any:
        return tuple(tensor.shape), tensor.dtype, tensor.device

    def tensor_of(self, array: np.ndarray, like: Any, in_double: bool) -> torch.Tensor:
        _, dtype, device = like
        dtype = torch.float64 if in_double and dtype.is_floating_point else dtype
        return torch.from_numpy(np.array(array)).to(device, dtype)

    def is_on(self) -> bool:
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
        torch.set_rng_state(state[0])
        if state[1]:
            torch.cuda.set_rng_state_all(state[1])

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A context in which no mode and no listener sees this thread."""
        with self.source.quiet(), torch._C.DisableTorchFunction(), _disable_current_modes(), no_grad():
            yield

    def apply(self, function: Any, arguments: Sequence[Any]) -> Any:
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

    def _ran_backward(self, record: NodeRecord, in_pass: int, received: Sequence[Any], produced: Sequence[Any]) -> None:
        call: Call = record.call
        record.call = None
        arriving = iter(produced)  # PyTorch's hooks see only the gradients of tensor arguments
        gradients = [None if form is None else next(arriving, None) for form in call.forms]
        self.functions.ran_backward(call, record.number, in_pass, received, gradients)
