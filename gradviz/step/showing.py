"""Verbs that show something on a page: what the present event or a tensor is, how a gradient came about, elements,
leaves, paths, and the results of other values; also `nan`, `export` and `quit`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from gradviz.events.kinds import Kind
from gradviz.events.site import Place
from gradviz.query.curves import norm_of
from gradviz.query.flow import count_ways, op_of, shortest_way
from gradviz.query.moment import TensorState
from gradviz.query.ops import function_name
from gradviz.query.predicate import Predicate
from gradviz.query.writes import grad_changes
from gradviz.step import NO_VALUES, CommandError
from gradviz.step.leaves import PLAIN, View, last_change, ordered
from gradviz.step.leaves import leaves as lines_of_leaves
from gradviz.step.state import Resume, Session
from gradviz.step.timeline import position
from gradviz.words.absence import no_grad_reason, no_grad_told, zero_told
from gradviz.words.chain_rule import why as explained
from gradviz.words.escape import clean, shortened, shortened_left
from gradviz.words.forward_mode import compare as modes_compared
from gradviz.words.numbers import brief, number, shape, value
from gradviz.words.rows import rows
from gradviz.words.sentences import fields_told, sentence
from gradviz.words.source import source, title
from gradviz.words.stop import Stop, Subject, changes, subject

_SHOWN = 12  # events
WIDTH = 100  # of a stop as plain text
_SOURCE, _LEAVES = 4, 20  # lines of it


def why(session: Session, argument: str) -> None:
    if not argument:
        session.page = explained(session.stop)
        return
    session.reach_all()
    about = subject(session.words, argument, session.position)
    born = session.trace.born(about.tensor)
    # the tensor does not exist yet: answer for the end of the trace
    if born is not None and born > session.position:
        until_end = session.stop.other(session.last)
        title = until_end.say("{event} makes {name}; at the end:", event=until_end.event_of(born), name=about.called)
        session.page = [title, *_why_grad(until_end, about)]
    else:
        session.page = _why_grad(session.stop, about)


def _why_grad(stop: Stop, about: Subject) -> list[str]:
    """The reason why a `.grad` is None, or the accumulations and other changes that led to it."""
    grad = stop.moment.grad(about.tensor)
    if not grad:
        return [no_grad_told(stop, about.tensor, about.called)]
    name = about.called
    lines = [f"{name}.grad = {stop.value(grad)}"]
    changed = grad_changes(stop.query, about.tensor)
    for event in changed[changed <= stop.k][-_SHOWN:].tolist():
        lines.append(f"  {stop.event_of(event)}: {sentence(stop.other(event))}")
    if zero := zero_told(stop, about.tensor, name):
        lines.append(f"  {zero}")
    return [*lines, stop.say("  (who {name}.grad goes to its last change)", name=name)]


def info(session: Session, argument: str) -> None:
    if not argument:
        session.page = _about_event(session)
        return
    session.reach_all()
    about = subject(session.words, argument, session.position)
    session.page = _about_tensor(session, about.tensor)


def _about_event(session: Session) -> list[str]:
    stop, trace = session.stop, session.trace
    event = stop.event
    kind = Kind(stop.event_kind).name.lower()
    head = stop.say(
        "event {event} of {count}: {kind}, thread {thread}",
        event=stop.k + 1,
        count=trace.count,
        kind=kind,
        thread=event.thread,
    )
    lines = [head, f"  {sentence(stop)}"]
    lines += [f"  {name:<12} {told}" for name, told in fields_told(event)]
    for site in stop.query.places.callers(event.site):
        inside = stop.say(" in {function}", function=clean(site.place.function))
        lines.append(stop.say("  at {place}", place=f"{clean(site.place.file)}:{site.place.line}") + inside)
    return lines


def _about_tensor(session: Session, tensor: int) -> list[str]:
    words, stop = session.words, session.stop
    name = words.called(tensor)
    born = session.trace.born(tensor)
    say = stop.say
    if born is None or born > session.position:
        there = say("no event of the trace makes it")
        if born is not None:
            there = say("{event} makes it", event=stop.event_of(born))
        text, now = "{name} does not exist yet at {event}: {there}", stop.event_of(session.position)
        return [say(text, name=name, event=now, there=there)]
    state = stop.moment.state(tensor)
    made = f"{stop.event_of(born)}: {sentence(stop.other(born))}"
    lines = [say("{name} (tensor {tensor})", name=name, tensor=tensor), _labelled(stop, "made", made)]
    if state.value is not None:
        text = f"{stop.value(tensor)}  {shape(state.value)} {state.value.dtype}"
        lines.append(_labelled(stop, "value", text))
    version = say(", version {version}", version=state.version)
    flags = f"is_leaf={state.is_leaf}, requires_grad={state.requires_grad}{version}"
    lines.append(_labelled(stop, "flags", flags))
    grad_fn = clean(words.query.nodes.name(stop.moment.grad_fn(tensor)))
    lines.append(_labelled(stop, "grad_fn", grad_fn or "None"))
    lines.append(_labelled(stop, ".grad", stop.value(state.grad) if state.grad else "None"))
    if not state.grad:
        lines.append(_labelled(stop, "", no_grad_reason(stop, tensor, name)))
    if tangent := stop.moment.tangent(tensor):
        lines.append(_labelled(stop, "tangent", stop.value(tangent)))
    for label, part in (("changed at", "value"), (".grad at", "grad")):
        events = changes(words, Subject(tensor, name, part))
        if len(events):
            text = say("event {event}", event=", ".join(str(event + 1) for event in events[:_SHOWN].tolist()))
            more = say(", … {count} in all", count=len(events)) if len(events) > _SHOWN else ""
            lines.append(_labelled(stop, label, text + more))
    return lines


def _labelled(stop: Stop, label: str, text: str) -> str:
    return f"  {set_cell_size(stop.say(label) if label else '', 11)} {text}"


def where(session: Session, argument: str) -> None:
    """Show the stack of calls at the place of this event: innermost first, each with its line of source."""
    site, _ = session.stop.place
    if site is None:
        session.page = [session.say("this event has no place in the source")]
        return
    places = [] if site.library is None else [site.library]
    places += [one.place for one in session.query.places.callers(site.number)]
    session.page = [line for place in places for line in _call_at(session, place)]


def _call_at(session: Session, place: Place) -> list[str]:
    text = session.trace.source(place.file)[place.line - 1 : place.line]
    inside = session.say(" in {function}", function=clean(place.function))
    return [f"{clean(place.file)}:{place.line}{inside}", *(f"    {clean(line.strip())}" for line in text)]


def compare(session: Session, argument: str) -> None:
    session.page = modes_compared(session.stop)


_BAD = {(True, True): "a NaN or an infinity", (True, False): "a NaN", (False, True): "an infinity", (False, False): ""}


def first_bad(session: Session, argument: str) -> None:
    """Go to the first event with a NaN or an infinity; from there, to the next one. An infinity that the program
    wrote itself, as in a mask, counts only if there is nothing else. If there is neither, go to the first error."""
    bad = session.bad
    what, events = _BAD[bad.nan, bad.inf], bad.events
    if session.live and (not len(events) or session.position == events[-1]):
        session.go_on(Resume(predicate=Predicate("nan or inf")))
        return
    if not len(events):
        session.message = session.say("no NaN or infinity in this run" if session.trace.has_values else NO_VALUES)
        errors = session.errors
        if len(errors):
            session.go(int(errors[0]))
            session.message += session.say(", but an error: here it is (y or why explains it)")
        return
    later = events[events > session.position]
    at_first = session.position == events[0]
    if at_first and not len(later):
        session.message = session.say("the only event with {what}", what=session.say(what))
        return
    session.go(int(later[0] if session.position >= events[0] and len(later) else events[0]))
    number = int(np.searchsorted(events, session.position)) + 1
    first = "the first of {events} with {what}: y (why) explains its origin"
    other = "number {number} of {events} with {what}: y (why) explains its origin"
    count = session.events_told(len(events))
    session.message = session.say(first if number == 1 else other, number=number, events=count, what=session.say(what))


def describe(stop: Stop, view: View = PLAIN) -> str:
    """A stop in a few lines of at most WIDTH characters; only the sentence may be longer."""
    return "\n".join(line.rstrip() for line in _lines(stop, view))


def _lines(stop: Stop, view: View) -> Iterator[str]:
    yield position(stop)
    yield sentence(stop)
    site, _ = stop.place
    if site is not None:
        yield f"  {title(stop)}"
        yield from _texts(source(stop, WIDTH - 2, _SOURCE))
    for row in rows(stop):
        yield shortened(f"  {set_cell_size(stop.say(row.label), 11)}{row.text}", WIDTH)
    yield f"  {stop.say('variables' if view.variables else 'leaves')}"
    yield from _texts(lines_of_leaves(stop, WIDTH - 2, _LEAVES, View(variables=view.variables)))


def _texts(lines: list[Text]) -> Iterator[str]:
    return (f"  {line.plain}" for line in lines)


def export(session: Session, argument: str) -> None:
    """Write the state at this event into a file: the graph so far, in the format of the ending, or the stop as text."""
    file = Path(argument)
    if file.suffix.lower() in (".txt", ""):
        file = file.with_suffix(".txt")
        try:
            file.write_text(describe(session.stop) + "\n", encoding="utf-8")
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise CommandError("cannot write {file}: {reason}", file=file, reason=reason) from None
    elif session.exporter is None:
        raise CommandError("only .txt files can be written here")
    else:
        session.exporter(session.trace, session.position, file)
    text = "wrote {file}: the state after event {event}"
    session.message = session.say(text, file=clean(str(file)), event=session.position + 1)


def quit_(session: Session, argument: str) -> None:
    session.over = True


_ORDERS = {
    "made": "as they were made",
    "norm": "by the norm of their gradient",
    "change": "by their last change",
    "name": "by name",
}
_ROWS = 3  # rows by which the table is scrolled, fewer than the small table has
_LONGEST = 28, 50  # characters of a name; of a name and a value together, so that a row fits in 80 columns


def leaves(session: Session, argument: str) -> None:
    """Show all leaves in an order, which the table on the screen keeps too. Raises CommandError for an unknown
    order."""
    order = argument or session.settings.leaves.order
    if order not in _ORDERS:
        raise CommandError(
            "leaves are ordered by {orders}: not by {order}",
            orders=", ".join(_ORDERS),
            order=shortened(clean(order), 30),
        )
    session.settings.leaves = View(order)
    tensors = ordered(session.query, session.stop.tabled, order, session.position)
    names = [*_ORDERS]
    following = names[(names.index(order) + 1) % len(names)]
    title = "{count} leaf {order} (a: by {next})" if len(tensors) == 1 else "{count} leaves {order} (a: by {next})"
    session.page = [
        session.say(title, count=f"{len(tensors):,}", order=session.say(_ORDERS[order]), next=following),
        *_leaf_table(session, tensors),
    ]
    session.page_keys = {"a": f"leaves {following}"}


def _leaf_table(session: Session, tensors: list[int]) -> list[str]:
    if not tensors:
        return [session.say("  no leaf yet")]
    width = min(max(len(session.words.called(tensor)) for tensor in tensors), _LONGEST[0])
    lines = [_leaf_line(" " * width, *(session.say(head) for head in (".grad norm", "changed", "value")))]
    for tensor in tensors:
        name = shortened_left(session.words.called(tensor), width)
        state = session.stop.moment.state(tensor)
        event = last_change(session.query, tensor, session.position)
        changed = session.say("event {event}", event=event + 1) if event >= 0 else ""
        value = shortened(brief(state.value), _LONGEST[1] - width)
        lines.append(_leaf_line(set_cell_size(name, width), _gradient_norm(state), changed, value))
    return lines


def _leaf_line(name: str, norm: str, changed: str, value: str) -> str:
    """A row of the table; some signs are two columns wide."""
    changed += " " * (9 - cell_len(changed))
    return f"  {name}  {set_cell_size(norm, 10)}  {changed}  {value}"


def _gradient_norm(state: TensorState) -> str:
    """The norm of a leaf's gradient, or the reason why there is none."""
    if not state.grad:
        return "None" if state.requires_grad or not state.is_leaf else "no grad"
    norm = norm_of(state.grad_value)
    return "?" if norm is None else number(norm, 4)


