"""Warnings and tracebacks of the program: they name its own lines, as without a recorder."""

from __future__ import annotations

import sys
import traceback
import warnings
from typing import Any

from gradviz.sources.torch_recorder.source import OURS
from gradviz.sources.tracebacks import HANDED_ON, has_our_frames, without_our_frames

_warnings: Any = warnings
_exceptions: Any = traceback.TracebackException


class Places:
    """Corrects what is shown, from `begin` to `end`."""

    def begin(self) -> None:
        """Look at each warning and traceback before it is shown."""
        self.show, self.init = _warnings._showwarnmsg, _exceptions.__init__
        show, init = self.show, self.init

        def shown(message: Any) -> None:
            if not message.filename.startswith(OURS) or _corrected(message):
                show(message)

        def initialized(self: Any, kind: Any, error: Any, trace: Any, *args: Any, **kwargs: Any) -> None:
            init(
                self,
                kind,
                error,
                without_our_frames(trace) if has_our_frames(trace) else trace,
                *args,
                **kwargs,
            )

        _warnings._showwarnmsg = shown
        _exceptions.__init__ = initialized

    def end(self) -> None:
        """Leave them as they are."""
        _warnings._showwarnmsg = self.show
        _exceptions.__init__ = self.init


def _corrected(message: Any) -> bool:
    """Give a warning the line that it would have without us. False where it has been shown for that line."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != message.filename:
        frame = frame.f_back  # type: ignore[assignment]
    ours = frame
    while frame is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is not None and frame.f_code.co_name == HANDED_ON and frame.f_back is not None:
        frame = frame.f_back.f_back  # type: ignore[assignment]
    if frame is None:
        return True
    if ours is not None:
        ours.f_globals.pop("__warningregistry__", None)
    message.filename, message.lineno = frame.f_code.co_filename, frame.f_lineno
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    key = (str(message.message), message.category, frame.f_lineno)
    if registry.get(key):
        return False
    registry[key] = True
    return True
