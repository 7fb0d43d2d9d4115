"""The pytest plugin: a test fails if the gradients that it computes have findings.

`pytest --gradviz` checks every test, the fixture `gradviz_check` those that ask for it. What is not needed for that is
not loaded."""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.python import pytest_pyfunc_call

if TYPE_CHECKING:
    from gradviz.diagnose import Finding

_FIXTURE = "gradviz_check"


class GradvizCheck:
    """What a test says about its own check. `ignore` leaves rules out, `fail_on` says which findings fail the test:
    `error`, or `warning` for both."""

    def __init__(self, fail_on: str) -> None:
        self.ignored: set[str] = set()
        self.fail_on = fail_on

    def ignore(self, *rules: str) -> None:
        """Leave these rules out."""
        self.ignored.update(rules)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--gradviz` and `--gradviz-fail-on`."""
    group = parser.getgroup("gradviz", "gradients")
    group.addoption("--gradviz", action="store_true", help="Fail a test whose gradients have findings.")
    group.addoption(
        "--gradviz-fail-on",
        choices=("error", "warning"),
        help="Which findings fail a test [default: warning, so both].",
    )


@pytest.fixture
def gradviz_check(request: pytest.FixtureRequest) -> GradvizCheck:
    """Checks the gradients that this test computes: it fails if there are findings."""
    return GradvizCheck(_fail_on(request.config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Record the test, and check what it recorded."""
    wanted = item.config.getoption("--gradviz") or _FIXTURE in getattr(item, "fixturenames", ())
    if not wanted:
        return (yield)
    from gradviz.sources import pytorch
    from gradviz.sources.record import record
    from gradviz.tracefile import Sites

    cache = getattr(item.config, "cache", None)
    folder = cache.mkdir("gradviz") if cache is not None else Path(tempfile.mkdtemp(prefix="gradviz-"))
    name = re.sub(r"[^\w.-]+", "_", item.nodeid)[-100:]
    path = Path(folder) / f"{name}.gradviz"
    path.unlink(missing_ok=True)  # a test that records nothing has no trace of an earlier run
    sites = Sites([pytest_pyfunc_call.__code__], pytorch.own_directories())
    try:
        with record(path, sites=sites, meta={"script": item.nodeid}):
            result = yield
    except (Exception, pytest.fail.Exception):
        faults, text = _checked(item, path)
        if faults:
            item.add_report_section("call", "gradviz", text)
        raise
    faults, text = _checked(item, path)
    if faults:
        pytest.fail(text, pytrace=False)
    path.unlink(missing_ok=True)
    return result


def _fail_on(config: pytest.Config) -> str:
    from gradviz.diagnose.settings_file import settings_at

    return config.getoption("--gradviz-fail-on") or settings_at(config.rootpath).fail_on


def _checked(item: pytest.Item, path: Path) -> tuple[list[Finding], str]:
    """The findings that fail a test, and the report."""
    from rich.console import Console

    from gradviz.diagnose.settings_file import settings_at
    from gradviz.diagnose.text import report_text
    from gradviz.replaying import check
    from gradviz.tracefile import open_trace

    wishes = getattr(item, "funcargs", {}).get(_FIXTURE) or GradvizCheck(_fail_on(item.config))
    with open_trace(path) as trace:
        report = check(trace, ignore=wishes.ignored, settings=settings_at(item.config.rootpath))
        console = Console(file=io.StringIO(), width=100, no_color=True, highlight=False)
        console.print(report_text(report, trace, console))
        assert isinstance(console.file, io.StringIO)
        return report.at_least(wishes.fail_on), console.file.getvalue().rstrip()