def scroll_leaves(session: Session, argument: str, forward: bool = True) -> None:
    """Scroll the table of leaves down; if not `forward`, up."""
    rows = _ROWS if forward else -_ROWS
    view, count = session.settings.leaves, len(session.stop.tabled)
    first = max(min(view.first + rows, count - 1), 0)
    session.settings.leaves = View(view.order, first)
    text = "leaves from number {first} of {count}"
    session.message = session.say(text, first=first + 1, count=count) if first else ""


def variables(session: Session, argument: str) -> None:
    """Show the variables that hold tensors in place of the leaves, or the leaves again."""
    session.settings.leaves = View(variables=not session.settings.leaves.variables)


def set_(session: Session, argument: str) -> None:
    """Set a value of a tensor or of an element, in addition to the values already set, and show the results of the
    pass. Raises CommandError if the argument is not `NAME = NUMBER`, or no pass can run again."""
    name, sign, value = (part.strip() for part in argument.partition("="))
    if not sign or not name or not value:
        raise CommandError("set takes NAME = NUMBER, as in set x = 4 or set w[0, 2] = 0")
    _show_tried(session, {**session.tried, name: value})


def unset(session: Session, argument: str) -> None:
    """Take back one value that was set, or all. Raises CommandError if the value was not set."""
    if argument and argument not in session.tried:
        raise CommandError("{name} was not set", name=clean(argument))
    rest = {name: value for name, value in session.tried.items() if argument and name != argument}
    if rest:
        _show_tried(session, rest)
        return
    session.tried = {}
    session.message = session.say("all values are as they were recorded")


