"""The state at an event is the same however one came there, and is what the events up to it add up to."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradviz.errors import GradvizError
from gradviz.sources.record import record
from gradviz.step.leaves import PLAIN
from gradviz.step.screen import Screen
from gradviz.step.showing import describe
from gradviz.step.state import Session
from gradviz.step.verbs import VERBS, Verb, obey
from gradviz.tracefile import open_trace
from gradviz.words.chain_rule import why
from tests.query.test_moment import STEPS, Machine, naive, seen

# For each verb that takes something, what it may be given.
GIVEN = {
    "[N]": ("", "2", "7"),
    "N": ("1", "2", "9", "33", "here", "0", "1000000"),
    "[WHAT]": ("", "op mul", "nan", "mutation", "error", "grad.rms > 1", 'kind == "produced"', "nonsense"),
    "TENSOR": ("t0", "t1", "t0.grad", "t1.grad", "t4", "nobody"),
    "[TENSOR]": ("", "t0", "t1", "t0.grad", "t1.grad", "t4.grad"),
    "N|all": ("1", "all"),
    "PREDICATE": ('op == "mul"', "backward", "grad.rms < 0.1", "event > 20", 'kind == "accumulated"', "version > 0"),
    "[TEXT]": ("", "mul", "2", "sum", "x"),
    "[NAME]": ("", "here"),
    "A B": ("t0 t4", "t1 t3", "t4 t0"),
    "[VERB]": ("", "until", "fields"),
    "[ORDER]": ("", "made", "norm", "change", "name", "size"),
    "EXPRESSION": ("t0", "t1.grad", "t0 + 1"),
    "TEXT": ("0.6", "None"),
    "[RANK]": ("", "0", "one"),
    "NAME = NUMBER": ("t0 = 2", "nobody = 1", "t0"),
}
LEFT_OUT = {"export", "quit"}  # a file, and the end


def commands_of(verb: Verb) -> list[str]:
    return [f"{verb.name} {given}".strip() for given in GIVEN.get(verb.argument, ("",))]


COMMANDS = st.one_of(*(st.sampled_from(commands_of(verb)) for verb in VERBS if verb.name not in LEFT_OUT))
PAIRS = (
    ("over", "over-back"),
    ("next-backward", "back-backward"),
    ("next-forward", "back-forward"),
    ("again", "again-back"),
)


def recorded(directory: Path, steps: list[tuple[int, int, int]]) -> Path:
    with record(directory / "run.gradviz"):
        machine = Machine()
        for step in steps:
            with suppress(RuntimeError):  # it has modified what was saved: that is an event too
                machine.step(*step)
    return directory / "run.gradviz"


def shown(session: Session) -> tuple[str, list[str], list[str]]:
    """All that there is to see at a stop, the session's own messages and pages aside."""
    fresh = Session(session.trace, session.position)
    assert fresh.position == session.position
    session.message, session.page = "", []
    session.settings.leaves = PLAIN  # the order of the table is the session's own
    lines = [line.plain for line in Screen(session).lines(120, 29)[:-2]]
    return describe(session.stop), lines, why(session.stop)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(STEPS, st.lists(COMMANDS, min_size=1, max_size=25))
def test_a_stop_is_the_same_however_one_came_there(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int]], commands: list[str]
) -> None:
    path = recorded(tmp_path_factory.mktemp("walk"), steps)
    known: dict[int, tuple[str, list[str], list[str]]] = {}
    with open_trace(path) as trace:
        told = naive(trace)
        first = trace.event(0).tensor  # tensors are numbered on from one recording to the next
        session = Session(trace)
        for command in commands:
            before = session.position
            try:
                obey(session, re.sub(r"\bt(\d)", lambda n: f"t{first + int(n[1])}", command))
            except GradvizError:
                assert session.position == before
            k = session.position
            assert seen(session.stop.moment, told[k]) == told[k]
            found = shown(session)
            if k not in known:
                known[k] = straight(path, k)
            assert found == known[k]


def straight(path: Path, k: int) -> tuple[str, list[str], list[str]]:
    """What is to be seen at event k in a trace opened anew, gone to at once."""
    with open_trace(path) as trace:
        return shown(Session(trace, k))


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(STEPS)
def test_forwards_and_backwards_pass_the_same_stops(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int]]
) -> None:
    with open_trace(recorded(tmp_path_factory.mktemp("walk"), steps)) as trace:
        session = Session(trace)
        there = [describe(session.stop)]
        while session.position < session.last:
            obey(session, "next")
            there.append(describe(session.stop))
        other = Session(trace, session.last)
        back = [describe(other.stop)]
        while other.position:
            obey(other, "back")
            back.append(describe(other.stop))
    assert there == back[::-1]


def test_every_verb_is_walked_with() -> None:
    assert {verb.argument for verb in VERBS} - {"", "FILE"} == set(GIVEN)
    assert {verb.name for verb in VERBS} > LEFT_OUT


def depth_at(session: Session, position: int) -> int:
    """In how many scopes and passes an event lies."""
    return int(session.query.scopes.depths[position])


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(STEPS, st.integers(0, 60))
def test_there_and_back_again_is_where_one_was(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int]], start: int
) -> None:
    with open_trace(recorded(tmp_path_factory.mktemp("walk"), steps)) as trace:
        for there, back in PAIRS:
            session = Session(trace, min(start, trace.count - 1))
            obey(session, there)
            reached = session.position
            if session.message:
                continue
            obey(session, there)
            if session.message:
                continue
            if there == "over" and depth_at(session, session.position) != depth_at(session, reached):
                continue  # it left a scope or a pass: the way back is over the whole of that
            obey(session, back)
            assert session.position == reached, (there, back)
            obey(session, "undo")
            obey(session, "undo")
            assert session.position == reached
