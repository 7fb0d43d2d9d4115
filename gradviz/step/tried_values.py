"""`set` and `unset`: the results of the present pass if tensors that enter it have other values."""

from __future__ import annotations

from gradviz.step.command_error import CommandError
from gradviz.step.state import Session
from gradviz.words.escape import clean


def set_(session: Session, argument: str) -> None:
    """Set a value of a tensor or of an element, in addition to the values already set, and show the results of the
    pass. Raises CommandError if the argument is not `NAME = NUMBER`, or no pass can run again."""
    name, sign, value = (part.strip() for part in argument.partition("="))
    if not sign or not name or not value:
        raise CommandError("set takes NAME = NUMBER, as in set x = 4 or set w[0, 2] = 0")
    _show(session, {**session.tried, name: value})


def unset(session: Session, argument: str) -> None:
    """Take back one value that was set, or all. Raises CommandError if the value was not set."""
    if argument and argument not in session.tried:
        raise CommandError("{name} was not set", name=clean(argument))
    rest = {name: value for name, value in session.tried.items() if argument and name != argument}
    if rest:
        _show(session, rest)
        return
    session.tried = {}
    session.message = session.say("all values are as they were recorded")


def _show(session: Session, tried: dict[str, str]) -> None:
    """Show the results of the pass of this event with other values, and keep the values if the pass could run."""
    if session.what_if is None:
        raise CommandError("nothing can run again here")
    pass_here = session.trace.pass_ending_from(session.position)
    sets = [f"{name}={value}" for name, value in tried.items()]
    lines = session.what_if(session.words, None if pass_here is None else pass_here.number, sets)
    session.page = [session.say("with {sets}; unset takes it back", sets=clean(", ".join(sets))), *lines]
    session.tried = tried
