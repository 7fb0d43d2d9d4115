"""What the tests share."""

from __future__ import annotations

import atexit
import gc
import linecache
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import tests.zoo_programs  # noqa: F401  before the workers are started: they share its folder of recordings
from gradviz.cli.main import main
from tests.warm import python

os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="gradviz-data-")  # scores of lessons
atexit.register(shutil.rmtree, os.environ["XDG_DATA_HOME"], ignore_errors=True)
os.environ.setdefault("GRADVIZ_DEBUG", "1")  # an error that nobody foresaw is seen, not told in one line

# How long an example takes depends on what else the machine does; that is for benchmarks to say.
settings.register_profile("everything", deadline=None)
settings.register_profile("default", deadline=None, max_examples=8)

# What takes longest comes first, so that no worker is left alone with it at the end.
LONGEST = (
    "test_check_zoo", "test_page", "test_part", "test_docs", "test_odd_scripts", "test_fuzz", "test_rank_launches",
    "test_torch_ranks", "test_try_cures", "test_torch_database", "test_opinfo", "test_redact", "test_torch_failing",
    "test_systems", "test_other_values", "test_inject", "test_typed", "test_fix", "test_draw_gradients",
    "test_consoles", "test_trace", "test_values_of_their_time", "test_ladder", "test_differential",
    "test_step_terminal", "test_notebook", "test_damaged_replays", "test_rank_rules", "test_replay_shares",
    "test_learn", "test_singular", "test_many_ranks", "test_watch", "test_patched_interpreter", "test_torch_source",
    "test_torch_unchanged", "test_agent_tasks", "test_torch_wrapped", "test_ring", "test_record",
)  # fmt: skip


# What Windows cannot run, and why: files, and tests in them.
NEEDS_UNIX = {
    "test_odd_scripts": "its programs are started by sh, and use signals and forks",
    "test_debug_terminal": "it needs a terminal of Unix",
    "test_step_terminal": "it needs a terminal of Unix",
    "test_progress": "it needs a terminal of Unix",
    "test_systems": "it lets Linux stand in for other systems",
    "test_debug::the_page_shows": "it makes symbolic links",
    "test_docs": "it makes symbolic links, and runs commands by a shell of Unix",
    "test_failed_recordings::full_disk": "it limits the size of files as Unix does",
    "test_failed_recordings::fork": "Windows has no fork",
    "test_failed_recordings::children": "Windows has no fork",
    "test_record::forked_child": "Windows has no fork",
    "test_record::killed_run": "it kills by a signal",
    "test_part::was_killed": "it kills by a signal",
    "test_reading_changes_nothing::commit": "it kills by a signal",
    "test_reading_changes_nothing::pipe": "Windows has no named pipes among its files",
    "test_trace::device": "Windows has no devices among its files",
}


def why_unix(file: str, test: str) -> str | None:
    """Why a test needs Unix; None if it does not."""
    for place, reason in NEEDS_UNIX.items():
        known_file, _, part = place.partition("::")
        if file == known_file and part in test:
            return reason
    return None


CASES = 2  # of a test with many parameters, in the default suite


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--everything", action="store_true", help="run the slow tests, too, and all cases of each test")


def named_files(config: pytest.Config) -> set[Path]:
    """The files that the command line names. All tests in them run, and in this process."""
    paths = (config.invocation_params.dir / argument.partition("::")[0] for argument in config.args)
    return {path.resolve() for path in paths if path.is_file()}


def pytest_configure(config: pytest.Config) -> None:
    # Of PyTorch and all tests a million objects stay: to look through them as often as Python does takes 8 % of all.
    gc.set_threshold(700, 10, 50)
    settings.load_profile("everything" if config.getoption("everything") or named_files(config) else "default")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files in which all tests are slow, before they are imported."""
    if config.getoption("everything") or collection_path.suffix != ".py" or collection_path in named_files(config):
        return None
    text = collection_path.read_text(encoding="utf-8")
    is_slow = re.search(r"^pytestmark = .*pytest\.mark\.slow", text, re.MULTILINE)
    return True if is_slow and "pytest.mark.default" not in text else None


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Share a run of whole folders among up to four workers: if pytest-xdist is there, and `-n` is not given."""
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    if not is_worker and getattr(config.option, "numprocesses", 0) is None and not named_files(config):
        config.option.numprocesses = "auto"
        config.option.maxprocesses = config.option.maxprocesses or 4
        config.option.dist = "worksteal" if config.option.dist == "no" else config.option.dist


