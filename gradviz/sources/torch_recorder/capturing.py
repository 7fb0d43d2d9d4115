"""CUDA graphs. While a stream is captured, we run nothing on a device, and the ops in the region are not emitted one
by one, as in compiled code. The tensors that the region and its replays write to are emitted as written by them."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from gradviz.sources.torch_recorder.fetching import FETCHER
from gradviz.sources.torch_recorder.shared import Source, safely

CAPTURED = "captured"
REPLAYED = "replay"


class Captures:
    """The captures of a recording."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.before: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()
        # by graph: the tensors that its region wrote over
        self.written: weakref.WeakKeyDictionary[Any, list[weakref.ref[torch.Tensor]]]
        self.written = weakref.WeakKeyDictionary()

    def calls(self) -> dict[str, Callable[..., Any]]:
        """The replacements of the methods of `torch.cuda.CUDAGraph`."""
        graph = torch.cuda.CUDAGraph
        return {
            "capture_begin": self._beginning(graph.capture_begin),
            "capture_end": self._ending(graph.capture_end),
            "replay": self._replaying(graph.replay),
        }

    def _beginning(self, begin: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(begin)
        def run(graph: Any, *args: Any, **kwargs: Any) -> Any:
            source = self.source
            if not source.is_off:
                self._note_versions(graph)
            FETCHER.leave_alone()
            if graph in self.before:
                source.thread.muted = True
            try:
                return begin(graph, *args, **kwargs)
            except BaseException:
                self._go_on(graph)
                raise

        return run

    def _ending(self, end: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(end)
        def run(graph: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                result = end(graph, *args, **kwargs)
            finally:
                before = self._go_on(graph)
            if before is not None and not self.source.is_off:
                self._tell_captured(graph, before, sys._getframe(1))
            return result

        return run

    def _replaying(self, replay: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(replay)
        def run(graph: Any, *args: Any, **kwargs: Any) -> Any:
            result = replay(graph, *args, **kwargs)
            if not self.source.is_off and graph in self.written:
                self._tell(REPLAYED, graph, sys._getframe(1))
            return result

        return run

    @safely
    def _note_versions(self, graph: Any) -> None:
        self.source.identity.tell_pending()
        self.before[graph] = set(map(id, self.source.identity.written_over()))

    def _go_on(self, graph: Any) -> set[int] | None:
        """Resume recording after the region."""
        before = self.before.pop(graph, None)
        if before is not None:
            self.source.thread.muted = False
        FETCHER.use_again()
        return before

    @safely
    def _tell_captured(self, graph: Any, before: set[int], frame: FrameType) -> None:
        written = [tensor for tensor in self.source.identity.written_over() if id(tensor) not in before]
        self.written[graph] = [weakref.ref(tensor) for tensor in written]
        self._tell(CAPTURED, graph, frame)

    @safely
    def _tell(self, how: str, graph: Any, frame: FrameType) -> None:
        """Emit the tensors that a graph writes to, if there are any."""
        source = self.source
        listener: Any = source.listener
        if listener is None or not source.is_detailed:
            return
        with torch._C.DisableTorchFunction():
            alive = [tensor for reference in self.written[graph] if (tensor := reference()) is not None]
            states = [source.identity.state_of(tensor) for tensor in alive]
            if states:
                listener.all_mutated(frame, how, states, source.in_pass)
