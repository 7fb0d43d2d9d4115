"""Tracebacks without our frames."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from types import TracebackType

from gradviz.errors import text_of

_OURS = str(Path(__file__).resolve().parent.parent)
_SKIPPED = (_OURS, "<gradviz>")
_RUNNER = str(Path(__file__).resolve().with_name("script.py"))  # whose frame is below the script's
HANDED_ON = (
    "handle_torch_function"  # PyTorch's function that hands a call on to our mode, which makes it again
)


def has_our_frames(trace: TracebackType | None) -> bool:
    """Whether one of the frames is ours."""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(_OURS):
            return True
        trace = trace.tb_next
    return False


def without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame of the script on, without gradviz's. Where PyTorch handed a call on to us and
    we made it again, it stands there once."""
    kept: list[TracebackType] = []
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if not filename.startswith(_SKIPPED):
            kept.append(trace)
        elif len(kept) > 1 and kept[-1].tb_frame.f_code.co_name == HANDED_ON:
            del kept[-2:]
        trace = trace.tb_next
    result = None
    for entry in reversed(kept):
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result


def hide_our_frames(stack: list[str]) -> None:
    """Take our frames, and what is below the script, out of what `traceback.format_stack()` gave."""
    kept: list[str] = []
    for entry in stack:
        file = entry.strip().removeprefix('File "')
        if file.startswith(_RUNNER):
            kept.clear()
        elif not file.startswith(_SKIPPED):
            kept.append(entry)
        elif len(kept) > 1 and f", in {HANDED_ON}\n" in kept[-1]:
            del kept[-2:]
    stack[:] = kept


def fault(error: Exception) -> str:
    """What to say of an exception that is gradviz's own fault, in one line."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(f"{type(error).__name__}: {text_of(error)}".split())
    return f"a fault of gradviz's at {os.path.basename(place.filename)}:{place.lineno}: {text}"
