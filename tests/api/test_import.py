"""What `import gradviz` offers."""

from __future__ import annotations

import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import pytest

import gradviz
import gradviz.pictures.picture
from gradviz import engine


def test_gradviz_draw_is_a_function_and_a_package() -> None:
    x = engine.tensor(2.0, requires_grad=True)
    assert isinstance(gradviz.draw(x * x), gradviz.pictures.picture.Picture)


def test_gradviz_has_record_and_open() -> None:
    from gradviz.recorded_run import open as open_run
    from gradviz.sources.record import record

    assert (gradviz.record, gradviz.open) == (record, open_run)
    assert gradviz.__version__ == engine.__version__


@pytest.mark.parametrize("name", ["tensor", "nn", "no_grad"])
def test_a_name_of_the_engine_is_found_there(name: str) -> None:
    with pytest.raises(AttributeError, match=r"import gradviz\.engine as torch"):
        getattr(gradviz, name)


LOADED = """
import sys
from gradviz.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print([name for name in ("gradviz.engine", "scipy", "numpy", "numpy.ma") if name in sys.modules], file=sys.stderr)
"""


def loaded_by(*arguments: object, folder: Path) -> list[str]:
    """Which of the engine, SciPy, NumPy and its masked arrays a command loads."""
    command = [sys.executable, "-c", LOADED, *map(str, arguments)]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return literal_eval(ended.stderr.splitlines()[-1])


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trace."""
    path = tmp_path_factory.mktemp("doors") / "run.gradviz"
    with gradviz.record(path):
        x = engine.tensor(2.0, requires_grad=True)
        (x * x).backward()
    return path


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_what_the_command_itself_says_loads_nothing(option: str, tmp_path: Path) -> None:
    assert loaded_by(option, folder=tmp_path) == []


@pytest.mark.parametrize("command", ["info", "graph", "step", "trace", "debug", "doctor"])
def test_help_loads_no_engine(command: str, tmp_path: Path) -> None:
    assert set(loaded_by(command, "--help", folder=tmp_path)) <= {"numpy"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("info",),
        ("info", "--json"),
        ("graph", "-o", "run.svg"),
        ("graph", "-o", "run.html"),
        ("graph", "-o", "run.json"),
        ("step", "--commands", "next; why x.grad; last"),
        ("check",),
    ],
    ids=" ".join,
)
def test_looking_at_a_trace_loads_no_engine(arguments: tuple[str, ...], trace: Path) -> None:
    command, *options = arguments
    assert loaded_by(command, trace, *options, folder=trace.parent) == ["numpy"]


@pytest.mark.parametrize(
    "statement",
    [
        "import gradviz",
        "import gradviz; gradviz.draw",
        "import gradviz.sources.script",
        "import gradviz; gradviz.record",
    ],
)
def test_an_import_loads_no_engine(statement: str) -> None:
    program = f"{statement}\nimport sys\nprint([n for n in ('gradviz.engine', 'scipy') if n in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


def test_import_gradviz_loads_no_numpy() -> None:
    program = "import gradviz, sys; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