def _show_tried(session: Session, tried: dict[str, str]) -> None:
    """Show the results of the pass of this event with other values, and keep the values if the pass could run."""
    if session.what_if is None:
        raise CommandError("nothing can run again here")
    pass_here = session.trace.pass_ending_from(session.position)
    sets = [f"{name}={value}" for name, value in tried.items()]
    lines = session.what_if(session.words, None if pass_here is None else pass_here.number, sets)
    session.page = [session.say("with {sets}; unset takes it back", sets=clean(", ".join(sets))), *lines]
    session.tried = tried


_MOST = 1_000  # elements on one page
_ON_A_LINE = 5
_INDEX = re.compile(r"^(?P<name>.*?)\s*\[(?P<index>[^\[\]]*)\](?P<part>\.grad)?$")
_PAGE = re.compile(r"^(?P<what>.*\S)\s+page\s+(?P<number>[0-9]{1,9})$")
_PART = re.compile(r"^\s*(-?\d*)\s*(?:(:)\s*(-?\d*)\s*(?::\s*(-?\d*)\s*)?)?$")


def print_(session: Session, argument: str) -> None:
    """Show the elements of a tensor at this event. Raises CommandError for an index that does not fit."""
    page = _PAGE.match(argument.strip())
    argument = argument.strip() if page is None else page["what"]
    name, index, part = argument, None, ""
    if found := _INDEX.match(name):
        name, index, part = found["name"], _index(found["index"]), found["part"] or ""
    about = subject(session.words, name + part, session.position)
    moment = session.stop.moment
    tensor = moment.grad(about.tensor) if about.part == "grad" else about.tensor
    snapshot = moment.value(tensor) if tensor else None
    if snapshot is not None and snapshot.array is None and session.fill(session.query, session.position):
        snapshot = moment.value(tensor)
    if snapshot is None:
        session.page = [
            session.say("{name} is None here" if about.part == "grad" else "{name} has no value here", name=about)
        ]
        return
    if snapshot.array is None:
        kept = "its elements were not kept: record it with --values full"
        if snapshot.part is not None:
            kept = "its elements lie on several ranks, and are not kept"
        session.page = [f"{about} {value(snapshot)}", f"  {session.say(kept)}"]
        return
    try:
        array = snapshot.array if index is None else np.asarray(snapshot.array[index])
    except IndexError as error:
        raise CommandError(f"{clean(argument)}: {error}") from None
    where = "" if index is None else f" of {shape(snapshot)}"
    if array.size > _MOST or page is not None:
        _show_page(session, argument, array, 1 if page is None else int(page["number"]), where)
        return
    text = np.array2string(array, max_line_width=76, threshold=_MOST + 1, separator=", ", precision=6)
    session.page = [f"{clean(argument)}{where}, {snapshot.dtype}", *(f"  {line}" for line in text.splitlines())]


