"""The verbs of the stepper: one table for keys, commands and help. To add a verb, add a row."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from gradviz.errors import GradvizError, nearest
from gradviz.query.predicate_columns import FIELDS, FLAG, NUMBER, STATISTICS, TENSORS, TEXT
from gradviz.step import check_node, group, moves, seeking, showing
from gradviz.step.breakpoints import FORMS
from gradviz.step.command_error import CommandError
from gradviz.step.moves import count
from gradviz.step.state import Session
from gradviz.words.escape import clean, shortened
from gradviz.words.languages import said


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


@dataclass(frozen=True, slots=True)
class Verb:
    """A command. `usage` is its name, then its argument, which stands in brackets if it is optional. `keys` and `short`
    (its other names) are separated by spaces. The key of a verb that needs an argument opens the prompt; so does the
    key of a verb with `asked`. A verb that is `of_group` runs once for all sessions that are moved together. A long run
    is read whole before a verb, unless the verb is `near`: such a verb asks the trace for the parts that it needs
    (tracefile/reader.py)."""

    usage: str
    keys: str
    help: str
    run: Callable[[Session, str], None]
    short: str = ""
    asked: bool = False
    of_group: bool = False
    near: bool = False

    @property
    def name(self) -> str:
        return self.usage.partition(" ")[0]

    @property
    def argument(self) -> str:
        return self.usage.partition(" ")[2]

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
        keys = session.say("  keys: {keys}", keys=verb.keys or "–")
        session.page = [f"{verb.usage}: {session.say(verb.help)}", keys]
        if verb.name == "break":
            session.page += break_help()


def _back(run: Callable[[Session, str, bool], None]) -> Callable[[Session, str], None]:
    """A verb with two directions, backwards."""
    return lambda session, argument: run(session, argument, False)


RANKS = "Over ranks"
LESSON = "In a lesson (gradviz learn)"
GROUPS: dict[str, tuple[Verb, ...]] = {
    "Along the events": (
        Verb(
            "next [N]", "n right space j down enter", "the next event", moves.step, short="n step", near=True
        ),
        Verb(
            "back [N]",
            "b p left k up backspace",
            "the previous event",
            _back(moves.step),
            short="b p prev",
            near=True,
        ),
        Verb("first", "g home", "the first event", moves.first, near=True),
        Verb("last", "G end", "the last event", moves.last, near=True),
        Verb("goto N", "", "event N (or type the number alone), or a bookmark", moves.goto, near=True),
        Verb("line [N]", "N", "to the end of the next line, with the variables", moves.line),
        Verb("line-back [N]", "J", "back to the end of the line before", _back(moves.line)),
        Verb("undo", "u", "where you were before the last move", moves.undo, near=True),
    ),
    "By scope: module, custom Function, pass": (
        Verb("over [N]", "o", "the next event of this scope, skipping inner scopes", moves.over, near=True),
        Verb(
            "over-back [N]", "O", "the previous event of this scope, likewise", _back(moves.over), near=True
        ),
        Verb("into", "s tab", "into the next scope or pass", moves.into, near=True),
        Verb("into-back", "S", "into the previous scope or pass, at its end", _back(moves.into), near=True),
        Verb("out", "f", "to the end of this scope", moves.out, short="finish", near=True),
        Verb("out-back", "d", "to the beginning of this scope", _back(moves.out), near=True),
        Verb("again", "l", "the next event at this place (in a loop)", moves.again),
        Verb("again-back", "L", "the previous event at this place", _back(moves.again)),
        Verb(
            "next-backward",
            "B ]",
            "where the next backward pass begins",
            moves.next_pass,
            short="next-pass",
            near=True,
        ),
        Verb(
            "back-backward",
            "[",
            "where the previous backward pass begins",
            _back(moves.next_pass),
            short="previous-pass",
            near=True,
        ),
        Verb("next-forward", "F", "the next forward op", moves.next_forward, near=True),
        Verb("back-forward", "D", "the previous forward op", _back(moves.next_forward), near=True),
    ),
    "To what you look for": (
        Verb(
            "break [WHAT]",
            "K",
            "stop at: log, w, line 12, nan, mutation, PREDICATE",
            seeking.break_,
            short="br",
            asked=True,
        ),
        Verb("watch TENSOR", "W", "stop where a tensor or its .grad changes", seeking.watch),
        Verb("delete N|all", "", "delete breakpoint N, or all", seeking.delete),
        Verb("continue", "c", "forward to the next breakpoint", seeking.continue_, short="c"),
        Verb(
            "reverse-continue",
            "r C",
            "back to the previous breakpoint",
            _back(seeking.continue_),
            short="rc r",
        ),
        Verb("until PREDICATE", "t", "forward to where it is true: grad.rms < 1e-7", seeking.until),
        Verb("back-until PREDICATE", "T", "back to where it is true", _back(seeking.until)),
        Verb("nan", "!", "the first event with a NaN or an infinity", showing.first_bad),
        Verb("who TENSOR", "w", "the last change of a tensor; again: the one before", seeking.who),
        Verb(
            "search [TEXT]",
            "/",
            "an op, a name, 8x3, a line; empty: again",
            seeking.search,
            short="/",
            asked=True,
        ),
        Verb(
            "search-back [TEXT]", "\\", "the same, backwards", _back(seeking.search), short="\\", asked=True
        ),
        Verb("mark [NAME]", "m", "a bookmark here", moves.mark, near=True),
        Verb("marks", "'", "the bookmarks", moves.marks, near=True),
    ),
    RANKS: (
        Verb("collective [N]", "}", "the next collective, on all ranks", group.collective, of_group=True),
        Verb(
            "collective-back [N]", "{", "the one before, on all ranks", group.collective_back, of_group=True
        ),
        Verb(
            "rank [RANK]",
            "R",
            "look into rank N; without N, at all ranks",
            group.rank,
            asked=True,
            of_group=True,
        ),
    ),
    LESSON: (
        Verb("question", "Q", "to the question that is open", question),
        Verb("answer TEXT", "A", "answer it: 0.6, [1, 2], None, yes", answer),
        Verb("show-answer", "Z", "show the answer", show_answer),
    ),
    "To understand": (
        Verb(
            "why [TENSOR]", "y", "the chain rule here; why w.grad: how it came about", showing.why, near=True
        ),
        Verb("info [TENSOR]", "i", "all about this event, or about a tensor", showing.info, near=True),
        Verb("print TENSOR", "E", "elements: w, w.grad, w[0, :3]", showing.print_),
        Verb("set NAME = NUMBER", "", "run this pass again with another value: x = 4", showing.set_),
        Verb("unset [NAME]", "", "take the value of NAME back, or all", showing.unset),
        Verb("eval EXPRESSION", "X", "p x.sum(): Python in the paused script (debug only)", showing.evaluate),
        Verb("check-node", "V", "this VJP against finite differences (debug only)", check_node.check_node),
        Verb("leaves [ORDER]", "a", "all leaves, by made, norm, change or name", showing.leaves),
        Verb("variables", "z", "the variables in the place of the leaves, or not", showing.variables),
        Verb("leaves-down", "page-down >", "scroll the table of leaves down", showing.scroll_leaves),
        Verb("leaves-up", "page-up <", "scroll the table of leaves up", _back(showing.scroll_leaves)),
        Verb("where", "x", "who called this place, with each line", showing.where, near=True),
        Verb("path A B", "P", "the path from tensor A to B", showing.path),
        Verb("compare", "v", "tangents and gradients of one function side by side", showing.compare),
        Verb("export FILE", "e", "write this state to FILE: .svg, .png or .txt", showing.export),
        Verb("help [VERB]", "? h", "this list; help VERB; help fields", _help, short="? h", near=True),
        Verb("quit", "q", "leave (also Ctrl-C and Ctrl-D)", showing.quit_, short="q exit", near=True),
    ),
}
VERBS = tuple(verb for verbs in GROUPS.values() for verb in verbs)

BY_KEY = {key: verb for verb in VERBS for key in verb.keys.split()}
BY_NAME = {name: verb for verb in VERBS for name in (verb.name, *verb.short.split())}


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
    "page-down": "PgDn", "page-up": "PgUp", "enter": "Enter", "backspace": "Backspace", "tab": "Tab",
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
            keys = " ".join(KEY_SIGNS.get(key, key) for key in verb.keys.split()) or ":"
            rows.append((verb.usage, keys, said(language, verb.help)))
    return rows


PREDICATES = (
    "break and until take a predicate over the event, such as",
    '  grad.rms < 1e-7      op == "log" and out.min <= 0      nan or inf      line == 12',
    "  parts: and, or, not, ( ); == != < <= > >=; ~ for texts that contain",
)
FIELD_GROUPS = (("numbers", NUMBER), ("texts", TEXT), ("true or false", FLAG))


def fields_help(say: Callable[[str], str]) -> list[str]:
    """The fields of a predicate, grouped by type, with a description of each; `say` translates the texts."""
    lines = [say(line) for line in PREDICATES]
    lines += [f"  {name + '.X':<11} {say(tensors.doc)}" for name, tensors in TENSORS.items()]
    lines.append(f"      X: {', '.join(STATISTICS)}")
    for title, type_ in FIELD_GROUPS:
        lines.append(f"  {say(title)}")
        lines += [f"    {name:<10} {say(field.doc)}" for name, field in FIELDS.items() if field.type == type_]
    return lines


def break_help() -> list[str]:
    """The forms that `break` takes."""
    flags = [name for name, field in FIELDS.items() if field.type == FLAG]
    return [f"  break {form} ..." for form in FORMS] + [f"  break {name}" for name in flags]
