"""The command `gradviz` as a process of its own, which ends as its script does."""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import NoReturn

import click

from gradviz.cli.common import say, speak_past_the_script
from gradviz.cli.main import main
from gradviz.errors import GradvizError, tracebacks_are_wanted
from gradviz.sources.ending import exit_status, leave
from gradviz.sources.script import Outcome, Running, be_main, execute, make_room, run_inside
from gradviz.sources.shadowed import forget, ours_again


@dataclass
class Job:
    """A script that a command runs, and the function that the command runs `after` it, which returns the exit status.
    If that function fails, the status is the script's, or `failure` if the script's is 0. `around` are the contexts
    around the script. `waits` returns whether to wait for the script's threads."""

    running: Running
    after: Callable[[Outcome], int]
    around: ExitStack = field(default_factory=ExitStack)
    waits: Callable[[], bool] = lambda: True
    failure: int = 0
    home: str = field(default_factory=os.getcwd)


@dataclass
class Top:
    """The bottom of a process's stack, where a job runs with no frames of click's below it."""

    job: Job | None = None


def perform(job: Job) -> None:
    """Run a job: at the bottom of the stack if the process is the command's, otherwise here."""
    top = click.get_current_context().find_object(Top)
    if top is not None:
        job.running.begin()
        top.job = job
        return
    with job.around:
        outcome = run_inside(job.running)
    raise SystemExit(job.after(outcome))


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