def in_default_suite(items: list[pytest.Item]) -> set[pytest.Item]:
    """The tests that run without `--everything`. Of the cases of one test: those that are marked `default`, or else
    some of those that are not slow, spread over all."""
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    chosen: set[pytest.Item] = set()
    for cases in tests.values():
        marked = [case for case in cases if case.get_closest_marker("default")]
        quick = [case for case in cases if not case.get_closest_marker("slow")]
        count = min(CASES, len(quick))
        spread = [quick[number * (len(quick) - 1) // max(count - 1, 1)] for number in range(count)]
        chosen.update(marked or spread)
    return chosen


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the tests, put those of the longest files first, and skip what this system cannot run."""
    if not config.getoption("everything"):
        files = named_files(config)
        chosen = in_default_suite([item for item in items if item.path not in files])
        left_out = [item for item in items if item.path not in files and item not in chosen]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.path in files or item in chosen]
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))
    if sys.platform == "win32":
        for item in items:
            reason = why_unix(item.path.stem, item.name)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=f"needs Unix: {reason}"))


# What a test may need beside `pip install -e ".[test]"`: how reasons to skip call it, whether it is there, and the
# command that brings it.
NEEDED = (
    (r"transformers|accelerate|lightning|gymnasium", find_spec("gymnasium"), 'pip install -e ".[programs]"'),
    (r"tensorboard|wandb|mlflow|sqlalchemy|alembic|pyarrow", None, 'pip install -e ".[export]"'),
    (r"\bmcp\b", None, 'pip install -e ".[mcp]"'),
    (r"[Tt]orch", find_spec("torch"), "pip install torch==2.13.0"),
    (r"grimp|mypy|basedpyright|lint", find_spec("grimp"), 'pip install -e ".[lint]"'),
    (r"\bdot\b", shutil.which("dot", path=os.environ.get("GRADVIZ_TESTS_PATH")), "apt-get install graphviz"),
    (r"[Cc]hromium", shutil.which("chromium") or shutil.which("google-chrome"), "apt-get install chromium"),
    (r"is not installed|could not import", None, 'pip install -e ".[test]"'),
)


def with_command(reason: str) -> str:
    """A reason to skip a test, with the command that brings what is not there."""
    for pattern, is_there, command in NEEDED:
        if not is_there and re.search(pattern, reason) and command not in reason:
            return f"{reason}: {command}"
    return reason


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[Any]:
    return _with_command((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[Any]:
    return _with_command((yield))


def _with_command(report: Any) -> Any:
    if report.skipped and isinstance(report.longrepr, tuple):
        path, line, reason = report.longrepr
        report.longrepr = (path, line, with_command(reason))
    return report


PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


def terminal_env(**more: str) -> dict[str, str]:
    """The environment of a program in a terminal of its own. What ours says of a size (pytest's workers have been given
    one) is not the size of that terminal."""
    ours = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    return {**ours, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **more}


def _without_dot(path: str) -> str:
    """PATH, with links to all programs but `dot` for each folder that has one: tests draw as a machine without it."""
    folders = path.split(os.pathsep)
    for number, folder in enumerate(folders):
        if shutil.which("dot", path=folder):
            links = Path(tempfile.mkdtemp(prefix="without-dot-"))
            atexit.register(shutil.rmtree, links, ignore_errors=True)
            for program in Path(folder).iterdir():
                if program.stem != "dot":
                    (links / program.name).symlink_to(program)
            folders[number] = str(links)
    return os.pathsep.join(folders)


# The workers of pytest-xdist begin with the PATH that the first process has changed.
_PATH = os.environ.setdefault("GRADVIZ_TESTS_PATH", os.environ["PATH"])
PATH_WITH_DOT = _PATH if shutil.which("dot", path=_PATH) else None
os.environ["PATH"] = _without_dot(os.environ["PATH"])  # in a worker it has no `dot` by now


@pytest.fixture
def system_dot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's `dot` is on PATH."""
    if PATH_WITH_DOT is None:
        pytest.skip("there is no `dot` on PATH")
    monkeypatch.setenv("PATH", PATH_WITH_DOT)


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """Opens tabs, and takes back those that a test closes: a tab of its own takes 0.8 s of the processor more than one
    that is there. Each begins empty, with nothing that listens to it, and with the settings that it is asked for."""

    def __init__(self, running: Any) -> None:
        self.new_context = running.new_context
        self._running = running
        self._closed: dict[str, list[Any]] = defaultdict(list)

    def new_page(self, **settings: Any) -> Any:
        closed = self._closed[repr(sorted(settings.items()))]
        return closed.pop() if closed else self._first(closed, settings)

    def _first(self, closed: list[Any], settings: dict[str, Any]) -> Any:
        tab = self._running.new_page(**settings)
        size, on = tab.viewport_size, tab.on
        listeners: list[tuple[str, Any]] = []

        def listen(event: str, listener: Any) -> None:
            listeners.append((event, listener))
            on(event, listener)

        def close() -> None:
            while listeners:
                tab.remove_listener(*listeners.pop())
            tab.mouse.move(0, 0)
            tab.goto("about:blank")
            tab.set_viewport_size(size)
            tab.emulate_media(media="null", color_scheme="null")
            if "color_scheme" in settings:
                tab.emulate_media(color_scheme=settings["color_scheme"])
            closed.append(tab)

        tab.on, tab.close = listen, close
        return tab


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The browser of all tests of a process: there may be only one of Playwright's loops."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on PATH")
    with playwright.sync_playwright() as started:
        arguments = ["--no-sandbox"] if getattr(os, "geteuid", int)() == 0 and sys.platform != "win32" else []
        running = started.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield Browser(running)
        running.close()


READING = ("info", "graph", "step", "why", "diff", "report", "redact", "runs")  # commands that need no PyTorch


@pytest.fixture
def gradviz(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command `gradviz` in a fresh directory."""

    def run(*arguments: object, **settings: object) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", **settings.pop("env", {})}
        started = python(torch=arguments[0] not in READING and "numpy" not in arguments)
        return subprocess.run(
            [settings.pop("python", started), "-m", "gradviz", *map(str, arguments)],
            cwd=settings.pop("cwd", tmp_path),
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            **{"stdin": subprocess.DEVNULL, **settings} if "input" not in settings else settings,
        )

    return run


@pytest.fixture
def gradviz_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Calls the command `gradviz` in a fresh directory, in this process: for what needs no process of its own."""

    def run(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(tmp_path)
        for name, value in {"COLUMNS": "100", "NO_COLOR": "1", **(env or {})}.items():
            monkeypatch.setenv(name, value)
        # It would end us rather than wait for threads, and those of pytest are no script's.
        monkeypatch.setattr("gradviz.cli.debug._others_run", lambda: False)
        linecache.clearcache()  # of another script of the same name
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*map(str, arguments)], prog_name="gradviz")
        said = capsys.readouterr()
        return subprocess.CompletedProcess([*arguments], int(ended.value.code or 0), said.out, said.err)

    return run
