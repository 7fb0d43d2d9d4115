"""The verbs of the stepper: where each leads, in both directions, and what it says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradviz.events import kinds as k
from gradviz.events.kinds import Kind
from gradviz.query.writes import grad_changes, value_changes
from gradviz.sources.script import Target, run
from gradviz.step.leaves import leaf_rows
from gradviz.step.plain import script
from gradviz.step.showing import describe
from gradviz.step.state import CommandError, Session
from gradviz.step.verbs import GROUPS, LESSON, RANKS, VERBS, obey, parse
from gradviz.tracefile import open_trace
from gradviz.words.sentences import sentence
from gradviz.words.stop import UnknownName
from tests.step.test_step import CUBE, EVERYTHING, LOOP, lesson

Sessions = Callable[[str], Session]

NAN = """\
x = torch.tensor([0.0, 1.0], requires_grad=True)
y = torch.sqrt(x)
loss = (y * 2).sum()
loss.backward()
"""
SAVED = """\
x = torch.tensor([1.0, 2.0], requires_grad=True)
h = torch.exp(x)
s = h.sum()
h.add_(1.0)
try:
    s.backward()
except RuntimeError:
    pass
"""
POOLED = """\
x = torch.ones(1, 1, 4, requires_grad=True)
high, where = torch.nn.functional.max_pool1d(x, 2, return_indices=True)
"""
PATHS = """\
x = torch.tensor(2.0, requires_grad=True)
a = x * 3
b = x * 4
c = a * b
z = c + x
w = torch.tensor(1.0, requires_grad=True)
cut = a.detach()
z.backward()
"""


@pytest.fixture
def session(tmp_path: Path) -> Any:
    opened = []

    def begin(text: str) -> Session:
        folder = tmp_path / str(len(opened))  # a file of its own: what stood in the last would be remembered
        folder.mkdir()
        trace = open_trace(lesson(folder, text))
        opened.append(trace)
        return Session(trace)

    yield begin
    for trace in opened:
        trace.close()


def walk(session: Session, *commands: str) -> int:
    """Where commands lead, counted from 1."""
    for command in commands:
        obey(session, command)
    return session.position + 1


def said(session: Session, command: str) -> str:
    obey(session, command)
    return "\n".join([session.message, *session.page]).strip()


# --- scopes


def test_over_stays_in_a_scope_and_into_enters_the_next(session: Sessions) -> None:
    loop = session(LOOP)
    walk(loop, "into")
    assert sentence(loop.stop) == "enters module model (Sequential)"
    entered = loop.position
    walk(loop, "over")
    assert sentence(loop.stop) == "leaves module model (Sequential)"
    walk(loop, "over-back")
    assert loop.position == entered
    walk(loop, "into")
    assert sentence(loop.stop) == "enters module model.0 (Linear)"
    inner = loop.position
    walk(loop, "next", "over")
    assert [scope.name for scope in loop.stop.moment.scopes] == ["model", "model.0"]
    walk(loop, "out")
    assert sentence(loop.stop) == "leaves module model.0 (Linear)"
    walk(loop, "out-back")
    assert loop.position == inner
    walk(loop, "out", "over", "over", "over")
    assert loop.stop.scope is not None
    assert loop.stop.scope.name == "model.2"
    walk(loop, "over", "out")
    assert sentence(loop.stop) == "leaves module model (Sequential)"
    walk(loop, "into-back")
    assert sentence(loop.stop) == "leaves module model.2 (Linear)"


def test_over_steps_over_a_whole_backward_pass(session: Sessions) -> None:
    cube = session(CUBE)
    assert walk(cube, "7", "over") == 14
    assert sentence(cube.stop).startswith("backward pass 1 ends")
    assert walk(cube, "over-back") == 7
    assert walk(cube, "next", "out") == 14
    assert walk(cube, "back", "out-back") == 7
    assert walk(cube, "out") == 14
    assert "no scope" in said(session(CUBE), "out")


def test_again_is_the_same_place_in_the_next_turn(session: Sessions) -> None:
    loop = session(LOOP)
    obey(loop, "/relu")
    first = loop.position
    turns = [first]
    for _ in range(2):
        obey(loop, "again")
        turns.append(loop.position)
        assert isinstance(loop.stop.event, k.OpRan)
        assert loop.stop.event.op == "relu"
    assert len(set(turns)) == 3
    assert "no later event at this place" in said(loop, "again")
    assert walk(loop, "again-back", "again-back") - 1 == first


def test_passes_are_walked_in_both_directions(session: Sessions) -> None:
    loop = session(LOOP)
    begins = (loop.trace.indices(Kind.PASS_BEGAN) + 1).tolist()
    assert [walk(loop, "next-backward") for _ in begins] == begins
    assert "no backward pass begins after" in said(loop, "next-pass")
    assert [walk(loop, "previous-pass") for _ in begins[1:]] == begins[-2::-1]
    forward = walk(loop, "next-forward")
    assert isinstance(loop.stop.event, k.OpRan)
    assert loop.stop.moment.pass_info is None
    walk(loop, "next-forward")
    assert walk(loop, "back-forward") == forward


# --- breakpoints


@pytest.mark.parametrize(
    ("what", "predicate"),
    [
        ("op log", 'op == "log"'),
        ("log", 'op == "log"'),
        ("grad_fn PowBackward0", 'grad_fn == "PowBackward0"'),
        ("grad_fn Pow", 'grad_fn ~ "Pow"'),
        ("LogBackward0", 'grad_fn == "LogBackward0"'),
        ("tensor y", 'name == "y"'),
        ("y", 'name == "y"'),
        ("line 3", "line == 3"),
        ("lesson.py:3", 'line == 3 and file == "lesson.py"'),
        ("3", "line == 3"),
        ("nan", "nan"),
        ("nan or mutation", "nan or mutation"),
        ("grad.rms < 0.1", "grad.rms < 0.1"),
        ("if grad.rms < 0.1", "grad.rms < 0.1"),
    ],
)
def test_break_says_what_to_stop_at(session: Sessions, what: str, predicate: str) -> None:
    cube = session(CUBE)
    obey(cube, f"break {what}")
    (known,) = cube.breakpoints.by_number.values()
    assert known.predicate is not None
    assert known.predicate.text == predicate


def test_continue_goes_from_breakpoint_to_breakpoint_and_back(session: Sessions) -> None:
    cube = session(CUBE)
    obey(cube, "break log")
    obey(cube, "watch x.grad")
    assert said(cube, "break").splitlines() == ["Breakpoints", "  1  log (1 event)", "  2  watch x.grad (2 events)"]
    there = []
    for _ in range(3):
        obey(cube, "continue")
        there.append(cube.position + 1)
    assert there == [4, 13, 22]
    assert cube.message == "breakpoint 2: watch x.grad"
    assert "this is the last event" in said(cube, "c")
    assert [walk(cube, "reverse-continue") for _ in there] == there[::-1]
    assert "this is the first event" in said(cube, "rc")
    obey(cube, "delete 1")
    assert walk(cube, "c") == 13
    obey(cube, "delete all")
    assert "no breakpoints: break nan" in said(cube, "break")
    with pytest.raises(CommandError, match=r"there is no breakpoint 1 \(there are: none\)"):
        obey(cube, "delete 1")


def test_a_line_is_stopped_at_once_each_time_it_is_come_by(session: Sessions) -> None:
    loop = session(LOOP)
    line = 1 + LOOP.splitlines().index("    loss = (model(x) ** 2).mean()")
    obey(loop, f"break line {line}")
    forward = []
    while obey(loop, "c") or loop.position != loop.last:
        if loop.stop.moment.pass_info is None:
            forward.append(loop.position)
    assert len(forward) == 3
    assert all(sentence(loop.stop.other(at)) == "enters module model (Sequential)" for at in forward)


def test_until_goes_both_ways_and_says_where_else(session: Sessions) -> None:
    cube = session(CUBE)
    assert walk(cube, 'until op == "log"') == 4
    assert said(cube, 'until op == "log"') == 'never after this event: op == "log"'
    assert said(cube, "until event < 3") == "never after this event: event < 3 (2 events before it)"
    assert walk(cube, "back-until event < 3") == 2
    with pytest.raises(CommandError, match=r"did you mean grad.rms\?"):
        obey(cube, "until grad.rsm < 3")


def test_search_finds_ops_names_shapes_and_lines(session: Sessions) -> None:
    loop = session(LOOP)
    obey(loop, "/relu")
    assert isinstance(loop.stop.event, k.OpRan)
    assert loop.stop.event.op == "relu"
    first = loop.position
    obey(loop, "/")
    assert loop.position > first
    assert loop.stop.node_name == "ReluBackward0"
    obey(loop, "\\")
    assert loop.position == first
    obey(loop, "/8x2")
    assert loop.trace.snapshot(loop.stop.event.outputs[0]).shape == (8, 2)  # type: ignore[attr-defined]
    obey(loop, "/8")
    assert loop.stop.place[0].place.line == 8  # type: ignore[union-attr]
    assert "never after this event" in said(loop, "/nothing like it")
    with pytest.raises(CommandError, match="nothing to search for"):
        obey(session(CUBE), "/")


def test_a_loop_of_one_line_is_stopped_at_in_every_turn(session: Sessions) -> None:
    here = session(
        "x = torch.ones(2, requires_grad=True)\nh = x\nfor i in range(4):\n    h = h * 2\nh.sum().backward()\n"
    )
    obey(here, "break 4")
    assert here.message == "breakpoint 1: 4 (8 events)"  # four ops, and where their four nodes receive
    assert [walk(here, "c") for _ in range(4)] == [2, 4, 6, 8]


# --- who


def told(session: Session, tensor: int, at: int) -> Any:
    moment = session.query.at(at)
    state = moment.state(tensor)

    def bits(snapshot: Any) -> Any:
        return None if snapshot is None or snapshot.array is None else snapshot.array.tobytes()

    born = session.trace.born(tensor)
    value = (bits(state.value), state.version) if born is not None and born <= at else None
    return value, (state.grad, bits(state.grad_value))


@pytest.mark.parametrize("text", [CUBE, LOOP, EVERYTHING], ids=["cube", "loop", "everything"])
def test_changes_are_all_the_events_after_which_a_tensor_is_another(session: Sessions, text: str) -> None:
    here = session(text)
    names = here.query.names.all
    named = names.tensors[names.codes > 0].tolist()
    assert named
    for tensor in named:
        values, grads = value_changes(here.query, tensor), grad_changes(here.query, tensor)
        before: Any = (None, (0, None))
        for at in range(here.trace.count):
            now = told(here, tensor, at)
            if now[0] != before[0]:
                assert at in values, (here.words.called(tensor), at)
            if now[1] != before[1]:
                assert at in grads, (here.words.called(tensor), at)
            before = now
        assert not set(grads.tolist()) or grads[0] >= here.trace.born(tensor)


def test_who_walks_back_through_the_changes(session: Sessions) -> None:
    cube = session(CUBE)
    obey(cube, "last")
    assert walk(cube, "who x.grad") == 22
    assert cube.message == "x.grad changed here, 1 earlier change"
    assert walk(cube, "who x.grad") == 13
    assert walk(cube, "who x") == 1
    assert said(cube, "who x") == "x changed here, for the first time"
    assert "event 2, x ** 3 made y" in said(cube, "who y")
    with pytest.raises(UnknownName, match="no tensor is called xx: did you mean x"):
        obey(cube, "who xx")


def test_a_variable_that_names_no_tensor_is_not_suggested(session: Sessions) -> None:
    pooled = session(POOLED)
    obey(pooled, "last")
    with pytest.raises(UnknownName, match=r"no tensor is called where: known names: x$"):
        obey(pooled, "who where")


def test_who_finds_an_optimizer_and_a_write_in_place(session: Sessions) -> None:
    loop = session(LOOP)
    obey(loop, "last")
    obey(loop, "who model.0.weight.value")
    assert "changes model.0.weight in place" in sentence(loop.stop)
    saved = session(SAVED)
    obey(saved, "last")
    obey(saved, "who h")
    assert sentence(saved.stop).startswith("h.add_(1.0) changes h in place")


# --- why


def test_why_is_the_chain_rule_in_numbers(session: Sessions) -> None:
    cube = session(CUBE)
    for at in (10, 11):
        text = said(cube, f"{at}") or said(cube, "why")
        assert "PowBackward0: the chain rule for x ** 3 (lesson.py:2)" in text
        assert "∂z/∂x = ∂z/∂y × ∂y/∂x" in text
        assert "∂y/∂x = 3 · x² = 75" in text
        assert "0.6 = 0.008 × 75" in text
        assert "it goes to AccumulateGrad of x" in text
    obey(cube, "22")
    assert "1.2 = 0.6 (from before) + 0.6 (this pass)" in said(cube, "why")
    assert "backward() adds" in said(cube, "why")


def test_why_a_number_that_is_read_says_once_that_no_gradient_flows(session: Sessions) -> None:
    text = "import gradviz.engine as torch\nx = torch.tensor(2.0, requires_grad=True)\ny = x * 3\nscale = y.item()\n"
    told = "\n".join(script(session(text), ['until kind == "number_read"', "why"]))
    said = "y is read as a plain number by item(): no gradient flows back through that number"
    assert told.count(said) == 2
    assert "no derivative is involved" not in told


def test_why_tells_large_gradients_by_their_statistics(session: Sessions) -> None:
    loop = session(LOOP)
    obey(loop, 'until grad_fn == "ReluBackward0" and kind == "produced"')
    text = said(loop, "why")
    assert "(8×2) rms" in text
    assert len(text.splitlines()) < 10


@pytest.mark.slow
def test_every_event_can_be_explained(session: Sessions) -> None:
    for program in (CUBE, LOOP, EVERYTHING, NAN, SAVED, PATHS):
        here = session(program)
        for at in range(1, here.trace.count + 1):
            obey(here, str(at))
            for verb in ("why", "info"):
                text = said(here, verb)
                assert text
                assert text != "None"
                assert "Traceback" not in text


def test_info_lists_the_fields_of_an_event(session: Sessions) -> None:
    here = session(CUBE)
    obey(here, "3")
    told = [re.sub(r"\d+", "N", line) for line in said(here, "info").splitlines()[2:9]]
    assert told == [
        "  node         N",
        "  grad_fn      PowBackwardN",
        "  op           N",
        "  rule         x: N · x²",
        "  outputs      N",
        "  edges        (node N, nr N, tensor N)",
        "  saved        (tensor N, version N)",
    ]


def test_a_trace_without_values_knows_of_no_nan(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, NAN, values="none")) as trace:
        here = Session(trace)
        unknown = "unknown: this trace has no values (--values none); record it with --values stats"
        assert said(here, "nan") == unknown
        assert said(here, "until out.nan > 0") == unknown
        assert said(here, "until op == 'log'").startswith("never after this event")


def test_a_nan_is_found_before_the_infinities_of_a_mask(session: Sessions) -> None:
    masked = session(
        "x = torch.zeros(2, 3, requires_grad=True)\n"
        "mask = torch.tensor([[True, True, True], [False, True, False]])\n"
        "s = x.masked_fill(mask, float('-inf'))\n"
        "p = torch.softmax(s, dim=-1)\n"
        "p.sum().backward()\n"
    )
    assert re.match(r"the first of \d+ events with a NaN:", said(masked, "nan"))
    assert "NaN in p first appears here: no input has one, but s contains infinities" in said(masked, "why")


def test_an_infinity_that_is_computed_comes_before_the_nan_that_follows(session: Sessions) -> None:
    here = session(
        "x = torch.tensor([0.0, 1.0], requires_grad=True)\ny = torch.log(x)\nz = y * 0.0\nz.sum().backward()\n"
    )
    assert re.match(r"the first of \d+ events with a NaN or an infinity:", said(here, "nan"))
    assert here.stop.event.op == "log"
    assert "infinity in y first appears here" in said(here, "why")


def test_a_written_mask_is_passed_by_where_an_infinity_is_computed(session: Sessions) -> None:
    here = session(
        "x = torch.tensor([0.0, 1.0], requires_grad=True)\n"
        "s = x.masked_fill(torch.tensor([False, True]), float('-inf')) + torch.tensor([0.0, float('-inf')])\n"
        "(torch.softmax(s, -1) / x).sum().backward()\n"
    )
    obey(here, "nan")
    assert here.stop.event.op == "div"


def test_written_infinities_are_gone_to_where_there_is_nothing_else(session: Sessions) -> None:
    here = session("x = torch.zeros(2)\ns = x.masked_fill(torch.tensor([True, False]), float('-inf'))\n")
    assert said(here, "nan").startswith("the first of 1 event with an infinity")


def test_info_tells_changes_of_a_gradient_apart(session: Sessions) -> None:
    here = session("w = torch.ones(2, requires_grad=True)\nfor _ in range(3):\n    (w * 2).sum().backward()\n")
    obey(here, "last")
    told = said(here, "info w")
    assert re.search(r"changed at  event 1\n", told)
    assert len(re.search(r"\.grad at    event (.*)", told)[1].split(", ")) == 3


def test_the_sum_over_paths_is_told(session: Sessions) -> None:
    paths = session(PATHS)
    obey(paths, "last")
    assert said(paths, "path x z").startswith("x → z: 3 paths, the shortest:\n  x = 2\n    ↓ AddBackward0\n  z = ")
    assert said(paths, "path z x").startswith("x → z")
    assert said(paths, "path a z").splitlines()[0] == "a → z: 1 path"
    assert "no path leads from w to z" in said(paths, "path w z")
    assert "cut off here" in said(paths, "path x cut")
    assert "path takes two tensors" in said(paths, "path x")
    obey(paths, "who x.grad")
    assert "3 paths lead to x" in said(paths, "why")


def test_why_a_leaf_that_was_replaced_has_no_grad(session: Sessions) -> None:
    here = session(
        "w = torch.tensor([1.0], requires_grad=True)\nfor _ in range(2):\n    (w * w).backward()\n"
        "    if w.grad is not None:\n        w = w - 0.1 * w.grad\n"
    )
    obey(here, "last")
    told = said(here, "why w.grad")
    assert "w.grad is None: w is a non-leaf since event" in told
    assert told.endswith("update the leaf in place instead: with torch.no_grad(): w -= 0.1 * w.grad")


@pytest.mark.parametrize(
    ("text", "tensor", "reason"),
    [
        (
            CUBE,
            "y",
            "Its gradient passed at event 19 (0.008), but only leaves keep their gradient; call y.retain_grad()",
        ),
        (PATHS, "w", "no path of grad_fns leads from z to it"),
        (PATHS, "cut", "does not require grad (detach() cut it off from the graph, line 7: a.detach())"),
        (LOOP, "x", "x does not require grad (it was made without requires_grad=True, line 4"),
        ("x = torch.ones(2, requires_grad=True)\ny = x * 2\n", "x", "no backward pass has begun yet"),
        ("x = torch.ones(2, requires_grad=True)\ny = x * 2\n", "y", "(and no backward pass has begun yet)"),
        (
            "x = torch.tensor(2.0, requires_grad=True)\n(g,) = torch.autograd.grad(x * x, x)\n",
            "x",
            "torch.autograd.grad() returns the gradients and does not change .grad",
        ),
        (
            "x = torch.tensor(2.0, requires_grad=True)\nwith torch.no_grad():\n    y = x * x\n",
            "y",
            "grad mode was off, as under torch.no_grad()",
        ),
        (
            "x = torch.tensor(2.0, requires_grad=True)\n(x * x).backward()\nx.grad = None\n",
            "x",
            "it was set to None at event",
        ),
    ],
)
def test_why_a_grad_is_none(session: Sessions, text: str, tensor: str, reason: str) -> None:
    here = session(text)
    at_first = said(here, f"why {tensor}.grad")
    if tensor != "x":  # not there yet: an answer about the end is worth more than none
        assert reason in at_first
    obey(here, "last")
    for ask in (f"why {tensor}.grad", f"why {tensor}", f"info {tensor}"):
        assert reason in said(here, ask)


def test_a_grad_that_is_there_is_told_by_what_came(session: Sessions) -> None:
    cube = session(CUBE)
    obey(cube, "last")
    lines = said(cube, "why x").splitlines()
    assert lines[0] == "x.grad = 1.2"
    assert lines[1:3] == [
        "  event 13: x.grad is now 0.6 (was None)",
        "  event 22: x.grad accumulates: 0.6 (before) + 0.6 = 1.2",
    ]


def test_where_a_nan_was_born(session: Sessions) -> None:
    nan = session(NAN)
    obey(nan, "nan")
    assert nan.message.startswith("the first of 3 events")
    assert sentence(nan.stop) == "SqrtBackward0 gives [inf, 1] to x: upstream × 1 / (2√x)"
    text = said(nan, "why")
    assert "an infinity in gradient of x first appears here" in text
    assert "y = [0, 1]" in text
    obey(nan, "nan")
    assert nan.message.startswith("number 2 of 3")
    assert said(session(CUBE), "nan") == "no NaN or infinity in this run"


def test_which_line_modified_a_saved_tensor(session: Sessions) -> None:
    saved = session(SAVED)
    obey(saved, "until error")
    for _ in range(2):  # at the error, and at the end of the pass that it broke off
        text = said(saved, "why")
        assert "the node was made by torch.exp(x), line 2" in text
        assert "it saved h at version 0, and then (event 6, line 4):" in text
        assert "h.add_(1.0) changes h in place: [2.718, 7.389] → [3.718, 8.389], version 1" in text
        obey(saved, "next")


# --- bookmarks, export, help


def test_bookmarks_and_undo_lead_back(session: Sessions) -> None:
    cube = session(CUBE)
    obey(cube, "11")
    obey(cube, "mark here")
    obey(cube, "last")
    assert walk(cube, "undo") == 11
    assert walk(cube, "undo") == 23
    obey(cube, "mark")
    assert cube.message == "bookmark a: event 23 (goto a)"
    assert walk(cube, "goto here") == 11
    assert said(cube, "marks").splitlines() == [
        "Bookmarks",
        "    here  event 11: PowBackward0 gives 0.6 to x: 0.008 × 75",
        "       a  event 23: backward pass 2 ends; its buffers are freed",
    ]
    with pytest.raises(CommandError, match="not a number: nowhere"):
        obey(cube, "goto nowhere")


def test_help_tells_of_each_verb_and_of_the_fields(session: Sessions) -> None:
    cube = session(CUBE)
    text = "\n".join(script(cube, ["help"]))
    for verb in VERBS:
        assert (verb.usage in text) == (verb not in (*GROUPS[LESSON], *GROUPS[RANKS]))
        assert said(cube, f"help {verb.name}").startswith(f"{verb.usage}: ")
    assert "grad.rms < 1e-7" in said(cube, "help fields")
    with pytest.raises(CommandError, match="unknown command"):
        obey(cube, "help nonsense")


def test_no_key_and_no_name_is_taken_twice() -> None:
    keys = [key for verb in VERBS for key in verb.keys.split()]
    names = [name for verb in VERBS for name in {verb.name, *verb.short.split()}]
    assert len(keys) == len(set(keys))
    assert len(names) == len(set(names))
    assert all(verb.keys or verb.name in ("goto", "delete", "set", "unset") for verb in VERBS)
    assert not any(key.isdigit() or key == ":" for key in keys)
    assert parse("/ x")[1] == parse("/x")[1] == "x"


def test_a_command_that_does_not_move_does_not_tell_the_stop_again(session: Sessions) -> None:
    printed = "\n".join(script(session(CUBE), ["break log", "c", "mark a"]))
    assert printed.count("leaves\n") == 1
    assert printed.endswith("> mark a\nbookmark a: event 4 (goto a)\n")
    assert np.count_nonzero([line.startswith("> ") for line in printed.splitlines()]) == 3


CUTS = {
    "w = y.detach()": "the path from it to z is cut at event 4, line 3: y.detach(): detach() cut it off from the graph",
    "w = y.data": "the path from it to z is cut at event 4, line 3: y.data: .data is outside of the graph",
    "with torch.no_grad(): w = y * 1": "line 3: y * 1: grad mode was off, as under torch.no_grad()",
    "w = torch.tensor(1.0)": "no path of grad_fns leads from z to it: z was not computed from it",
}


@pytest.mark.parametrize("line", CUTS)
def test_the_line_that_cut_a_leaf_off_is_named(session: Sessions, line: str) -> None:
    stepper = session(
        "x = torch.tensor(2.0, requires_grad=True)\n"
        f"y = x * 3\n{line}\n"
        "v = torch.tensor(1.0, requires_grad=True)\n"
        "z = w * v\nz.backward()\n"
    )
    obey(stepper, "last")
    obey(stepper, "why x.grad")
    assert stepper.page[0].startswith("x.grad is None: ")
    assert stepper.page[0].endswith(CUTS[line])


def test_why_adds_what_came_to_a_leaf_along_several_paths(session: Sessions) -> None:
    stepper = session("x = torch.tensor(2.0, requires_grad=True)\ny = x * 3\nz = y + x\nz.backward()\n")
    obey(stepper, 'until grad_fn == "AccumulateGrad"')
    obey(stepper, "why")
    assert stepper.page[1:] == [
        "  it arrived along 2 paths; the gradients of all paths are added:",
        "    1  from AddBackward0 of y + x, line 3",
        "    3  from MulBackward0 of x * 3, line 2",
        "  1 + 3 = 4",
        "  a leaf's gradient ends here: it is added to .grad",
    ]


def test_a_write_over_a_saved_tensor_tells_who_needs_it(session: Sessions) -> None:
    stepper = session(
        "x = torch.tensor([1.0, 2.0], requires_grad=True)\n"
        "y = torch.exp(x)\nz = (y * y).sum()\ny.detach().add_(1.0)\n"
        "try: z.backward()\nexcept RuntimeError: pass\n"
        "w = torch.tensor(3.0, requires_grad=True)\n(w * w).backward()\n"
        "with torch.no_grad(): w.sub_(1.0)\n"
    )
    written = np.unique(stepper.query.tensors.all_writes[0]).tolist()
    told = []
    for index in written:
        stepper.go(index)
        obey(stepper, "why")
        told.append("\n".join(stepper.page))
    assert any("ExpBackward0 of torch.exp(x), line 2, saved it at version 0 and has not run yet" in t for t in told)
    assert any("MulBackward0 of y * y, line 3, saved it at version 0" in t for t in told)
    assert "has not run yet" not in told[-1]  # its node has


def test_a_write_shows_what_was_there_and_what_is(session: Sessions) -> None:
    stepper = session("x = torch.ones(2)\nx.mul_(3)\n")
    obey(stepper, "until mutation")
    told = describe(stepper.stop)
    assert "before     [1, 1]" in told
    assert "after      [3, 3]" in told


# --- elements and places

GRID = """
w = torch.arange(6.0).reshape(2, 3).requires_grad_()
def double(t):
    return t * 2
