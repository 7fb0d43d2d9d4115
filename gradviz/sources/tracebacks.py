"""Tracebacks without our frames."""

import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

from gradviz.errors import text_of

_OURS = str(Path(__file__).resolve().parent.parent)
_SKIPPED = (_OURS, "<gradviz>")
_RECORDERS = tuple(
    os.path.join(_OURS, name) for name in ("sources", "cli", "live", "step", "tracefile", "events", "__main__.py")
)
_RUNNER = str(Path(__file__).resolve().with_name("script.py"))  # its frame is below the script's
# PyTorch's function that hands a call on to our mode, which makes it again
HANDED_ON = "handle_torch_function"
_Entry = TypeVar("_Entry")
_Positions = tuple[FrameType, Any]
_stacks: Any = traceback.StackSummary
_EXTRACT = "_extract_from_extended_frame_gen"  # all functions of `traceback` that show frames use it


def entries_of(trace: TracebackType | None) -> Iterator[TracebackType]:
    """The entries of a traceback, from the outermost frame to the innermost."""
    while trace is not None:
        yield trace
        trace = trace.tb_next


def has_our_frames(trace: TracebackType | None) -> bool:
    """Whether one of the frames is ours."""
    return any(entry.tb_frame.f_code.co_filename.startswith(_OURS) for entry in entries_of(trace))


def without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame of the script on, without gradviz's frames."""
    result = None
    for entry in reversed(_without_ours([*entries_of(trace)], lambda entry: entry.tb_frame, _SKIPPED)):
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result


def clean_chain(error: BaseException) -> None:
    """Remove gradviz's frames from an exception, and from its causes and contexts."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            one.with_traceback(without_our_frames(one.__traceback__))
            waiting += [before for before in (one.__cause__, one.__context__) if before is not None]
            waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else []


def _without_ours(found: Sequence[_Entry], frame_of: Callable[[_Entry], FrameType], ours: Any) -> list[_Entry]:
    """The program's own frames among `found`, which goes from the outermost to the innermost: without frames of files
    that begin with `ours`, and without all below the script. A call that PyTorch handed on to us, and that we made
    again, appears once."""
    kept: list[_Entry] = []
    for entry in found:
        code = frame_of(entry).f_code
        if code.co_filename == _RUNNER:
            kept.clear()
        elif not code.co_filename.startswith(ours):
            kept.append(entry)
        elif len(kept) > 1 and frame_of(kept[-1]).f_code.co_name == HANDED_ON:
            del kept[-2:]
    return kept


class Hiding:
    """Makes `traceback` and its users show a program's frames as without us, while a recording goes on. Frames of
    gradviz's engine count as the program's: it called them."""

    def __init__(self) -> None:
        self.users = 0
        self.extract: Any = None

    def begin(self) -> None:
        """Begin to hide frames, until `end` has been called as often as `begin`."""
        self.users += 1
        if self.users > 1 or _EXTRACT not in vars(_stacks):
            return
        self.extract = vars(_stacks)[_EXTRACT]
        extract = self.extract.__func__

        def extracted(kind: Any, /, frames: Iterable[_Positions], **settings: Any) -> Any:
            return extract(kind, iter(_the_programs([*frames])), **settings)

        setattr(_stacks, _EXTRACT, classmethod(extracted))

    def end(self) -> None:
        """Show all frames again, after the last call."""
        self.users -= 1
        if not self.users and self.extract is not None:
            setattr(_stacks, _EXTRACT, self.extract)


hiding = Hiding()


def _the_programs(found: list[_Positions]) -> list[_Positions]:
    """Frames with their positions, in their order, without ours."""
    if not any(frame.f_code.co_filename.startswith(_RECORDERS) for frame, _ in found):
        return found
    inwards = not any(frame.f_back is after for (frame, _), (after, _) in pairwise(found))
    outermost_first = found if inwards else found[::-1]
    kept = _without_ours(outermost_first, lambda entry: entry[0], _RECORDERS)
    return kept if inwards else kept[::-1]


def fault(error: Exception) -> str:
    """A one-line message for an exception that is gradviz's own fault."""
    trace = [None, *entries_of(error.__traceback__)][-1]
    place = "?" if trace is None else f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
    text = " ".join(f"{type(error).__name__}: {text_of(error)}".split())
    return f"a fault of gradviz's at {place}: {text}"
