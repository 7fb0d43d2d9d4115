"""The stepper without a screen: runs a list of commands and prints the result of each as plain text."""

import re
from collections.abc import Iterator
from pathlib import Path

from gradviz.step import CommandError
from gradviz.step.group import Group
from gradviz.step.showing import describe
from gradviz.step.state import Session
from gradviz.step.verbs import parse, run, run_together
from gradviz.words.escape import clean

_COMMAND = re.compile(r"""(?:"[^"]*"|'[^']*'|(?<=\S)#|[^;#])*""")


def commands(text: str) -> list[str]:
    """The commands in the text `next; back`, or in the file `@file`. Line ends and semicolons separate
    commands; # begins a comment. Raises CommandError if the file cannot be read or a command is unknown."""
    if text.startswith("@"):
        text = _read(Path(text[1:]))
    lines = [part for line in text.splitlines() for part in _parts(line)]
    for command in lines:
        parse(command)
    return lines


def _parts(line: str) -> list[str]:
    """The commands in one line. A semicolon or # in quotes is text, and so is a # inside a word."""
    parts: list[str] = []
    while line:
        piece = _COMMAND.match(line)
        assert piece is not None
        parts.append(piece[0].strip())
        rest = line[piece.end() :]
        line = rest[1:] if rest.startswith(";") else ""
    return [part for part in parts if part]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise CommandError(f"cannot read commands from {path}: {reason}") from None


def script(session: Session, lines: list[str]) -> Iterator[str]:
    """The output of a list of commands, piece by piece. Without commands, describe the present stop. Each command
    that has run is removed from `lines`. Raises CommandError if a command fails."""
    if not lines:
        yield from told(session)
    while lines:
        line = lines.pop(0)
        yield f"> {clean(line)}"
        verb, argument = parse(line)
        before = session.position
        run(session, verb, argument)
        if session.over:
            return
        yield from told(session, session.position != before)
        yield ""


def said_by_each(group: Group, line: str) -> list[str]:
    """The output of each shown session after a command on all of them; without a command, its present stop."""
    if not line:
        return ["\n".join(told(session)) for session in group.shown]
    before = {session: session.position for session in group.sessions}
    run_together(group, *parse(line))
    return [
        "\n".join([f"> {clean(line)}", *told(session, session.position != before[session]), ""])
        for session in group.shown
    ]


def told(session: Session, moved: bool = True) -> Iterator[str]:
    """The output after one command. It includes the stop if the session has `moved`, or has no message."""
    if session.message:
        yield session.message
    if session.page:
        yield from session.page
        return
    if moved or not session.message:
        yield describe(session.stop, session.settings.leaves)
