"""A script that waits at a stop: it can evaluate Python in its frame, and run an op again."""

from __future__ import annotations

import io
import random
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, redirect_stderr, redirect_stdout
from types import FrameType
from typing import Protocol

import numpy as np

from gradviz.events.kinds import OpRan
from gradviz.step.command_error import CommandError

Forward = Callable[[Sequence[np.ndarray]], list[np.ndarray]]

_MOST_LINES = 400


class Recording(Protocol):
    """The methods of the script's recording that a stop uses."""

    def quiet(self) -> AbstractContextManager[None]:
        """A context in which this thread records nothing."""

    def forward_of(self, op: OpRan, node: int, alone: bool) -> Forward:
        """The function that an op computed; `alone` means that it made one node. Raises LookupError, with the reason,
        if it cannot run again."""


class PausedScript:
    """A script at a stop. `frame` is the innermost of the user's own frames."""

    def __init__(self, frame: FrameType, recording: Recording) -> None:
        self.frame, self.recording = frame, recording

    def evaluate(self, expression: str) -> list[str]:
        """Evaluate an expression in the script's frame, unrecorded. Returns the printed lines and the warnings, then
        the value; or the exception in one line. Names that the expression assigns do not change the script's."""
        # in one namespace, so that a comprehension finds local names
        names = {**self.frame.f_globals, **self.frame.f_locals}
        said = io.StringIO()
        with (
            self.recording.quiet(),
            warnings.catch_warnings(record=True) as warned,
            redirect_stdout(said),
            redirect_stderr(said),
        ):
            try:
                value = repr(eval(compile(expression.strip(), "<p>", "eval"), names))
            except BaseException as error:  # whatever the error is, the stop goes on
                value = traceback.format_exception_only(error)[-1].strip()
        warning_lines = [f"{one.category.__name__}: {one.message}" for one in warned]
        lines = [*said.getvalue().splitlines(), *warning_lines, *value.splitlines()]
        more = len(lines) - _MOST_LINES
        return lines if more <= 0 else [*lines[:_MOST_LINES], f"… and {more:,} more lines"]

    def forward_of(self, op: OpRan, node: int, alone: bool) -> Forward:
        """The function that an op computed, from its tensor inputs; it runs unrecorded. Raises CommandError if it
        cannot run again."""
        try:
            forward = self.recording.forward_of(op, node, alone)
        except LookupError as error:
            raise CommandError(str(error.args[0])) from None

        def again(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
            states = random.getstate(), np.random.get_state()
            try:
                with self.recording.quiet(), warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore")
                    return forward(arrays)
            finally:
                random.setstate(states[0])
                np.random.set_state(states[1])

        return again
