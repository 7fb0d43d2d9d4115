"""The verbs of the stepper: one table for keys, commands and help. To add a verb, add a row."""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np

from gradviz.errors import GradvizError, nearest
from gradviz.events.kinds import Kind, OpRan, Produced, Received
from gradviz.query.differences import Compared, Vjp, compared
from gradviz.query.nodes import ACCUMULATE
from gradviz.query.ops import function_name
from gradviz.query.predicate_columns import FIELDS, FLAG, NUMBER, STATISTICS, TENSORS, TEXT
from gradviz.step import CommandError, group, moves, showing
from gradviz.step.breakpoints import FORMS
from gradviz.step.moves import count
from gradviz.step.state import Session
from gradviz.words.escape import clean, shortened
from gradviz.words.languages import said
from gradviz.words.numbers import listed, number

_LONGEST = 44  # characters of an expression
_ALIKE = 1e-3  # the largest relative difference between outputs and recorded outputs


class _Case(NamedTuple):
    """An op, the upstream gradients of its outputs in a pass, and the gradients that its nodes gave to its inputs."""

    op: OpRan
    node: int
    inputs: dict[int, np.ndarray]  # by tensor, in the order of the op
    upstream: list[np.ndarray]
    gradients: dict[int, np.ndarray]


def check_node(session: Session, argument: str) -> None:
    """Compare the VJP of the node at this stop with finite differences. Raises CommandError if that is impossible,
    with the reason."""
    if session.script is None:
        raise CommandError("check-node runs an op again: it needs a script that waits (gradviz debug)")
    case, nodes = _case(session), session.query.nodes
    forward = session.script.forward_of(case.op, case.node, len(nodes.of_op(case.op.index)) == 1)
    arrays = [array.astype(np.float64) if array.dtype.kind == "f" else array for array in case.inputs.values()]
    words = session.words
    name = words.node_name(case.node)
    expression = words.expression(case.op.site, _LONGEST) or clean(function_name(case.op.op))
    try:
        _require_the_same(session, case.op, forward(arrays))
        lines: list[str] = []
        wrong: list[str] = []
        right: list[str] = []
        for which, (tensor, array) in enumerate(case.inputs.items()):
            called = words.called(tensor)
            if tensor not in case.gradients:
                if array.dtype.kind != "f":
                    lines.append(f"  {called}: not checked, {array.dtype} has no derivative")
                continue
            comparison = compared(Vjp(forward, arrays, which, case.upstream, case.gradients[tensor]))
            (wrong if comparison.wrong else right).append(called)
            lines += _told(called, comparison)
    except CommandError:
        raise
    except Exception as error:  # raised by the program's own code, or by an op that takes no float64
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise CommandError(
            f"{name} cannot be checked: {expression} does not run again in float64: {shortened(said, 120)}"
        ) from None
    if not wrong and not right:
        raise CommandError(f"{name} gave no gradient to an input of {expression}: there is nothing to check")
    verdict = f"wrong for {listed(wrong)}" if wrong else f"right for {listed(right)}"
    session.page = [
        f"{name}: its backward is {verdict}",
        f"  the VJP of {expression} against central differences on the recorded inputs",
        *lines,
    ]


def _told(called: str, vjp: Compared) -> list[str]:
    if not vjp.checked:
        return [f"  {called}: no element has a derivative here ({vjp.kinks} at a kink or at the edge of a domain)"]
    parts = [f"{vjp.checked:,} of {vjp.size:,} elements" if vjp.checked < vjp.size else ""]
    parts.append(f"{vjp.kinks} at a kink left out" if vjp.kinks else "")
    more = ", ".join(filter(None, parts))
    at = f" at [{', '.join(map(str, vjp.at))}]" if vjp.at else ""
    return [
        f"  {called}: {'WRONG' if vjp.wrong else 'right'}, relative error {number(vjp.error, 2)}{at}: "
        f"backward {number(vjp.given)}, differences {number(vjp.found)}" + (f" ({more})" if more else "")
    ]


