"""The verbs of the stepper: one table for keys, commands and help. A new verb is a new row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

from gradviz.step.numbers import clean, shortened
from gradviz.step.state import CommandError, Session


@dataclass(frozen=True, slots=True)
class Verb:
    """A command. `argument` is what it takes, in words: empty for nothing, in brackets where it may be left out."""

    name: str
    keys: tuple[str, ...]
    help: str
    run: Callable[[Session, str], None]
    argument: str = ""
    short: tuple[str, ...] = ()

    @property
    def usage(self) -> str:
        """The verb with what it takes."""
        return f"{self.name} {self.argument}".strip()


def _count(text: str) -> int:
    if not text:
        return 1
    if not text.isascii() or not text.isdigit():
        raise CommandError(f"not a number: {shortened(clean(text), 40)}")
    return int(text[:18])


def _next(session: Session, argument: str) -> None:
    session.move(_count(argument))


def _back(session: Session, argument: str) -> None:
    session.move(-_count(argument))


def _first(session: Session, argument: str) -> None:
    session.go(0)


def _last(session: Session, argument: str) -> None:
    session.go(session.last)


def _goto(session: Session, argument: str) -> None:
    session.go(_count(argument) - 1)


def _next_backward(session: Session, argument: str) -> None:
    session.next_backward()


def _next_forward(session: Session, argument: str) -> None:
    session.next_forward()


def _help(session: Session, argument: str) -> None:
    session.help = True


def _quit(session: Session, argument: str) -> None:
    session.over = True


VERBS = (
    Verb("next", ("n", "right", "space", "j", "down", "enter"), "the next event", _next, "[N]", ("n",)),
    Verb(
        "back",
        ("b", "p", "left", "k", "up", "backspace"),
        "the event before",
        _back,
        "[N]",
        ("b", "p", "prev"),
    ),
    Verb("first", ("g", "home"), "the first event", _first),
    Verb("last", ("G", "end"), "the last event", _last),
    Verb("goto", (), "event N, as the timeline counts them (key : and the number)", _goto, "N"),
    Verb("next-backward", ("B",), "where the next backward pass begins", _next_backward),
    Verb("next-forward", ("F",), "the next forward op", _next_forward),
    Verb("help", ("?", "h"), "this list", _help, "", ("?",)),
    Verb("quit", ("q",), "leave (also Ctrl-C and Ctrl-D)", _quit, "", ("q", "exit")),
)

BY_KEY = {key: verb for verb in VERBS for key in verb.keys}
BY_NAME = {name: verb for verb in VERBS for name in (verb.name, *verb.short)}


def parse(line: str) -> tuple[Verb, str]:
    """The verb and argument of one command. A number alone is `goto`. Raises CommandError for an unknown one."""
    name, _, argument = line.strip().partition(" ")
    if name.isascii() and name.isdigit():
        name, argument = "goto", name
    verb = BY_NAME.get(name)
    argument = argument.strip()
    if verb is None:
        raise CommandError(f"unknown command {shortened(clean(name), 40)!r}: {_suggestion(name)}")
    if argument and not verb.argument:
        raise CommandError(f"{verb.name} takes no argument: {shortened(clean(argument), 40)}")
    if not argument and verb.argument and not verb.argument.startswith("["):
        raise CommandError(f"{verb.name} needs an argument: {verb.usage}")
    if verb.argument in ("N", "[N]"):
        _count(argument)
    return verb, argument


def _suggestion(name: str) -> str:
    near = get_close_matches(name, list(BY_NAME), n=1, cutoff=0.5)
    names = ", ".join(verb.name for verb in VERBS)
    return f"did you mean {near[0]!r}?" if near else f"there are {names}"


def obey(session: Session, line: str) -> None:
    """Run one command. Raises CommandError where it cannot be."""
    verb, argument = parse(line)
    run(session, verb, argument)


def run(session: Session, verb: Verb, argument: str = "") -> None:
    """Run a verb."""
    session.message = ""
    session.help = False
    verb.run(session, argument)


KEY_SIGNS = {
    "right": "→", "left": "←", "up": "↑", "down": "↓", "space": "Space", "home": "Home", "end": "End",
    "enter": "Enter", "backspace": "Backspace",
}  # fmt: skip


def help_rows() -> list[tuple[str, str, str]]:
    """For each verb its command, its keys and what it does."""
    rows = []
    for verb in VERBS:
        keys = "  ".join(KEY_SIGNS.get(key, key) for key in verb.keys) or ":"
        rows.append((verb.usage, keys, verb.help))
    return rows
