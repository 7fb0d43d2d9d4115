"""The verbs of a lesson, which `gradviz learn` gives to the session."""

from __future__ import annotations

from typing import Protocol

from gradviz.step.command_error import CommandError
from gradviz.step.state import Session


class UnderWay(Protocol):
    """A lesson under way."""

    def ask(self, session: Session) -> None:
        """Go to the open question."""

    def answered(self, session: Session, text: str | None) -> None:
        """Check an answer; None shows the right answer."""


def _of(session: Session) -> UnderWay:
    if session.exercise is None:
        raise CommandError("there is no lesson here: gradviz learn lists the lessons")
    lesson: UnderWay = session.exercise
    return lesson


def answer(session: Session, argument: str) -> None:
    """Answer the open question of a lesson."""
    _of(session).answered(session, argument)


def show_answer(session: Session, argument: str) -> None:
    """Show the answer to the open question."""
    _of(session).answered(session, None)


def question(session: Session, argument: str) -> None:
    """Go to the open question."""
    _of(session).ask(session)
