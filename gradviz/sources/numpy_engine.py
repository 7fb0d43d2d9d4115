"""When gradviz's own engine is recorded: from the moment that the program imports it. A program that has PyTorch is not
made to wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gradviz.events.listener import Listener
from gradviz.sources.on_import import OnImport
from gradviz.tracefile.recorder_of_inputs import InputsRecorder


class Attachment:
    """Has the engine tell `listener` from `begin` to `end`; with `check_functions` custom Functions are compared with
    finite differences. `inputs` is a recorder that keeps what passes can be run again from."""

    def __init__(
        self, listener: Listener, check_functions: bool = False, inputs: InputsRecorder | None = None
    ) -> None:
        self.listener, self.inputs = listener, inputs
        self.check_functions = check_functions
        self.end_comparing: Callable[[], None] = lambda: None
        self.end_following: Callable[[], None] = lambda: None
        self.waiting = OnImport("gradviz.engine", self._start)  # as a whole: it makes tensors as it is loaded
        self.previous: Any = None
        self.began = False

    def begin(self) -> None:
        """Listen as soon as the engine is there."""
        self.waiting.begin()

    def end(self) -> None:
        """Have it tell whom it told before."""
        self.waiting.end()
        self.end_comparing()
        self.end_following()
        self._listen(self.previous)

    def abandon(self) -> None:
        """Have it tell nobody."""
        self.waiting.end()
        self._listen(None)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Have it tell nobody of what happens inside."""
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
            from gradviz.sources.engine_functions import compare

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
