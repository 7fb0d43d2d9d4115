"""Begins to record gradviz's own engine when the program imports it, so that a program that uses PyTorch need not
wait for the import."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gradviz.events.listener import Listener
from gradviz.sources.on_import import OnImport
from gradviz.tracefile.recorder import InputsRecorder


class Attachment:
    """Makes `listener` receive the engine's events from `begin` to `end`; with `check_functions` custom Functions are
    compared with finite differences. `inputs` is a recorder that keeps what a replay of a pass needs."""

    def __init__(self, listener: Listener, check_functions: bool = False, inputs: InputsRecorder | None = None) -> None:
        self.listener, self.inputs = listener, inputs
        self.check_functions = check_functions
        self.end_comparing: Callable[[], None] = lambda: None
        self.end_following: Callable[[], None] = lambda: None
        # waits for the whole package, which makes tensors while it is loaded
        self.waiting = OnImport("gradviz.engine", self._start)
        self.previous: Any = None
        self.began = False

    def begin(self) -> None:
        """Listen as soon as the engine is loaded."""
        self.waiting.begin()

    def end(self) -> None:
        """Give the engine back the listener that it had before."""
        self.waiting.end()
        self.end_comparing()
        self.end_following()
        if self.began:
            from gradviz.engine.core.histograms import tell_last
            from gradviz.engine.core.state import state

            tell_last(state.counted.followed)
        self._listen(self.previous)

    def abandon(self) -> None:
        """Leave the engine without a listener."""
        self.waiting.end()
        self._listen(None)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """A context in which no events are emitted."""
        if not self.began:
            yield
            return
        from gradviz.engine.core.state import unheard

        with unheard():
            yield

    def _start(self) -> None:
        from gradviz.engine.core.state import listen

        self.previous = listen(self.listener)
        self.began = True
        if self.check_functions:
            from gradviz.sources.engine_replayable import compare

            self.end_comparing = compare()
        if self.inputs is not None:
            from gradviz.sources.engine_replayable import EngineReplayable

            following = EngineReplayable(self.listener, self.inputs)
            following.begin()
            self.end_following = following.end

    def _listen(self, listener: Listener | None) -> None:
        if self.began:
            from gradviz.engine.core.state import listen

            listen(listener)
            self.began = False
