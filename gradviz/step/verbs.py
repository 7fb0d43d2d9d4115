"""The verbs of the stepper: one table for keys, commands and help. To add a verb, add a row."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from gradviz.errors import GradvizError
from gradviz.nearest import nearest
from gradviz.step import (
    check_node,
    elements,
    group,
    in_lesson,
    listing,
    moves,
    paused,
    seeking,
    tells,
    tried_values,
)
from gradviz.step.command_error import CommandError
from gradviz.step.help import break_help, fields_help
from gradviz.step.moves import count
from gradviz.step.state import Session
from gradviz.words.escape import clean, shortened
from gradviz.words.languages import said


@dataclass(frozen=True, slots=True)
class Verb:
    """A command. `argument` describes its argument: empty if it takes none, in brackets if it is optional. The key of
    a verb that needs an argument opens the prompt; so does the key of a verb with `asked`. A verb that is `of_group`
    runs once for all sessions that are moved together. A long run is read whole before a verb, unless the verb is
    `near`: such a verb asks the trace for the parts that it needs (tracefile/doors.py)."""

    name: str
    keys: tuple[str, ...]
    help: str
    run: Callable[[Session, str], None]
    argument: str = ""
    short: tuple[str, ...] = ()
    asked: bool = False
    of_group: bool = False
    near: bool = False

    @property
    def usage(self) -> str:
        """The verb with its argument."""
        return f"{self.name} {self.argument}".strip()

    @property
    def needs(self) -> bool:
        """Whether the verb requires an argument."""
        return bool(self.argument) and not self.argument.startswith("[")


def _help(session: Session, argument: str) -> None:
    if not argument:
        session.help = "verbs"
    elif argument == "fields":
        session.page = fields_help(session.say)
    else:
        verb = named(argument.split()[0])
        keys = session.say("  keys: {keys}", keys=" ".join(verb.keys) or "–")
        session.page = [f"{verb.usage}: {session.say(verb.help)}", keys]
        if verb.name == "break":
            session.page += break_help()


RANKS = "Over ranks"
LESSON = "In a lesson (gradviz learn)"
GROUPS: dict[str, tuple[Verb, ...]] = {
    "Along the events": (
        Verb(
            "next",
            ("n", "right", "space", "j", "down", "enter"),
            "the next event",
            moves.step,
            "[N]",
            ("n", "step"),
            near=True,
        ),
        Verb(
            "back",
            ("b", "p", "left", "k", "up", "backspace"),
            "the previous event",
            moves.back,
            "[N]",
            ("b", "p", "prev"),
            near=True,
        ),
        Verb("first", ("g", "home"), "the first event", moves.first, near=True),
        Verb("last", ("G", "end"), "the last event", moves.last, near=True),
        Verb("goto", (), "event N (or type the number alone), or a bookmark", moves.goto, "N", near=True),
        Verb("line", ("N",), "to the end of the next line, with the variables", moves.line, "[N]"),
        Verb("line-back", ("J",), "back to the end of the line before", moves.line_back, "[N]"),
        Verb("undo", ("u",), "where you were before the last move", moves.undo, near=True),
    ),
    "By scope: module, custom Function, pass": (
        Verb(
            "over",
            ("o",),
            "the next event of this scope, skipping inner scopes",
            moves.over,
            "[N]",
            near=True,
        ),
        Verb(
            "over-back",
            ("O",),
            "the previous event of this scope, likewise",
            moves.over_back,
            "[N]",
            near=True,
        ),
        Verb("into", ("s", "tab"), "into the next scope or pass", moves.into, near=True),
        Verb("into-back", ("S",), "into the previous scope or pass, at its end", moves.into_back, near=True),
        Verb("out", ("f",), "to the end of this scope", moves.out, "", ("finish",), near=True),
        Verb("out-back", ("d",), "to the beginning of this scope", moves.out_back, near=True),
        Verb("again", ("l",), "the next event at this place (in a loop)", moves.again),
        Verb("again-back", ("L",), "the previous event at this place", moves.again_back),
        Verb(
            "next-backward",
            ("B", "]"),
            "where the next backward pass begins",
            moves.next_pass,
            "",
            ("next-pass",),
            near=True,
        ),
        Verb(
            "back-backward",
            ("[",),
            "where the previous backward pass begins",
            moves.previous_pass,
            "",
            ("previous-pass",),
            near=True,
        ),
        Verb("next-forward", ("F",), "the next forward op", moves.next_forward, near=True),
        Verb("back-forward", ("D",), "the previous forward op", moves.previous_forward, near=True),
    ),
    "To what you look for": (
        Verb(
            "break",
            ("K",),
            "stop at: log, w, line 12, nan, mutation, PREDICATE",
            seeking.break_,
            "[WHAT]",
            ("br",),
            True,
        ),
        Verb("watch", ("W",), "stop where a tensor or its .grad changes", seeking.watch, "TENSOR"),
        Verb("delete", (), "delete breakpoint N, or all", seeking.delete, "N|all"),
        Verb("continue", ("c",), "forward to the next breakpoint", seeking.continue_, "", ("c",)),
        Verb(
            "reverse-continue",
            ("r", "C"),
            "back to the previous breakpoint",
            seeking.reverse_continue,
            "",
            ("rc", "r"),
        ),
        Verb("until", ("t",), "forward to where it is true: grad.rms < 1e-7", seeking.until, "PREDICATE"),
        Verb("back-until", ("T",), "back to where it is true", seeking.back_until, "PREDICATE"),
        Verb("nan", ("!",), "the first event with a NaN or an infinity", tells.first_bad),
        Verb("who", ("w",), "the last change of a tensor; again: the one before", seeking.who, "TENSOR"),
        Verb(
            "search",
            ("/",),
            "an op, a name, 8x3, a line; empty: again",
            seeking.search,
            "[TEXT]",
            ("/",),
            True,
        ),
        Verb("search-back", ("\\",), "the same, backwards", seeking.search_back, "[TEXT]", ("\\",), True),
        Verb("mark", ("m",), "a bookmark here", moves.mark, "[NAME]", near=True),
        Verb("marks", ("'",), "the bookmarks", moves.marks, near=True),
    ),
    RANKS: (
        Verb(
            "collective", ("}",), "the next collective, on all ranks", group.collective, "[N]", of_group=True
        ),
        Verb(
            "collective-back",
            ("{",),
            "the one before, on all ranks",
            group.collective_back,
            "[N]",
            of_group=True,
        ),
        Verb(
            "rank", ("R",), "look into rank N; without N, at all ranks", group.rank, "[RANK]", (), True, True
        ),
    ),
    LESSON: (
        Verb("question", ("Q",), "to the question that is open", in_lesson.question),
        Verb("answer", ("A",), "answer it: 0.6, [1, 2], None, yes", in_lesson.answer, "TEXT"),
        Verb("show-answer", ("Z",), "show the answer", in_lesson.show_answer),
    ),
    "To understand": (
        Verb(
            "why",
            ("y",),
            "the chain rule here; why w.grad: how it came about",
            tells.why,
            "[TENSOR]",
            near=True,
        ),
        Verb("info", ("i",), "all about this event, or about a tensor", tells.info, "[TENSOR]", near=True),
        Verb("print", ("E",), "elements: w, w.grad, w[0, :3]", elements.print_, "TENSOR"),
        Verb("set", (), "run this pass again with another value: x = 4", tried_values.set_, "NAME = NUMBER"),
        Verb("unset", (), "take the value of NAME back, or all", tried_values.unset, "[NAME]"),
        Verb(
            "eval",
            ("X",),
            "p x.sum(): Python in the paused script (debug only)",
            paused.evaluate,
            "EXPRESSION",
        ),
        Verb("check-node", ("V",), "this VJP against finite differences (debug only)", check_node.check_node),
        Verb("leaves", ("a",), "all leaves, by made, norm, change or name", listing.leaves, "[ORDER]"),
        Verb("variables", ("z",), "the variables in the place of the leaves, or not", listing.variables),
        Verb("leaves-down", ("page down", ">"), "scroll the table of leaves down", listing.down),
        Verb("leaves-up", ("page up", "<"), "scroll the table of leaves up", listing.up),
        Verb("where", ("x",), "who called this place, with each line", tells.where, near=True),
        Verb("path", ("P",), "the path from tensor A to B", tells.path, "A B"),
        Verb("compare", ("v",), "tangents and gradients of one function side by side", tells.compare),
        Verb("export", ("e",), "write this state to FILE: .svg, .png or .txt", tells.export, "FILE"),
        Verb("help", ("?", "h"), "this list; help VERB; help fields", _help, "[VERB]", ("?", "h"), near=True),
        Verb("quit", ("q",), "leave (also Ctrl-C and Ctrl-D)", tells.quit_, "", ("q", "exit"), near=True),
    ),
}
VERBS = tuple(verb for verbs in GROUPS.values() for verb in verbs)

BY_KEY = {key: verb for verb in VERBS for key in verb.keys}
BY_NAME = {name: verb for verb in VERBS for name in (verb.name, *verb.short)}


def parse(line: str) -> tuple[Verb, str]:
    """The verb and the argument of one command. A number alone means `goto`, and `/x` means `search x`.
    Raises CommandError if the verb is unknown, or if an argument is missing or not allowed."""
    line = line.strip()
    if line[:1] in ("/", "\\"):
        line = f"{line[0]} {line[1:]}"
    name, _, argument = line.partition(" ")
    if name.isascii() and name.isdigit():
        name, argument = "goto", name
    if name == "p" and argument.strip() and not argument.strip().isdigit():
        name = "eval"  # as in pdb; alone, or with a number, it is the key of `back`
    verb, argument = named(name), argument.strip()
    if argument and not verb.argument:
        message = "{verb} takes no argument: {argument}"
        raise CommandError(message, verb=verb.name, argument=shortened(clean(argument), 40))
    if not argument and verb.needs:
        raise CommandError("{verb} needs an argument: {usage}", verb=verb.name, usage=verb.usage)
    if verb.argument == "[N]":
        count(argument)
    return verb, argument


def named(name: str) -> Verb:
    """The verb with this name or key. Raises CommandError if there is none."""
    if name in BY_KEY:
        return BY_KEY[name]
    if name not in BY_NAME:
        raise _unknown(name)
    return BY_NAME[name]


def _unknown(name: str) -> CommandError:
    near, shown = nearest(name, BY_NAME), repr(shortened(clean(name), 40))
    if near:
        return CommandError("unknown command {name}: did you mean {near}?", name=shown, near=repr(near))
    names = ", ".join(verb.name for verb in VERBS)
    return CommandError("unknown command {name}: the commands are {names}", name=shown, names=names)


def obey(session: Session, line: str) -> None:
    """Parse and run one command. Raises CommandError if that is impossible."""
    verb, argument = parse(line)
    run(session, verb, argument)


def run(session: Session, verb: Verb, argument: str = "") -> None:
    """Clear the last output and run a verb."""
    session.message = ""
    session.help = ""
    session.page, session.page_keys = [], {}
    session.scrolled = 0
    if not verb.near:
        session.reach_all()
    verb.run(session, argument)
    if session.exercise is not None:
        session.exercise.remind(session)


def run_together(sessions: group.Group, verb: Verb, argument: str = "") -> None:
    """Run a verb on the shown sessions. A session that cannot run it shows the error."""
    shown = sessions.shown
    for session in shown:
        session.message = ""
    for session in shown[:1] if verb.of_group else shown:
        try:
            run(session, verb, argument)
        except GradvizError as error:
            session.message = session.say(error.text, **error.parts)


KEY_SIGNS = {
    "right": "→", "left": "←", "up": "↑", "down": "↓", "space": "Space", "home": "Home", "end": "End",
    "page down": "PgDn", "page up": "PgUp", "enter": "Enter", "backspace": "Backspace", "tab": "Tab",
}  # fmt: skip


def groups_elsewhere(session: Session) -> list[str]:
    """The titles of groups of verbs that do not apply to a session."""
    are_together = session.group is not None and len(session.group.sessions) > 1
    return [
        title
        for title, is_here in ((LESSON, session.exercise is not None), (RANKS, are_together))
        if not is_here
    ]


def help_rows(left_out: Collection[str] = (), language: str = "en") -> list[tuple[str, str, str]]:
    """The rows of the help: for each verb its command, its keys and its help text. A row with only a title begins a
    group. Groups in `left_out` are omitted."""
    rows = []
    for title, verbs in GROUPS.items():
        if title in left_out:
            continue
        rows.append((said(language, title), "", ""))
        for verb in verbs:
            keys = " ".join(KEY_SIGNS.get(key, key) for key in verb.keys) or ":"
            rows.append((verb.usage, keys, said(language, verb.help)))
    return rows
