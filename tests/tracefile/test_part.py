"""A part of a trace answers as the whole does, however its events lie in chunks, and reads only what it needs."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from unittest import mock

import pytest

import gradviz.engine as torch
from gradviz import engine
from gradviz.errors import GradvizError
from gradviz.graph.build import SHOWS, build
from gradviz.graph.model import Graph
from gradviz.query import Query
from gradviz.query.flow import Downstream
from gradviz.query.overview import overview
from gradviz.sources.record import record
from gradviz.sources.script import Target, run
from gradviz.step.leaves import leaves
from gradviz.step.neighbourhood import drawn as drawn_graph
from gradviz.step.plain import script
from gradviz.step.screen import Screen
from gradviz.step.showing import describe
from gradviz.step.state import Session
from gradviz.step.verbs import obey
from gradviz.tracefile import Trace, TraceError, for_moments, open_trace, part_of
from gradviz.tracefile.part import Part
from gradviz.words.chain_rule import why
from gradviz.words.stop import Stop
from gradviz.words.words import Words
from tests.random_programs import drawn, ran
from tests.tracefile.recut import recut
from tests.zoo_programs import ALL, Program

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted([*(ROOT / "examples").glob("*.py"), *(ROOT / "examples" / "faults").glob("*.py")])
MANY = 3  # passes of a run that are compared


def recorded(program: Path, trace: Path) -> Path:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run(Target(str(program), False, []), trace, engine="numpy")
    return trace


def told(graph: Graph) -> list[str]:
    """All that a graph says, line by line."""
    about = (graph.script, graph.pass_number, graph.passes, graph.at, graph.why, graph.title, graph.error)
    nodes = [repr(node) for node in graph.nodes.values()]
    return [repr(about), repr(graph.left_out), repr(graph.scopes), *nodes, *map(repr, graph.edges)]


def check_same(path: Path, to: Path, lengths: Sequence[int], shows: Sequence[str] = ("both",)) -> None:
    """Every graph of a part, shown in these ways by turns, and the overview, are those of the whole; but for what no
    root was computed from, which only the whole can tell."""
    with (
        open_trace(path) as whole,
        open_trace(recut(path, to, lengths)) as other,
        mock.patch.object(Downstream, "astray", frozenset()),
    ):
        query = Query(whole)
        numbers = whole.pass_numbers
        chosen: list[int | None] = [*dict.fromkeys([*numbers[:MANY], *numbers[-MANY:]])]
        for number, show in zip([*chosen, None], itertools.cycle(shows)):
            assert told(build(part_of(other), number, show)) == told(build(query, number, show))
        assert overview(Query(part_of(other))) == overview(query)


def check_same_steps(path: Path, to: Path, lengths: Sequence[int], most: int, seed: int = 0) -> None:
    """The stepper says the same of a part: at up to `most` events, each read alone, and on a walk of commands."""
    with (
        open_trace(path) as whole,
        open_trace(recut(path, to, lengths)) as other,
        mock.patch("gradviz.tracefile.part.LONG", 0),
    ):
        words = Words(whole)
        rng = Random(seed)
        for event in rng.sample(range(whole.count), min(most, whole.count)):
            assert shown(Words(for_moments(other)), event) == shown(words, event), event
        event = rng.randrange(max(whole.count, 1))
        if whole.count:
            part = for_moments(other)
            assert screens(part, event) == screens(whole, event)
        names = [*words.query.names.labels, *(f"t{tensor}" for tensor in whole.states.tensors[:5].tolist())]
        commands = [*rng.choices(NEAR, k=2 * most), *rng.choices(FAR, k=most), *rng.choices(NEAR, k=1)]
        lines = [line.replace("NAME", rng.choice(names)) for line in commands]
        first = rng.randrange(max(whole.count, 1))
        assert walked(for_moments(other), first, lines) == walked(whole, first, lines)


def shown(words: Words, event: int) -> list[str]:
    """What a screen shows of an event, and its explanation."""
    stop = Stop(words, event)
    graph = [line.plain for line in drawn_graph(stop, 80, 12)]
    return [*describe(stop).splitlines(), *why(stop), *graph, *map(str, leaves(stop, 140, 2))]


def screens(trace: Trace, event: int) -> list[str]:
    """The terminal at an event, small and large, without the signs on its timelines: those that stand for what the
    whole run is searched for come later."""
    session = Session(trace, event)
    lines = [line.plain for size in ((80, 24), (150, 28)) for line in Screen(session).lines(*size)[1:]]
    return [re.sub("[~!✗●━]", "─", line) for line in lines]


def walked(trace: Trace, first: int, lines: Sequence[str]) -> list[str]:
    told: list[str] = []
    try:
        session = Session(trace, first)
    except GradvizError as error:  # it has no events
        return [str(error).removeprefix(str(trace.path))]
    for line in lines:
        try:
            told += script(session, [line])
        except GradvizError as error:
            told.append(f"{line}: {error}")
    return told


NEAR = [
    "next", "back", "over", "over-back", "into", "into-back", "out", "out-back", "next-backward", "back-backward",
    "next-forward", "back-forward", "next 3", "back 5", "first", "last", "undo", "why", "info", "where", "mark",
    "marks",
]  # fmt: skip
FAR = [
    "nan", "until out.rms > 1", "back-until mutation", "search mul", "search-back NAME", "again", "again-back",
    "info NAME", "why NAME", "why NAME.grad", "who NAME", "print NAME", "leaves norm", "leaves change", "compare",
    "path NAME NAME", "break NAME", "watch NAME.grad", "continue", "reverse-continue",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("program", EXAMPLES, ids=lambda path: path.stem)
def test_a_part_is_as_the_whole_for_every_example(program: Path, tmp_path: Path) -> None:
    trace = recorded(program, tmp_path / "run.gradviz")
    for lengths in ([3], [40, 7]):
        check_same(trace, tmp_path / "other.gradviz", lengths)
    check_same_steps(trace, tmp_path / "other.gradviz", [9], most=6, seed=len(program.stem))


def test_a_part_counts_the_elements_of_a_list_as_the_whole_does(tmp_path: Path) -> None:
    program = tmp_path / "p.py"
    program.write_text(
        "import torch\n"
        "layers = [torch.ones(2, requires_grad=True) for _ in range(6)]\n"
        "for one in layers[::-1]:\n    (one * 2).sum().backward()\n"
    )
    trace = recorded(program, tmp_path / "run.gradviz")
    with open_trace(recut(trace, tmp_path / "other.gradviz", [1])) as other:
        part = part_of(other)
        graph = build(part, part.pass_numbers[-1])
    assert [node.name for node in graph.nodes.values() if node.is_leaf and node.requires_grad] == ["layers[0]"]
    check_same(trace, tmp_path / "other.gradviz", [1])


def of_the_zoo(count: int, first: int = 0) -> list[Program]:
    """So many programs, spread over the zoo: the tests take as long when it grows."""
    own = [program for program in ALL if not program.needs_torch]
    return own[first :: len(own) // count][:count]


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [[1], [11, 2, 60]], ids=str)
def test_a_part_is_as_the_whole_for_programs_of_the_zoo(lengths: list[int], tmp_path: Path) -> None:
    for number, program in enumerate(of_the_zoo(8, len(lengths))):
        source = tmp_path / f"{number}.py"
        source.write_text(program.text)
        trace = recorded(source, tmp_path / f"{number}.gradviz")
        turn = number % len(SHOWS)
        check_same(trace, tmp_path / "other.gradviz", lengths, SHOWS[turn:] + SHOWS[:turn])


@pytest.mark.slow
def test_the_stepper_says_the_same_of_a_part_of_programs_of_the_zoo(tmp_path: Path) -> None:
    for number, program in enumerate(of_the_zoo(80)):
        source = tmp_path / "program.py"
        source.write_text(program.text)
        trace = recorded(source, tmp_path / f"{number}.gradviz")
        lengths = ([9], [11, 2, 60], [30])[number % 3]
        check_same_steps(trace, tmp_path / "other.gradviz", lengths, most=1, seed=number)


@pytest.mark.slow
def test_a_part_is_as_the_whole_for_programs_drawn_at_random(tmp_path: Path) -> None:
    for seed in range(30):
        path = tmp_path / f"{seed}.gradviz"
        with record(path):
            ran(engine, drawn(seed), seed)
        check_same(path, tmp_path / "other.gradviz", [1 + seed % 7, 30])
        check_same_steps(path, tmp_path / "other.gradviz", [1 + seed % 7, 30], most=2, seed=seed)


@pytest.mark.slow
def test_a_tensor_that_a_graph_kept_has_the_value_that_it_had_then(tmp_path: Path) -> None:
    """Its first value gave way in a chunk that nothing else is asked about."""
    program = next(one for one in ALL if "a scale that is derived once" in one.name)
    source = tmp_path / "program.py"
    source.write_text(program.text)
    check_same(recorded(source, tmp_path / "run.gradviz"), tmp_path / "other.gradviz", [11, 2, 60])


def trained(path: Path, steps: int) -> Path:
    """A training loop with a frozen parameter, a kept gradient and a running mean."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    net[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with record(path):
        mean = torch.zeros(1)
        for _ in range(steps):
            x = torch.randn(5, 3)
            hidden = net(x)
            hidden.retain_grad()
            loss = (hidden - mean).pow(2).mean()
            mean = 0.9 * mean + 0.1 * loss.detach()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return path


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("loop") / "loop.gradviz", 12)


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [[13], [100, 5]], ids=str)
def test_a_part_of_a_training_loop_is_as_the_whole(loop: Path, tmp_path: Path, lengths: list[int]) -> None:
    check_same(loop, tmp_path / "other.gradviz", lengths)
    check_same_steps(loop, tmp_path / "other.gradviz", lengths, most=12)


