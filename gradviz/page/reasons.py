"""The first places that a page links to: the first NaN, and the first error; and the reasons why a gradient is None
or 0."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gradviz.events.kinds import Kind
from gradviz.graph.model import LEAF, TENSOR, Graph
from gradviz.query.bad_numbers import bad_numbers
from gradviz.query.predicate_columns import TraceFields
from gradviz.query.zeros import is_zero
from gradviz.words import Stop, Words
from gradviz.words.absence import no_grad_told, zero_told
from gradviz.words.escape import plain

_MOST_WHY = 60  # the most tensors of a view whose missing gradient is explained
_LONGEST = 400


def firsts(words: Words) -> dict[str, int]:
    """The first event with a NaN (`nan`) or an infinity (`inf`; `written` if the program wrote all infinities itself),
    and the first event of an error, as far as they exist."""
    events_of: dict[str, int] = {}
    bad = words.query.of(bad_numbers)
    if len(bad.events):
        has_nan = TraceFields(words.query).column("nan").values[bad.events[0]]
        events_of["nan" if has_nan else "written" if bad.written else "inf"] = int(bad.events[0])
    errors = words.trace.indices(Kind.ERROR)
    if len(errors):
        events_of["error"] = int(errors[0])
    return events_of


def places(found: Mapping[str, int], views: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """For each of these events, the view of a page that replays it, and the step: `[-1, event]` if no view does."""
    steps = [[step["k"] for step in view["steps"]] for view in views]
    place_of = {}
    for name, k in found.items():
        at = [(bisect_left(own, k), position) for position, own in enumerate(steps)]
        held = [(step, position) for step, position in at if step < len(steps[position]) and steps[position][step] == k]
        place_of[name] = [held[0][1], held[0][0]] if held else [-1, k]
    return place_of


def reasons(graph: Graph, words: Words, k: int) -> dict[str, str]:
    """The reasons for the tensors of a graph whose `.grad` is None or 0 at event k, although a gradient might be
    expected: leaves that require grad, and then named results."""
    wanted = [
        node
        for node in graph.nodes.values()
        if node.kind in (LEAF, TENSOR) and node.name and not node.overwritten
        if not node.has_grad or is_zero(node.grad)
        if node.requires_grad and "." not in (node.name if not node.is_leaf else "")
    ]
    wanted.sort(key=lambda node: not node.is_leaf)
    stop = Stop(words, k)
    reason_at = {}
    for node in wanted[:_MOST_WHY]:
        if words.trace.born(node.number) is not None:
            reason_of = zero_told if stop.moment.grad(node.number) else no_grad_told
            reason_at[node.id] = plain(reason_of(stop, node.number, words.called(node.number)), _LONGEST)
    return {name: reason for name, reason in reason_at.items() if reason}


# The questions of a lesson, as data of a page.

_LONGEST_TEXT = 600  # characters of a text


class Asked(NamedTuple):
    """A question that is asked at the event `stop` and answered by the event `shown`."""

    ask: str
    answer: str
    because: str
    stop: int
    shown: int
    set: str = ""  # another value that the question is about, as `x = 3`


class PageLesson(NamedTuple):
    """A lesson: its questions in order, and the page's own texts in its language: `show` and `next` on buttons,
    `later` for hidden parts, `done` at the end."""

    language: str
    title: str
    about: str
    questions: Sequence[Asked]
    say: Mapping[str, str]


def lesson_data(lesson: PageLesson, views: Sequence[Mapping[str, Any]], small: bool) -> dict[str, Any]:
    """A lesson as plain data. An event becomes a view and a step; `small` is whether the lesson ends with a textbook
    picture."""
    events = {f"{what}{at}": k for at, one in enumerate(lesson.questions)
              for what, k in (("stop", one.stop), ("shown", one.shown))}  # fmt: skip
    place_of = places(events, views)
    return {
        "title": plain(lesson.title, _LONGEST_TEXT),
        "about": plain(lesson.about, _LONGEST_TEXT),
        "small": small,
        "say": {name: plain(text, _LONGEST_TEXT) for name, text in lesson.say.items()},
        "questions": [
            {
                "ask": plain(one.ask, _LONGEST_TEXT),
                "answer": plain(one.answer, _LONGEST_TEXT),
                "because": plain(one.because, _LONGEST_TEXT),
                "stop": place_of[f"stop{at}"],
                "shown": place_of[f"shown{at}"],
                "at": one.stop,
                "until": one.shown,
                "set": plain(one.set, 80),
            }
            for at, one in enumerate(lesson.questions)
        ],
    }
