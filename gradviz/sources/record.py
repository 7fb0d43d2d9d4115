"""Recording a block of a program: `with gradviz.record("run.gradviz"):`."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gradviz.events.listener import Listener
from gradviz.tracefile import Recorder, Sites

_recording: list[record] = []


def _before_fork() -> None:
    """Let a commit end first: a child must not inherit the file in the middle of one."""
    for running in _recording:
        if running.recorder is not None:
            running.recorder.lock.acquire()


def _after_fork_in_parent() -> None:
    for running in _recording:
        if running.recorder is not None:
            running.recorder.lock.release()


def _after_fork_in_child() -> None:
    """A child goes on without a recorder: the file is its parent's."""
    for running in _recording:
        running.abandon()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)


class record:
    """Record what gradviz's engine does in a `with` block into the file `path`.

    `values` is `none`, `stats` or `full`; `passes` the numbers of the backward passes to record in detail (None:
    all). `through` makes of the recorder whom the engine tells in its place, and who tells the recorder. An
    exception passes through, and is noted in the trace. Raises OSError where the file cannot be
    written, ValueError for an unknown grade."""

    def __init__(
        self,
        path: Path | str,
        values: str = "stats",
        passes: Any = None,
        sites: Sites | None = None,
        meta: dict[str, str] | None = None,
        through: Callable[[Recorder], Listener] | None = None,
    ) -> None:
        if values not in ("none", "stats", "full"):
            raise ValueError(f"values is none, stats or full, not {values!r}")
        self.path = Path(path)
        self.settings = (values, passes)
        self.sites = sites
        self.meta = meta
        self.through = through
        self.recorder: Recorder | None = None
        self.error: BaseException | None = None

    def ended_by(self, error: BaseException | None) -> None:
        """Note an exception that ended the run and was dealt with inside the block."""
        self.error = error

    def __enter__(self) -> record:
        from gradviz.engine.core.state import listen

        sites = self.sites or Sites()
        if self.sites is None:
            sites.begin_at(sys._getframe(1))
        meta = {**run_meta(), **(self.meta or {})}
        self.recorder = Recorder(self.path, *self.settings, sites, meta)
        self.previous = listen(self.through(self.recorder) if self.through is not None else self.recorder)
        _recording.append(self)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        from gradviz.engine.core.state import listen

        if self.recorder is None:
            return
        listen(self.previous)
        _recording.remove(self)
        self.recorder.sites.begin_at(None)
        self.recorder.close(**end_meta(error or self.error))
        self.recorder = None

    def abandon(self) -> None:
        """Stop recording without touching the file."""
        from gradviz.engine.core.state import listen

        if self.recorder is not None:
            listen(None)
            self.recorder.writer.closing = True
            self.recorder = None


def run_meta() -> dict[str, str]:
    """What a trace says of the run as it begins."""
    from gradviz.version import __version__

    return {
        "gradviz": __version__,
        "engine": "numpy",
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "script": sys.argv[0] if sys.argv else "",
        "ended": "",
    }


def end_meta(error: BaseException | None) -> dict[str, str]:
    """What a trace says of how the run ended."""
    if error is None:
        return {"ended": "ok"}
    if isinstance(error, SystemExit):
        return {"ended": f"exit {error.code if error.code is not None else 0}"}
    text = traceback.format_exception_only(error)[0].strip()
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.line]
    place = {"error_file": frames[-1].filename, "error_line": str(frames[-1].lineno)} if frames else {}
    return {"ended": "error", "error_type": type(error).__name__, "error": text, **place}
