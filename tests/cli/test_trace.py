"""`gradviz trace` runs a script as `python` runs it; what goes wrong is said in one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from gradviz.system.process import CTRL_C_STATUS
from gradviz.tracefile import open_trace
from tests.conftest import EXAMPLES
from tests.warm import python

Run = Callable[..., subprocess.CompletedProcess[str]]
Info = Callable[..., dict]

DIFFERENTIATES = """
import gradviz.engine as torch
x = torch.tensor(2.0, requires_grad=True)
(x * x).backward()
"""


def script(folder: Path, text: str, name: str = "script.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


@pytest.fixture
def info(gradviz_here: Run) -> Info:
    """What `gradviz info` says of a trace."""
    return lambda *arguments: json.loads(gradviz_here("info", "--json", *arguments).stdout)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The message of a command that failed as it should: one line on stderr, exit 2, no traceback."""
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_runs_alone_and_under_trace_and_prints_the_same(
    example: Path, gradviz_here: Run, info: Info, tmp_path: Path
) -> None:
    alone = subprocess.run([python(), example], capture_output=True, text=True, check=True, cwd=tmp_path)
    traced = gradviz_here("trace", example)
    assert traced.returncode == 0
    assert traced.stdout == alone.stdout
    assert (tmp_path / f"{example.stem}.gradviz").exists()
    found = info()
    assert found["error"] is None
    assert found["ops"] > 0
    assert found["leaves"]


def test_a_script_sees_what_python_would_show_it(gradviz: Run, tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import sys, os, helper
        print(__name__, __file__, sys.argv, sys.path[0] == os.path.dirname(os.path.abspath(__file__)))
        print(sys.modules["__main__"].__dict__ is globals(), helper.VALUE, "torch" in sys.modules)
        """,
    )
    script(tmp_path, "VALUE = 7", "helper.py")
    plain = subprocess.run([python(), path, "-x", "--values", "3"], capture_output=True, text=True, check=False)
    traced = gradviz("trace", path, "-x", "--values", "3")
    assert traced.stdout == plain.stdout
    assert traced.returncode == 0


def test_a_module_runs_as_with_m(gradviz: Run, info: Info, tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    script(package, "import sys\nprint(__name__, __package__, sys.argv[1:])\n" + DIFFERENTIATES, "train.py")
    done = gradviz("trace", "-m", "package.train", "--epochs", "3")
    assert done.stdout == "__main__ package ['--epochs', '3']\n"
    assert info("train.gradviz")["passes"] == 1


@pytest.mark.slow
def test_relative_imports_of_a_directory_with_main_work(gradviz: Run, tmp_path: Path) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    script(folder, "import part\nprint(part.X, __name__)", "__main__.py")
    script(folder, "X = 1", "part.py")
    assert gradviz("trace", folder).stdout == "1 __main__\n"


@pytest.mark.parametrize(
    ("ending", "status"), [("sys.exit(3)", 3), ("sys.exit()", 0), ("raise SystemExit", 0), ("exit('bye')", 1)]
)
def test_the_exit_status_is_the_scripts(gradviz: Run, info: Info, tmp_path: Path, ending: str, status: int) -> None:
    path = script(tmp_path, f"import sys\n{DIFFERENTIATES}\n{ending}")
    done = gradviz("trace", path)
    assert done.returncode == status
    assert ("bye" in done.stderr) == ("bye" in ending)
    assert info()["passes"] == 1


def test_a_script_that_raises_ends_as_under_python_and_leaves_its_trace(
    gradviz: Run, info: Info, tmp_path: Path
) -> None:
    path = script(tmp_path, DIFFERENTIATES + "\ndef f():\n    raise KeyError('lost')\n\nf()\n")
    done = gradviz("trace", path)
    assert done.returncode == 1
    plain = subprocess.run([python(), path], capture_output=True, text=True, check=False)
    assert plain.stderr.strip() in done.stderr
    found = info()
    assert found["passes"] == 1
    assert (found["error"]["type"], found["error"]["line"]) == ("KeyError", 7)


def test_a_failing_backward_names_the_line_that_made_the_node(gradviz_here: Run, tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import torch
        x = torch.tensor(2.0, requires_grad=True)
        y = torch.exp(x)
        y.backward()
        y.backward()
        """,
    )
    done = gradviz_here("trace", "--engine", "numpy", path)
    assert "error RuntimeError at line 6; the node at fault was made at line 4" in done.stderr
    assert "gradviz/" not in done.stderr.split("gradviz: recorded")[0]


