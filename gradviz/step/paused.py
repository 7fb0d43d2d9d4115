"""The actions that only a running script allows at a stop: evaluating Python, and running an op again."""

from __future__ import annotations

import re
from typing import Protocol

from gradviz.events.kinds import OpRan
from gradviz.query.differences import Forward
from gradviz.step.command_error import CommandError
from gradviz.step.elements import print_
from gradviz.step.state import Session
from gradviz.words.escape import clean, shortened

_ELEMENTS = re.compile(r"[\w.#]+(\s*\[[^\[\]]*\](\.grad)?)?")


class Paused(Protocol):
    """A script that waits at a stop."""

    def evaluate(self, expression: str) -> list[str]:
        """Evaluate an expression in the script's frame, unrecorded. Returns the lines that it printed, then its
        value; or the exception in one line."""

    def forward_of(self, op: OpRan, node: int, alone: bool) -> Forward:
        """The function that an op computed, from its tensor inputs, arrays to arrays. It runs unrecorded, and
        restores the random numbers. `alone` means that the op made only this node. Raises CommandError if the op
        cannot run again."""


def evaluate(session: Session, argument: str) -> None:
    """Evaluate Python in the paused script. On a trace, show elements if the argument names a tensor or its elements.
    Raises CommandError for anything else."""
    if session.script is not None:
        session.page = [shortened(clean(line), _LONGEST) for line in session.script.evaluate(argument)]
        if session.position != session.last:
            session.page.append(f"(the script stands at event {session.last + 1})")
    elif _ELEMENTS.fullmatch(argument):
        print_(session, argument)
    else:
        raise CommandError(
            "p evaluates Python in a script that waits (gradviz debug); a trace has elements: print w[0, :3]"
        )


_LONGEST = 2_000  # characters of a line
