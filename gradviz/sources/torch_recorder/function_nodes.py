"""The backward of custom Functions without hooks behind it.

From 2.15 on a backward may read `ctx.input_grad_buffers`, add its gradient to those that have already arrived, and
return None. PyTorch refuses that on a node that has, or ever had, a hook behind it. With `boxed_grads_call` a backward
frees gradients while it runs, which a hook behind it would keep. So the method that PyTorch calls the backward by is
replaced, and the gradients are taken from what it returns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.autograd import function
from torch.utils._python_dispatch import _disable_current_modes

from gradviz.sources.torch_recorder.known_things import NodeRecord, version_of
from gradviz.sources.torch_recorder.pytorchs_own import no_grad, numel
from gradviz.sources.torch_recorder.shared import Source, safely
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
        """What was added in place to the gradient of an argument; None for nothing."""
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
