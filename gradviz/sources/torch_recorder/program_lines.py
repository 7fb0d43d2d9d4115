"""Warnings and tracebacks of the program: they show its own lines, as without a recorder."""

import sys
import warnings
from collections.abc import Iterator
from traceback import walk_stack
from types import FrameType
from typing import Any

from gradviz.sources.torch_recorder.shared import OURS, Source, safely
from gradviz.sources.tracebacks import HANDED_ON, hiding

_warnings: Any = warnings


class Places:
    """Corrects the lines that are shown, from `begin` to `end`."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def begin(self) -> None:
        """Correct each warning before it is shown, and hide our frames."""
        self.show = show = _warnings._showwarnmsg

        def shown(message: Any) -> None:
            if self.corrected(message, sys._getframe(1)) is not False:
                show(message)

        _warnings._showwarnmsg = shown
        hiding.begin()

    def end(self) -> None:
        """Stop correcting."""
        _warnings._showwarnmsg = self.show
        hiding.end()

    @safely
    def corrected(self, message: Any, frame: FrameType) -> bool:
        """Correct the line of a warning; False if the warning has already been shown for that line."""
        return _corrected(message, frame)


def _corrected(message: Any, frame: FrameType) -> bool:
    """Give a warning that was issued in `frame` the line that it would have without us: a warning may concern a frame
    a given number of frames above its own. False if it has already been shown for that line."""
    shown = [one for one, _ in walk_stack(frame)]
    line = message.filename, message.lineno
    at = next((at for at, one in enumerate(shown) if (one.f_code.co_filename, one.f_lineno) == line), None)
    if at is None or not any(map(_is_ours, shown[: at + 1])):
        return True
    plain = [*_without_ours(shown)]
    if at >= len(plain):
        return True
    before, after = shown[at], plain[at]
    known = before.f_globals.get("__warningregistry__", {})
    was_noted = known.pop((str(message.message), message.category, message.lineno), None) is not None
    message.filename, message.lineno = after.f_code.co_filename, after.f_lineno
    registry = after.f_globals.setdefault("__warningregistry__", {})
    key = (str(message.message), message.category, after.f_lineno)
    if was_noted and registry.get(key):
        return False
    if was_noted:
        registry[key] = True
    return True


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(OURS)


def _without_ours(frames: list[FrameType]) -> Iterator[FrameType]:
    """Frames, the innermost first, as they would be without us: a call that PyTorch handed on to us, and that we made
    again, appears once."""
    at = 0
    while at < len(frames):
        if not _is_ours(frames[at]):
            yield frames[at]
            at += 1
            continue
        while at < len(frames) and _is_ours(frames[at]):
            at += 1
        if at < len(frames) and frames[at].f_code.co_name == HANDED_ON:
            at += 2