@pytest.mark.slow
def test_a_part_with_very_many_leaves_is_read_whole(loop: Path, tmp_path: Path) -> None:
    with mock.patch("gradviz.tracefile.part._MANY_LEAVES", 3):
        check_same_steps(loop, tmp_path / "other.gradviz", [30], most=3)


def test_a_moment_of_a_run_with_writes_through_views_is_read_whole(tmp_path: Path) -> None:
    for lines in ("view.add_(1)", "x.data.add_(1)", "torch.func.jvp(torch.sin, (x,), (x,))"):
        source = tmp_path / "program.py"
        source.write_text(f"import torch\nx = torch.ones(2)\nview = x.view(-1)\n{lines}\n")
        path = recorded(source, tmp_path / "run.gradviz")
        with open_trace(path) as trace, mock.patch("gradviz.tracefile.part.LONG", 0):
            assert for_moments(trace) is trace, lines


@pytest.mark.slow
def test_what_a_pass_needs_does_not_grow_with_the_run(tmp_path: Path) -> None:
    read = []
    for steps in (20, 200):
        path = tmp_path / f"{steps}.gradviz"
        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        with record(path):
            for _ in range(steps):
                net(torch.ones(2, 3)).sum().backward()
                optimizer.step()
        with open_trace(recut(path, tmp_path / "other.gradviz", [20])) as trace:
            part = part_of(trace)
            assert isinstance(part, Part)
            build(part, steps - 2)
            read.append(len(part._chunks_read))
            assert len(part._chunks_read) < len(trace.chunks) / 2
            assert overview(Query(part)).passes == steps
    assert read[0] == read[1]