def _case(session: Session) -> _Case:
    """The op to check at this stop, with its inputs and gradients. Raises CommandError if something is missing."""
    stop, nodes = session.stop, session.query.nodes
    at_hand = stop.node or (nodes.main_of_op(stop.k) if isinstance(stop.event, OpRan) else 0)
    if not at_hand:
        raise CommandError("there is no node at this event: go to one that runs, such as until backward")
    name = session.words.node_name(at_hand)
    event = nodes.op(at_hand)
    if event is None:
        why = "it adds to .grad and differentiates nothing" if name.startswith(ACCUMULATE) else _UNKNOWN
        raise CommandError(f"{name} cannot be checked: {why}")
    op = session.query.tensors.op(event)
    if set(op.outputs) & set(op.inputs):
        raise CommandError(f"{name} cannot be checked: {clean(function_name(op.op))} works in place, its input is gone")
    if name.startswith(_SYMMETRIC):
        raise CommandError(f"{name} cannot be checked: it reads one half of a symmetric matrix")
    main = nodes.main_of_op(event)
    received = _event(session, Kind.RECEIVED, main, 0)
    if not isinstance(received, Received):
        raise CommandError(f"{name} has not run yet: let the script go on to where it has (next)")
    numbers = dict.fromkeys(tensor for tensor in op.inputs if tensor)
    inputs = {tensor: _elements(session, tensor, event, session.words.called(tensor)) for tensor in numbers}
    return _Case(op, main, inputs, _upstream(session, op, main, received), _gradients(session, op, received))


_SYMMETRIC = ("LinalgCholesky", "LinalgEigh")  # a single element of their input cannot be moved
_UNKNOWN = "its forward op is not in the trace"


def _event(session: Session, kind: Kind, node: int, number: int) -> Received | Produced | None:
    """The last event of a kind at a node, in pass `number` (0: any)."""
    table = session.trace.table(kind)
    at_node = table["node"] == node
    if number:
        at_node &= table["in_pass"] == number
    events = table.events[at_node]
    return table.object(int(events[-1])) if len(events) else None


def _elements(session: Session, tensor: int, k: int, called: str) -> np.ndarray:
    value = session.query.at(k).value(tensor)
    if value is None or value.array is None:
        raise CommandError(
            f"this node cannot be checked: the elements of {called} were not recorded; debug with --values full"
        )
    return value.array


def _upstream(session: Session, op: OpRan, main: int, received: Received) -> list[np.ndarray]:
    """The upstream gradient of each output of the op; zeros if there is none."""
    gradients = dict(zip(session.query.nodes.outputs(main), received.gradients, strict=False))
    upstream = []
    for tensor in op.outputs:
        gradient = gradients.get(tensor, 0)
        if gradient:
            upstream.append(_elements(session, gradient, received.index, "an upstream gradient").astype(np.float64))
        else:
            upstream.append(np.zeros(session.stop.query.tensors.shape(tensor) or ()))
    return upstream


def _gradients(session: Session, op: OpRan, received: Received) -> dict[int, np.ndarray]:
    """The gradients that the nodes of the op gave to each of its inputs in a pass, summed for a tensor that is read
    twice."""
    nodes = session.query.nodes
    gradients: dict[int, np.ndarray] = {}
    for node in nodes.of_op(op.index):
        produced = _event(session, Kind.PRODUCED, node, received.in_pass)
        if not isinstance(produced, Produced):
            raise CommandError(
                f"{session.words.node_name(node)} has not given its gradients yet: next, then check-node"
            )
        for edge, flow in zip(nodes.edges(node), produced.flows, strict=False):
            if edge.tensor in op.inputs and edge.tensor and flow.gradient:
                array = _elements(session, flow.gradient, produced.index, "a gradient")
                gradients[edge.tensor] = gradients[edge.tensor] + array if edge.tensor in gradients else array
    return gradients


