"""What the parts of the recorder share: whom they tell, who is who, and what runs on each thread."""

from __future__ import annotations

import os
import threading
from types import FrameType
from typing import Any

import torch

from gradviz.events.listener import Listener, Where
from gradviz.sources.torch_recorder.identity import Identity, outside

PYTORCH = os.path.dirname(torch.__file__) + os.sep
OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


class _OfThread(threading.local):
    """What runs on a thread: its passes, the innermost last, and its scopes; and whether an optimizer is at work."""

    def __init__(self) -> None:
        self.passes: list[Any] = []
        self.scopes: list[tuple[int, int]] = []
        self.modes = 0  # how often the mode was pushed
        self.stepping: Any = None


class Source:
    """The recorder of one recording. `listener` is None once it is over, or in a child process."""

    def __init__(self, listener: Listener) -> None:
        self.listener: Listener | None = listener
        self.identity = Identity(listener)
        self.thread = _OfThread()

    def place(self, frame: FrameType) -> Where:
        """The place of a frame, to be told later."""
        return None if self.listener is None else self.listener.place(frame)

    @property
    def in_pass(self) -> int:
        """The number of the pass that runs on this thread, 0 for none."""
        passes = self.thread.passes
        return passes[-1].number if passes else 0


def users_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is neither PyTorch's nor ours."""
    return outside(frame, PYTORCH, OURS, "<frozen ")


def is_pytorchs(frame: FrameType) -> bool:
    """Whether a frame is PyTorch's own."""
    return frame.f_code.co_filename.startswith(PYTORCH)
