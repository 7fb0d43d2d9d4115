"""No circles of imports among the files of gradviz.

grimp sees every import: those inside functions and those under TYPE_CHECKING too. import-linter's contract
`acyclic_siblings` compares packages with their siblings, so it does not see a package that imports a file of its own
which imports the package."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import pytest
from click.testing import CliRunner

import gradviz
from gradviz.background import Background
from gradviz.cli.graph import graph
from gradviz.cli.step import step
from gradviz.sources.script import Target, run

grimp = pytest.importorskip("grimp", reason="pip install -e .[lint]")


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """The strongly connected components of more than one file (Tarjan 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[set[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        path.append(module)
        for imported in imports[module]:
            if imported not in order:
                visit(imported)
            if imported in path:
                lowest[module] = min(lowest[module], lowest[imported])
        if lowest[module] == order[module]:
            component = set(path[path.index(module) :])
            del path[path.index(module) :]
            if len(component) > 1:
                found.append(component)

    for module in imports:
        if module not in order:
            visit(module)
    return found


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == [{"b", "c"}]


def test_no_files_import_one_another_in_a_circle() -> None:
    graph = grimp.build_graph("gradviz", cache_dir=None)
    imports = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    assert circles(imports) == []


PAGE = Path(__file__).parents[2] / "docs/architecture.md"
HOP = re.compile(r"^\| [\w ]+ \| `(?P<file>[\w/]+\.py)` `(?P<function>[\w.]+)` \|", re.MULTILINE)
PACKAGE = Path(gradviz.__file__).parent
PROGRAM = """
import gradviz.engine as torch
x = torch.tensor([1.0, 2.0], requires_grad=True)
y = x.exp()
y.sum().backward()
"""


@contextmanager
def called() -> Iterator[list[tuple[str, str]]]:
    """Gradviz's functions as they are called, on any thread: file and name."""
    package = Path(gradviz.__file__).parent
    codes: list[CodeType] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            codes.append(frame.f_code)

    calls: list[tuple[str, str]] = []
    run_in_background = Background._run

    def noted(background: Background) -> None:  # `threading` does not know these threads
        sys.setprofile(note)
        run_in_background(background)

    sys.setprofile(note)
    Background._run = noted  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        sys.setprofile(None)
        Background._run = run_in_background  # type: ignore[method-assign]
        for code in codes:
            if code.co_filename.startswith(str(package)):
                file = Path(code.co_filename).relative_to(package).as_posix()
                calls.append((file, code.co_qualname.partition(".<locals>")[0]))


def follows(hops: list[tuple[str, str]], calls: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """As many of the hops as are among the calls in this order."""
    rest = iter(calls)
    return [hop for hop in hops if hop in rest]


def hops(heading: str) -> list[tuple[str, str]]:
    """The hops of one table of the page: the file and the function of each."""
    table = PAGE.read_text().partition(heading)[2].lstrip().partition("\n\n")[0]
    return [(hop["file"], hop["function"]) for hop in HOP.finditer(table)]


def test_an_op_goes_the_way_that_the_documentation_describes(tmp_path: Path) -> None:
    script, trace = tmp_path / "way.py", tmp_path / "way.gradviz"
    script.write_text(PROGRAM)
    with called() as recording:
        assert run(Target(str(script), False, []), trace).status == 0
    with called() as drawing:
        assert CliRunner().invoke(graph, [str(trace), "-o", str(tmp_path / "way.svg")]).exit_code == 0
    with called() as stepping:
        assert CliRunner().invoke(step, [str(trace), "--commands", "last"]).exit_code == 0
    for heading, calls in (
        ("checks these names.", recording),
        ("by `gradviz graph`:", drawing),
        ("by `gradviz step`:", stepping),
    ):
        expected = hops(heading)
        assert len(expected) > 5
        assert follows(expected, calls) == expected


def test_the_documentation_names_every_room() -> None:
    package = Path(gradviz.__file__).parent
    rooms = {path.parent.name for path in package.glob("*/__init__.py")}
    assert set(re.findall(r"^\| `(\w+)/` \|", PAGE.read_text(), re.MULTILINE)) == rooms


def test_all_that_is_outside_the_engine_keeps_its_number_of_lines() -> None:
    most = re.search(r"at most ([\d,]+) lines together", PAGE.read_text(encoding="utf-8"))
    assert most is not None
    lines = sum(
        len(file.read_bytes().splitlines()) for file in PACKAGE.rglob("*.py") if PACKAGE / "engine" not in file.parents
    )
    assert 0 < lines <= int(most[1].replace(",", ""))


def test_a_file_outside_the_engine_has_a_name_of_its_own() -> None:
    names = [
        file.stem
        for file in PACKAGE.rglob("*.py")
        if file.name != "__init__.py" and PACKAGE / "engine" not in file.parents
    ]
    assert sorted(name for name, count in Counter(names).items() if count > 1) == []