def _require_the_same(session: Session, op: OpRan, outputs: list[np.ndarray]) -> None:
    """Raise CommandError if the op, run again, gives other values than the recorded ones: it is random, or depends on
    more than its inputs."""
    for tensor, again in zip(op.outputs, outputs, strict=True):
        value = session.query.at(op.index).value(tensor)
        if value is None or value.array is None or value.array.dtype.kind != "f":
            continue
        if again.shape != value.array.shape or not np.allclose(again, value.array, _ALIKE, 1e-5, equal_nan=True):
            raise CommandError(
                f"{clean(function_name(op.op))} cannot be checked: run again, it gives other values (it is random, or "
                "depends on more than its inputs)"
            )


def _lesson(session: Session) -> Any:
    """The lesson under way, a `gradviz.learn.lesson.Exercise`. Raises CommandError if there is none."""
    if session.exercise is None:
        raise CommandError("there is no lesson here: gradviz learn lists the lessons")
    return session.exercise


class Verb(NamedTuple):
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
        session.page = help_page(groups_elsewhere(session), session.words.language)
    elif argument == "fields":
        session.page = fields_help(session.say)
    else:
        verb = named(argument.split()[0])
        keys = session.say("  keys: {keys}", keys=verb.keys or "–")
        session.page = [f"{verb.usage}: {session.say(verb.help)}", keys]
        if verb.name == "break":
            flags = [name for name, field in FIELDS.items() if field.type == FLAG]
            session.page += [f"  break {form} ..." for form in FORMS] + [f"  break {name}" for name in flags]


def _back(run: Callable[[Session, str, bool], None]) -> Callable[[Session, str], None]:
    """A verb with two directions, backwards."""
    return lambda session, argument: run(session, argument, False)


