"""Other systems: every command without Unix, and without `/proc`. `without_unix.py` stands in for these systems."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import gradviz
from gradviz.cli.main import COMMANDS as COMMAND_NAMES
from tests.conftest import NEEDS_UNIX, terminal_env, why_unix
from tests.system.elsewhere import COMMANDS, LESSON, Ended, python_in, run_in
from tests.system.without_unix import HIDDEN_MODULES, HIDDEN_NAMES, PLATFORMS, environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is made for Linux")

PACKAGE = Path(gradviz.__file__).parent
EXAMPLES = PACKAGE.parent / "examples"
SYSTEMS = [*PLATFORMS]

# --- one place


ONLY_HERE = PACKAGE / "system"
MODULES = {*HIDDEN_MODULES["windows"], "msvcrt", "winreg", "_winapi"}
NAMES = {
    *(f"{module}.{name}" for module, names in HIDDEN_NAMES["windows"].items() for name in names),
    "sys.platform", "os.name", "os.uname",
}  # fmt: skip
PLACES = re.compile(r"/proc\b|/dev/(?!null)|CONOUT\$|CONIN\$")
_OF_IMPORTS = "|".join({*MODULES, *(name.partition(".")[0] + " import" for name in NAMES)})
IMPORTED = re.compile(rf"^ *(?:import|from) .*\b(?:{_OF_IMPORTS})\b", re.MULTILINE)


def is_suspect(text: str) -> bool:
    """Whether a file may name one of them: most do not, and are not parsed."""
    return any(name in text for name in NAMES) or bool(IMPORTED.search(text) or PLACES.search(text))


def names_of_systems(tree: ast.AST) -> Iterator[str]:
    """The modules, names and places in a file that not every system has."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").partition(".")[0] in MODULES:
                yield node.module or ""
            yield from (name for one in node.names if (name := f"{node.module}.{one.name}") in NAMES)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (name := f"{node.value.id}.{node.attr}") in NAMES:
                yield name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and PLACES.match(node.value):
            yield node.value


def test_names_of_systems_are_found() -> None:
    text = "import fcntl\nfrom os import fork\nimport os\nos.geteuid()\nopen('/dev/tty')\nimport pathlib"
    assert [*names_of_systems(ast.parse(text))] == ["fcntl", "os.fork", "os.geteuid", "/dev/tty"]
    assert [is_suspect(line) for line in text.splitlines()] == [True, True, False, True, True, False]


@pytest.mark.slow
def test_what_differs_by_system_stands_in_one_place() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), name)
        for path in PACKAGE.rglob("*.py")
        if ONLY_HERE not in path.parents and is_suspect(text := path.read_text(encoding="utf-8"))
        for name in names_of_systems(ast.parse(text))
    }
    assert found == set()


@pytest.mark.slow
@pytest.mark.parametrize("platform", [*PLATFORMS.values()])
def test_types_are_right_on_other_systems(platform: str) -> None:
    pytest.importorskip("mypy", reason="pip install -e .[lint]")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--platform", platform, "-p", "gradviz.system", "--follow-imports=skip"],
        cwd=PACKAGE.parent, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout


# --- the tests themselves


TESTS = Path(__file__).parents[1]


def test_each_test_that_needs_unix_is_there() -> None:
    for place in NEEDS_UNIX:
        file, _, part = place.partition("::")
        tests = re.findall(r"def (\w+)\(", next(TESTS.rglob(f"{file}.py")).read_text(encoding="utf-8"))
        assert any(part in test for test in tests), place


def test_a_test_that_needs_unix_has_a_reason() -> None:
    assert why_unix("test_record", "test_a_forked_child_leaves_the_file_alone") == "Windows has no fork"
    assert why_unix("test_record", "test_a_tensor_is_recorded") is None
    assert why_unix("test_odd_scripts", "test_a_program_does_what_it_does_under_python[interrupted]")


