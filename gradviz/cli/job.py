"""A script that a command has prepared, and the bottom of the stack, where it runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import click

from gradviz.sources.script import Outcome, Running, run_inside


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
