"""The state that the parts of the recorder share: the listener, the numbers of tensors, and the state of each
thread."""

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
_dispatch_modes = torch._C._len_torch_dispatch_stack  # counts the one below, too, and takes less time to ask
_dispatch_mode = torch._C._get_dispatch_mode
_cuda: Any = torch.cuda
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_PROXY = torch._C._TorchDispatchModeKey.PROXY
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
PYTORCH = os.path.dirname(torch.__file__) + os.sep
_TOO_DEEP = (
    "the program's calls are so deep that a recorder has no room above them; a higher sys.setrecursionlimit gives it "
    "some"
)
OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


class _OfThread(threading.local):
    """The state of a thread: its passes, the innermost last, its scopes, an optimizer's step, and a collective. A
    `muted` thread emits nothing. While its calls are not watched for a time, `below` is the number of the program's
    modes below ours; `unseen` means that compiled code runs. `function` is the custom Function whose backward is
    about to run without a hook behind it, `running_function` the one whose backward runs."""

    def __init__(self) -> None:
        self.passes: list[Any] = []
        self.scopes: list[tuple[int, int]] = []
        self.stepping: Any = None
        self.muted = False
        self.in_collective = False
        self.below = 0
        self.unseen = False
        self.function: Any = None
        self.running_function: Any = None


class Source:
    """The recorder of one recording. `listener` is None once the recording is over, or in a child process. `failed`
    receives a line of text if the recorder fails."""

    def __init__(self, listener: Listener, failed: Callable[[str], None]) -> None:
        self.listener: Any = listener
        self.failed = failed
        self.identity = Identity(listener, self.gave_up)
        self.living = LivingGraphs()
        self.thread = _OfThread()
        self.is_profiled = False  # whether it is recorded what nodes hold when a pass begins
        # Set by the part that switches the mode of a thread:
        self.pause: Callable[[], object] = lambda: None
        self.go_on: Callable[[], object] = lambda: None
        # ...by the part that compares custom Functions, called with a node, the pass, and its gradients on both
        # sides:
        self.ran_backward: Callable[..., None] = lambda *_: None
        # ...by the part that records replayable calls, called with a pass that can be differentiated, and its
        # results:
        self.differentiated: Callable[..., None] = lambda *_: None
        # ...and with tensors that a function of PyTorch's handed on as they are, its results, and a frame:
        self.handed_on: Callable[..., None] = lambda *_: None

    def gave_up(self, error: Exception) -> None:
        """Stop recording after a fault of the recorder: the program goes on, and its user is told once."""
        if self.listener is not None:
            self.listener = None
            # ctypes wraps it in another error
            reason = _TOO_DEEP if "RecursionError" in repr(error) else fault(error)
            self.failed(f"recording of PyTorch stopped: {reason}")

    def place(self, frame: FrameType) -> Where:
        """The place of a frame, for a later event."""
        return None if self.listener is None else self.listener.place(frame)

    def recover(self) -> None:
        """Resume watching if an exception has left an optimizer's step, for which watching was paused."""
        try:
            step = self.thread.stepping
            if step is not None and not _is_below(step.running, sys._getframe(1)):
                self.thread.stepping = None
                self.go_on()
        except Exception as error:
            self.gave_up(error)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """A context in which this thread emits no events."""
        thread = self.thread
        before, thread.muted = thread.muted, True
        try:
            yield
        finally:
            thread.muted = before

    @property
    def is_off(self) -> bool:
        """Whether this thread records nothing. `torch.compile` looks into our replacements of PyTorch's functions;
        this first check makes it see only the original functions there."""
        return is_compiling() or self.listener is None or self.thread.muted or is_written_down() or self._is_on_fakes()

    @property
    def is_silent(self) -> bool:
        """Whether this thread records nothing, without the check for compilation."""
        return self.listener is None or self.thread.muted or is_written_down() or self._is_on_fakes()

    def _is_on_fakes(self) -> bool:
        """Whether a node of a pass computes with fake tensors, as that of `torch.cond` does for its own compiler."""
        return _dispatch_modes() > 0 and bool(self.thread.passes) and _dispatch_mode(_FAKE) is not None

    @property
    def is_detailed(self) -> bool:
        """Whether ops and nodes of this thread are recorded."""
        listener = self.listener  # another thread may end the recording
        try:
            return listener is not None and listener.detailed
        except Exception as error:
            self.gave_up(error)
            return False

    @property
    def follows_passes(self) -> bool:
        """Whether the nodes of a pass that begins now are recorded."""
        listener = self.listener
        return listener is not None and listener.detailed_passes

    @property
    def in_pass(self) -> int:
        """The number of the pass that runs on this thread; 0 for none."""
        passes = self.thread.passes
        return passes[-1].number if passes else 0


def safely(method: Callable[Concatenate[Any, _Given], _Result]) -> Callable[Concatenate[Any, _Given], _Result | None]:
    """Wrap a method that calls no code of the program: if it fails, its `source` gives up, None is returned, and the
    program does not notice."""

    def run(self: Any, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result | None:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            self.source.gave_up(error)
            return None

    functools.update_wrapper(run, method)
    return run


def _is_below(frame: FrameType, above: FrameType | None) -> bool:
    """Whether a frame is still running, below the frame `above`."""
    while above is not None and above is not frame:
        above = above.f_back
    return above is not None


def is_written_down() -> bool:
    """Whether calls are made only to write them down: by `torch.jit.trace`, which would write down what the recorder
    reads, or by `make_fx`, with which `torch.export` and the backward of `torch.cond` begin. Their tensors are fake."""
    return _is_traced() or (_dispatch_modes() > 0 and _dispatch_mode(_PROXY) is not None)


def is_capturing() -> bool:
    """Whether a stream of CUDA is being captured: what is computed now would be a part of the graph, and run at every
    replay."""
    return _cuda.is_initialized() and _cuda.is_current_stream_capturing()


def in_transform() -> bool:
    """Whether a transform of torch.func is active."""
    return _transforms() is not None


def users_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is neither PyTorch's nor ours."""
    return outside(frame, PYTORCH, OURS, "<frozen ")


def is_pytorchs(frame: FrameType) -> bool:
    """Whether a frame is PyTorch's own."""
    return frame.f_code.co_filename.startswith(PYTORCH)
