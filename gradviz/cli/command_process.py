"""The command `gradviz` as a process of its own, which ends as its script does."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from gradviz.cli.common import say, speak_past_the_script
from gradviz.cli.job import Job, Top
from gradviz.cli.main import main
from gradviz.errors import GradvizError, tracebacks_are_wanted
from gradviz.sources.ending import exit_status, leave
from gradviz.sources.script import be_main, execute, make_room, ours_again
from gradviz.sources.shadowed import forget


def run() -> NoReturn:
    """Run a command. Its script, if it has one, runs with few of our frames below it: this one, its caller's,
    `execute`'s."""
    job = _prepared()
    make_room(sys._getframe(), job.running)
    execute(job.running)
    _end(job)


def _prepared() -> Job:
    """The job that the command has prepared. Ends the process if there is nothing to run."""
    speak_past_the_script()
    top = Top()
    try:
        main(prog_name="gradviz", obj=top)
    except SystemExit:
        if top.job is None:
            gc.freeze()  # the command's objects end with the process, and need no collection
            raise
    assert top.job is not None
    be_main(top.job.running, owns_process=True)
    return top.job


def _end(job: Job) -> NoReturn:
    running = job.running
    running.ended()
    if not running.is_copy:
        running.wait(ends_the_process=True, waits=job.waits())
    status = exit_status(running.error)
    if not running.is_copy:  # after a fork, only the recorded process has a trace to report
        status = _told(job)
    kind = None if running.error is None else type(running.error)
    running.error = None  # releases its frames before modules are removed
    gc.unfreeze()
    forget()
    leave(kind, status)


def _told(job: Job) -> int:
    """End the recording, and run the rest of the command. Returns the exit status."""
    with ours_again():
        try:
            with _directory(job.home):
                outcome = job.running.end()
                job.around.close()
                return job.after(outcome)
        except Exception as error:  # whatever the error is, the script has run, and its status counts
            if not isinstance(error, (GradvizError, OSError)) and tracebacks_are_wanted():
                raise
            if job.running.recording.failure is None:  # otherwise the end of the recording has been reported
                say(f"gradviz: {error if isinstance(error, GradvizError) else repr(error)}")
            return exit_status(job.running.error) or job.failure


@contextmanager
def _directory(home: str) -> Iterator[None]:
    """A context in the directory where the command was given, to which the paths in messages are relative."""
    try:
        here = os.getcwd()
    except OSError:  # the directory is gone
        here = ""
    try:
        with suppress(OSError):
            os.chdir(home)
        yield
    finally:
        with suppress(OSError):
            os.chdir(here)
