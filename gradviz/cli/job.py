"""A script that a command has prepared, and the bottom of the stack where it runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import click

from gradviz.sources.script import Outcome, Running, run_inside


@dataclass
class Job:
    """A script that a command runs, and what the command does `after` it: that gives the exit status. If it fails, the
    status is the script's, or `failure` where that is 0. `around` is what goes on beside it. `waits` says whether
    threads that it leaves are waited for."""

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
    """Do what a command has prepared: at the bottom of the stack if the process is the command's, else here."""
    top = click.get_current_context().find_object(Top)
    if top is not None:
        job.running.begin()
        top.job = job
        return
    with job.around:
        outcome = run_inside(job.running)
    raise SystemExit(job.after(outcome))
