"""The entry of PyTorch's engine, which every backward pass that Python begins goes through."""

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from gradviz.events.kinds import UNWATCHED
from gradviz.sources.torch_recorder.backward import Pass, pass_of, roots_of
from gradviz.sources.torch_recorder.collectives import Collectives
from gradviz.sources.torch_recorder.histograms import LeafHistograms
from gradviz.sources.torch_recorder.identity import outside
from gradviz.sources.torch_recorder.live_passes import giver
from gradviz.sources.torch_recorder.resting import Resting
from gradviz.sources.torch_recorder.shared import OURS, PYTORCH, Source, is_pytorchs, safely, users_frame


class Refusals:
    """Emits to the listener the RuntimeErrors that refuse a pass, with its roots."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def making_gradients(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """The replacement of PyTorch's function that makes the initial gradients of a pass; its refusals are
        emitted."""

        def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return make(outputs, *args, **kwargs)
            except RuntimeError as error:
                self.tell(outputs, error)
                raise

        return run

    @safely
    def tell(self, roots: Any, error: RuntimeError) -> None:
        source = self.source
        if source.is_off or source.listener is None or source.thread.unseen:
            return
        source.identity.tell_pending()
        with torch._C.DisableTorchFunction():
            tensors = [root for root in roots_of(roots) if isinstance(root, torch.Tensor)]
            for root in tensors:
                if root.grad_fn is None:  # while nothing is watched it may be new
                    source.identity.number_of(root, giver(root, users_frame(sys._getframe())), UNWATCHED)
            nodes = [root.grad_fn for root in tensors if root.grad_fn]
            node = source.identity.record_of(nodes[0]).number if nodes else 0
        source.listener.error(error.__traceback__, type(error).__name__, str(error), node)


# The files of the functions through which a pass is requested: PyTorch's and ours.
_ASKED = (f"{PYTORCH}autograd{os.sep}", f"{PYTORCH}_tensor.py", f"{PYTORCH}overrides.py", OURS)


def watched(
    source: Source,
    engine: Callable[..., Any],
    push: Callable[[], Any],
    collectives: Collectives,
    counting: LeafHistograms,
    resting: Resting,
) -> Callable[..., Any]:
    """PyTorch's entry of its engine, with the pass watched. `push` gives a context in which the mode is on."""

    def run(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        is_off = source.is_off
        if not is_off and resting.is_on and _is_pass(source, t_outputs):
            resting.end_if_due()  # a pass that begins inside a pass may be wanted
            if resting.is_on:
                loss = resting.loss_of(t_outputs)
                if not resting.wakes(t_outputs, loss):
                    return resting.passed(engine, t_outputs, args, kwargs, loss)
        current = None if is_off or resting.is_on else _begun(source, t_outputs, args, kwargs)
        if current is None:
            try:
                return engine(t_outputs, *args, **kwargs)
            except RuntimeError as error:
                Refusals(source).tell(t_outputs, error)
                raise
        resting.watched(current.number, t_outputs)
        try:
            with push():
                result = engine(t_outputs, *args, **kwargs)
            current.returned(result)
            if current.how == "backward" and collectives.replicas:
                collectives.tell_averages(current.where, current.number, current.leaves.__contains__)
            if current.how == "backward":
                counting.ended(current.number, current.leaves)
            return result
        except Exception as error:
            current.failed(error)
            raise
        finally:
            source.thread.passes.remove(current)
            resting.numbers.ended()
            resting.live.remember(current)
            current.end()

    return run


def _begun(source: Source, t_outputs: Any, args: Any, kwargs: Any) -> Pass | None:
    """The pass that a call of the engine begins; None if it is not recorded."""
    try:
        if not _is_pass(source, t_outputs, sys._getframe(2)):
            return None
        source.recover()
        source.identity.tell_pending()
        current = pass_of(source, t_outputs, args, kwargs)
    except Exception as error:
        source.gave_up(error)
        return None
    source.thread.passes.append(current)
    current.begin()
    return current


def _is_pass(source: Source, t_outputs: Any, frame: FrameType | None = None) -> bool:
    """Whether a call of the engine, made in `frame` (None: of the caller of this function's caller), is a pass of the
    program's."""
    try:
        # PyTorch's compiler differentiates the code that it compiles; a frame of the program requests its own passes
        caller = outside(frame or sys._getframe(2), *_ASKED) if source.thread.unseen else None
        if caller is not None and is_pytorchs(caller):
            return False
        tensors = [root for root in roots_of(t_outputs) if isinstance(root, torch.Tensor)]
        with torch._C.DisableTorchFunction():
            return all(root.requires_grad for root in tensors)  # otherwise PyTorch raises the error
    except Exception as error:
        source.gave_up(error)
        return False