@pytest.mark.slow
def test_no_file_of_tests_needs_unix_to_be_imported() -> None:
    imported = {
        path.name: {*names_of_systems(ast.Module([node], []))}
        for path in TESTS.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, (ast.Import, ast.ImportFrom)) and [*names_of_systems(ast.Module([node], []))]
    }
    assert imported.keys() == {"without_unix.py", "trial.py"}  # the latter is imported by test_fuzz if it can be


# --- every command


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What the environment of a process has for each system, and `linux` for none."""
    folders = {system: tmp_path_factory.mktemp(system) for system in SYSTEMS}
    return {"linux": {}} | {system: environment(system, folder) for system, folder in folders.items()}


@pytest.fixture(scope="session")
def ended_on(
    stand_ins: dict[str, dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Ended]:
    """How a command ends on a system."""
    kept = tmp_path_factory.mktemp("kept")
    (kept / "lesson.py").write_text(LESSON, encoding="utf-8")
    (kept / "failing.py").write_text(LESSON + "loss.backward()\nprint(1 / 0)\n", encoding="utf-8")
    run_in(kept, {}, "trace", "-o", "run.gradviz", "lesson.py")

    @cache
    def ended_on(system: str, command: str) -> Ended:
        here = tmp_path_factory.mktemp("here")
        for name in ("lesson.py", "failing.py", "run.gradviz"):
            (here / name).write_bytes((kept / name).read_bytes())
        return run_in(here, stand_ins[system], *COMMANDS[command])

    return ended_on


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_command_says_the_same_on_another_system(
    ended_on: Callable[[str, str], Ended], system: str, command: str
) -> None:
    ended, on_linux = ended_on(system, command), ended_on("linux", command)
    if command == "trace-watch":  # which tells a finding as soon as it looks, before the summary or after
        assert sorted(ended.err.splitlines()) == sorted(on_linux.err.splitlines())
        ended, on_linux = (one._replace(err="") for one in (ended, on_linux))
    assert ended == on_linux


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(
    ("system", "script"),
    # What depends on the system depends on no op: a network, calls back into Python, and a run with findings.
    [("windows", "mlp"), ("windows", "custom_function"), ("windows", "cut_off"), ("macos", "mlp")],
)
def test_examples_with_pytorch_are_recorded_on_another_system(
    stand_ins: dict[str, dict[str, str]], tmp_path: Path, system: str, script: str
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    runs = []
    for name in ("linux", system):
        here = tmp_path / name
        here.mkdir()
        runs.append(run_in(here, stand_ins[name], "trace", str(EXAMPLES / f"torch/{script}.py"), torch=True))
        assert runs[-1].status == 0, runs[-1].err
    assert runs[0] == runs[1]


IN_PYTHON = """
import gradviz, gradviz.engine as torch
for _ in range(2):
    with gradviz.record("block.gradviz"):
        x = torch.tensor(2.0, requires_grad=True)
        y = (x ** 3).log()
        y.backward()
    gradviz.draw(y).save("block.svg")
free = torch.tensor(3.0, requires_grad=True).exp()
gradviz.draw(free, gradients=True).save("free.svg")
print(gradviz.check("block.gradviz").findings, len(gradviz.draw(free).html()) > 1000)
with gradviz.open("block.gradviz") as trace:
    print(trace.count, trace.is_being_recorded)
"""


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_record_draw_check_and_open_do_the_same_on_another_system(
    stand_ins: dict[str, dict[str, str]], tmp_path: Path, system: str
) -> None:
    runs = []
    for name in ("linux", system):
        here = tmp_path / name
        here.mkdir()
        (here / "block.py").write_text(IN_PYTHON, encoding="utf-8")
        runs.append(python_in(here, stand_ins[name], "block.py"))
        assert runs[-1].status == 0, runs[-1].err
    assert runs[0] == runs[1]


# --- files that are open


TWICE = """
import gradviz, gradviz.engine as torch
with gradviz.record("run.gradviz"):
    torch.tensor(2.0, requires_grad=True).exp().backward()
    try:
        with gradviz.record("run.gradviz"):
            pass
    except OSError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("system", ["linux", *SYSTEMS])
