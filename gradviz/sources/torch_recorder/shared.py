"""What the parts of the recorder share: whom they tell, who is who, and what runs on each thread."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch.compiler import is_compiling

from gradviz.events.listener import Listener, Where
from gradviz.events.living import LivingGraphs
from gradviz.sources.torch_recorder.identity import Identity, outside
from gradviz.sources.tracebacks import fault

_transforms = torch._C._functorch.peek_interpreter_stack
_is_traced = torch._C._is_tracing
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
PYTORCH = os.path.dirname(torch.__file__) + os.sep
_TOO_DEEP = (
    "the program's calls are so deep that a recorder has no room above them; a higher sys.setrecursionlimit gives it "
    "some"
)
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
    """The recorder of one recording. `listener` is None once it is over, or in a child process. `failed` is given a
    line about it if the recorder fails."""

    def __init__(self, listener: Listener, failed: Callable[[str], None]) -> None:
        self.listener: Listener | None = listener
        self.failed = failed
        self.identity = Identity(listener, self.gave_up)
        self.living = LivingGraphs()
        self.thread = _OfThread()
        # Set by whoever switches the mode of a thread:
        self.pause: Callable[[], object] = lambda: None
        self.go_on: Callable[[], object] = lambda: None
        # ...and by whoever compares the nodes of custom Functions: a node, the pass, its gradients on both sides
        self.ran_backward: Callable[..., None] = lambda *_: None
        # ...and by whoever tells of calls that can be made again: a pass that can be differentiated, its results
        self.differentiated: Callable[..., None] = lambda *_: None

    def gave_up(self, error: Exception) -> None:
        """The recorder itself has failed: the program goes on without it, and its user is told once."""
        if self.listener is not None:
            self.listener = None
            reason = (
                _TOO_DEEP if "RecursionError" in repr(error) else fault(error)
            )  # ctypes has another around it
            self.failed(f"recording of PyTorch stopped: {reason}")

    def place(self, frame: FrameType) -> Where:
        """The place of a frame, to be told later."""
        return None if self.listener is None else self.listener.place(frame)

    def recover(self) -> None:
        """A step of an optimizer that an exception has left told nobody: what was switched off for it goes on."""
        try:
            step = self.thread.stepping
            if step is not None and not _is_below(step.running, sys._getframe(1)):
                self.thread.stepping = None
                self.go_on()
        except Exception as error:
            self.gave_up(error)

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
        functions, and sees from the first question that it is only they."""
        return is_compiling() or self.listener is None or self.thread.muted or _is_traced()

    @property
    def is_silent(self) -> bool:
        """The same where nothing is being compiled. `torch.jit.trace` writes down all that is read of a tensor."""
        return self.listener is None or self.thread.muted or _is_traced()

    @property
    def is_detailed(self) -> bool:
        """Whether ops and nodes of this thread are to be told."""
        listener = self.listener  # another thread may end the recording
        try:
            return listener is not None and listener.detailed
        except Exception as error:
            self.gave_up(error)
            return False

    @property
    def follows_passes(self) -> bool:
        """Whether the nodes of a pass that begins now are to be told of."""
        listener = self.listener
        return listener is not None and listener.detailed_passes

    @property
    def in_pass(self) -> int:
        """The number of the pass that runs on this thread, 0 for none."""
        passes = self.thread.passes
        return passes[-1].number if passes else 0


def safely(
    method: Callable[Concatenate[Any, _Given], _Result],
) -> Callable[Concatenate[Any, _Given], _Result | None]:
    """For a method that calls nothing of the program's: where it fails, its `source` gives up, None is returned, and
    the program does not notice."""

    def run(self: Any, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result | None:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            self.source.gave_up(error)
            return None

    functools.update_wrapper(run, method)
    return run


def _is_below(frame: FrameType, above: FrameType | None) -> bool:
    """Whether a frame is still running, below another."""
    while above is not None and above is not frame:
        above = above.f_back
    return above is not None


def in_transform() -> bool:
    """Whether a transform of torch.func is at work: there tensors stand for many, and cannot be read."""
    return _transforms() is not None


def users_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is neither PyTorch's nor ours."""
    return outside(frame, PYTORCH, OURS, "<frozen ")


def is_pytorchs(frame: FrameType) -> bool:
    """Whether a frame is PyTorch's own."""
    return frame.f_code.co_filename.startswith(PYTORCH)