EVERY = """
import gradviz.engine as torch
w = torch.tensor([1.0, 2.0], requires_grad=True)
for step in range(40):
    loss = (w * w).sum()
    if step == 20:
        w.sin().sum().backward()
    loss.backward()
    with torch.no_grad():
        w -= 0.01 * w.grad
    w.grad = None
"""


@pytest.fixture
def every_tenth(tmp_path: Path) -> Path:
    """A run of which a few passes are recorded in detail: the others are told as runs of passes."""
    with record(tmp_path / "every.gradviz", passes={1, 2, 10, 20, 30, 33, 40}):
        exec(EVERY, {})
    return tmp_path / "every.gradviz"


def test_passes_that_are_not_in_detail_are_told_as_runs_of_passes(every_tenth: Path) -> None:
    with closing(sqlite3.connect(every_tenth)) as connection:
        runs = connection.execute("SELECT number, passes FROM skipped ORDER BY number").fetchall()
        told = [number for (number,) in connection.execute("SELECT number FROM passes ORDER BY number")]
    assert sorted([*told, *(number + more for number, passes in runs for more in range(passes))]) == list(range(1, 42))
    assert {1, 2, 10, 20, 30, 33, 40} <= {*told}
    assert len(runs) < 30 - len(told)


@pytest.mark.slow
def test_a_part_has_the_passes_that_are_not_in_detail(every_tenth: Path, tmp_path: Path) -> None:
    with open_trace(recut(every_tenth, tmp_path / "other.gradviz", [7])) as whole, open_trace(every_tenth) as other:
        assert whole.pass_numbers == part_of(other).pass_numbers == list(range(1, 42))
        assert whole.passes_in_detail == part_of(other).passes_in_detail == 7
        assert [part_of(other).find_pass(number) for number in whole.pass_numbers] == whole.passes
        for mine, its in zip(part_of(other).pass_spans, whole.pass_spans, strict=True):
            assert mine.tolist() == its.tolist()
        for event in range(0, whole.count, 5):
            assert part_of(other).passes_ended_before(event) == whole.passes_ended_before(event)
            assert part_of(other).pass_ending_from(event) == whole.pass_ending_from(event)
        part = part_of(other)
        assert part.find_pass(5)
        assert part.find_pass(10)
        assert {5, 10} <= {run.number for run in part.passes}
    check_same(every_tenth, tmp_path / "other.gradviz", [7])
    check_same_steps(every_tenth, tmp_path / "other.gradviz", [7], most=6)