y = double(w)
y.sum().backward()
"""


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ("w", ["w, float32", "[[0., 1., 2.],", "[3., 4., 5.]]"]),
        ("w[0, :2]", ["w[0, :2] of (2×3), float32", "[0., 1.]"]),
        ("w[-1]", ["w[-1] of (2×3), float32", "[3., 4., 5.]"]),
        ("w[..., ::2]", ["w[..., ::2] of (2×3), float32", "[[0., 2.],", "[3., 5.]]"]),
        ("w[1, 1].grad", ["w[1, 1].grad of (2×3), float32", "2."]),
    ],
)
def test_print_shows_elements(session: Sessions, asked: str, shown: list[str]) -> None:
    here = session(GRID)
    obey(here, "last")
    for command in ("print", "p"):
        obey(here, f"{command} {asked}")
        assert [line.strip() for line in here.page] == shown


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("w[5]", "index 5 is out of bounds for axis 0 with size 2"),
        ("w[0, 0, 0]", "too many indices"),
        ("w[__import__('os')]", r"an index is like \[0, :3, -1\]"),
        ("w[]", r"an index is like \[0, :3, -1\]"),
        ("w[::0]", "the step of a slice is not 0"),
    ],
)
def test_an_index_that_does_not_fit_gets_one_line(session: Sessions, asked: str, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        obey(session(GRID), f"print {asked}")


def test_what_was_not_kept_is_not_shown_as_elements(session: Sessions) -> None:
    here = session("w = torch.ones(100, requires_grad=True)\nw.sum().backward()\n")
    obey(here, "last")
    assert "its elements were not kept: record it with --values full" in said(here, "print w")


MANY = "".join(f"w{i} = torch.full((2,), {i}.0, requires_grad=True)\n" for i in range(12))
MANY += f"loss = {' + '.join(f'(w{i} * {i}.0).sum()' for i in range(1, 12))}\nloss.backward()\n"


def first_column(session: Session) -> list[str]:
    return [line.split()[0] for line in session.page[2:]]


def test_leaves_are_listed_by_norm_by_change_and_by_name(session: Sessions) -> None:
    here = session(MANY)
    obey(here, "last")
    obey(here, "leaves norm")
    assert first_column(here)[:3] == ["w11", "w10", "w9"]
    assert first_column(here)[-1] == "w0", "it has no gradient"
    assert here.page[2].split()[1] == "15.56", "11 × √2"
    obey(here, "leaves name")
    assert first_column(here) == [f"w{i}" for i in range(12)]
    obey(here, "leaves change")
    events = [int(line.split()[3]) for line in here.page[2:]]
    assert events == sorted(events, reverse=True)
    assert here.page_keys == {"a": "leaves name"}
    with pytest.raises(CommandError, match="leaves are ordered by made, norm, change, name: not by size"):
        obey(here, "leaves size")


def test_the_table_of_leaves_scrolls_and_keeps_its_order(session: Sessions) -> None:
    here = session(MANY)
    obey(here, "last")
    obey(here, "leaves norm")
    shown = leaf_rows(here.stop, 4, view=here.settings.leaves)[0]
    assert [row.name for row in shown] == ["w11", "w10", "w9", "w8"]
    obey(here, "leaves-down")
    shown, more = leaf_rows(here.stop, 4, view=here.settings.leaves)
    assert (shown[0].name, more) == ("w8", 8)
    for _ in range(9):
        obey(here, "leaves-down")
    shown, _ = leaf_rows(here.stop, 4, view=here.settings.leaves)
    assert shown[-1].name == "w0", "the last row stays on the screen"
    for _ in range(9):
        obey(here, "leaves-up")
    assert here.settings.leaves.first == 0


def test_print_shows_every_element_page_by_page(tmp_path: Path) -> None:
    text = "w = torch.arange(2500.0).reshape(50, 50).requires_grad_()\nw.sum().backward()\n"
    with open_trace(lesson(tmp_path, text, values="full")) as trace:
        here = Session(trace, trace.count - 1)
        seen, command = [], "print w"
        while command:
            obey(here, command)
            seen += [float(part) for line in here.page[2:] for part in line.partition("]")[2].split()]
            command = here.page_keys.get("space", "")
        assert seen == [*range(2500)]
        assert here.page[1].strip() == "elements 2,001 to 2,500 of 2,500, page 3 of 3"
        assert here.page[2].split("]")[0].strip() == "[40, 0"
        with pytest.raises(CommandError, match="there is no page 4: w has 3 pages"):
            obey(here, "print w page 4")


ZEROS = [
    (
        "h = x * 2\ny = torch.relu(h)\n(y * 3).sum().backward()\n",
        "x.grad is 0: ReluBackward0 of torch.relu(h), line 3, gave 0 for an upstream gradient that is not 0",
    ),
    ("(x * 2).sum().backward()\nx.grad.zero_()\n", "x.grad is 0: it was set to 0 at event 15, line 3: x.grad.zero_()"),
    ("y = x * 2 - x - x\ny.sum().backward()\n", "x.grad is 0: the gradients of its paths cancel"),
    ("y = x * 2\ny.backward(torch.zeros(2))\n", "x.grad is 0: the pass began with 0"),
]


@pytest.mark.parametrize(("text", "reason"), ZEROS)
def test_why_says_what_made_a_gradient_zero(session: Sessions, text: str, reason: str) -> None:
    here = session(f"x = torch.tensor([-1.0, -2.0], requires_grad=True)\n{text}")
    obey(here, "last")
    assert reason in said(here, "why x.grad")


def test_why_says_nothing_of_zero_where_a_gradient_is_not(session: Sessions) -> None:
    here = session("x = torch.tensor([-1.0, 2.0], requires_grad=True)\ntorch.relu(x).sum().backward()\n")
    obey(here, "last")
    assert "is 0" not in said(here, "why x.grad")


def test_where_shows_who_called(session: Sessions) -> None:
    here = session(GRID)
    obey(here, "search mul")
    obey(here, "where")
    text = "\n".join(here.page)
    assert text.index("return t * 2") < text.index("y = double(w)")


def test_a_leaf_that_a_refused_backward_does_not_reach_tells_what_cuts_it_off(tmp_path: Path) -> None:
    program = tmp_path / "lesson.py"
    program.write_text(
        "import gradviz.engine as torch\n"
        "x = torch.tensor(5.0, requires_grad=True)\n"
        "y = x * torch.tensor([2.0, 3.0, 5.0])\n"
        "w = y.detach()\n"
        "z = w @ torch.tensor([4.0, 7.0, 9.0])\n"
        "z.backward()\n"
    )
    path = tmp_path / "run.gradviz"
    run(Target(str(program), False, ()), path, engine="numpy")
    with open_trace(path) as trace:
        session = Session(trace)
        obey(session, "last")
        assert session.stop.event_kind == Kind.ERROR
        for ask in ("why x.grad", "info x"):
            assert "cut at event 5, line 4: y.detach(): detach() cut it off from the graph" in said(session, ask)
        obey(session, "first")
        assert "no backward pass has begun yet" in said(session, "why x.grad"), "the error is to come"