def test_a_syntax_error_is_shown_as_python_shows_it(gradviz_here: Run, tmp_path: Path) -> None:
    path = script(tmp_path, "x = = 1\n")
    done = gradviz_here("trace", path)
    assert done.returncode == 1
    assert "SyntaxError" in done.stderr
    assert "x = = 1" in done.stderr
    assert "runpy" not in done.stderr


def test_an_error_inside_the_standard_library_is_at_the_line_of_the_program(
    gradviz_here: Run, info: Info, tmp_path: Path
) -> None:
    done = gradviz_here("trace", script(tmp_path, DIFFERENTIATES + "import json\njson.loads('{')"))
    assert "error JSONDecodeError at line 6" in done.stderr
    assert (info()["error"]["file"], info()["error"]["line"]) == (str(tmp_path / "script.py"), 6)


def test_an_error_in_a_helper_is_at_the_file_of_the_helper(gradviz_here: Run, info: Info, tmp_path: Path) -> None:
    script(tmp_path, "def helps():\n    raise KeyError('x')", "helper.py")
    done = gradviz_here("trace", script(tmp_path, DIFFERENTIATES + "import helper\nhelper.helps()"))
    assert "error KeyError at helper.py:2" in done.stderr
    assert "KeyError (helper.py:2)" in gradviz_here("info").stdout


def test_a_syntax_error_of_a_helper_is_told_with_its_message_and_its_line(
    gradviz_here: Run, info: Info, tmp_path: Path
) -> None:
    script(tmp_path, "def helps(:", "unparsed.py")
    done = gradviz_here("trace", script(tmp_path, "import unparsed"))
    assert "error SyntaxError at unparsed.py:1" in done.stderr
    assert info()["error"]["message"] == "invalid syntax"
    assert "unparsed.py:1  SyntaxError: invalid syntax" in gradviz_here("check").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["trace", "--values", "ful", "script.py"],
            "invalid value for '--values': 'ful' is not one of 'none', 'stats', 'inputs', 'full' "
            "(see gradviz trace --help)",
        ),
        (["redact"], "missing option '-o' (see gradviz redact --help)"),
        (["doctor", "x"], "got unexpected extra argument (x) (see gradviz doctor --help)"),
        (["graph", "--pass", "x"], "invalid value for '--pass': 'x' is not a valid integer (see gradviz graph --help)"),
        (["check", "--explain"], "option '--explain' requires an argument (see gradviz check --help)"),
        (["--zzz"], "no such option '--zzz' (see gradviz --help)"),
    ],
)
def test_arguments_that_a_command_does_not_take_get_one_line(
    gradviz_here: Run, arguments: list[str], said: str
) -> None:
    done = gradviz_here(*arguments)
    told = done.stderr.replace("no such option: --zzz", "no such option '--zzz'")  # click 8.1
    assert (done.returncode, done.stdout, told) == (2, "", f"gradviz: {said}\n")


def test_a_report_that_is_no_page_is_named(gradviz_here: Run, tmp_path: Path) -> None:
    gradviz_here("trace", script(tmp_path, DIFFERENTIATES))
    assert gradviz_here("report", "-o", ".").stderr == "gradviz: a report is an .html file, not .\n"


def test_a_name_that_the_newest_trace_lacks_is_told_with_the_trace(gradviz_here: Run, tmp_path: Path) -> None:
    gradviz_here("trace", script(tmp_path, DIFFERENTIATES))
    assert "no tensor is called v: known names: x (of script.gradviz, the newest trace here)" in (
        gradviz_here("why", "v").stderr
    )
    assert gradviz_here("why", "script.gradviz", "v").stderr.endswith("known names: x\n")


