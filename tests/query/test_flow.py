"""The walks of `query/flow`, on which every search for "what is behind this?" is built, and the number of searches that
are still written by hand."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import gradviz
from gradviz.query.flow import Downstream, chain, count_ways, op_behind, reach, shortest_way
from gradviz.query.query import Query
from gradviz.sources.script import Target, run
from gradviz.tracefile import open_trace

EDGES = {1: [2, 3], 2: [4, 0], 3: [4], 4: [1, 5], 5: []}
MOST_BY_HAND = 24  # it may only fall
PROGRAM = """
import gradviz.engine as torch
x = torch.tensor([1.0, 2.0], requires_grad=True)
half = x * 0.5
row = half.unsqueeze(0)
back = row.squeeze(0)
total = (back * half).sum()
total.backward()
"""


def test_a_walk_goes_by_distance_and_visits_each_thing_once() -> None:
    assert list(reach([1], EDGES.__getitem__)) == [1, 2, 3, 4, 5]


def test_a_walk_ends_at_its_limit() -> None:
    assert list(reach([1], EDGES.__getitem__, most=3)) == [1, 2, 3]


def test_a_walk_tells_from_what_each_thing_was_reached() -> None:
    came: dict[int, int | None] = {}
    assert list(reach([1], EDGES.__getitem__, came=came))
    assert came == {1: None, 2: 1, 3: 1, 4: 2, 5: 4}


def test_a_walk_looks_no_further_than_what_is_asked_of_it() -> None:
    expanded: list[int] = []

    def onward(one: int) -> list[int]:
        expanded.append(one)
        return EDGES[one]

    assert 3 in reach([1], onward)
    assert expanded == [1, 2]


def test_paths_views_and_readers_of_a_run(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM, encoding="utf-8")
    run(Target(str(script), False, []), tmp_path / "run.gradviz", engine="numpy")
    with open_trace(tmp_path / "run.gradviz") as trace:
        query = Query(trace)
        x, half, row, back, total = (
            query.names.tensor_called(name, trace.count - 1) for name in ("x", "half", "row", "back", "total")
        )
        graph = query.of(Downstream)
        assert [op.op for op in chain(query, back, lambda op: "squeeze" in op.op)] == ["squeeze", "unsqueeze"]
        assert [op.op for op in chain(query, back, lambda op: True, most=1)] == ["squeeze"]
        behind = op_behind(query, back, {"squeeze", "unsqueeze"})
        assert behind is not None
        assert behind.outputs == (half,)
        assert graph.views[back] == row
        assert graph.views[row] == half
        assert len(graph.readers(half)) == 2
        assert {x, half, row, back, total} <= graph.results(x).keys()
        assert graph.inputs(graph.readers(row)[0]) == [row]
        assert graph.inputs(trace.count - 1) == []
        assert count_ways(query, x, total) == 2
        way = shortest_way(query, x, total)
        assert (way[0], way[1], way[-1], len(way)) == (x, half, total, 4)
        assert shortest_way(query, total, x) == []


@pytest.mark.slow
def test_few_searches_are_written_by_hand() -> None:
    package = Path(gradviz.__file__).parent
    files = [file for file in package.rglob("*.py") if file.relative_to(package).parts[0] != "engine"]
    others = [file for file in files if file != package / "query/flow.py"]
    assert len(others) == len(files) - 1
    found = [f"{file.relative_to(package)}:{line}" for file in others for line in worklists(file.read_text("utf-8"))]
    assert 0 < len(found) <= MOST_BY_HAND, found


def test_a_worklist_is_recognized() -> None:
    by_hand = "while waiting and len(seen) < 9:\n    one = waiting.pop()\n    waiting += onward(one)\n"
    assert worklists(by_hand) == [1]
    assert worklists("while waiting:\n    print(waiting.pop())\n") == []


def worklists(source: str) -> list[int]:
    """The lines of the `while` loops that take from a list and put more into it."""
    tree = ast.parse(source if "while " in source and "pop" in source else "")
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.While)]
    return [loop.lineno for loop in loops if _names(loop.test) & _taken_from(loop) & _put_into(loop)]


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _called(loop: ast.While, methods: set[str], function: str) -> set[str]:
    """The lists whose method is called, or that a function of `heapq` is called with."""
    calls = [node for node in ast.walk(loop) if isinstance(node, ast.Call)]
    of_methods = [
        call.func.value for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr in methods
    ]
    of_heaps = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == function]
    return {one.id for one in (*of_methods, *of_heaps) if isinstance(one, ast.Name)}


def _taken_from(loop: ast.While) -> set[str]:
    return _called(loop, {"pop", "popleft"}, "heappop")


def _put_into(loop: ast.While) -> set[str]:
    added = [node.target for node in ast.walk(loop) if isinstance(node, ast.AugAssign)]
    return {one.id for one in added if isinstance(one, ast.Name)} | _called(loop, {"append", "extend"}, "heappush")
