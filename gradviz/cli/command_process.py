"""The command `gradviz` as a process of its own, which ends as the script does that it runs."""

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
    """Run a command. The script of one runs with few frames of ours below it: this one's, its caller's, `execute`'s."""
    job = _prepared()
    make_room(sys._getframe(), job.running)
    execute(job.running)
    _end(job)


def _prepared() -> Job:
    """What the command wants to have run. Ends the process where there is nothing to run."""
    speak_past_the_script()
    top = Top()
    try:
        main(prog_name="gradviz", obj=top)
    except SystemExit:
        if top.job is None:
            gc.freeze()  # what the command has made ends with the process: it is not looked through for cycles
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
    if not running.is_copy:  # of a fork's two only the one that is recorded has a trace to speak of
        status = _told(job)
    kind = None if running.error is None else type(running.error)
    running.error = None  # its frames end before modules do
    gc.unfreeze()
    forget()
    leave(kind, status)


def _told(job: Job) -> int:
    """End the recording, and do what the command does then. Returns the exit status."""
    with ours_again():
        try:
            with _directory(job.home):
                outcome = job.running.end()
                job.around.close()
                return job.after(outcome)
        except Exception as error:  # whatever it is, the script has run, and ends as it does
            if not isinstance(error, (GradvizError, OSError)) and tracebacks_are_wanted():
                raise
            if job.running.recording.failure is None:  # else it has been said that the recording has ended
                say(f"gradviz: {error if isinstance(error, GradvizError) else repr(error)}")
            return exit_status(job.running.error) or job.failure


@contextmanager
def _directory(home: str) -> Iterator[None]:
    """What is said names files from where the command was given."""
    try:
        here = os.getcwd()
    except OSError:  # it is gone
        here = ""
    try:
        with suppress(OSError):
            os.chdir(home)
        yield
    finally:
        with suppress(OSError):
            os.chdir(here)
