"""One of each: nothing that gradviz says of a run with one event, one pass, one leaf says "1 events"."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from gradviz.errors import GradvizError
from gradviz.sources.script import Target, run
from gradviz.step.screen import Screen
from gradviz.step.state import Session
from gradviz.step.verbs import VERBS, obey
from gradviz.tracefile import open_trace

ONE_EVENT = "import torch\nx = torch.tensor(3.0, requires_grad=True)\n"
ONE_PASS = "import torch\nw = torch.nn.Parameter(torch.tensor(3.0))\n(-w).backward()\n"
ONE_STEP = """\
import torch
layer = torch.nn.Linear(1, 1, bias=False)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
layer(torch.ones(1, 1)).sum().backward()
optimizer.step()
"""
ONE_NAN = "import torch\nx = torch.tensor([0.0], requires_grad=True)\n(x * x.log()).sum().backward()\n"
ONE_ERROR = "import torch\nx = torch.tensor(2.0, requires_grad=True)\nx.detach().backward()\n"
THINGS = """
    bookmarks breakpoints bytes calls changes characters edges elements errors events findings grad_fns gradients groups
    hooks inputs kinds layers leaves lines losses modules nodes operations ops optimizers outputs pages parameters parts
    passes places processes rounds rows rules scopes shapes steps tensors threads times values warnings writes
"""
PLURAL_OF_ONE = re.compile(rf"(?<![\w.,:/×^*+-])1 ({'|'.join(THINGS.split())})\b")

Trace = Callable[[str], Path]


@pytest.fixture(
    params=["numpy", pytest.param("torch", marks=pytest.mark.skipif(not find_spec("torch"), reason="no PyTorch"))]
)
def traced(request: pytest.FixtureRequest, tmp_path: Path) -> Trace:
    def trace(program: str) -> Path:
        script = tmp_path / "one.py"
        script.write_text(program)
        run(Target(str(script), False, ()), tmp_path / "one.gradviz", engine=request.param)
        return tmp_path / "one.gradviz"

    return trace


def lines_with_a_wrong_plural(text: str) -> list[str]:
    return [line for line in text.splitlines() if PLURAL_OF_ONE.search(line)]


def said_by_all_verbs(path: Path) -> Iterator[str]:
    """The screens and answers of all verbs of the stepper at each event."""
    with open_trace(path) as trace:
        for verb in [verb.name for verb in VERBS if verb.name != "quit"]:
            for words in (verb, f"{verb} x", f"{verb} w", f"{verb} 1", f"{verb} name"):
                for at in (0, trace.count - 1):
                    session = Session(trace)
                    session.go(at)
                    try:
                        obey(session, words)
                    except GradvizError as error:
                        yield str(error)
                        continue
                    yield "\n".join([*session.page, session.message])
                    yield "\n".join(line.plain for line in Screen(session).lines(100, 30))


@pytest.mark.slow
@pytest.mark.parametrize("program", [ONE_EVENT, ONE_PASS, ONE_STEP, ONE_NAN, ONE_ERROR])
def test_the_stepper_says_one_event(
    program: str, traced: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = traced(program)
    monkeypatch.chdir(tmp_path)  # `export` writes a file
    for said in said_by_all_verbs(path):
        assert lines_with_a_wrong_plural(said) == []


@pytest.mark.slow
@pytest.mark.parametrize("program", [ONE_EVENT, ONE_PASS, ONE_STEP, ONE_NAN, ONE_ERROR])
def test_the_commands_say_one_event(program: str, traced: Trace, gradviz_here: Callable, tmp_path: Path) -> None:
    path = traced(program)
    commands = [
        ("info", path),
        ("check", path),
        ("check", path, "--format", "text", "--select", "all"),
        ("graph", path, "-o", "one.svg"),
        ("graph", path, "-o", "one.dot", "--all"),
        ("graph", path, "-o", "folded.svg", "--depth", "0"),
        ("graph", path, "-o", "one.html"),
        ("graph", path, "-o", "one.mmd"),
        ("report", path, "-o", "report.html"),
        ("diff", path, path),
        ("why", path, "x"),
        ("step", path, "--commands", "last; info; leaves; marks; where"),
        ("trace", "--engine", "numpy", "-o", "again.gradviz", tmp_path / "one.py"),
        ("trace", "--engine", "numpy", "--last", "1", "-o", "again.gradviz", tmp_path / "one.py"),
    ]
    for command in commands:
        done = gradviz_here(*command)
        assert lines_with_a_wrong_plural(done.stdout + done.stderr) == [], command
    for file in ("one.svg", "folded.svg", "one.dot", "one.mmd", "report.html"):
        text = re.sub(r"<[^>]*>|\u00a0", " ", (tmp_path / file).read_text(encoding="utf-8"))
        assert lines_with_a_wrong_plural(text) == [], file


def test_a_wrong_plural_is_found() -> None:
    assert lines_with_a_wrong_plural("1 events, 2 passes\n11 events\n1 event\n1.1 losses\nof 1 nodes") == [
        "1 events, 2 passes",
        "of 1 nodes",
    ]