def _show_page(session: Session, argument: str, array: np.ndarray, number: int, where: str) -> None:
    """Show one page of many elements, each line with the index of its first element."""
    count = max(-(-array.size // _MOST), 1)
    if not 1 <= number <= count:
        none = "there is no page {number}: {name} has {count} page, from 1"
        some = "there is no page {number}: {name} has {count} pages, from 1"
        raise CommandError(none if count == 1 else some, number=number, name=clean(argument), count=f"{count:,}")
    first, end = (number - 1) * _MOST, min(number * _MOST, array.size)
    following = session.say(
        " (Space, or print {name} page {number}: the next)", name=clean(argument), number=number + 1
    )
    part = session.say(
        "elements {first} to {end} of {size}, page {number} of {count}",
        first=f"{first + 1:,}",
        end=f"{end:,}",
        size=f"{array.size:,}",
        number=f"{number:,}",
        count=f"{count:,}",
    )
    size = "×".join(map(str, array.shape))
    session.page = [
        f"{clean(argument)}{where}, ({size}) {array.dtype}",
        f"  {part}{following if number < count else ''}",
        *_element_lines(array, first, end),
    ]
    if number < count:
        session.page_keys = {"space": f"print {argument} page {number + 1}"}


def _element_lines(array: np.ndarray, first: int, end: int) -> Iterator[str]:
    """The elements from `first` to `end`, in row-major order; each row of the tensor begins a line."""
    row = array.shape[-1] if array.ndim else 1
    while first < end:
        index = np.unravel_index(first, array.shape)
        until = min(first + _ON_A_LINE, first - first % row + row, end)
        row_text = "  ".join(f"{number(element):>11}" for element in array.flat[first:until])
        yield f"  {'[' + ', '.join(map(str, index)) + ']':<10} {row_text}"
        first = until


def _index(text: str) -> tuple[Any, ...]:
    """`0, :3, ...` as an index. Nothing is evaluated."""
    parts: list[Any] = []
    for part in text.split(","):
        if part.strip() == "...":
            parts.append(Ellipsis)
            continue
        match = _PART.match(part)
        if match is None or not part.strip():
            raise CommandError("an index is like [0, :3, -1], not [{text}]", text=shortened(clean(text), 30))
        first, colon, last, step = match.groups()
        if not colon:
            parts.append(int(first))
            continue
        numbers = [int(number) if number else None for number in (first, last, step)]
        if numbers[2] == 0:
            raise CommandError("the step of a slice is not 0")
        parts.append(slice(*numbers))
    return tuple(parts)


SHOWN = 20  # steps of a path


def path(session: Session, argument: str) -> None:
    """Show the shortest path from A to B, op by op, with the value of each tensor on it, and the number of paths."""
    session.page = _path(session.stop, argument)


def _path(stop: Stop, text: str) -> list[str]:
    names = text.replace("->", " ").replace("→", " ").split()
    if len(names) != 2:
        return [stop.say("path takes two tensors: path x loss")]
    start, end = (subject(stop.words, name, stop.k) for name in names)
    if start.tensor == end.tensor:
        return [stop.say("{one} and {other} are the same tensor", one=start.called, other=end.called)]
    way = shortest_way(stop.query, start.tensor, end.tensor)
    if not way and shortest_way(stop.query, end.tensor, start.tensor):
        start, end = end, start
        way = shortest_way(stop.query, start.tensor, end.tensor)
    if not way:
        none = "no path leads from {start} to {end}: neither was computed from the other"
        return [stop.say(none, start=start.called, end=end.called)]
    ways = count_ways(stop.query, start.tensor, end.tensor)
    found_told = "{start} → {end}: {count} paths, the shortest:" if ways > 1 else "{start} → {end}: {count} path"
    lines = [stop.say(found_told, start=start.called, end=end.called, count=f"{ways:,}")]
    lines += _path_steps(stop, way)
    if ways > 1:
        lines.append(stop.say("  the gradient of {name} is the sum over all {count}", name=start.called, count=ways))
    return lines


def _path_steps(stop: Stop, way: list[int]) -> list[str]:
    lines = []
    for at, tensor in enumerate(way):
        op = op_of(stop.query, tensor) if at else None
        if op is not None:
            node = stop.query.nodes.main_of_op(op.index)
            cut = stop.say("{op}, and the gradient is cut off here: no node", op=clean(function_name(op.op)))
            lines.append(f"    ↓ {stop.words.node_name(node) if node else cut}")
        lines.append(f"  {stop.called(tensor)} = {value(stop.moment.value(tensor))}")
    if len(lines) > SHOWN:
        lines = [
            *lines[: SHOWN // 2],
            stop.say("    … {count} lines …", count=len(lines) - SHOWN),
            *lines[-SHOWN // 2 :],
        ]
    return lines


_ELEMENTS = re.compile(r"[\w.#]+(\s*\[[^\[\]]*\](\.grad)?)?")


def evaluate(session: Session, argument: str) -> None:
    """Evaluate Python in the paused script. On a trace, show elements if the argument names a tensor or its elements.
    Raises CommandError for anything else."""
    if session.script is not None:
        session.page = [shortened(clean(line), _LONGEST_LINE) for line in session.script.evaluate(argument)]
        if session.position != session.last:
            session.page.append(f"(the script stands at event {session.last + 1})")
    elif _ELEMENTS.fullmatch(argument):
        print_(session, argument)
    else:
        raise CommandError(
            "p evaluates Python in a script that waits (gradviz debug); a trace has elements: print w[0, :3]"
        )


_LONGEST_LINE = 2_000  # characters of a line
