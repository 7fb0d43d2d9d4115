"""What starts the tests' programs in place of Python does what Python does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import python

PROGRAMS = {
    "itself": "import sys\nprint(__file__, __name__, sys.argv, sys.orig_argv[1:], sys.path[0], sys.executable)",
    "nothing is imported": "import sys\nprint(sys.modules.keys() & {'numpy', 'torch', 'rich', 'gradviz'})",
    "an error": "def f():\n    raise ValueError('of its own')\nf()",
    "a status": "raise SystemExit(7)",
    "a text instead of a status": "raise SystemExit('why')",
    "a signal": "import os\nos.kill(os.getpid(), 15)",
    "what it reads": "print(input().upper(), ascii(input()))",
    "at the end": "import atexit\nclass Last:\n    def __del__(self): print('freed')\nkept = Last()\n"
    "atexit.register(print, 'last')",
    "before and behind a child": "import os, sys\nprint('first')\nos.system('echo second')\nprint(sys.stdout)",
    "a library": "import numpy, os\nprint(numpy.ones(3), os.getcwd(), os.environ['OF_THE_TEST'])",
}


def ended(command: list[str], folder: Path) -> tuple[int, str, str]:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "OF_THE_TEST": "1"}, input="a line\nä\n", capture_output=True,
        encoding="utf-8",
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.default) for name in PROGRAMS])
def test_a_program_does_what_it_does_under_python(name: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAMS[name])
    words = ["program.py", "-x", "a b"]
    assert ended([python(), *words], tmp_path) == ended([sys.executable, *words], tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ["-c", "import sys; print(sys.argv, sys.path[0]); raise SystemExit(3)", "x"],
        ["-m", "json.tool", "--help"],
        ["-X", "utf8", "-c", "import sys; print(sys.flags.utf8_mode)"],
        ["no_such_file.py"],
    ],
    ids=["a text", "a module", "with an option", "no file"],
)
def test_words_are_those_of_python(words: list[str], tmp_path: Path) -> None:
    assert ended([python(), *words], tmp_path) == ended([sys.executable, *words], tmp_path)


def test_the_engine_is_there_when_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import sys, gradviz.query\nprint('gradviz.engine' in sys.modules, 'engine' in vars(gradviz))\n"
        "from gradviz import engine\nprint(engine is sys.modules['gradviz.engine'], engine.ones(2))\n"
    )
    assert ended([python(torch=False), "program.py"], tmp_path) == ended([sys.executable, "program.py"], tmp_path)


def test_no_two_programs_draw_the_same_numbers_from_an_engine_that_is_in_memory(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import gradviz.engine as torch\nprint(torch.initial_seed())")
    seeds = {ended([python(torch=False), "program.py"], tmp_path) for _ in range(2)}
    assert len(seeds) == 2
    assert {(status, err) for status, _, err in seeds} == {(0, "")}


def test_a_program_runs_where_another_request_was_given_up_or_the_server_has_ended(tmp_path: Path) -> None:
    client = Path(python(("GRADVIZ_TEST", "given up"), torch=False))
    environment = {**os.environ, "GRADVIZ_TEST": "given up"}
    for sent in (b"", b"\0\0\1\0half"):
        with socket.socket(socket.AF_UNIX) as given_up:
            given_up.connect(str(client.with_name("socket")))
            given_up.sendall(sent)
    for _ in range(2):
        done = subprocess.run([client, "-c", "print(6 * 7)"], env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")
        client.with_name("socket").unlink(missing_ok=True)