RANKS = "Over ranks"
LESSON = "In a lesson (gradviz learn)"
GROUPS: dict[str, tuple[Verb, ...]] = {
    "Along the events": (
        Verb("next [N]", "n right space j down enter", "the next event", moves.step, short="n step", near=True),
        Verb(
            "back [N]", "b p left k up backspace", "the previous event", _back(moves.step), short="b p prev", near=True
        ),
        Verb("first", "g home", "the first event", lambda one, _: one.go(0), near=True),
        Verb("last", "G end", "the last event", lambda one, _: one.go(one.last), near=True),
        Verb("goto N", "", "event N (or type the number alone), or a bookmark", moves.goto, near=True),
        Verb("line [N]", "N", "to the end of the next line, with the variables", moves.line),
        Verb("line-back [N]", "J", "back to the end of the line before", _back(moves.line)),
        Verb("undo", "u", "where you were before the last move", lambda one, _: one.go(one.came_from), near=True),
    ),
    "By scope: module, custom Function, pass": (
        Verb("over [N]", "o", "the next event of this scope, skipping inner scopes", moves.over, near=True),
        Verb("over-back [N]", "O", "the previous event of this scope, likewise", _back(moves.over), near=True),
        Verb("into", "s tab", "into the next scope or pass", moves.into, near=True),
        Verb("into-back", "S", "into the previous scope or pass, at its end", _back(moves.into), near=True),
        Verb("out", "f", "to the end of this scope", moves.out, short="finish", near=True),
        Verb("out-back", "d", "to the beginning of this scope", _back(moves.out), near=True),
        Verb("again", "l", "the next event at this place (in a loop)", moves.again),
        Verb("again-back", "L", "the previous event at this place", _back(moves.again)),
        Verb(
            "next-backward", "B ]", "where the next backward pass begins", moves.next_pass, short="next-pass", near=True
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
            moves.break_,
            short="br",
            asked=True,
        ),
        Verb("watch TENSOR", "W", "stop where a tensor or its .grad changes", moves.watch),
        Verb("delete N|all", "", "delete breakpoint N, or all", moves.delete),
        Verb("continue", "c", "forward to the next breakpoint", moves.continue_, short="c"),
        Verb("reverse-continue", "r C", "back to the previous breakpoint", _back(moves.continue_), short="rc r"),
        Verb("until PREDICATE", "t", "forward to where it is true: grad.rms < 1e-7", moves.until),
        Verb("back-until PREDICATE", "T", "back to where it is true", _back(moves.until)),
        Verb("nan", "!", "the first event with a NaN or an infinity", showing.first_bad),
        Verb("who TENSOR", "w", "the last change of a tensor; again: the one before", moves.who),
        Verb("search [TEXT]", "/", "an op, a name, 8x3, a line; empty: again", moves.search, short="/", asked=True),
        Verb("search-back [TEXT]", "\\", "the same, backwards", _back(moves.search), short="\\", asked=True),
        Verb("mark [NAME]", "m", "a bookmark here", moves.mark, near=True),
        Verb("marks", "'", "the bookmarks", moves.marks, near=True),
    ),
    RANKS: (
        Verb("collective [N]", "}", "the next collective, on all ranks", group.collective, of_group=True),
        Verb("collective-back [N]", "{", "the one before, on all ranks", _back(group.collective), of_group=True),
        Verb("rank [RANK]", "R", "look into rank N; without N, at all ranks", group.rank, asked=True, of_group=True),
    ),
    LESSON: (
        Verb("question", "Q", "to the question that is open", lambda one, _: _lesson(one).ask(one)),
        Verb(
            "answer TEXT", "A", "answer it: 0.6, [1, 2], None, yes", lambda one, text: _lesson(one).answered(one, text)
        ),
        Verb("show-answer", "Z", "show the answer", lambda one, _: _lesson(one).answered(one, None)),
    ),
    "To understand": (
        Verb("why [TENSOR]", "y", "the chain rule here; why w.grad: how it came about", showing.why, near=True),
        Verb("info [TENSOR]", "i", "all about this event, or about a tensor", showing.info, near=True),
        Verb("print TENSOR", "E", "elements: w, w.grad, w[0, :3]", showing.print_),
        Verb("set NAME = NUMBER", "", "run this pass again with another value: x = 4", showing.set_),
        Verb("unset [NAME]", "", "take the value of NAME back, or all", showing.unset),
        Verb("eval EXPRESSION", "X", "p x.sum(): Python in the paused script (debug only)", showing.evaluate),
        Verb("check-node", "V", "this VJP against finite differences (debug only)", check_node),
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
    return [title for title, is_here in ((LESSON, session.exercise is not None), (RANKS, are_together)) if not is_here]


def help_page(left_out: Collection[str] = (), language: str = "en") -> list[str]:
    """All keys at a glance, and then the verbs by groups: the command, its keys and what it does. Groups in `left_out`
    are omitted."""
    groups = {title: verbs for title, verbs in GROUPS.items() if title not in left_out}
    signs = {
        verb: [KEY_SIGNS.get(key, key) for key in verb.keys.split()[:3]] or [":"]
        for verbs in groups.values()
        for verb in verbs
    }
    cells = [f"{keys[0]:>5} {verb.name:<18}" for verb, keys in signs.items()]
    per_column = -(-len(cells) // 3)
    lines = [said(language, "Keys and commands"), *("".join(cells[row::per_column]) for row in range(per_column))]
    lines += [said(language, text) for text in _ABOUT_HELP]
    for title, verbs in groups.items():
        lines.append(said(language, title))
        lines += [f"  {verb.usage:<21} {' '.join(signs[verb]):<11} {said(language, verb.help)}" for verb in verbs]
    return lines


_ABOUT_HELP = (
    "  Type : and a command with its argument, such as :until grad.rms < 1e-7",
    "  :help VERB explains one verb, :help fields lists the fields of predicates",
    "  Time: ● here  ✗ error  ! NaN or inf  ◆ breakpoint  * bookmark  ~ in place",
)
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