def test_an_interrupted_command_ends_as_an_interrupted_program_does(
    gradviz_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    gradviz_here("trace", script(tmp_path, DIFFERENTIATES))
    monkeypatch.setattr("gradviz.cli.info.overview", interrupted)
    done = gradviz_here("info")
    assert (done.returncode, done.stdout, done.stderr) == (CTRL_C_STATUS, "", "gradviz: interrupted\n")


def test_where_the_folder_cannot_be_written_an_option_names_another_place(
    gradviz_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(file: Path, *rest: int) -> int:
        if Path(file).parent == Path():
            raise PermissionError(13, "Permission denied")
        return os_open(file, *rest)

    os_open = os.open
    path = script(tmp_path, DIFFERENTIATES)
    (tmp_path / "else").mkdir()
    monkeypatch.setattr("gradviz.tracefile.file.os.open", opened)
    said = "cannot write script.gradviz: Permission denied (-o FILE writes the trace elsewhere)"
    for command in ("trace", "check"):
        assert gradviz_here(command, path).stderr == f"gradviz: {said}\n"
    gradviz_here("trace", "-o", "else/run.gradviz", path)
    assert (tmp_path / "else/run.gradviz").is_file()


def test_an_error_without_a_message_is_told_by_its_kind_alone(gradviz_here: Run, tmp_path: Path) -> None:
    gradviz_here("trace", script(tmp_path, DIFFERENTIATES + "assert not x.grad"))
    (ended,) = (line for line in gradviz_here("info").stdout.splitlines() if line.startswith("ended"))
    assert ended.split(maxsplit=1)[1].strip() == "AssertionError (line 5); it used x () float32"


@pytest.mark.slow
def test_no_line_of_a_table_in_a_pipe_ends_in_blanks(gradviz_here: Run, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("raise ValueError('a long message ' * 20)\n")
    gradviz_here("trace", "script.py")
    lines = gradviz_here("info").stdout.splitlines()
    assert len(lines) > 3
    assert all(line == line.rstrip() for line in lines)


def test_a_script_reads_stdin(gradviz: Run, tmp_path: Path) -> None:
    path = script(tmp_path, "print(input() + '!')\n" + DIFFERENTIATES)
    assert gradviz("trace", path, input="hello\n").stdout == "hello!\n"


@pytest.mark.slow
def test_threads_that_are_left_running_are_recorded_to_their_end(gradviz: Run, info: Info, tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import threading
        import gradviz.engine as torch
        def late():
            threading.main_thread().join()
            x = torch.tensor(2.0, requires_grad=True)
            (x * x).backward()
        threading.Thread(target=late).start()
        """,
    )
    gradviz("trace", path)
    assert info()["passes"] == 1


UNTIL_WRITTEN = """
import sqlite3, time
file = sqlite3.connect("script.gradviz", timeout=60)
while not file.execute("SELECT count(last) FROM passes").fetchone()[0]:
    time.sleep(0.01)
file.close()
"""


@pytest.mark.slow
def test_a_run_that_leaves_by_os_exit_keeps_its_trace(gradviz: Run, info: Info, tmp_path: Path) -> None:
    path = script(tmp_path, DIFFERENTIATES + UNTIL_WRITTEN + "import os\nos._exit(5)")
    assert gradviz("trace", path).returncode == 5
    found = info()
    assert found["passes"] == 1
    assert found["error"]["type"] == "Killed"


@pytest.mark.slow
def test_a_run_that_goes_on_is_not_called_killed(gradviz: Run, info: Info, tmp_path: Path) -> None:
    path = script(tmp_path, DIFFERENTIATES + UNTIL_WRITTEN + "print(flush=True)\ninput()")
    command = [sys.executable, "-m", "gradviz", "trace", str(path)]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.readline()
        assert info()["error"] is None
        assert "ended       not yet: it is being recorded" in gradviz("info", "script.gradviz").stdout
        assert "is being recorded by another run" in gradviz("trace", "-o", "script.gradviz", path).stderr
        running.kill()
    assert info()["error"]["type"] == "Killed"


@pytest.mark.slow
@pytest.mark.parametrize("starts", ["subprocess.run([sys.executable, '-c', 'pass'], check=True)", "os.system('true')"])
def test_what_only_ran_in_other_processes_is_not_called_undifferentiated(
    gradviz: Run, tmp_path: Path, starts: str
) -> None:
    text = f"import os, subprocess, sys\nif __name__ == '__main__':\n    {starts}"
    told = gradviz("trace", script(tmp_path, text)).stderr
    assert "no leaf requires grad in this process; those that it started are not recorded" in told
    assert "gradviz trace --ranks SCRIPT records each" in told
    assert "no backward pass ran" not in told


@pytest.mark.slow
def test_a_process_that_starts_no_other_is_told_as_a_whole(gradviz: Run, tmp_path: Path) -> None:
    told = gradviz("trace", script(tmp_path, "print(1)")).stderr
    assert "recorded no operation on a tensor" in told


def test_stdout_is_never_touched(gradviz: Run, gradviz_here: Run, tmp_path: Path) -> None:
    path = script(tmp_path, DIFFERENTIATES)
    assert gradviz_here("trace", path).stdout == ""
    assert gradviz("trace", "--graph", "x.svg", path).stdout == ""


@pytest.mark.slow
def test_a_picture_may_be_asked_for_before_or_behind_the_script(gradviz: Run, tmp_path: Path) -> None:
    path = script(tmp_path, "import sys\nprint(sys.argv[1:])\n" + DIFFERENTIATES)
    assert gradviz("trace", "--graph", "a.svg", path, "x").stdout == "['x']\n"
    assert gradviz("trace", path, "x", "--graph", "b.svg").stdout == "['x']\n"
    assert (tmp_path / "a.svg").read_text() == (tmp_path / "b.svg").read_text()


@pytest.mark.slow
def test_an_option_graph_behind_a_script_that_has_its_own_is_the_scripts(gradviz: Run, tmp_path: Path) -> None:
    text = "import sys\nprint(sys.argv[1:])\n" + DIFFERENTIATES
    has_its_own = script(tmp_path, text + "print('--graph' in sys.argv)\n")
    other = script(tmp_path, text, "other.py")
    for path, name, is_warned in ((has_its_own, "x.svg", False), (other, "cora", True)):
        done = gradviz("trace", path, "--graph", name)
        assert done.stdout.startswith(f"['--graph', '{name}']\n")
        assert ("--graph after other.py goes to other.py" in done.stderr) == is_warned
        assert not (tmp_path / name).exists()


@pytest.mark.slow
def test_a_script_that_only_speaks_of_graph_is_drawn(gradviz: Run, tmp_path: Path) -> None:
    path = script(tmp_path, f'"""gradviz trace script.py --graph x.svg"""\n{DIFFERENTIATES}')
    gradviz("trace", path, "--graph", "x.svg")
    assert (tmp_path / "x.svg").exists()


def test_the_error_that_ends_a_script_is_the_last_event(gradviz_here: Run, tmp_path: Path) -> None:
    text = "import gradviz.engine as torch\nx = torch.ones(2, 3, requires_grad=True)\ny = x.exp()\n"
    gradviz_here("trace", script(tmp_path, f"{text}y @ x\n", "shapes.py"))
    shown = gradviz_here("step", "shapes.gradviz", "--commands", "last; nan").stdout
    assert re.search(r"event (\d+) of \1 · forward\nRuntimeError: mat1 and mat2 .* \(it ends the script\)\n", shown)
    assert "  ▶4  y @ x\n" in shown
    assert "no NaN or infinity in this run, but an error: here it is" in shown
    gradviz_here("trace", script(tmp_path, f"{text}y.sum().backward()\ny.sum().backward()\n", "twice.py"))
    with open_trace(tmp_path / "twice.gradviz") as trace:
        assert len(trace.errors) == 1


def test_options_behind_the_script_are_the_scripts_and_are_warned_of_at_its_begin_and_end(
    gradviz_here: Run, tmp_path: Path
) -> None:
    name = script(tmp_path, DIFFERENTIATES)
    arguments = ("--graph=a.svg", "x", "-o", "other.gradviz", "--epochs", "3")
    lines = gradviz_here("trace", "--last", "3", name, *arguments).stderr.splitlines()
    assert lines[0] == lines[-1]
    assert lines[0].startswith("gradviz: --graph and -o after script.py go to script.py; for gradviz: gradviz trace ")
    assert not (tmp_path / "other.gradviz").exists()
    assert "after script.py" not in gradviz_here("trace", name, "--epochs", "3", "--", "-o", "x").stderr


@pytest.mark.slow
def test_the_command_in_the_warning_can_be_typed(gradviz: Run, tmp_path: Path) -> None:
    name = script(tmp_path, f"import sys\nprint(sys.argv[1:])\n{DIFFERENTIATES}")
    warned = gradviz("trace", "--last", "3", name, "--graph=a.svg", "x", "-o", "other.gradviz", "--epochs", "3")
    command = warned.stderr.splitlines()[0].partition("; for gradviz: gradviz ")[2]
    assert command == f"trace --graph=a.svg -o other.gradviz --last 3 {name} x --epochs 3"
    done = gradviz(*command.split())
    assert done.stdout == "['x', '--epochs', '3']\n"
    assert "after script.py" not in done.stderr
    assert (tmp_path / "a.svg").exists()
    assert (tmp_path / "other.gradviz").exists()


@pytest.mark.slow
def test_a_terminal_that_lacks_characters_gets_others(gradviz: Run, tmp_path: Path) -> None:
    gradviz("trace", script(tmp_path, DIFFERENTIATES))
    done = gradviz("step", "--commands", "next", env={"PYTHONIOENCODING": "latin-1"}, encoding="latin-1")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_summary_names_leaves_and_the_next_commands(gradviz_here: Run, tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import gradviz.engine as torch
        used = torch.tensor(2.0, requires_grad=True)
        forgotten = torch.tensor(2.0, requires_grad=True)
        (used * used).backward()
        """,
    )
    told = gradviz_here("trace", path).stderr
    assert "1 operation, 1 backward pass" in told
    assert "1 with a gradient: used" in told
    assert "1 without a gradient: forgotten" in told
    for command in ("gradviz graph script.gradviz", "gradviz step script.gradviz", "gradviz info script.gradviz"):
        assert command in told


def test_bad_input_gets_one_line(gradviz_here: Run, tmp_path: Path) -> None:
    good = script(tmp_path, DIFFERENTIATES)
    (tmp_path / "folder").mkdir()
    assert "no such script: nowhere.py" in one_line(gradviz_here("trace", "nowhere.py"))
    assert "without __main__" in one_line(gradviz_here("trace", "folder"))
    assert "give a SCRIPT" in one_line(gradviz_here("trace"))
    assert "cannot write" in one_line(gradviz_here("trace", "-o", "no/such/x.gradviz", good))
    assert "no TRACE given" in one_line(gradviz_here("info"))
    for draws in (["trace", "-o", "good.svg", good], ["check", "-o", "good.png", good]):
        assert "-o names the trace, not a picture: gradviz trace --graph good." in one_line(gradviz_here(*draws))
    (tmp_path / "notes.txt").write_text("print('not a program to be checked')\n")
    assert "notes.txt is neither a trace nor a Python program" in one_line(gradviz_here("check", "notes.txt"))
    assert "no such file" in one_line(gradviz_here("info", "nothing.gradviz"))
    assert "is a directory" in one_line(gradviz_here("info", "folder"))
    gradviz_here("trace", "-o", "run.gradviz", good)
    assert "out.png is no trace: -o out.png names the picture" in one_line(
        gradviz_here("graph", "run.gradviz", "out.png")
    )
    photo = tmp_path / "photo.gradviz"
    photo.write_bytes(b"\xff\xd8\xff\xe0 JFIF")
    for command in ("info", "graph"):
        assert "not a gradviz trace" in one_line(gradviz_here(command, photo))
    assert "not a gradviz trace" in one_line(gradviz_here("step", photo, "--commands", "next"))


def test_what_was_meant_by_a_wrong_name_is_said(gradviz_here: Run, tmp_path: Path) -> None:
    script(tmp_path, DIFFERENTIATES)
    assert "(did you mean script.py?)" in one_line(gradviz_here("trace", "scirpt.py"))
    assert "did you mean gradviz trace?" in one_line(gradviz_here("trce", "script.py"))
    assert "is no command: gradviz trace script.py" in one_line(gradviz_here("script.py"))
    for words in (("python", "script.py", "--lr", "3"), ("python3 script.py --lr", "3")):
        assert one_line(gradviz_here("trace", *words)).strip().endswith("gradviz trace script.py --lr 3")
    assert "has no option --lr; options of the script" in one_line(gradviz_here("trace", "--lr", "3", "script.py"))
    (tmp_path / "mine.gradviz").write_bytes(b"")
    assert "(did you mean mine.gradviz?)" in one_line(gradviz_here("info", "mine"))
    assert "gradviz trace script.py" in one_line(gradviz_here("step", "script.py"))
    (tmp_path / "book.ipynb").write_text('{"cells": []}')
    assert "book.ipynb is a notebook: jupyter nbconvert" in one_line(gradviz_here("trace", "book.ipynb"))


def test_a_trace_is_not_run_and_replaced_by_its_own_recording(gradviz_here: Run, tmp_path: Path) -> None:
    gradviz_here("trace", script(tmp_path, DIFFERENTIATES))
    recorded = (tmp_path / "script.gradviz").read_bytes()
    told = one_line(gradviz_here("trace", "script.gradviz"))
    assert "script.gradviz is a trace, not a script: gradviz step script.gradviz" in told
    assert (tmp_path / "script.gradviz").read_bytes() == recorded


def test_a_command_with_an_odd_name_can_be_pasted(gradviz_here: Run, tmp_path: Path) -> None:
    (tmp_path / "my script.py").write_text(DIFFERENTIATES)
    told = gradviz_here("trace", "my script.py").stderr
    assert 'gradviz info "my script.gradviz"' in told
    (tmp_path / "cost$1.py").write_text(DIFFERENTIATES)
    assert "gradviz info 'cost$1.gradviz'" in gradviz_here("trace", "cost$1.py").stderr


def test_a_run_without_an_operation_is_told_in_one_sentence(gradviz_here: Run, tmp_path: Path) -> None:
    done = gradviz_here("trace", script(tmp_path, "raise SystemExit"))
    assert "recorded no operation on a tensor → script.gradviz" in done.stderr
    assert "differentiated" not in done.stderr
    assert "which is empty" in gradviz_here("graph").stdout


def test_an_unknown_module_of_torch_is_said_to_be_missing(gradviz_here: Run, tmp_path: Path) -> None:
    done = gradviz_here("trace", "--engine", "numpy", script(tmp_path, "import torch.distributed"))
    assert "gradviz's engine has no distributed" in done.stderr
    assert done.returncode == 1


def test_names_and_source_with_escapes_reach_the_terminal_harmless(gradviz_here: Run, tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import gradviz.engine as torch
        from gradviz.engine import nn
        class M(nn.Module):
            def __init__(self):
                super().__init__()
                setattr(self, "\\x1b[31m<script>\\x07", nn.Parameter(torch.ones(1)))
            def forward(self):
                return getattr(self, "\\x1b[31m<script>\\x07") * 2
        M()().backward()
        raise ValueError("\\x1b]0;title\\x07")
        """,
    )
    told = gradviz_here("trace", path).stderr.split("gradviz: recorded")[1]
    assert "\x1b[31m" not in told
    assert "\x07" not in told
    shown = gradviz_here("info").stdout
    assert "\x1b" not in shown
    assert "\\x1b[31m<script>" in shown


def test_only_the_passes_asked_for(gradviz_here: Run, info: Info, tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import gradviz.engine as torch
        x = torch.tensor(2.0, requires_grad=True)
        for _ in range(5):
            (x * x).backward()
        """,
    )
    told = gradviz_here("trace", "--passes", "2-3,5", path).stderr
    assert "3 operations, 5 backward passes, 3 of them in detail, all of one shape" in told
    assert "passes      5, 3 of them in detail, all of one shape" in gradviz_here("info").stdout
    found = info()
    assert found["passes"] == 5
    assert found["ops"] == 3
    drawn = gradviz_here("graph", "-o", "a.svg").stdout
    assert "pass 2 of 5, the first recorded in detail, " in drawn
    assert "not recorded in detail" not in drawn
    unrecorded = f"pass 4 was not recorded in detail: gradviz trace --passes 4 {path} records it"
    for command in (["graph", "--pass", "4", "-o", "a.svg"], ["why", "x", "--pass", "4"], ["what-if", "--pass", "4"]):
        assert unrecorded in gradviz_here(*command).stderr
    assert f"backward pass 4 begins; {unrecorded}" in gradviz_here("step", "--commands", "next-backward; " * 4).stdout
    gradviz_here("trace", "--passes", "2", "-o", "b.gradviz", path, "--secret")
    said = gradviz_here("graph", "b.gradviz", "--pass", "4", "-o", "a.svg").stderr
    assert f"gradviz trace --passes 4 {path} ARGUMENTS records it" in said
    gradviz_here(*unrecorded.removesuffix(" records it").split()[-4:])
    assert "pass 4 of 5, 1 leaf" in gradviz_here("graph", "--pass", "4", "-o", "a.svg").stdout
    assert "1-3,100" in gradviz_here("trace", "--passes", "x", path).stderr


@pytest.mark.slow
def test_warnings_and_tracebacks_name_no_frame_of_gradviz(gradviz: Run, tmp_path: Path) -> None:
    path = script(tmp_path, DIFFERENTIATES + "\ny = x * 2\ny.grad\ny.backward()\ny.backward()\ny.sum(5)")
    done = gradviz("trace", path)
    before = done.stderr.split("gradviz: recorded")[0]
    assert "script.py:7: UserWarning" in before
    assert os.path.join("gradviz", "engine") not in before


def test_doctor_says_which_engine_draws(gradviz: Run) -> None:
    done = gradviz("doctor")
    assert done.returncode == 0
    assert "in use" in done.stdout
    alone = gradviz("doctor", env={"PATH": ""})
    assert "layout: embedded" in alone.stdout


@pytest.mark.slow
def test_doctor_names_another_distribution_that_owns_our_files(gradviz: Run, tmp_path: Path) -> None:
    other = tmp_path / "site" / "gradviz-0.1.2.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: gradviz\nVersion: 0.1.2\n")
    (other / "top_level.txt").write_text("gradviz\n")
    (other / "INSTALLER").write_text("pip\n")
    done = gradviz("doctor", env={"PYTHONPATH": str(other.parent), "COLUMNS": "300"})
    assert done.returncode == 1
    assert "gradviz 0.1.2, another project, owns files of gradviz/, too: pip uninstall gradviz" in done.stdout


@pytest.mark.slow
def test_doctor_shows_rows_where_they_were_chosen(gradviz: Run) -> None:
    done = gradviz("doctor", env={"GRADVIZ_LAYOUT": "rows"})
    assert done.returncode == 0
    assert "rows, without Graphviz" in done.stdout


def test_gradviz_alone_says_in_ten_lines_what_to_type_first(gradviz_here: Run) -> None:
    done = gradviz_here()
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) <= 10
    for command in ("trace", "graph", "step", "check"):
        assert f"gradviz {command}" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("status", [0, 3])
def test_a_picture_that_fails_is_one_line_and_the_status_is_the_scripts(
    status: int, gradviz: Run, tmp_path: Path
) -> None:
    (tmp_path / "pictures").mkdir()
    ending = f"import os, sys\nos.rmdir('pictures')\nsys.exit({status})\n"
    path = script(tmp_path, DIFFERENTIATES + "\n" + ending)
    done = gradviz("trace", "--graph", "pictures/net.svg", path)
    assert done.returncode == status
    assert done.stderr.splitlines()[-1] == "gradviz: cannot write pictures/net.svg: there is no directory pictures"


@pytest.mark.slow
def test_a_picture_that_fails_unforeseen_is_one_line_and_the_status_is_the_scripts(
    gradviz: Run, tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys\nsys.modules['gradviz.cli.drawing'] = None\n")
    env = {"PYTHONPATH": str(tmp_path / "site"), "GRADVIZ_DEBUG": ""}
    done = gradviz("trace", "--graph", "net.svg", script(tmp_path, DIFFERENTIATES), env=env)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "gradviz.cli.drawing" in done.stderr.splitlines()[-1]


def test_help_shows_the_first_minute(gradviz_here: Run) -> None:
    told = gradviz_here("--help").stdout
    for command in ("trace", "info", "graph", "step", "doctor"):
        assert command in told
        assert gradviz_here(command, "--help").returncode == 0
    assert gradviz_here("--version").stdout.startswith("gradviz ")


# --- the script is not changed, and nothing of the user's is lost


@pytest.mark.slow
def test_a_script_that_changes_the_directory_keeps_its_status_and_its_trace(tmp_path: Path, gradviz: Run) -> None:
    (tmp_path / "away").mkdir()
    (tmp_path / "moves.py").write_text(
        "import os, sys, torch\nos.chdir('away')\ntorch.ones(2, requires_grad=True).sum().backward()\n"
        "print(os.path.exists(__file__))\nsys.exit(3)\n"
    )
    done = gradviz("trace", "--engine", "numpy", "moves.py", "--graph", "moves.svg")
    assert (done.returncode, done.stdout) == (3, "True\n")
    assert "recorded 1 operation" in done.stderr
    assert (tmp_path / "moves.gradviz").exists()
    assert (tmp_path / "moves.svg").exists()


@pytest.mark.parametrize("options", [[], ["--watch"]])
def test_the_script_sees_no_thread_but_its_own(tmp_path: Path, gradviz: Run, options: list[str]) -> None:
    (tmp_path / "waits.py").write_text(
        "import threading\nfor thread in threading.enumerate():\n"
        "    if thread is not threading.main_thread():\n        thread.join()\nprint(threading.active_count())\n"
    )
    assert gradviz("trace", *options, "waits.py").stdout == "1\n"


@pytest.mark.slow
@pytest.mark.parametrize("content", ["print('mine')\n", "SQLite format 3\0" + "x" * 200])
def test_a_file_that_is_no_trace_is_not_overwritten(tmp_path: Path, gradviz: Run, content: str) -> None:
    (tmp_path / "mine.py").write_text(content)
    (tmp_path / "script.py").write_text("print(1)\n")
    done = gradviz("trace", "-o", "mine.py", "script.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "gradviz: mine.py is not a gradviz trace, and is not overwritten: choose another name for the trace\n"
    )
    assert (tmp_path / "mine.py").read_text() == content


def test_a_device_is_not_replaced(tmp_path: Path, gradviz: Run) -> None:
    (tmp_path / "script.py").write_text("print(1)\n")
    done = gradviz("trace", "-o", "/dev/null", "script.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not a regular file" in done.stderr


@pytest.mark.slow
def test_an_empty_file_and_an_earlier_trace_are_replaced(tmp_path: Path, gradviz: Run) -> None:
    (tmp_path / "script.py").write_text("print(1)\n")
    (tmp_path / "out.gradviz").touch()
    for _ in range(2):
        assert gradviz("trace", "-o", "out.gradviz", "script.py").returncode == 0


def test_a_gradient_that_was_cleared_is_no_missing_one(gradviz_here: Run, tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import gradviz.engine as torch
        net = torch.nn.Linear(2, 1)
        forgotten = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(3):
            net(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
    )
    told = gradviz_here("trace", path).stderr
    assert "2 with a gradient that was cleared: net.weight, net.bias" in told
    assert "1 without a gradient: forgotten" in told


def test_info_cuts_no_name_where_nobody_looks_at_a_terminal(gradviz_here: Run, tmp_path: Path) -> None:
    name = "a_" + "very_" * 20 + "long_name"
    path = script(
        tmp_path,
        f"""
        import gradviz.engine as torch
        {name} = torch.ones(2, requires_grad=True)
        {name}.sum().backward()
        """,
    )
    gradviz_here("trace", path)
    assert name in gradviz_here("info", "script.gradviz").stdout


def test_a_quiet_recording_prints_what_the_script_prints(gradviz_here: Run, tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import gradviz.engine as torch
        x = torch.tensor(2.0, requires_grad=True)
        (x * x).backward()
        print(x.grad)
        """,
    )
    done = gradviz_here("trace", "-q", path)
    assert (done.stdout, done.stderr) == ("tensor(4.)\n", "")
    assert (tmp_path / "script.gradviz").exists()


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(
    ("before", "is_frozen"),
    [
        ("", True),
        ("import json, decimal, logging\nkept = [decimal.Decimal(2)]\n", True),
        ("kept = [[] for _ in range(150_000)]\n", False),
        ("class Own: pass\nkept = Own()\n", False),
        ("class Kind(type):\n    __eq__ = None\nclass Own(metaclass=Kind): pass\nkept = Own()\n", False),
    ],
)
def test_what_pytorch_loads_is_not_looked_through_for_garbage(
    gradviz: Run, tmp_path: Path, before: str, is_frozen: bool
) -> None:
    pytest.importorskip("torch")
    script(
        tmp_path, f"import gc\n{before}own = gc.get_freeze_count()\nimport torch\nprint(gc.get_freeze_count() - own)"
    )
    done = gradviz("trace", "--engine", "torch", "script.py", python=sys.executable)
    assert (int(done.stdout) > 100_000) is is_frozen


@pytest.mark.slow
@pytest.mark.torch
def test_what_a_script_made_before_it_imports_pytorch_is_found_to_be_garbage(gradviz: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    lines = ["import gc", "class Own:", "    def __del__(self): print('gone')", "own = Own()", "own.own = own"]
    lines += ["import torch", "print(sum(type(o) is Own for o in gc.get_objects()))", "del own", "gc.collect()"]
    script(tmp_path, "\n".join([*lines, "print('end')"]))
    assert gradviz("trace", "-q", "--engine", "torch", "script.py").stdout == "1\ngone\nend\n"