def test_a_file_that_is_being_recorded_is_known_by_its_lock(
    stand_ins: dict[str, dict[str, str]], tmp_path: Path, system: str
) -> None:
    (tmp_path / "twice.py").write_text(TWICE, encoding="utf-8")
    ended = python_in(tmp_path, stand_ins[system], "twice.py")
    assert "run.gradviz is being recorded by another run" in ended.out
    assert ended.status == 0, ended.err


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_trace_that_others_record_is_called_so_on_another_system(
    stand_ins: dict[str, dict[str, str]], tmp_path: Path, system: str
) -> None:
    program = (
        "import subprocess, sys, gradviz.engine as torch\n"
        "torch.tensor(2.0, requires_grad=True).exp().backward()\n"
        "info = [sys.executable, '-m', 'gradviz', 'info', 'run.gradviz']\n"
        "print(subprocess.run(info, capture_output=True, text=True).stdout)\n"
    )
    (tmp_path / "run.py").write_text(program, encoding="utf-8")
    said = run_in(tmp_path, stand_ins[system], "trace", "run.py").out
    assert "not yet: it is being" in said


@pytest.mark.slow
def test_the_copy_of_a_trace_that_was_cut_off_is_gone_afterwards(
    stand_ins: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    from tests.damage.subjects import make

    make("half", tmp_path / "half.gradviz")
    assert Path(f"{tmp_path}/half.gradviz-journal").exists()
    ended = run_in(tmp_path, stand_ins["windows"], "info", "half.gradviz")  # which looks for temporary files
    assert ended.status == 0, ended.err


def test_the_stand_in_keeps_open_files(stand_ins: dict[str, dict[str, str]], tmp_path: Path) -> None:
    program = (
        "import os, sqlite3\n"
        "held = open('a', 'w'); base = sqlite3.connect('b'); base.execute('create table t(x)')\n"
        "open('c', 'w').close()\n"
        "for change in (lambda: os.unlink('a'), lambda: os.replace('c', 'b'), lambda: os.rename('a', 'd')):\n"
        "    try: change()\n"
        "    except PermissionError as error: print(error.strerror)\n"
        "held.close(); base.close(); os.replace('c', 'b'); os.unlink('a'); print(os.listdir())\n"
    )
    (tmp_path / "hold.py").write_text(program, encoding="utf-8")
    *refused, left = python_in(tmp_path, stand_ins["windows"], "hold.py").out.splitlines()
    assert refused == ["it is being used by another process"] * 3
    assert sorted(ast.literal_eval(left)) == ["b", "hold.py", "tmp"]


# --- processes


SPAWNING = """
import multiprocessing
import gradviz.engine as torch

def square(x):
    t = torch.tensor(float(x), requires_grad=True)
    (t ** 2).backward()
    return t.grad.item()

if __name__ == "__main__":
    print(multiprocessing.get_start_method())
    with multiprocessing.Pool(2) as pool:
        print(pool.map(square, [1, 2, 3]))
    torch.tensor(5.0, requires_grad=True).exp().backward()
"""


@pytest.mark.slow
@pytest.mark.parametrize("verb", [["trace"], ["debug", "--run", "--commands", "continue"]], ids=lambda verb: verb[0])
def test_processes_that_are_spawned_run_the_script_unrecorded(
    stand_ins: dict[str, dict[str, str]], tmp_path: Path, verb: list[str]
) -> None:
    (tmp_path / "spawning.py").write_text(SPAWNING, encoding="utf-8")
    ended = run_in(tmp_path, stand_ins["windows"], *verb, "spawning.py")
    assert ended.status == 0, ended.err
    assert ended.out == "spawn\n[2.0, 4.0, 6.0]\n"
    assert ended.err.count("gradviz: recorded 1 operation, 1 backward pass") == 1


@pytest.mark.parametrize(("system", "status"), [("linux", 130), ("macos", 130), ("windows", 0xC000013A - 2**32)])
def test_ctrl_c_ends_a_program_with_the_systems_status(
    stand_ins: dict[str, dict[str, str]], tmp_path: Path, system: str, status: int
) -> None:
    code = "from gradviz.sources.ending import exit_status; print(exit_status(KeyboardInterrupt()))"
    assert python_in(tmp_path, stand_ins[system], "-c", code).out == f"{status}\n"


@pytest.mark.slow
@pytest.mark.parametrize("system", ["linux", *SYSTEMS])
def test_a_thread_that_ends_the_script_wakes_the_main_thread(
    stand_ins: dict[str, dict[str, str]], tmp_path: Path, system: str
) -> None:
    program = (
        "import threading, time, gradviz.engine as torch\n"
        "def work():\n"
        "    torch.tensor(2.0, requires_grad=True).exp().backward()\n"
        "threading.Thread(target=work).start()\n"
        "time.sleep(60)\n"
        "print('not reached')\n"
    )
    (tmp_path / "waiting.py").write_text(program, encoding="utf-8")
    ended = run_in(tmp_path, stand_ins[system], "debug", "--commands", "next; quit", "waiting.py")
    assert "not reached" not in ended.out
    assert "recorded" in ended.err


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_stepper_reads_keys_on_another_system(
    stand_ins: dict[str, dict[str, str]], tmp_path: Path, system: str
) -> None:
    pexpect = pytest.importorskip("pexpect", reason="pexpect is not installed")
    (tmp_path / "lesson.py").write_text(LESSON, encoding="utf-8")
    run_in(tmp_path, {}, "trace", "lesson.py")
    child = pexpect.spawn(
        sys.executable, ["-m", "gradviz", "step", "lesson.gradviz"], cwd=str(tmp_path), timeout=120,
        env={**terminal_env(), **stand_ins[system]}, dimensions=(30, 120),
    )  # fmt: skip
    for screen, key in (("event 1 ", "n"), ("event 2 ", "q")):
        child.expect(screen)
        assert child.waitnoecho()  # what comes before `click.getchar` reads is lost in this stand-in
        child.send(key)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_debugger_reads_keys_on_another_system(
    stand_ins: dict[str, dict[str, str]], tmp_path: Path, system: str
) -> None:
    pexpect = pytest.importorskip("pexpect", reason="pexpect is not installed")
    (tmp_path / "lesson.py").write_text(LESSON, encoding="utf-8")
    child = pexpect.spawn(
        sys.executable, ["-m", "gradviz", "debug", "--break", "log", "lesson.py"], cwd=str(tmp_path), timeout=120,
        env={**terminal_env(), **stand_ins[system]}, dimensions=(30, 120),
    )  # fmt: skip
    child.expect("breakpoint 1: log")
    assert child.waitnoecho()
    child.send("q")
    child.expect("gradviz: recorded")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


# --- the workflow that runs on these systems


WORKFLOW = PACKAGE.parent / ".github/workflows/systems.yml"


def test_the_workflow_runs_commands_that_there_are() -> None:
    text = WORKFLOW.read_text(encoding="utf-8")
    for system in ("ubuntu", "macos", "windows"):
        assert f"{system}-latest" in text
    assert {*re.findall(r"gradviz ([a-z]+) ", text)} <= COMMAND_NAMES.keys()
    for file in re.findall(r"examples/[\w/]+\.py", text):
        assert (PACKAGE.parent / file).exists(), file
    versions = re.findall(r"Python :: (3\.\d+)", (PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    assert re.search(r"python: \[(.*)\]", text)[1] == ", ".join(f'"{version}"' for version in versions)


def test_the_workflow_is_valid() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    jobs = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    for job in jobs.values():
        assert all("uses" in step or "run" in step for step in job["steps"])
        assert job["runs-on"] == "${{ matrix.system }}"