@pytest.mark.slow
def test_a_run_that_was_killed_has_the_passes_that_ended(loop: Path, tmp_path: Path) -> None:
    killed = recut(loop, tmp_path / "killed.gradviz", [50])
    with closing(sqlite3.connect(killed)) as connection, connection:
        connection.execute("UPDATE passes SET last = NULL, nodes = NULL, digest = NULL WHERE number > 10")
        connection.execute("UPDATE meta SET value = '' WHERE key = 'ended'")
    with open_trace(killed) as whole:
        part = part_of(whole)
        assert [part.find_pass(number) for number in part.pass_numbers] == whole.passes
        assert part.shapes == whole.shapes
    check_same(killed, tmp_path / "other.gradviz", [50])


def test_a_ring_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "ring.gradviz"
    w = torch.ones(2, requires_grad=True)
    with record(path, last=2):
        for _ in range(9):
            (w * w).sum().backward()
    with open_trace(path) as trace:
        assert part_of(trace) is trace


@pytest.mark.slow
def test_the_commands_read_a_long_run_in_parts(loop: Path, tmp_path: Path, gradviz_here: object) -> None:
    run = recut(loop, tmp_path / "run.gradviz", [50])

    def read(*arguments: object) -> tuple[list[str], int]:
        parts: list[Part] = []
        made = Part.__init__

        def noted(self: Part, trace: Trace) -> None:
            made(self, trace)
            parts.append(self)

        with mock.patch.object(Part, "__init__", noted):
            done = gradviz_here(*arguments)  # type: ignore[operator]
        assert done.returncode == 0, done.stderr
        return done.stdout, len(parts)

    commands = (
        ["info", run],
        ["graph", run, "--pass", 7, "-o", "a.json"],
        ["step", run, "--at", 200, "--commands", "next-backward; where; why; last"],
    )
    whole = [read(*command) for command in commands]
    assert [parts for _, parts in whole] == [0, 0, 0]
    expected = [uncounted(text) for text, _ in whole]
    with mock.patch("gradviz.tracefile.part.LONG", 0):
        assert [read(*command) for command in commands] == [(text, 1) for text in expected]


def uncounted(text: str) -> str:
    """What `info` says of a long run, of which it does not count the tensors with elements."""
    return re.sub(r"elements of \d+ tensors( *)", lambda found: "elements of small tensors" + found[1][2:], text)


@pytest.mark.slow
def test_a_command_that_reads_the_whole_run_says_so_first(loop: Path, tmp_path: Path) -> None:
    with open_trace(recut(loop, tmp_path / "other.gradviz", [30])) as trace:
        with mock.patch("gradviz.tracefile.part.LONG", 0):
            session = Session(for_moments(trace), 100)
        said: list[str] = []
        session.announce = said.append
        for line in ("next", "where", "why"):
            obey(session, line)
        assert said == []
        for line in ("search mul", "nan"):
            obey(session, line)
        assert said == [f"reading all {trace.count:,} events …"]


LIES = {
    "a chunk is to be read from an impossible event": "UPDATE contents SET since_event = 999 WHERE chunk = 2",
    "the summary beside a chunk is missing": "DELETE FROM contents WHERE chunk = 2",
    "the summaries beside the chunks are not in order": "UPDATE contents SET highest_tensor = 0 WHERE chunk = 3",
    "the summary beside a chunk does not add up": (
        "UPDATE contents SET data = CAST(substr(data, 1, 44) || x'00000000' AS BLOB)"
    ),
    "an array is missing": "UPDATE contents SET data = x''",
    "an op ran at a place that is not in the trace": "INSERT INTO site_ops VALUES (4294967295, 1, 0)",
}


@pytest.mark.parametrize("why", LIES)
def test_what_a_chunk_cannot_hold_is_refused(loop: Path, tmp_path: Path, why: str) -> None:
    path = recut(loop, tmp_path / "lies.gradviz", [50])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(LIES[why])
    with open_trace(path) as trace, pytest.raises(TraceError, match=why):
        build(part_of(trace), 7)


@pytest.fixture(autouse=True)
def no_leftovers() -> Iterator[None]:
    modules = set(sys.modules)
    yield
    assert "torch" not in set(sys.modules) - modules


def test_events_decoded_with_their_neighbours_are_those_decoded_alone(tmp_path: Path) -> None:
    program = ROOT / "examples" / "training_step.py"
    with open_trace(recorded(program, tmp_path / "a.gradviz")) as one, open_trace(one.path) as other:
        other.read_in_blocks()
        assert one.count > 50
        for k in (one.count - 1, *range(one.count)):
            assert other.event(k) == one.event(k)
        with pytest.raises(IndexError):
            other.event(one.count)
