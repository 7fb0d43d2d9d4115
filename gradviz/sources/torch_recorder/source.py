"""What the parts of the recorder share: whom they tell, who is who, and what runs on each thread."""

from __future__ import annotations

import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from gradviz.events.listener import Listener, Where
from gradviz.events.living import LivingGraphs
from gradviz.sources.torch_recorder.identity import Identity, outside

PYTORCH = os.path.dirname(torch.__file__) + os.sep
OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


class _OfThread(threading.local):
    """What runs on a thread: its passes, the innermost last, its scopes, an optimizer's step, and a collective. Of one
    that is `muted` nothing is told. While its calls are not watched for a time, `below` is how many modes of the
    program were below ours; `unseen` says that what runs is compiled."""

    def __init__(self) -> None:
        self.passes: list[Any] = []
        self.scopes: list[tuple[int, int]] = []
        self.stepping: Any = None
        self.muted = False
        self.in_collective = False
        self.below = 0
        self.unseen = False


class Source:
    """The recorder of one recording. `listener` is None once it is over, or in a child process."""

    def __init__(self, listener: Listener) -> None:
        self.listener: Listener | None = listener
        self.identity = Identity(listener)
        self.living = LivingGraphs()
        self.thread = _OfThread()
        # Set by whoever switches the mode of a thread:
        self.pause: Callable[[], None] = lambda: None
        self.go_on: Callable[[], None] = lambda: None
        # ...and by whoever compares the nodes of custom Functions: a node, the pass, its gradients on both sides
        self.ran_backward: Callable[..., None] = lambda *_: None

    def gave_up(self, error: Exception) -> None:
        """The recorder itself has failed: the program goes on without it, and its user is told."""
        self.listener = None
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(place.filename)}:{place.lineno}"
        why = f", by a fault of gradviz's at {where}: {error!r}"
        if "RecursionError" in repr(error):  # ctypes has another around it
            why = (
                ": the program's calls are so deep that a recorder has no room above them; a higher "
                "sys.setrecursionlimit gives it some"
            )
        print(f"gradviz: recording of PyTorch stopped{why}", file=sys.stderr)

    def place(self, frame: FrameType) -> Where:
        """The place of a frame, to be told later."""
        return None if self.listener is None else self.listener.place(frame)

    def recover(self) -> None:
        """A step of an optimizer that an exception has left told nobody: what was switched off for it goes on."""
        step = self.thread.stepping
        if step is None:
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not step.running:
            frame = frame.f_back
        if frame is None:
            self.thread.stepping = None
            self.go_on()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Tell nobody of what this thread does inside."""
        thread = self.thread
        before, thread.muted = thread.muted, True
        try:
            yield
        finally:
            thread.muted = before

    @property
    def is_off(self) -> bool:
        """Whether nothing is to be told of this thread. `torch.compile` looks into what takes the place of PyTorch's
        functions, and sees from the first question that it is only they; `torch.jit.trace` writes down all that is
        read of a tensor."""
        return (
            torch.compiler.is_compiling()
            or self.listener is None
            or self.thread.muted
            or torch._C._is_tracing()
        )

    @property
    def is_detailed(self) -> bool:
        """Whether ops and nodes of this thread are to be told."""
        return self.listener is not None and self.listener.detailed

    @property
    def follows_passes(self) -> bool:
        """Whether the nodes of a pass that begins now are to be told of."""
        return self.listener is not None and self.listener.detailed_passes

    @property
    def in_pass(self) -> int:
        """The number of the pass that runs on this thread, 0 for none."""
        passes = self.thread.passes
        return passes[-1].number if passes else 0


def safely(method: Callable[..., None]) -> Callable[..., None]:
    """For a method that only tells: where it fails, its `source` gives up, and the program does not notice."""

    @functools.wraps(method)
    def told(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.source.gave_up(error)

    return told


def in_transform() -> bool:
    """Whether a transform of torch.func is at work: there tensors stand for many, and cannot be read."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def users_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is neither PyTorch's nor ours."""
    return outside(frame, PYTORCH, OURS, "<frozen ")


def is_pytorchs(frame: FrameType) -> bool:
    """Whether a frame is PyTorch's own."""
    return frame.f_code.co_filename.startswith(PYTORCH)
